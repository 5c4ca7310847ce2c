"""Takes a user's second factor off, where no superuser can: the last one has lost the phone."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.audit import acting
from hopbase_site.second_factor import factors


class Command(BaseCommand):
    help = "Take a user's second factor off: the password alone then logs in. The audit log keeps it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username", help="the user's name, as the login asks for it")

    @acting("take_off_second_factor")
    def handle(self, *args: Any, **options: Any) -> None:
        name = options["username"]
        user = User.objects.filter(username=name).first()
        if user is None:
            raise CommandError(f"username: there is no user {name}; the admin's list of users has the names")
        if not factors.take_off(user):
            raise CommandError(f"username: {name} has no second factor: the password alone logs in already")
        self.stdout.write(f"the second factor of {name} is off")
