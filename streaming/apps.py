"""The streaming app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class StreamingConfig(AppConfig):
    name = "streaming"
    verbose_name = _("Gateway")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from billing.sweep import process_lost
        from streaming.limits.lost import give_back

        process_lost.connect(give_back)
