"""Fixtures of these tests."""

from tests.billing.admin_site import business, login, users, world

__all__ = ["business", "login", "users", "world"]
