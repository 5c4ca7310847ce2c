"""The site's wiring as an app: its commands and checks."""

from django.apps import AppConfig


class HopbaseSiteConfig(AppConfig):
    name = "hopbase_site"
    verbose_name = "HopBase"
