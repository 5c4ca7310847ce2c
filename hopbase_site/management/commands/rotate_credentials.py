"""Re-encrypts providers' credentials and second factors' secrets under the newest key."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from billing.audit import acting
from billing.models import one_version
from hopbase_site.second_factor import factors
from streaming.credentials import CredentialUnreadable, rotate
from streaming.models import Provider


class Command(BaseCommand):
    help = (
        "Re-encrypt every provider's credential, and every second factor's secret, under the first of"
        " HOPBASE_ENCRYPTION_KEYS; the other keys can be taken out of the setting afterwards."
    )

    @acting("rotate_credentials")
    def handle(self, *args: Any, **options: Any) -> None:
        done, unreadable = _rotate_credentials()
        self.stdout.write(f"{done} of {done + len(unreadable)} credentials re-encrypted")
        factors_done, factors_unreadable = factors.rotate()
        if count := factors_done + len(factors_unreadable):
            self.stdout.write(f"{factors_done} of {count} second factors re-encrypted")
        if unreadable or factors_unreadable:
            raise CommandError("\n".join([*unreadable, *factors_unreadable]))


def _rotate_credentials() -> tuple[int, list[str]]:
    unreadable = []
    with one_version():  # takes the version's lock first, as every save does: no credential is entered meanwhile
        providers = list(Provider.objects.exclude(credential=""))
        for provider in providers:
            try:
                provider.credential = rotate(provider.credential, settings.ENCRYPTION_KEYS, provider=provider.name)
            except CredentialUnreadable as error:
                unreadable.append(str(error))
            else:
                provider.save(update_fields=["credential"])
    return len(providers) - len(unreadable), unreadable
