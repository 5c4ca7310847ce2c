"""Prints a new API key once."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing import keys
from billing.audit import acting
from billing.models import Account


class Command(BaseCommand):
    help = "Make an API key for an account and print its secret, which is not kept and cannot be shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--account", required=True, help="the account's name")
        parser.add_argument("--name", required=True, help="the key's name, once per account")

    @acting("create_api_key")
    def handle(self, *args: Any, **options: Any) -> None:
        account = Account.objects.filter(name=options["account"]).first()
        if account is None:
            raise CommandError(
                f"there is no account named {options['account']!r}: make it in the admin or with"
                " `python manage.py apply FILE`, or check the name"
            )
        try:
            _, secret = keys.create(account, options["name"])
        except ValidationError as error:
            raise CommandError(f"{' '.join(error.messages)} Choose another --name.") from None
        self.stdout.write(secret)
