"""The webhook's one try: signed, to vetted addresses, within its time, and without a word of where it went."""

from __future__ import annotations

import hashlib
import hmac
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from streaming.webhook import Webhook, post, signature
from tests.streaming.receiver import Receiver, receiving

BODY = '{"message":"航空 é"}'.encode()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


def test_body_arrives_signed(receiver: Receiver) -> None:
    assert post(Webhook(receiver.url, "s3cret"), BODY, "7-route_out") == ""
    [(path, headers, body)] = receiver.got
    assert (path, body) == ("/hooks/s3cret-path?token=s3cret-query", BODY)
    assert headers["content-type"] == "application/json"
    assert headers["x-hopbase-delivery"] == "7-route_out"
    digest = hmac.new(b"s3cret", BODY, hashlib.sha256).hexdigest()
    assert headers["x-hopbase-signature"] == signature("s3cret", BODY) == f"sha256={digest}"


def test_unsigned_without_secret(receiver: Receiver) -> None:
    assert post(Webhook(receiver.url), BODY, "1") == ""
    assert "x-hopbase-signature" not in receiver.got[0][1]


@pytest.mark.parametrize("status", [301, 302, 400, 404, 429, 500, 503])
def test_other_status_is_a_failure(receiver: Receiver, status: int) -> None:
    receiver.statuses = [status]
    assert post(Webhook(receiver.url), BODY, "1") == f"status {status}"
    assert len(receiver.got) == 1  # a redirection is not followed


def test_silent_receiver_costs_little(receiver: Receiver) -> None:
    receiver.hold.clear()
    began = time.monotonic()
    assert post(Webhook(receiver.url), BODY, "1", answer_s=0.2) == "TimeoutError"
    assert time.monotonic() - began < 2


def test_dripping_receiver_is_cut() -> None:
    """A byte now and then keeps every single wait short; the deadline is for all of them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def drip() -> None:
            client, _ = server.accept()
            with client:
                for letter in b"HTTP/1.1 200 OK\r\nx: " + b"x" * 1000:
                    if ended.wait(0.05):
                        return
                    try:
                        client.send(bytes([letter]))
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        began = time.monotonic()
        failure = post(Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/"), BODY, "1", answer_s=1, deadline_s=0.5)
        ended.set()
        thread.join()
    assert failure
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]", "2852039166", "100.100.100.200"]
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_metadata_addresses_are_refused(host: str, scheme: str) -> None:
    assert post(Webhook(f"{scheme}://{host}/latest"), BODY, "1", answer_s=0.5) == "RefusedAddress"


def test_nobody_there_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert post(Webhook(f"http://127.0.0.1:{port}/"), BODY, "1") == "ConnectionRefusedError"
    assert post(Webhook("http://name.invalid/"), BODY, "1") == "gaierror"


def test_certificate_is_checked(receiver: Receiver) -> None:
    assert post(Webhook(receiver.url.replace("http:", "https:")), BODY, "1", answer_s=1) == "SSLError"


def test_address_and_secret_do_not_show(receiver: Receiver) -> None:
    assert "s3cret" not in repr(Webhook(receiver.url, "s3cret"))
