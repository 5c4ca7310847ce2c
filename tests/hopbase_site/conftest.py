"""Fixtures of these tests."""

from tests.billing.admin_site import login, users, world

__all__ = ["login", "users", "world"]
