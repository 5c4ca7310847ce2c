"""What the tests of the admin share: a small business, users of each kind, and their clients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from pytest_django import DjangoDbBlocker

from tests.billing.admin_world import World, make_users, make_world

Login = Callable[[str], Client]


@pytest.fixture
def users(db: None) -> dict[str, User]:
    """One user of each kind."""
    return make_users()


@pytest.fixture
def login(users: dict[str, User]) -> Login:
    """A client of the named user: root, operator, finance or nobody."""

    def client_of(name: str) -> Client:
        client = Client()
        client.force_login(users[name])
        return client

    return client_of


@pytest.fixture(scope="module")
def business(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[World]:
    """A whole business that a file's tests share: what one of them does to it is undone before the next."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield make_world()
        transaction.set_rollback(True)


@pytest.fixture
def world(business: World, db: None) -> World:
    """The business, as it was made. A file that has tests with `transaction=True`, too, imports `own_world` instead."""
    return copy.deepcopy(business)


@pytest.fixture(name="world")
def own_world(db: None) -> World:
    """A business of the test's own."""
    return make_world()
