"""`manage.py make_secrets`: new secrets as lines for `.env`."""

from typing import Any

from django.core.management.base import BaseCommand

from hopbase_site import secrets


class Command(BaseCommand):
    help = "Print new values for SECRET_KEY, HOPBASE_KEY_PEPPER and HOPBASE_ENCRYPTION_KEYS, as lines for .env."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        for name, value in secrets.make().items():
            self.stdout.write(f"{name}={value}")
