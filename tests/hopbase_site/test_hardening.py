"""What the admin's cookies and headers promise, and who may say that a request came over TLS."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from typing import Any

import pytest
from django.conf import settings as configured
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.http import HttpResponse
from django.test import Client, RequestFactory

from hopbase_site import secrets
from hopbase_site.proxies import address_of, believed_scheme, source_of
from tests.billing.admin_world import PASSWORD


@pytest.mark.django_db
def test_cookies_are_kept_from_scripts_and_sites(users: dict[str, User]) -> None:
    client = Client()
    assert client.get("/admin/login/").cookies["csrftoken"]["httponly"]
    cookies = client.post("/admin/login/", {"username": "operator", "password": PASSWORD}).cookies
    assert {cookies[name]["samesite"] for name in ("sessionid", "csrftoken")} == {"Lax"}
    assert cookies["sessionid"]["httponly"]
    assert cookies["sessionid"]["max-age"] == ""  # gone with the browser
    assert client.session.get_expiry_age() == 12 * 60 * 60


@pytest.mark.django_db
def test_forms_work_with_the_hidden_cookie(users: dict[str, User]) -> None:
    client = Client(enforce_csrf_checks=True)
    token = client.get("/admin/login/").context["csrf_token"]
    form = {"username": "operator", "password": PASSWORD, "next": "/admin/"}
    assert client.post("/admin/login/", form).status_code == 403
    assert client.post("/admin/login/", {**form, "csrfmiddlewaretoken": str(token)}).status_code == 302


def test_answers_bear_the_headers(client: Client, db: None) -> None:
    answer = client.get("/admin/login/")
    assert answer["x-content-type-options"] == "nosniff"
    assert answer["referrer-policy"] == "same-origin"
    assert answer["cross-origin-opener-policy"] == "same-origin"
    assert answer["x-frame-options"] == "DENY"
    assert "strict-transport-security" not in answer


def test_browsers_are_told_to_stay_with_tls(settings: Any, db: None) -> None:
    settings.TRUSTED_PROXIES = [ipaddress.ip_network("10.0.0.0/8")]
    settings.SECURE_PROXY_SSL_HEADER, settings.SECURE_HSTS_SECONDS = ("HTTP_X_FORWARDED_PROTO", "https"), 31536000
    said = {"x-forwarded-proto": "https"}
    answer = Client(REMOTE_ADDR="10.0.0.1").get("/admin/login/", headers=said)
    assert answer["strict-transport-security"] == "max-age=31536000"
    assert "strict-transport-security" not in Client(REMOTE_ADDR="192.0.2.1").get("/admin/login/", headers=said)


@pytest.mark.parametrize("password", ["short-words", "operator-operator", "q1w2e3r4t5y6"])
def test_weak_passwords_are_refused(password: str) -> None:
    with pytest.raises(ValidationError):
        validate_password(password, User(username="operator-operato"))


def test_strong_password_is_taken() -> None:
    validate_password("eleven tame otters", User(username="operator"))


@pytest.mark.parametrize(
    ("peer", "said", "secure"),
    [("10.0.0.1", "https", True), ("10.0.0.1", "http", False), ("192.0.2.1", "https", False), ("", "https", False)],
)
def test_only_proxies_say_https(settings: Any, peer: str, said: str, secure: bool) -> None:
    settings.TRUSTED_PROXIES = [ipaddress.ip_network("10.0.0.0/8")]
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    request = RequestFactory().get("/", REMOTE_ADDR=peer, headers={"x-forwarded-proto": said})
    respond = believed_scheme(lambda asked: HttpResponse(str(asked.is_secure())))
    assert respond(request).content.decode() == str(secure)


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("192.0.2.1", "", "192.0.2.1"),
        ("192.0.2.1", "198.51.100.1", "192.0.2.1"),
        ("10.0.0.1", "203.0.113.1, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "203.0.113.1, 10.9.9.9", "203.0.113.1"),
        ("10.0.0.1", "nonsense", "10.0.0.1"),
        ("::ffff:192.0.2.1", "", "192.0.2.1"),
        ("", "198.51.100.1", None),
    ],
)
def test_address_is_the_last_untrusted(settings: Any, peer: str, forwarded: str, address: str | None) -> None:
    settings.TRUSTED_PROXIES = [ipaddress.ip_network("10.0.0.0/8")]
    request = RequestFactory().get("/", REMOTE_ADDR=peer, headers={"x-forwarded-for": forwarded})
    found = address_of(request)
    assert (str(found) if found else None) == address
    assert source_of(request) == address


def test_ipv6_source_is_its_network() -> None:
    request = RequestFactory().get("/", REMOTE_ADDR="2001:db8:1:2:3:4:5:6")
    assert source_of(request) == "2001:db8:1:2::"


def check_deploy(public_url: str) -> str:
    """What `manage.py check --deploy` says of an installation with proper secrets."""
    named = {"DJANGO_SETTINGS_MODULE": "hopbase_site.settings", "HOPBASE_PUBLIC_URL": public_url}
    environment = {**os.environ, **secrets.make(), **named}
    command = [sys.executable, "manage.py", "check", "--deploy"]
    done = subprocess.run(command, env=environment, cwd=configured.BASE_DIR, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_deployment_check_is_clean_over_https() -> None:
    assert "no issues" in check_deploy("https://gateway.example.com")


def test_deployment_check_warns_of_plain_http() -> None:
    said = check_deploy("http://gateway.example.com")
    assert all(code in said for code in ("security.W004", "security.W012", "security.W016"))
