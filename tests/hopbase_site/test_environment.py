"""Settings out of the environment: what cannot be read names its variable and the remedy."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from hopbase_site import environment

ROOT = Path(__file__).parents[2]
NAME = "HOPBASE_TESTED"
READERS: dict[str, Callable[[], Any]] = {
    "flag": lambda: environment.flag(NAME, False),
    "seconds": lambda: environment.seconds(NAME, 10.0),
    "count": lambda: environment.count(NAME, 3),
    "amount": lambda: environment.amount(NAME, Decimal(100)),
    "networks": lambda: environment.networks(NAME),
    "bounds": lambda: environment.bounds(NAME, (90, 150)),
    "items": lambda: environment.items(NAME, ["a"]),
    "text": lambda: environment.text(NAME, "t", longest=3),
    "zone": lambda: environment.zone(NAME),
    "months": lambda: environment.months(NAME),
    "folder": lambda: environment.folder(NAME),
    "choice": lambda: environment.choice(NAME, ("console", "json")),
}


@pytest.mark.parametrize(
    ("reader", "text", "value"),
    [
        ("flag", "Yes", True),
        ("flag", "off", False),
        ("seconds", " 2.5 ", 2.5),
        ("count", "7", 7),
        ("amount", "12.5", Decimal("12.5")),
        ("amount", "0", Decimal(0)),
        ("networks", "10.0.0.0/8, ::1", [ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("::1")]),
        ("bounds", "1, 600", (1, 600)),
        ("items", "a, b,", ["a", "b"]),
        ("choice", "JSON", "json"),
        ("items", "", ["a"]),
        ("text", "", "t"),
        ("text", "a b", "a b"),
        ("zone", "Asia/Taipei", "Asia/Taipei"),
        ("zone", "", "UTC"),
        ("count", "", 3),
        ("months", "13", 13),
        ("months", "", 0),
        ("folder", "/srv/archive", Path("/srv/archive")),
        ("folder", "", None),
    ],
)
def test_value_is_read(monkeypatch: pytest.MonkeyPatch, reader: str, text: str, value: object) -> None:
    monkeypatch.setenv(NAME, text)
    assert READERS[reader]() == value


@pytest.mark.parametrize(
    ("reader", "text", "wanted"),
    [
        ("flag", "maybe", "true or false"),
        ("seconds", "abc", "a number of seconds above 0"),
        ("seconds", "-1", "a number of seconds above 0"),
        ("seconds", "nan", "a number of seconds above 0"),
        ("seconds", "1e20", "a number of seconds above 0 .0.001 to 1000000."),
        ("seconds", "1e-300", "a number of seconds above 0 .0.001 to 1000000."),
        ("count", "1.5", "a whole number above 0"),
        ("months", "-1", "a whole number of months, or 0"),
        ("months", "1201", "a whole number of months, or 0"),
        ("folder", "archive", "the absolute path of a folder"),
        ("count", "0", "a whole number above 0"),
        ("amount", "-1", "an amount of 0 or more"),
        ("amount", "nan", "an amount of 0 or more"),
        ("amount", "1e99", "an amount of 0 or more"),
        ("amount", "0.0000000001", "an amount of 0 or more"),
        ("networks", "10.0.0.1/8", "a list of networks"),
        ("bounds", "5", "two whole numbers"),
        ("bounds", "9,5", "two whole numbers"),
        ("choice", "xml", "console or json"),
        ("text", "abcd", "a text of at most 3 characters"),
        ("zone", "Asia/Taipeh", "a zone of the tz database, for example Asia/Taipei"),
        ("zone", "localtime", "a zone of the tz database"),
        ("zone", "/etc/passwd", "a zone of the tz database"),
    ],
)
def test_fault_names_the_variable(monkeypatch: pytest.MonkeyPatch, reader: str, text: str, wanted: str) -> None:
    monkeypatch.setenv(NAME, text)
    with pytest.raises(ImproperlyConfigured, match=f"^{NAME}='{text}' is not {wanted}.*mend it"):
        READERS[reader]()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOPBASE_SELLER_ZONE", "Asia/Taipeh"),
        ("HOPBASE_SELLER_NAME", "n" * 201),
        ("HOPBASE_SELLER_TAX_ID", "1" * 65),
    ],
)
def test_seller_that_no_invoice_holds_stops_every_command(name: str, value: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import hopbase_site.settings"], cwd=ROOT, env={**os.environ, name: value},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert f"ImproperlyConfigured: {name}='{value}' is not a" in ended.stderr


def test_environment_wins_over_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"{NAME}=7\nHOPBASE_OTHER_TESTED=8\n")
    monkeypatch.setenv("HOPBASE_ENV_FILE", str(tmp_path / ".env"))
    monkeypatch.setenv(NAME, "6")
    monkeypatch.setenv("HOPBASE_OTHER_TESTED", "")
    monkeypatch.delenv("HOPBASE_OTHER_TESTED")
    environment.load(tmp_path / "nowhere")
    assert environment.count(NAME, 3) == 6
    assert environment.count("HOPBASE_OTHER_TESTED", 3) == 8
    monkeypatch.delenv("HOPBASE_OTHER_TESTED")


def test_file_may_have_a_bom_and_spaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = f'\ufeff{NAME} = 7 # seven\r\n# a comment\r\nexport HOPBASE_OTHER_TESTED="1 Road\\nTaipei"\r\n\r\n'
    (tmp_path / ".env").write_text(text, encoding="utf-8", newline="")
    monkeypatch.setenv("HOPBASE_ENV_FILE", str(tmp_path / ".env"))
    for name in (NAME, "HOPBASE_OTHER_TESTED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    environment.load(tmp_path / "nowhere")
    assert (environment.count(NAME, 3), environment.text("HOPBASE_OTHER_TESTED", "")) == (7, "1 Road\nTaipei")


@pytest.mark.parametrize("line", ["DATABASE_URL: postgresql://u:hunter2@h/d", "hunter2", "=hunter2", "A='hunter2"])
def test_line_that_is_no_setting_stops_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str) -> None:
    (tmp_path / ".env").write_text(f"HOPBASE_OTHER_TESTED=1\n{line}\n")
    monkeypatch.setenv("HOPBASE_ENV_FILE", str(tmp_path / ".env"))
    with pytest.raises(ImproperlyConfigured, match=r"\.env, line 2: this is no setting; write NAME=value") as refused:
        environment.load(tmp_path / "nowhere")
    assert "hunter2" not in str(refused.value)
    assert "HOPBASE_OTHER_TESTED" not in os.environ


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", "http://default"),
        ("https://host/", "https://host"),
        ("HTTPS://host", "https://host"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://host/hop/", "https://host/hop"),
    ],
)
def test_site_address_has_one_form(monkeypatch: pytest.MonkeyPatch, text: str, url: str) -> None:
    monkeypatch.setenv(NAME, text)
    assert environment.site_address(NAME, "http://default") == url


@pytest.mark.parametrize(
    "url", ["", "redis://h", "rediss://:p%23w@h:6379/1", "redis://[::1]:6379/0", "unix:///run/r.sock"]
)
def test_redis_address_is_read(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv(NAME, f" {url} ")
    assert environment.redis_address(NAME) == url


@pytest.mark.parametrize(
    "url",
    ["redis://:hun#ter2@h:6379/1", "redis://:hun/ter2@h/1", "hunter2", "http://hunter2/1", "redis://:hunter2@h:x/1",
     "redis://hunter2/0#x", "redis://", "unix://"],
)  # fmt: skip
def test_redis_faults_hide_the_url(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv(NAME, url)
    with pytest.raises(ImproperlyConfigured, match=f"^{NAME} cannot be read: write it as redis://") as refused:
        environment.redis_address(NAME)
    assert not any(part in str(refused.value) for part in ("hunter2", "ter2", ":hun"))


@pytest.mark.parametrize(
    "url", ["mysql://u:hunter2@h/d", "hunter2", "postgres:hunter2", "postgresql://u:hunter2@h:x/d"]
)
def test_database_faults_hide_the_url(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"^DATABASE_URL ") as refused:
        environment.database(url)
    assert "hunter2" not in str(refused.value)


def test_sqlite_is_durable() -> None:
    found = environment.database("sqlite:////tmp/x.sqlite3")
    assert found["NAME"] == "/tmp/x.sqlite3"
    assert "journal_mode=WAL; PRAGMA synchronous=FULL" in found["OPTIONS"]["init_command"]
    assert found["OPTIONS"]["transaction_mode"] == "IMMEDIATE"


def test_postgresql_uses_a_pool() -> None:
    found = environment.database("postgresql://u:p%40w@h:5433/d")
    assert (found["HOST"], found["PORT"], found["NAME"], found["PASSWORD"]) == ("h", 5433, "d", "p@w")
    assert found["OPTIONS"]["pool"]["max_size"] == 10
    assert found["CONN_MAX_AGE"] == 0


@pytest.mark.parametrize("url", ["", "https://hooks.example/a?b=c", "http://127.0.0.1:9000", "http://[::1]:9000/x"])
def test_web_address_is_read(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv(NAME, f" {url} ")
    assert environment.web_address(NAME) == url


@pytest.mark.parametrize(
    "url",
    ["s3cret", "ftp://s3cret.example", "https://", "https://user:s3cret@hooks.example", "http://s3cret.example:99999",
     "http://a b/s3cret", "http://s3cret.example/é", "http://[s3cret"],
)  # fmt: skip
def test_web_address_faults_hide_it(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv(NAME, url)
    with pytest.raises(ImproperlyConfigured, match=f"{NAME} is no whole URL") as fault:
        environment.web_address(NAME)
    assert "s3cret" not in str(fault.value)


@pytest.mark.parametrize("text", ["", None])
def test_needed_folder_is_asked_for(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    if text is not None:
        monkeypatch.setenv(NAME, text)
    with pytest.raises(ImproperlyConfigured, match=f"HOPBASE_OTHER needs {NAME}, which is not set"):
        environment.folder(NAME, needed_by="HOPBASE_OTHER")
