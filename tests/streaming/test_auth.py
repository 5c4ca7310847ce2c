"""Whose key a request bears, and whether it may be used."""

import ipaddress

import pytest

from billing import keys
from billing.catalogue import AccountEntry
from streaming.auth import authenticate, client_address, read_secret
from streaming.errors import ApiError
from tests.streaming.entries import key

SECRET = "sk-preset-0123456789abcdef"
NOW = 1_800_000_000.0
HERE = ipaddress.ip_address("10.1.2.3")


async def nobody(digest):
    return None


async def ask(entry, *, secret=SECRET, address=HERE, look_up=nobody, used=lambda digest, at: None):
    known = {keys.digest(SECRET, "pepper"): entry} if entry else {}
    headers = {b"authorization": f"Bearer {secret}".encode()}
    return await authenticate(
        headers, lambda: address, NOW, lambda digest, now: known.get(digest), look_up, "pepper", used
    )


async def test_known_key_is_let_in():
    assert (await ask(key())).name == "production"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"revoked": True}, "invalid_api_key"),
        ({"expires_at": NOW - 1}, "api_key_expired"),
        ({"account": AccountEntry(1, "northwind", "UTC", "USD", False)}, "account_disabled"),
        ({"allowed_ips": (ipaddress.ip_network("192.168.0.0/16"),)}, "ip_not_allowed"),
    ],
)
async def test_key_that_may_not_is_refused(fields, code):
    with pytest.raises(ApiError) as refused:
        await ask(key(**fields))
    assert refused.value.error.code == code


async def test_use_is_noted_of_who_is_let_in():
    uses = []
    await ask(key(), used=lambda digest, at: uses.append((digest, at)))
    for stopped in (key(revoked=True), key(expires_at=NOW - 1), None):
        with pytest.raises(ApiError):
            await ask(stopped, used=lambda digest, at: uses.append((digest, at)))
    assert uses == [(keys.digest(SECRET, "pepper"), NOW)]


async def test_unknown_key_is_looked_up_once():
    asked = []

    async def look_up(digest):
        asked.append(digest)
        return key()

    assert await ask(None, look_up=look_up) == key()
    assert asked == [keys.digest(SECRET, "pepper")]


async def test_junk_is_refused_before_any_look_up():
    async def look_up(digest):
        raise AssertionError("looked up")

    with pytest.raises(ApiError) as refused:
        await ask(None, secret="sk-hb-" + "a" * 49, look_up=look_up)
    assert refused.value.error.code == "invalid_api_key"


@pytest.mark.parametrize(
    ("headers", "secret"),
    [
        ({b"authorization": b"Bearer one"}, "one"),
        ({b"authorization": b"bearer  one "}, "one"),
        ({b"x-api-key": b"two"}, "two"),
        ({b"authorization": b"Bearer one", b"x-api-key": b"two"}, "one"),
        ({b"authorization": b"Basic eDp5", b"x-api-key": b"two"}, "two"),
    ],
)
def test_bearer_comes_first(headers, secret):
    assert read_secret(headers) == secret


@pytest.mark.parametrize("headers", [{}, {b"authorization": b"Bearer "}, {b"x-api-key": b" "}])
def test_missing_key_says_how_to_send_it(headers):
    with pytest.raises(ApiError, match="Authorization: Bearer") as refused:
        read_secret(headers)
    assert refused.value.error.code == "missing_api_key"


PROXIES = [ipaddress.ip_network("10.0.0.0/8")]


@pytest.mark.parametrize(
    ("peer", "forwarded", "trusted", "address"),
    [
        ("192.0.2.1", "", [], "192.0.2.1"),
        ("192.0.2.1", "10.0.0.9", [], "192.0.2.1"),
        ("192.0.2.1", "10.0.0.9", PROXIES, "192.0.2.1"),
        ("10.0.0.1", "203.0.113.7", PROXIES, "203.0.113.7"),
        ("10.0.0.1", "1.1.1.1, 203.0.113.7, 10.0.0.5", PROXIES, "203.0.113.7"),
        ("10.0.0.1", "", PROXIES, "10.0.0.1"),
        ("::ffff:192.0.2.1", "", [], "192.0.2.1"),
    ],
)
def test_forwarded_address_is_believed_from_proxies_alone(peer, forwarded, trusted, address):
    found = client_address(peer, {b"x-forwarded-for": forwarded.encode()}, trusted)
    assert str(found) == address


def test_unreadable_peer_is_no_address():
    assert client_address(None, {}, PROXIES) is None
