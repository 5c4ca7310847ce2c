"""The billing app."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate, post_save, pre_migrate
from django.utils.translation import gettext_lazy as _


class BillingConfig(AppConfig):
    name = "billing"
    verbose_name = _("Money")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django.contrib.admin.models import LogEntry

        from billing import audit, immutability
        from billing.models import Account, Adjustment, ApiKey, CountFactor, CreditNote, Price

        pre_migrate.connect(immutability.take_off_for_migrations, sender=self)
        post_migrate.connect(immutability.put_back, sender=self)
        audit.watch(Account, Adjustment, ApiKey, CountFactor, CreditNote, Price)
        post_save.connect(audit.keep_admin_log, sender=LogEntry)
