"""The site: settings, URLs, servers and commands; wiring only."""

from hopbase_site.celery import app as celery_app

__all__ = ["celery_app"]
