"""The second step of a login: asked for everywhere, right once, and one's own to turn on and off."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import logging
import re
import threading
from base64 import b32decode, b32encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from axes.models import AccessAttempt
from cryptography.fernet import Fernet
from django.conf import settings as configured
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils.timezone import now
from django_otp.oath import hotp

from billing.models import AuditEntry
from hopbase_site.models import RecoveryCode, SecondFactor
from hopbase_site.second_factor import codes, factors
from streaming.credentials import decrypt, encrypt
from tests.billing.admin_site import Login
from tests.billing.admin_site import own_world as own_world
from tests.billing.admin_world import PASSWORD, World

pytestmark = pytest.mark.django_db

KEY = b"12345678901234567890"
SECRET = b32encode(KEY).decode()
"""The secret of RFC 6238's own test vectors."""
HOME, AWAY = "198.51.100.7", "203.0.113.9"
CODE, PAGE = "/admin/second-factor/code/", "/admin/second-factor/"
NEW_CODES, OFF = "/admin/second-factor/recovery-codes/", "/admin/second-factor/off/"
MOMENT = dt.datetime(2026, 11, 3, 14, 5, 10, tzinfo=dt.UTC)
OPEN = {"login", "logout", "second_factor_code", "set_language"}

Turned = Callable[[str], list[str]]


def code(steps: int = 0, *, at: dt.datetime | None = None) -> str:
    """The app's code of a moment, some steps of 30 s away."""
    counter = int((at or now()).timestamp()) // 30 + steps
    return f"{hotp(KEY, counter):06d}"


def wrong() -> str:
    near = {code(steps) for steps in range(-3, 4)}
    return next(text for text in map("{:06d}".format, itertools.count()) if text not in near)


@pytest.fixture
def turned_on(users: dict[str, User]) -> Turned:
    """Turns a named user's second factor on; returns the recovery codes. No code has been used yet."""

    def turn_on(name: str) -> list[str]:
        made = factors.turn_on(users[name], SECRET, code(), at=now())
        assert made is not None
        SecondFactor.objects.filter(user=users[name]).update(last_step=-1)
        return made

    return turn_on


def after_password(name: str, peer: str = HOME, wanted: str = "/admin/") -> Client:
    """A client that has given name and password."""
    client = Client(REMOTE_ADDR=peer)
    answer = client.post("/admin/login/", {"username": name, "password": PASSWORD, "next": wanted})
    assert (answer.status_code, answer["location"]) == (302, wanted)
    return client


def is_asked(answer: HttpResponse) -> bool:
    return answer.status_code == 302 and answer["location"].split("?")[0] == CODE


def give(client: Client, text: str, **more: str) -> HttpResponse:
    return client.post(CODE, {"code": text, **more})  # type: ignore[return-value]


def wait_over(name: str) -> None:
    SecondFactor.objects.filter(user__username=name).update(throttling_failure_timestamp=now() - dt.timedelta(days=365))


def admin_urls(entries: list[Any] | None = None, before: str = "") -> Iterator[tuple[str, str]]:
    """Name and URL of everything under the site's URLs, its arguments filled in."""
    for entry in get_resolver().url_patterns if entries is None else entries:
        route = before + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from admin_urls(list(entry.url_patterns), route)
        elif isinstance(entry, URLPattern):
            yield entry.name or "", "/" + re.sub(r"<[^>]+>|\(\?P.*", "1", route).strip("^$")


# --- the gate ---


def test_every_page_waits_for_the_code(turned_on: Turned, world: World) -> None:
    turned_on("root")
    client = after_password("root")
    urls = [(name, url) for name, url in admin_urls() if name not in OPEN]
    assert len(urls) > 200
    assert {"usage", "audit", "health", "second_factor_off", "password_change", "jsi18n"} <= {name for name, _ in urls}
    for name, url in urls:
        assert is_asked(client.get(url)), (name, url)
        assert is_asked(client.post(url, {})), (name, url)


def test_password_alone_opens_without_a_factor(login: Login, users: dict[str, User]) -> None:
    assert login("operator").get("/admin/").status_code == 200
    assert after_password("operator").get("/admin/").status_code == 200


def test_code_leads_where_one_wanted(turned_on: Turned, world: World) -> None:
    turned_on("operator")
    wanted = "/admin/billing/usagerecord/?period=7"
    client = after_password("operator", wanted=wanted)
    asked = client.get(wanted)
    assert is_asked(asked)
    form = client.get(asked["location"])
    assert (form.status_code, form.context["next"]) == (200, wanted)
    answer = give(client, code(), next=wanted)
    assert (answer.status_code, answer["location"]) == (302, wanted)
    assert client.get(wanted).status_code == 200
    assert client.get(CODE)["location"] == "/admin/"


@pytest.mark.parametrize(
    "wanted",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "javascript:alert(1)",
        "http:///evil",
        "",
        "foo",
        "a:b",
    ],
)
def test_next_stays_on_this_host(turned_on: Turned, wanted: str) -> None:
    turned_on("operator")
    client = after_password("operator")
    assert client.get(CODE, {"next": wanted}).context["next"] == "/admin/"
    assert give(client, code(), next=wanted)["location"] == "/admin/"


def test_another_session_is_asked_too(turned_on: Turned, login: Login) -> None:
    before = login("operator")
    assert before.get("/admin/").status_code == 200
    turned_on("operator")
    assert is_asked(before.get("/admin/"))


def test_cookie_changes_with_the_code(turned_on: Turned) -> None:
    turned_on("operator")
    client = after_password("operator")
    before = client.cookies["sessionid"].value
    give(client, code())
    assert client.cookies["sessionid"].value != before


def test_logout_needs_no_code(turned_on: Turned) -> None:
    turned_on("operator")
    client = after_password("operator")
    assert client.post("/admin/logout/").status_code == 200
    assert client.get("/admin/")["location"].startswith("/admin/login/")


def test_login_anew_asks_anew(turned_on: Turned) -> None:
    recovery = turned_on("operator")
    client = after_password("operator")
    give(client, recovery[0])
    client.post("/admin/logout/")
    client.post("/admin/login/", {"username": "operator", "password": PASSWORD, "next": "/admin/"})
    assert is_asked(client.get("/admin/"))


def test_password_change_keeps_the_session(turned_on: Turned) -> None:
    turned_on("operator")
    client = after_password("operator")
    give(client, code())
    new = "eleven tame otters"
    form = {"old_password": PASSWORD, "new_password1": new, "new_password2": new}
    assert client.post("/admin/password_change/", form).status_code == 302
    assert client.get("/admin/").status_code == 200


def test_pages_cost_no_query_more(turned_on: Turned, login: Login, world: World) -> None:
    def queries(client: Client, url: str) -> int:
        client.get(url)  # fills what is cached
        with CaptureQueriesContext(connection) as seen:
            assert client.get(url).status_code == 200
        return len(seen)

    urls = ["/admin/", "/admin/billing/usagerecord/", "/admin/usage/"]
    without = [queries(login("operator"), url) for url in urls]
    turned_on("operator")
    client = after_password("operator")
    give(client, code())
    assert [queries(client, url) for url in urls] == without


def test_who_stands_at_the_gate_costs_two_queries(turned_on: Turned) -> None:
    turned_on("operator")
    client = after_password("operator")
    with CaptureQueriesContext(connection) as seen:
        assert is_asked(client.get("/admin/"))
    assert len(seen) == 2, [one["sql"] for one in seen]  # the session, its user with the factor


# --- codes ---


@pytest.mark.parametrize(("steps", "right"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
def test_clock_may_be_one_step_off(steps: int, right: bool) -> None:
    typed = code(steps, at=MOMENT)
    step = int(MOMENT.timestamp()) // 30 + steps
    assert codes.matching_step(SECRET, typed, at=MOMENT.timestamp()) == (step if right else None)


def test_code_of_the_standard_is_right() -> None:
    assert codes.matching_step(SECRET, "287082", at=59) == 1  # RFC 6238, appendix B, its last six digits


@pytest.mark.parametrize("typed", ["287 082", " 287-082 ", "２８７０８２"])
def test_codes_are_read_as_people_type_them(typed: str) -> None:
    assert codes.matching_step(SECRET, typed, at=59) == 1


@pytest.mark.parametrize("typed", ["", "28708", "0287082", "+87082", "28708x", "٢٨٧٠٨٢", "287082.0", "x" * 40])
def test_what_is_no_code_is_wrong(typed: str) -> None:
    assert codes.matching_step(SECRET, typed, at=59) is None


def test_code_is_right_once(turned_on: Turned, users: dict[str, User]) -> None:
    turned_on("operator")
    typed = code(at=MOMENT)
    assert factors.check(users["operator"], typed, at=MOMENT).passed
    assert not factors.check(users["operator"], typed, at=MOMENT).passed
    wait_over("operator")
    assert not factors.check(users["operator"], code(-1, at=MOMENT), at=MOMENT).passed
    wait_over("operator")
    assert factors.check(users["operator"], code(1, at=MOMENT), at=MOMENT).passed


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["app", "recovery"])
def test_code_is_right_once_at_the_same_moment(turned_on: Turned, users: dict[str, User], kind: str) -> None:
    recovery = turned_on("operator")
    typed, together = recovery[0] if kind == "recovery" else code(at=MOMENT), threading.Barrier(4)

    def check() -> bool:
        together.wait(10)
        try:
            return factors.check(users["operator"], typed, at=MOMENT).passed
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        passed = [one.result(30) for one in [pool.submit(check) for _ in range(4)]]
    assert passed.count(True) == 1


def test_code_of_another_session_is_used_up(turned_on: Turned) -> None:
    turned_on("operator")
    typed = code()
    first, second = after_password("operator"), after_password("operator")
    assert give(first, typed).status_code == 302
    assert give(second, typed).status_code == 200
    assert is_asked(second.get("/admin/"))


def test_code_of_another_user_is_wrong(turned_on: Turned, users: dict[str, User]) -> None:
    recovery = turned_on("finance")
    factors.turn_on(users["operator"], other := codes.make_secret(), _code_of(other), at=now())
    client = after_password("operator")
    assert give(client, recovery[0]).status_code == 200
    wait_over("operator")
    assert give(client, code()).status_code == 200
    assert RecoveryCode.objects.filter(factor__user=users["finance"]).count() == 10


def _code_of(secret: str) -> str:
    return f"{hotp(b32decode(secret), int(now().timestamp()) // 30):06d}"


# --- throttle ---


def test_wrong_codes_make_one_wait(turned_on: Turned) -> None:
    turned_on("operator")
    client = after_password("operator")
    for _ in range(4):
        wait_over("operator")
        answer = give(client, wrong())
        assert answer.status_code == 200
        assert "This code is not right" in answer.content.decode()
    waiting = give(after_password("operator", AWAY), code())
    assert (waiting.status_code, waiting["retry-after"]) == (429, "8")
    assert "Wait 8 seconds, then try again." in waiting.content.decode()
    wait_over("operator")
    assert give(client, code()).status_code == 302


def test_fifth_wrong_code_locks_the_place(turned_on: Turned) -> None:
    turned_on("operator")
    client = after_password("operator")
    statuses = []
    for _ in range(configured.AXES_FAILURE_LIMIT):
        wait_over("operator")
        statuses.append(give(client, wrong()).status_code)
    assert statuses == [200] * 4 + [429]
    wait_over("operator")
    assert give(client, code()).status_code == 429
    assert is_asked(client.get("/admin/"))
    form = {"username": "operator", "password": PASSWORD}
    assert Client(REMOTE_ADDR=HOME).post("/admin/login/", form).status_code == 429
    assert give(after_password("operator", AWAY), code()).status_code == 302


def test_password_alone_forgets_no_failures(turned_on: Turned) -> None:
    turned_on("operator")
    for number in range(configured.AXES_FAILURE_LIMIT):
        wait_over("operator")
        answer = give(after_password("operator"), wrong())
        assert answer.status_code == (429 if number == configured.AXES_FAILURE_LIMIT - 1 else 200)


def test_whole_login_forgets_failures(turned_on: Turned, users: dict[str, User]) -> None:
    turned_on("operator")
    client = after_password("operator")
    give(client, wrong())
    assert AccessAttempt.objects.count() == 1
    wait_over("operator")
    give(client, code())
    assert not AccessAttempt.objects.exists()
    assert SecondFactor.objects.get().throttling_failure_count == 0


def test_nothing_secret_is_kept_or_logged(turned_on: Turned, caplog: pytest.LogCaptureFixture, settings: Any) -> None:
    with caplog.at_level(logging.DEBUG):
        recovery = turned_on("operator")
        client, bad = after_password("operator"), wrong()
        give(client, bad)
        wait_over("operator")
        give(client, recovery[0])
    kept = [str(list(table.objects.values())) for table in (SecondFactor, RecoveryCode, AuditEntry, AccessAttempt)]
    told = [record.getMessage() for record in caplog.records]
    # Django's own log of statements, at DEBUG, holds parameters; production never turns it on.
    told = [line for line, record in zip(told, caplog.records, strict=True) if record.name != "django.db.backends"]
    for text in (SECRET, bad, *recovery, *(one.replace("-", "") for one in recovery)):
        assert not any(text in line for line in (*kept, *told)), text
    assert decrypt(SecondFactor.objects.get().secret, settings.ENCRYPTION_KEYS) == SECRET


# --- recovery codes ---


def test_recovery_code_opens_once(turned_on: Turned) -> None:
    recovery = turned_on("operator")
    assert len(set(recovery)) == 10
    assert give(after_password("operator"), recovery[3]).status_code == 302
    assert RecoveryCode.objects.count() == 9
    again = after_password("operator")
    assert give(again, recovery[3]).status_code == 200
    wait_over("operator")
    assert give(again, f" {recovery[4].replace('-', ' ').upper()} ").status_code == 302


def test_few_recovery_codes_are_told_of(turned_on: Turned) -> None:
    recovery = turned_on("operator")
    for one in recovery[:6]:
        give(after_password("operator"), one)
    client = after_password("operator")
    give(client, recovery[6])
    assert "You have 3 recovery codes left" in client.get("/admin/").content.decode()


def test_new_recovery_codes_end_the_old(turned_on: Turned) -> None:
    recovery = turned_on("operator")
    client = after_password("operator")
    give(client, recovery[0])
    assert client.get(NEW_CODES).status_code == 200
    assert client.post(NEW_CODES, {"code": wrong()}).status_code == 200
    assert RecoveryCode.objects.count() == 9
    wait_over("operator")
    page = client.post(NEW_CODES, {"code": code()})
    assert "no-store" in page["cache-control"]
    made = page.context["codes"]
    assert all(one in page.content.decode() for one in made)
    assert (len(made), set(made) & set(recovery)) == (10, set())
    assert give(after_password("operator"), recovery[1]).status_code == 200
    wait_over("operator")
    assert give(after_password("operator"), made[1]).status_code == 302
    assert made[2] not in client.get(PAGE).content.decode()


# --- one's own page ---


def test_setup_shows_then_asks(login: Login, users: dict[str, User]) -> None:
    client = login("nobody")
    page = client.get(PAGE)
    text = page.content.decode()
    assert "no-store" in page["cache-control"]
    secret = page.context["secret"].replace(" ", "")
    assert page.context["secret"] in text
    assert "<svg" in text
    assert client.get(PAGE).context["secret"].replace(" ", "") == secret
    assert secret not in str(dict(client.session))
    assert client.post(PAGE, {"code": "000000x"}).status_code == 200
    assert not SecondFactor.objects.exists()
    done = client.post(PAGE, {"code": _code_of(secret)})
    assert "no-store" in done["cache-control"]
    assert len(done.context["codes"]) == 10
    assert client.get("/admin/").status_code == 200  # this session has shown that it has the app
    later = client.get(PAGE).content.decode()
    assert secret not in later
    assert "10 recovery codes left" in later
    assert is_asked(after_password("nobody").get("/admin/"))


def test_setup_code_is_used_up(login: Login) -> None:
    client = login("operator")
    secret = client.get(PAGE).context["secret"].replace(" ", "")
    typed = _code_of(secret)
    client.post(PAGE, {"code": typed})
    assert give(after_password("operator"), typed).status_code == 200


def test_second_setup_changes_nothing(turned_on: Turned, users: dict[str, User]) -> None:
    turned_on("operator")
    kept = SecondFactor.objects.get().secret
    other = codes.make_secret()
    assert factors.turn_on(users["operator"], other, _code_of(other), at=now()) is None
    assert SecondFactor.objects.get().secret == kept


def test_qr_code_says_what_apps_read() -> None:
    uri = codes.setup_uri(SECRET, "zoë smith", "gateway.example.com")
    assert uri == (
        "otpauth://totp/HopBase%20gateway.example.com%3Azo%C3%AB%20smith"
        f"?secret={SECRET}&issuer=HopBase%20gateway.example.com&digits=6&period=30"
    )


def test_turned_off_with_a_code_alone(turned_on: Turned) -> None:
    recovery = turned_on("operator")
    client = after_password("operator")
    give(client, recovery[0])
    assert client.get(OFF).status_code == 200
    assert client.post(OFF, {"code": wrong()}).status_code == 200
    assert client.post(OFF, {}).status_code == 200
    assert SecondFactor.objects.exists()
    wait_over("operator")
    assert client.post(OFF, {"code": code()})["location"] == PAGE
    assert not SecondFactor.objects.exists()
    assert not RecoveryCode.objects.exists()
    assert after_password("operator").get("/admin/").status_code == 200


def test_audit_log_tells_without_secrets(turned_on: Turned, users: dict[str, User]) -> None:
    recovery = turned_on("operator")
    client = after_password("operator")
    give(client, recovery[0])
    client.post(NEW_CODES, {"code": code(-1)})
    client.post(OFF, {"code": code(1)})
    told = list(
        AuditEntry.objects.filter(table="auth.user", object_id=str(users["operator"].pk), action="done")
        .order_by("pk")
        .values_list("who", "message")
    )
    assert told[1:] == [
        ("operator", "used a recovery code"),
        ("operator", "made new recovery codes"),
        ("operator", "turned the second factor off"),
    ]
    assert told[0][1] == "turned the second factor on"


def test_menu_leads_there(login: Login) -> None:
    text = login("nobody").get("/admin/").content.decode()
    assert f'href="{PAGE}"' in text
    assert 'href="/admin/password_change/"' in text


# --- somebody else's ---


def take_off_url(user: User) -> str:
    return reverse("admin:auth_user_take_off_second_factor", args=[user.pk])


def test_superuser_takes_anothers_off(turned_on: Turned, login: Login, users: dict[str, User]) -> None:
    turned_on("operator")
    client, url = login("root"), take_off_url(users["operator"])
    assert url in client.get(f"/admin/auth/user/{users['operator'].pk}/change/").content.decode()
    assert "Take the second factor of operator off?" in client.get(url).content.decode()
    assert SecondFactor.objects.exists()
    assert client.post(url).status_code == 302
    assert not SecondFactor.objects.exists()
    newest = AuditEntry.objects.order_by("-pk")[0]
    assert (newest.who, newest.object_name, newest.message) == ("root", "operator", "the second factor was taken off")
    assert after_password("operator").get("/admin/").status_code == 200
    assert url not in client.get(f"/admin/auth/user/{users['operator'].pk}/change/").content.decode()


def test_right_to_change_users_is_not_enough(turned_on: Turned, login: Login, users: dict[str, User]) -> None:
    turned_on("root")
    users["operator"].user_permissions.set(Permission.objects.filter(codename__in=("change_user", "view_user")))
    client = login("operator")
    assert client.get(f"/admin/auth/user/{users['root'].pk}/change/").status_code == 200
    assert client.post(take_off_url(users["root"])).status_code == 403
    assert SecondFactor.objects.exists()


def test_own_goes_off_with_a_code_alone(turned_on: Turned, users: dict[str, User]) -> None:
    turned_on("root")
    client = after_password("root")
    give(client, code())
    assert client.post(take_off_url(users["root"]))["location"] == PAGE
    assert SecondFactor.objects.exists()


def test_users_pages_show_no_secret(turned_on: Turned, login: Login, users: dict[str, User]) -> None:
    turned_on("operator")
    kept, client = SecondFactor.objects.get(), login("root")
    for url in ("/admin/auth/user/", f"/admin/auth/user/{users['operator'].pk}/change/"):
        text = client.get(url).content.decode()
        assert kept.secret not in text
        assert SECRET not in text
        assert RecoveryCode.objects.all()[0].digest not in text


def test_command_takes_it_off(turned_on: Turned) -> None:
    turned_on("root")
    call_command("take_off_second_factor", "root", stdout=io.StringIO())
    assert not SecondFactor.objects.exists()
    assert AuditEntry.objects.order_by("-pk")[0].who == "take_off_second_factor"
    with pytest.raises(CommandError, match="root has no second factor"):
        call_command("take_off_second_factor", "root")
    with pytest.raises(CommandError, match="username: there is no user ghost"):
        call_command("take_off_second_factor", "ghost")


# --- required ---


def test_requirement_leads_to_the_setup(login: Login, settings: Any, world: World) -> None:
    settings.REQUIRE_SECOND_FACTOR = True
    client = login("operator")
    wanted = "/admin/billing/usagerecord/?period=7"
    for url in (wanted, "/admin/", "/admin/password_change/", "/admin/usage/"):
        answer = client.get(url)
        assert (answer.status_code, answer["location"].split("?")[0]) == (302, PAGE)
    page = client.get(client.get(wanted)["location"])
    assert "Everybody who works here needs a second factor." in page.content.decode()
    form = {"code": _code_of(page.context["secret"].replace(" ", "")), "next": page.context["next"]}
    assert client.post(PAGE, form).context["next_url"] == wanted
    assert client.get(wanted).status_code == 200


def test_requirement_lets_one_out(login: Login, settings: Any) -> None:
    settings.REQUIRE_SECOND_FACTOR = True
    assert login("operator").post("/admin/logout/").status_code == 200


# --- keys ---


def test_rotation_takes_secrets_along(turned_on: Turned, users: dict[str, User], settings: Any) -> None:
    turned_on("operator")
    old, new = settings.ENCRYPTION_KEYS[0], Fernet.generate_key().decode()
    settings.ENCRYPTION_KEYS = [new, old]
    said = io.StringIO()
    call_command("rotate_credentials", stdout=said)
    assert "1 of 1 second factors re-encrypted" in said.getvalue()
    settings.ENCRYPTION_KEYS = [new]
    assert factors.check(users["operator"], code(), at=now()).passed


def test_lost_key_leaves_recovery_codes(
    turned_on: Turned, users: dict[str, User], settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    recovery = turned_on("operator")
    lost = encrypt(SECRET, [Fernet.generate_key().decode()])
    SecondFactor.objects.update(secret=lost)
    assert not factors.check(users["operator"], code(), at=now()).passed
    assert "HOPBASE_ENCRYPTION_KEYS" in caplog.text
    with pytest.raises(CommandError, match="second factor of operator cannot be decrypted"):
        call_command("rotate_credentials", stdout=io.StringIO())
    wait_over("operator")
    assert factors.check(users["operator"], recovery[0], at=now()).passed
