"""The streaming app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class StreamingConfig(AppConfig):
    name = "streaming"
    verbose_name = _("Gateway")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from billing import audit, gateway
        from billing.sweep import process_lost
        from streaming.limits.lost import give_back
        from streaming.limits.present import shared_use
        from streaming.models import Model, Provider, Route, model_names, offered

        process_lost.connect(give_back)
        audit.watch(Model, Provider, Route)
        gateway.answer(shared_use, offered, model_names)
