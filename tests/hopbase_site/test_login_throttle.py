"""Guessing passwords ends after a few failures, from wherever the request really came."""

from __future__ import annotations

import datetime as dt
import io
import ipaddress
import logging
from typing import Any

import pytest
from axes.models import AccessAttempt, AccessLog
from django.conf import settings as configured
from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.http import HttpResponse
from django.test import Client
from django.utils.timezone import now

from hopbase_site import login_throttle, tasks
from hopbase_site.celery import app
from tests.billing.admin_site import Login
from tests.billing.admin_world import PASSWORD

pytestmark = pytest.mark.django_db

LIMIT, OF_A_PLACE = configured.AXES_FAILURE_LIMIT, configured.LOGIN_FAILURES_OF_A_PLACE
HOME, AWAY = "198.51.100.7", "203.0.113.9"
LOGIN = "/admin/login/"


def try_login(user: str, password: str, peer: str = HOME, **headers: str) -> HttpResponse:
    form = {"username": user, "password": password, "next": "/admin/"}
    return Client(REMOTE_ADDR=peer).post(LOGIN, form, headers=headers)  # type: ignore[return-value]


def fail(user: str, times: int, peer: str = HOME, **headers: str) -> list[int]:
    return [try_login(user, f"wrong-{number}", peer, **headers).status_code for number in range(times)]


def logs_in(user: str, peer: str = HOME, **headers: str) -> bool:
    return try_login(user, PASSWORD, peer, **headers).status_code == 302


def let_pass(wait: dt.timedelta) -> None:
    for attempt in AccessAttempt.objects.all():
        AccessAttempt.objects.filter(pk=attempt.pk).update(attempt_time=attempt.attempt_time - wait)


def test_fifth_failure_locks_user_out(users: dict[str, User]) -> None:
    assert fail("operator", LIMIT) == [200] * (LIMIT - 1) + [429]
    assert try_login("operator", PASSWORD).status_code == 429
    assert logs_in("operator", AWAY)
    assert logs_in("finance")


def test_locked_page_says_what_to_do(users: dict[str, User]) -> None:
    fail("operator", LIMIT)
    page = try_login("operator", PASSWORD)
    assert (page.status_code, page["retry-after"], page["cache-control"]) == (429, "900", "no-store")
    text = page.content.decode()
    assert "Wait 15 minutes, then try again. Until then the right password is refused too." in text
    assert 'href="/admin/login/"' in text
    assert "unfold" in text
    assert PASSWORD not in text
    assert Client(REMOTE_ADDR=HOME).get(LOGIN).status_code == 200


def test_lock_ends_with_its_time(users: dict[str, User]) -> None:
    fail("operator", LIMIT)
    let_pass(dt.timedelta(minutes=14))
    assert not logs_in("operator")
    let_pass(dt.timedelta(minutes=2))
    assert logs_in("operator")


def test_tries_while_locked_do_not_prolong(users: dict[str, User]) -> None:
    fail("operator", LIMIT)
    let_pass(dt.timedelta(minutes=14))
    assert fail("operator", 3) == [429] * 3
    let_pass(dt.timedelta(minutes=2))
    assert logs_in("operator")


def test_browser_does_not_matter(users: dict[str, User]) -> None:
    statuses = [fail("operator", 1, **{"user-agent": f"browser {number}"}) for number in range(LIMIT)]
    assert statuses[-1] == [429]


def test_names_tried_from_one_place_lock_it(users: dict[str, User]) -> None:
    statuses = [fail(f"guess-{number}", 1)[0] for number in range(OF_A_PLACE)]
    assert statuses == [200] * (OF_A_PLACE - 1) + [429]
    assert not logs_in("operator")
    assert logs_in("operator", AWAY)


def test_own_login_frees_nobody_else(users: dict[str, User]) -> None:
    fail("root", LIMIT - 1)
    fail("operator", LIMIT - 1)
    assert logs_in("operator")
    assert fail("operator", 1) == [200]
    assert fail("root", 1) == [429]


def test_proxy_names_the_place(users: dict[str, User], settings: Any) -> None:
    settings.TRUSTED_PROXIES = [ipaddress.ip_network("10.0.0.0/8")]
    near, far = {"x-forwarded-for": f"{AWAY}, {HOME}"}, {"x-forwarded-for": f"{HOME}, {AWAY}, 10.0.0.2"}
    assert fail("operator", LIMIT, "10.0.0.1", **near)[-1] == 429
    assert not logs_in("operator", "10.0.0.3", **near)
    assert not logs_in("operator", HOME)
    assert logs_in("operator", "10.0.0.1", **far)


def test_strangers_cannot_name_their_place(users: dict[str, User]) -> None:
    statuses = [
        fail("operator", 1, **{"x-forwarded-for": f"192.0.2.{number}"})[0] for number in range(1, LIMIT + 1)
    ]  # fmt: skip
    assert statuses[-1] == 429


def test_ipv6_network_is_one_place(users: dict[str, User]) -> None:
    statuses = [fail("operator", 1, f"2001:db8:0:1::{number}")[0] for number in range(1, LIMIT + 1)]
    assert statuses[-1] == 429
    assert logs_in("operator", "2001:db8:0:2::1")


def test_socket_without_peer_is_a_place(users: dict[str, User]) -> None:
    assert fail("operator", LIMIT, "")[-1] == 429
    assert logs_in("operator")


def test_nothing_typed_is_kept_or_logged(users: dict[str, User], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        fail("operator", LIMIT)
    rows = list(AccessAttempt.objects.values())
    assert [(row["username"], row["ip_address"], row["failures_since_start"]) for row in rows] == [
        ("operator", HOME, LIMIT)
    ]
    assert (rows[0]["get_data"], rows[0]["post_data"]) == ("", "")
    told = [record.getMessage() for record in caplog.records if record.name.startswith("axes")]
    assert any("Locking out" in line and HOME in line for line in told)
    assert not any("wrong-" in line or "operator" in line for line in told)
    assert not any("wrong-" in str(row) for row in rows)


def test_endless_names_are_refused_calmly(users: dict[str, User]) -> None:
    assert try_login("n" * 5000, "wrong").status_code == 200
    assert len(AccessAttempt.objects.get().username or "") == login_throttle.LONGEST_NAME


def test_old_failures_and_sessions_are_removed(users: dict[str, User]) -> None:
    fail("operator", 2)
    let_pass(dt.timedelta(minutes=16))
    AccessAttempt.objects.create(username="finance", ip_address=HOME, user_agent="", failures_since_start=1)
    Session.objects.create(session_key="over", session_data="", expire_date=now() - dt.timedelta(seconds=1))
    Session.objects.create(session_key="running", session_data="", expire_date=now() + dt.timedelta(hours=1))
    assert tasks.forget_logins() == 2
    assert AccessAttempt.objects.get().username == "finance"
    assert Session.objects.get().session_key == "running"
    assert tasks.forget_logins() == 0


@pytest.mark.parametrize("command", [("axes_reset_username", "operator"), ("axes_reset_ip", HOME)])
def test_commands_let_somebody_in(users: dict[str, User], command: tuple[str, str]) -> None:
    fail("operator", LIMIT)
    call_command(*command, stdout=io.StringIO())
    assert logs_in("operator")


def test_sessions_outlive_a_lock(users: dict[str, User], login: Login) -> None:
    client = login("operator")
    fail("operator", LIMIT)
    assert client.get("/admin/", REMOTE_ADDR=HOME).status_code == 200


def test_disabled_user_counts_too(users: dict[str, User]) -> None:
    User.objects.filter(username="operator").update(is_active=False)
    assert [try_login("operator", PASSWORD).status_code for _ in range(LIMIT)][-1] == 429


def test_beat_forgets_on_time() -> None:
    app.loader.import_default_modules()
    assert {entry["task"] for entry in tasks.BEAT_SCHEDULE.values()} <= set(app.tasks)
    assert set(tasks.BEAT_SCHEDULE) <= set(app.conf.beat_schedule)


def test_logins_leave_no_rows(users: dict[str, User]) -> None:
    assert logs_in("operator")
    assert not AccessLog.objects.exists()
    assert not AccessAttempt.objects.exists()


def test_admin_offers_no_rows_of_it() -> None:
    assert not [model for model in admin.site._registry if model._meta.app_label == "axes"]
