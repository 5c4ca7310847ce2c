"""The site's wiring as an app: its commands and checks."""

from django.apps import AppConfig


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
