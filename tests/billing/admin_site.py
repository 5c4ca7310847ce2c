"""What the tests of the admin share: a small business, users of each kind, and their clients."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from tests.billing.admin_world import World, make_users, make_world

Login = Callable[[str], Client]


@pytest.fixture
def users(db: None) -> dict[str, User]:
    """One user of each kind; the groups are made anew, for a test that flushes the database takes them away."""
    importlib.import_module("hopbase_site.migrations.0001_groups").make_groups(apps, connection.schema_editor())
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
