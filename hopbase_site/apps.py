"""The site's wiring as an app: its commands and checks."""

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured


class HopbaseSiteConfig(AppConfig):
    name = "hopbase_site"
    verbose_name = "HopBase"

    def ready(self) -> None:
        from axes.models import AccessAttempt
        from django.contrib.auth.models import Group, User
        from django.db.models.signals import pre_save

        from billing import audit
        from hopbase_site.login_throttle import keep_no_forms

        audit.watch(User, Group)
        pre_save.connect(keep_no_forms, sender=AccessAttempt)
        try:
            _tell_others()
        except ImportError as error:
            raise ImproperlyConfigured(
                f"HOPBASE_SENTRY_DSN or OTEL_EXPORTER_OTLP_ENDPOINT is set, but {error.name} is not installed: install "
                "what requirements.txt names"
            ) from None


def _tell_others() -> None:
    """Errors and traces, where there is a setting for it; else nothing of theirs is imported."""
    if settings.SENTRY_DSN:
        from hopbase_site import error_reports

        error_reports.start(settings.SENTRY_DSN)
    if settings.TRACES_ENDPOINT:
        from hopbase_site.task_traces import TaskTraces
        from streaming import tracing

        tracing.tracer()  # made now: what cannot be imported should stop the start
        TaskTraces(tracing.tracer).connect()
