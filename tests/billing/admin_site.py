"""What the tests of the admin share: a small business, users of each kind, and their clients."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.db import connection
from django.db.migrations import RunPython
from django.test import Client

from hopbase_site import migrations
from tests.billing.admin_world import World, make_users, make_world

Login = Callable[[str], Client]


def make_groups() -> None:
    """What all of the site's migrations give to the groups."""
    for path in sorted(Path(migrations.__path__[0]).glob("[0-9]*.py")):
        migration = importlib.import_module(f"{migrations.__name__}.{path.stem}").Migration
        for operation in migration.operations:
            if isinstance(operation, RunPython):
                operation.code(apps, connection.schema_editor())


@pytest.fixture
def users(db: None) -> dict[str, User]:
    """One user of each kind; the groups are made anew where a test that flushed the database took them away."""
    if not Group.objects.exists():
        make_groups()
    return make_users()


@pytest.fixture
def login(users: dict[str, User]) -> Login:
    """A client of the named user: root, operator, finance or nobody."""

    def client_of(name: str) -> Client:
        client = Client()
        client.force_login(users[name])
        return client

    return client_of


@pytest.fixture
def world(db: None) -> World:
    return make_world()
