"""Rotation: the new secret is shown once, the old one works for its grace time and can be ended before that."""

from __future__ import annotations

import datetime as dt
import html
import re
import time
from typing import Any

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse
from django.utils.timezone import now

from billing import keys
from billing.admin.key_rotation import mark_of
from billing.catalogue import BillingCatalogue
from billing.models import ApiKey, AuditEntry
from tests.billing.admin_site import Login
from tests.billing.admin_world import World

pytestmark = pytest.mark.django_db
DAY = "86400"


def url(key: ApiKey) -> str:
    return reverse("admin:billing_apikey_rotate", args=[key.pk])


def page(key: ApiKey) -> str:
    return reverse("admin:billing_apikey_change", args=[key.pk])


def mark(client: Client, key: ApiKey) -> str:
    found = re.search(r'name="mark" value="(\w+)"', client.get(url(key)).text)
    assert found is not None
    return found[1]


def rotate(client: Client, key: ApiKey, grace: str = DAY) -> Any:
    response = client.post(url(key), {"grace": grace, "mark": mark(client, key)})
    key.refresh_from_db()
    return response


def test_question_tells_what_is_at_stake(login: Login, world: World) -> None:
    ApiKey.objects.filter(pk=world.key.pk).update(last_used_at=now() - dt.timedelta(minutes=12))
    text = login("operator").get(url(world.key)).text
    assert "Give the key northwind/production a new secret?" in text
    assert "The old secret works for" in text
    for words in ("0 h: it stops at once", "1 h", "24 h", "7 days"):
        assert words in text
    assert re.search(r'value="86400"[^>]*checked', text)
    assert "12\xa0minutes ago" in text
    assert world.key.shown in text
    assert "works still" not in text
    assert world.key.digest not in text


def test_new_secret_is_shown_once(login: Login, world: World) -> None:
    client = login("operator")
    response = rotate(client, world.key)
    secret = response.context["secret"]
    assert keys.digest(secret, settings.KEY_PEPPER) == world.key.digest
    assert "no-store" in response["cache-control"]
    assert "Store it now; it cannot be shown again." in response.text
    for snippet in response.context["snippets"]:
        assert secret in html.unescape(response.text)
        assert secret in snippet.text
    kept = [
        *(str(row) for row in ApiKey.objects.values()),
        *(str(row) for row in AuditEntry.objects.values()),
        *(str(row) for row in LogEntry.objects.values()),
        *(str(session.get_decoded()) for session in Session.objects.all()),
        client.get(page(world.key)).text,
        client.get(url(world.key)).text,
    ]
    assert all(secret not in text and world.secret not in text for text in kept)


@pytest.mark.parametrize(("grace", "hours"), [("0", 0), ("3600", 1), ("86400", 24), ("604800", 168)])
def test_old_secret_works_for_its_grace(login: Login, world: World, grace: str, hours: int) -> None:
    secret = rotate(login("operator"), world.key, grace).context["secret"]
    catalogue = BillingCatalogue()
    catalogue.load(-1)
    old, new = (keys.digest(each, settings.KEY_PEPPER) for each in (world.secret, secret))
    moment, end = time.time(), time.time() + 3600 * hours
    lets_in = [catalogue.key_by_digest(old, at) is not None for at in (max(moment, end - 60), end + 60)]
    assert lets_in == [hours > 0, False]
    found = catalogue.key_by_digest(new, moment + 10**9)
    assert found is not None
    assert found.id == world.key.pk  # the same key: its budget, usage and invoice go on


@pytest.mark.parametrize("grace", ["", "-1", "90000", "much"])
def test_other_graces_are_refused(login: Login, world: World, grace: str) -> None:
    client, before = login("operator"), world.key.digest
    response = client.post(url(world.key), {"grace": grace, "mark": mark(client, world.key)})
    world.key.refresh_from_db()
    assert (response.status_code, world.key.digest) == (200, before)


def test_sending_it_again_rotates_once(login: Login, world: World) -> None:
    client = login("operator")
    sent = {"grace": DAY, "mark": mark(client, world.key)}
    client.post(url(world.key), sent)
    world.key.refresh_from_db()
    first = world.key.digest
    again = client.post(url(world.key), sent)
    world.key.refresh_from_db()
    assert (again.status_code, world.key.digest) == (409, first)
    assert "The key was rotated already. Its new secret was shown then and cannot be shown again." in again.text
    assert "secret" not in again.context
    assert mark_of(world.key) in again.text  # now on purpose


def test_second_rotation_says_what_stops(login: Login, world: World) -> None:
    client = login("operator")
    rotate(client, world.key)
    ApiKey.objects.filter(pk=world.key.pk).update(previous_used_at=now() - dt.timedelta(minutes=3))
    text = client.get(url(world.key)).text
    assert "works still" in text
    assert "3\xa0minutes ago" in text
    assert "works still and stops at once" in text


def test_old_secret_is_ended_early(login: Login, world: World) -> None:
    client = login("operator")
    end = reverse("admin:billing_apikey_end_old_secret", args=[world.key.pk])
    assert "End the old secret" not in client.get(page(world.key)).text
    assert client.get(end).status_code == 302
    rotate(client, world.key)
    assert "End the old secret" in client.get(page(world.key)).text
    assert "End the old secret of the key northwind/production?" in client.get(end).text
    assert client.post(end, {"mark": mark_of(world.key)}).status_code == 302
    world.key.refresh_from_db()
    assert world.key.previous_until is not None
    assert world.key.previous_until <= now()
    entry = AuditEntry.objects.first()
    assert entry is not None
    assert (entry.who, list(entry.changes)) == ("operator", ["previous_until"])


def test_only_the_old_secret_that_was_named_is_ended(login: Login, world: World) -> None:
    """Somebody rotates again between question and answer: what is old by then was not asked about."""
    client = login("operator")
    end = reverse("admin:billing_apikey_end_old_secret", args=[world.key.pk])
    rotate(client, world.key)
    asked = dict(client.get(end).context["hidden"])
    rotate(login("root"), world.key)
    until = world.key.previous_until
    again = client.post(end, asked)
    world.key.refresh_from_db()
    assert (again.status_code, world.key.previous_until) == (409, until)
    assert "The key was rotated meanwhile: its old secret is another one now." in again.text
    assert str(world.key.previous_shown) in again.text
    client.post(end, dict(again.context["hidden"]))
    world.key.refresh_from_db()
    assert world.key.previous_until is not None
    assert world.key.previous_until <= now()


def test_revoked_key_is_not_rotated(login: Login, world: World) -> None:
    client, sent = login("operator"), {"grace": DAY, "mark": mark_of(world.key)}
    keys.revoke(world.key, now())
    before = world.key.digest
    assert client.post(url(world.key), sent).status_code == 302
    world.key.refresh_from_db()
    assert world.key.digest == before
    assert "Rotate" not in client.get(page(world.key)).text
