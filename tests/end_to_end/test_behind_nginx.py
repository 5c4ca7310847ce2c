"""The shipped deploy/nginx.conf in front of a gateway: what holds without a proxy holds behind it."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import shutil
import socket
import ssl
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.end_to_end.conftest import KEYS
from tests.end_to_end.formats import CHAT, PATHS, WORDS, request
from tests.end_to_end.product import KEEPALIVE, ROOT, Gateway, Installation
from tests.end_to_end.provider import Provider
from tests.end_to_end.raw import RawClient, request_bytes

SHIPPED = ROOT / "deploy" / "nginx.conf"
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
AROUND = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    include {folder}/hopbase.conf;
}}
"""
"""What a distribution's own nginx.conf does for the shipped file, in a folder of ours."""
ONE_NODE = re.compile(r"^upstream hopbase_gateway \{.*?^\}$", re.MULTILINE | re.DOTALL)
LARGEST = 32 * 1024 * 1024
"""HOPBASE_MAX_BODY_BYTES as it is by default."""
AT_ONCE_S = 0.3
TRIES = 4
READY_S = 10

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt-get install nginx-light")


class Nginx:
    """A running nginx with the shipped file, on ports of its own. `nodes`: that file for several, with their ports."""

    def __init__(self, folder: Path, *ports: int, nodes: str = "") -> None:
        self.folder = folder
        make_certificate(folder)
        self.port, plain = free_ports(2)
        text = SHIPPED.read_text()
        for shipped, ours in {
            "listen 443 ssl;": f"listen 127.0.0.1:{self.port} ssl;",
            "listen 80;": f"listen 127.0.0.1:{plain};",
            "127.0.0.1:8000;": f"127.0.0.1:{ports[0]};",
            "127.0.0.1:8001;": f"127.0.0.1:{ports[0]};",
            "/etc/ssl/gateway.example/": f"{folder}/",
        }.items():
            assert shipped in text
            text = text.replace(shipped, ours)
        if nodes:
            text, replaced = ONE_NODE.subn(nodes, text)
            assert replaced == 1
        (folder / "hopbase.conf").write_text(text)
        (folder / "nginx.conf").write_text(AROUND.format(folder=folder))
        self.plain_url, self.url = f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{self.port}"
        self.tls = ssl.create_default_context(cafile=str(folder / "fullchain.pem"))
        self.tls.check_hostname = False
        assert NGINX is not None
        self.command = [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")]

    @contextlib.contextmanager
    def running(self) -> Iterator[Nginx]:
        process = subprocess.Popen(self.command, stderr=subprocess.DEVNULL)
        try:
            self._await(process)
            yield self
        finally:
            process.terminate()
            process.wait(10)

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.02)
        raise AssertionError(f"nginx does not start:\n{(self.folder / 'error.log').read_text()}")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def make_certificate(folder: Path) -> None:
    """A certificate that nobody but these tests believes."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gateway.example")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "fullchain.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "privkey.pem").write_bytes(
        private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


@pytest.fixture(scope="module")
def behind(installation: Installation) -> Iterator[Gateway]:
    """Gateway and admin in one, which believe the proxy, and take bodies as large as they do by default."""
    own = installation.twin()
    own.role = "all"
    own.environment |= {
        "HOPBASE_MAX_BODY_BYTES": "",
        "HOPBASE_TRUSTED_PROXIES": "127.0.0.1/32",
        "HOPBASE_PUBLIC_URL": "https://gateway.example",
        "ALLOWED_HOSTS": "gateway.example",
    }
    try:
        with own.serving("uvicorn") as gateway:
            yield gateway
    finally:
        own.remove()


@pytest.fixture(scope="module")
def nginx(behind: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with Nginx(tmp_path_factory.mktemp("nginx"), behind.port).running() as running:
        yield running


@pytest.fixture
def name() -> str:
    return f"nginx-{uuid.uuid4().hex}"


def test_shipped_file_is_valid(nginx: Nginx) -> None:
    tried = subprocess.run([*nginx.command, "-t"], capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stderr
    assert "warn" not in tried.stderr


@pytest.mark.parametrize("wire", PATHS)
def test_each_event_arrives_at_once(nginx: Nginx, key: str, name: str, wire: str) -> None:
    """A busy machine holds back any event now and then; a proxy that gathers does so each time."""
    slowest = []
    for number in range(TRIES):
        slowest.append(max(delays(nginx, key, f"{name}-{number}", wire)))
        if slowest[-1] < AT_ONCE_S:
            return
    pytest.fail(f"the slowest event of each stream came after {slowest} s")


def delays(nginx: Nginx, key: str, name: str, wire: str) -> list[float]:
    """How long each event of a stream took from the provider to the client, in seconds."""
    body = request(wire, "stamped", name, stream=True)
    with RawClient(nginx, wire, key, body, tls=nginx.tls, x_request_id=name) as client:
        client.read_all()
    assert client.headers["content-type"].startswith("text/event-stream")
    found = [
        arrived - float(sent) for arrived, data in client.arrivals for sent in re.findall(rb'"sent@([0-9.]+)@"', data)
    ]
    assert len(found) == 10, client.body
    return found


def test_keepalive_arrives_before_headers(nginx: Nginx, key: str, name: str) -> None:
    with RawClient(nginx, CHAT, key, request(CHAT, "quiet", name, stream=True), tls=nginx.tls) as client:
        began = time.monotonic()
        assert KEEPALIVE in client.read_until(KEEPALIVE)
        assert WORDS[0].encode() not in client.body
        assert time.monotonic() - began < 2.5


@pytest.mark.parametrize("wire", PATHS)
def test_leaving_reaches_provider(
    behind: Gateway, nginx: Nginx, key: str, provider: Provider, name: str, wire: str
) -> None:
    body = request(wire, "endless", name, stream=True)
    with RawClient(nginx, wire, key, body, tls=nginx.tls, x_request_id=name) as client:
        client.read_until(WORDS[0].encode())
        client.leave()
    assert provider.call_with(name).left.wait(2)
    assert behind.record(name, key)["ending"] == "client_left"


def padded(size: int) -> bytes:
    """A request of exactly so many bytes."""
    body = {**request(CHAT, "plain", "large"), "padding": ""}
    return json.dumps({**body, "padding": "x" * (size - len(json.dumps(body)))}).encode()


def test_largest_body_passes(nginx: Nginx, key: str) -> None:
    with RawClient(nginx, CHAT, key, padded(LARGEST - 1), tls=nginx.tls) as client:
        client.read_head()
    assert client.status == 200


def test_gateway_itself_refuses_larger_body(nginx: Nginx, key: str) -> None:
    with RawClient(nginx, CHAT, key, padded(LARGEST + 1), tls=nginx.tls) as client:
        client.read_head()
    assert client.status == 413
    assert client.headers["content-type"] == "application/json"


def test_key_is_refused_before_body(nginx: Nginx) -> None:
    sent = request_bytes(PATHS[CHAT], "sk-nobody-0123456789abcdef", b"")
    sent = sent.replace(b"content-length: 0", b"content-length: 1000000")
    with socket.create_connection(("127.0.0.1", nginx.port), 5) as plain, nginx.tls.wrap_socket(plain) as client:
        client.sendall(sent)
        assert client.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_metrics_stay_inside(nginx: Nginx, behind: Gateway) -> None:
    with httpx.Client(verify=nginx.tls) as client:
        assert client.get(f"{nginx.url}/metrics").status_code == 404
        assert client.get(f"{nginx.url}/readyz").status_code == 200
        assert client.get(f"{nginx.plain_url}/v1/models").headers["location"] == "https://gateway.example/v1/models"
    assert behind.get("/metrics").status_code == 200
    assert behind.ask("GET", "/metrics", x_forwarded_for="203.0.113.9").status_code in (403, 404)


def test_admin_logs_in_over_tls(nginx: Nginx) -> None:
    """A form is taken, cookies are secure, and browsers stay with TLS: the admin knows how the client came."""
    name = {"host": "gateway.example"}
    with httpx.Client(verify=nginx.tls, headers=name) as client:
        assert client.get(f"{nginx.url}/static/hopbase/favicon.svg").status_code == 200
        page = client.get(f"{nginx.url}/admin/login/")
        assert page.headers["strict-transport-security"]
        cookie = page.headers["set-cookie"]
        assert "; Secure" in cookie
        token = cookie.partition("csrftoken=")[2].partition(";")[0]
        form = {"csrfmiddlewaretoken": token, "username": "nobody", "password": "nothing"}
        sent = {"cookie": f"csrftoken={token}", "referer": "https://gateway.example/admin/login/"}
        answer = client.post(f"{nginx.url}/admin/login/", data=form, headers=sent)
    assert answer.status_code == 200, answer.text  # the form again, and not 403
    assert "Please enter the correct" in answer.text


def test_address_is_that_which_nginx_saw(nginx: Nginx) -> None:
    """A key that is bound to 127.0.0.2, asked for from there and from elsewhere; what clients claim is not believed."""
    headers = {"authorization": f"Bearer {KEYS['bound']}"}

    def ask(source: str, claimed: str) -> int:
        with httpx.Client(transport=httpx.HTTPTransport(verify=nginx.tls, local_address=source)) as client:
            return client.get(f"{nginx.url}/v1/models", headers={**headers, "x-forwarded-for": claimed}).status_code

    assert ask("127.0.0.2", "203.0.113.9") == 200
    assert ask("127.0.0.3", "127.0.0.2") == 403
