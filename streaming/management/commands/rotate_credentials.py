"""Re-encrypts providers' credentials under the newest key."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from billing.audit import acting
from billing.models import one_version
from streaming.credentials import CredentialUnreadable, rotate
from streaming.models import Provider


class Command(BaseCommand):
    help = (
        "Re-encrypt every provider's credential under the first of HOPBASE_ENCRYPTION_KEYS; the other keys can be"
        " taken out of the setting afterwards."
    )

    @acting("rotate_credentials")
    def handle(self, *args: Any, **options: Any) -> None:
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
        self.stdout.write(f"{len(providers) - len(unreadable)} of {len(providers)} credentials re-encrypted")
        if unreadable:
            raise CommandError("\n".join(unreadable))
