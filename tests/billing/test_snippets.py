"""Snippets: the right base URL and model for each SDK, and text that is a program in its language."""

from __future__ import annotations

import ast
import json
import shlex
import shutil
import subprocess

import pytest

from billing.admin.snippets import NO_MODEL, snippets

BASE, SECRET = "https://gateway.example.com", "sk-hb-" + "a" * 49
EVERY = frozenset({"chat_completions", "responses", "messages"})
ODD = 'it\'s-a-"model"\\模型'
NODE = shutil.which("node")


def texts(offer: dict[str, frozenset[str]], allowed: list[str] | None = None) -> dict[str, str]:
    return {snippet.name: snippet.text for snippet in snippets(BASE, SECRET, offer, allowed)}


def test_each_sdk_gets_its_base() -> None:
    found = texts({"gpt": EVERY})
    assert f"{BASE}/v1/chat/completions" in found["curl"]
    for name in ("python-openai", "python-responses", "node-openai"):
        assert f'"{BASE}/v1"' in found[name]
    for name in ("python-anthropic", "node-anthropic"):
        assert f'"{BASE}"' in found[name]
    assert all(SECRET in text for text in found.values())


def test_model_is_one_that_can_be_asked() -> None:
    offer = {"chat-only": frozenset({"chat_completions"}), "claude": frozenset({"messages"}), "gpt": EVERY}
    found = texts(offer)
    assert '"chat-only"' in found["python-openai"]
    assert '"gpt"' in found["python-responses"]
    assert '"claude"' in found["node-anthropic"]
    found = texts(offer, ["gpt"])
    assert all('"gpt"' in text for text in found.values())


def test_what_cannot_be_asked_is_left_out() -> None:
    offer = {"claude": frozenset({"messages"}), "gpt": EVERY}
    assert list(texts(offer, ["claude"])) == ["python-anthropic", "node-anthropic"]
    assert f'"{NO_MODEL}"' in texts({})["curl"]
    assert '"a"' in texts({}, ["b", "a"])["curl"]


def test_curl_survives_the_shell() -> None:
    words = shlex.split(texts({ODD: EVERY})["curl"].replace("\\\n", ""))
    assert words[:3] == ["curl", "-N", f"{BASE}/v1/chat/completions"]
    assert f"Authorization: Bearer {SECRET}" in words
    assert json.loads(words[-1])["model"] == ODD


@pytest.mark.parametrize("name", ["python-openai", "python-responses", "python-anthropic"])
def test_python_is_python(name: str) -> None:
    tree = ast.parse(texts({ODD: EVERY})[name])
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert {ODD, SECRET} <= constants


@pytest.mark.skipif(NODE is None, reason="no Node on this machine; on Debian: apt-get install nodejs")
@pytest.mark.parametrize("name", ["node-openai", "node-anthropic"])
def test_node_is_a_module(name: str) -> None:
    assert NODE is not None
    text = texts({ODD: EVERY})[name]
    checked = subprocess.run([NODE, "--check", "--input-type=module", "-"], input=text, text=True, capture_output=True)
    assert checked.returncode == 0, checked.stderr
