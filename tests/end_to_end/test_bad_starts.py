"""What an operator gets wrong: one line that says what to do, an exit status, and nothing half done."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.end_to_end.product import Gateway, Installation

GOOD_AND_BAD = """\
providers:
  - {name: half-applied, base_url: "http://127.0.0.1:9/v1", wire_formats: [messages]}
models:
  - name: half-applied
    routes: [{provider: acmee}]
"""
MISSING_SECRET = 'providers: [{name: acme, api_key: "${NO_SUCH_VARIABLE}"}]'
NO_YAML = "providers: [\n  - {name: : }\n"
APPLIED = {
    "good-and-bad.yaml": GOOD_AND_BAD, "missing-secret.yaml": MISSING_SECRET, "no-yaml.yaml": NO_YAML,
    "odd.env": "DATABASE_URL: postgresql://u:hunter2@db/x",
}  # fmt: skip


@dataclass(frozen=True)
class Mistake:
    """A command, the settings that go with it, and what its message must say."""

    command: tuple[str, ...]
    says: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)


SERVE = ("serve", "--port", "0")
MISTAKES = {
    "no such file": Mistake(("apply", "{folder}/nowhere.yaml"), ("nowhere.yaml", "give the path")),
    "a folder": Mistake(("apply", "{folder}"), ("cannot be read",)),
    "no YAML": Mistake(("apply", "{folder}/no-yaml.yaml"), ("no-yaml.yaml is not YAML", "line 2")),
    "unknown provider": Mistake(("apply", "{folder}/good-and-bad.yaml"), ("'acmee'", "did you mean 'acme'")),
    "unset variable": Mistake(("apply", "{folder}/missing-secret.yaml"), ("NO_SUCH_VARIABLE", "providers[0].api_key")),
    "default secrets": Mistake(SERVE, ("SECRET_KEY", "make_secrets"), {"SECRET_KEY": "", "HOPBASE_KEY_PEPPER": ""}),
    "no encryption key": Mistake(SERVE, ("HOPBASE_ENCRYPTION_KEYS", "make_secrets"), {"HOPBASE_ENCRYPTION_KEYS": ""}),
    "no database": Mistake(
        SERVE, ("check DATABASE_URL",), {"DATABASE_URL": "postgresql://hopbase:hunter2@127.0.0.1:1/x"}
    ),
    "no database URL": Mistake(SERVE, ("DATABASE_URL must begin with",), {"DATABASE_URL": "mysql://u:hunter2@db/x"}),
    "empty database": Mistake(SERVE, ("manage.py migrate",), {"DATABASE_URL": "sqlite:///{folder}/new.sqlite3"}),
    "odd database option": Mistake(
        SERVE, ("DATABASE_URL cannot be used", "foo"), {"DATABASE_URL": "postgresql://u:hunter2@127.0.0.1:1/x?foo=1"}
    ),
    "odd Redis URL": Mistake(SERVE, ("REDIS_URL cannot be read",), {"REDIS_URL": "redis://:hunter2#@127.0.0.1:6379/1"}),
    "odd public URL": Mistake(SERVE, ("HOPBASE_PUBLIC_URL is no whole URL",), {"HOPBASE_PUBLIC_URL": "gateway.test"}),
    "odd .env": Mistake(SERVE, ("odd.env, line 1",), {"HOPBASE_ENV_FILE": "{folder}/odd.env"}),
    "no such port": Mistake(("serve", "--port", "70000"), ("70000", "port")),
    "taken port": Mistake(("serve", "--port", "{port}"), ("is taken", "--port")),
    "odd setting": Mistake(SERVE, ("HOPBASE_KEEPALIVE_S", "above 0"), {"HOPBASE_KEEPALIVE_S": "soon"}),
}


@pytest.fixture(scope="module")
def endings(
    installation: Installation, uvicorn: Gateway, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, subprocess.CompletedProcess[str]]:
    """How each mistake ended; run side by side, since a start takes a second."""
    folder = tmp_path_factory.mktemp("mistakes")
    for name, text in APPLIED.items():
        (folder / name).write_text(text)

    def run(mistake: Mistake) -> subprocess.CompletedProcess[str]:
        command = [part.format(folder=folder, port=uvicorn.port) for part in mistake.command]
        return installation.manage(*command, **_filled(mistake.settings, folder))

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(MISTAKES, pool.map(run, MISTAKES.values()), strict=True))


def _filled(settings: dict[str, str], folder: Path) -> dict[str, str]:
    return {name: value.format(folder=folder) for name, value in settings.items()}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_one_clear_line(endings: dict[str, subprocess.CompletedProcess[str]], name: str) -> None:
    ended = endings[name]
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert [words for words in MISTAKES[name].says if words not in line] == []
    assert "hunter2" not in line


def test_failed_apply_changes_nothing(endings: object, installation: Installation) -> None:
    for table in ("provider", "model"):
        (found,) = installation.query(f"SELECT count(*) FROM streaming_{table} WHERE name = 'half-applied'")
        assert tuple(found) == (0,)
