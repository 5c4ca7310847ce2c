"""The Chinese of the admin: complete, with the same placeholders, and compiled as it stands in the .po file."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from django.conf import settings
from django.test import Client

from tests.billing.admin_site import Login
from tests.billing.admin_site import login as login
from tests.billing.admin_site import users as users
from tests.billing.admin_world import World

PO = Path(settings.BASE_DIR) / "locale/zh_Hant/LC_MESSAGES/django.po"
PLACEHOLDER = re.compile(r"%\(\w+\)s|%%|\{\w*\}")


class Entry(NamedTuple):
    source: str
    plural: str
    text: str


def entries() -> Iterator[Entry]:
    """The messages of the .po file; its header is the one without a source."""
    for block in PO.read_text().split("\n\n"):
        found = {"msgid": "", "msgid_plural": "", "msgstr": ""}
        field = ""
        for line in block.splitlines():
            if match := re.match(r'(msgid_plural|msgid|msgstr)(?:\[0\])? (".*")$', line):
                field, line = match.group(1), match.group(2)
            if line.startswith('"'):
                found[field] += ast.literal_eval(line)
        yield Entry(found["msgid"], found["msgid_plural"], found["msgstr"])


def test_compiled_file_agrees() -> None:
    with PO.with_suffix(".mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    texts = [entry for entry in entries() if entry.source]
    assert len(texts) > 400
    for entry in texts:
        read = compiled.ngettext(entry.source, entry.plural, 1) if entry.plural else compiled.gettext(entry.source)
        assert read == entry.text
    assert len(compiled._catalog) == len(texts) + 1  # type: ignore[attr-defined]  # one more: the header


def test_no_text_is_missing() -> None:
    for entry in entries():
        assert entry.text, entry.source
        assert sorted(PLACEHOLDER.findall(entry.text)) == sorted(PLACEHOLDER.findall(entry.source)) or not entry.source


def test_words_follow_the_glossary() -> None:
    texts = {entry.source: entry.text for entry in entries()}
    assert not any(wrong in text for text in texts.values() for wrong in ("發票", "折讓單", "令牌"))
    words = {"invoice": "帳單", "account": "帳戶", "API key": "API 金鑰", "provider": "供應商", "wire format": "協定"}
    words |= {
        "ending": "結束方式",
        "metering": "計量",
        "unpriced": "未定價",
        "open": "待付",
        "void": "作廢",
        "draft": "草稿",
    }
    assert {source: texts[source] for source in words} == words
    beside_latin = re.compile(r"[\u4e00-\u9fff](?:token|API|JSON|UTC|URL)|(?:token|API|JSON|UTC|URL)[\u4e00-\u9fff]")
    assert [text for text in texts.values() if beside_latin.search(text)] == []


def test_source_strings_are_all_listed() -> None:
    """Every literal that is marked for translation, by the admin or the core below it, is in the .po file."""
    known = {entry.source for entry in entries()}
    base = Path(settings.BASE_DIR)
    places = (
        "billing",
        "billing/admin",
        "billing/ledger",
        "streaming/admin",
        "streaming/configuration",
        "hopbase_site",
    )
    files = [path for place in places for path in base.glob(f"{place}/*.py")]
    marked = [word for path in files for word in marked_in(path)]
    assert len(marked) > 200
    assert {word for word in marked if word not in known} == set()


def marked_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            first = node.args[0]
            is_gettext = node.func.id in ("_", "gettext", "gettext_lazy", "gettext_noop", "ngettext")
            if is_gettext and isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


@pytest.mark.django_db
def test_pages_are_chinese(login: Login, world: World) -> None:
    client: Client = login("operator")
    for url, words in (
        ("/admin/", ("今日請求", "每日請求", "進行中的串流")),
        ("/admin/billing/usagerecord/", ("結束方式", "供應商回報", "用戶端離開", "篩選")),
        ("/admin/billing/apikey/add/", ("每月預算", "允許的網段", "儲存")),
    ):
        content = client.get(url, headers={"accept-language": "zh-hant"}).text
        assert 'lang="zh-hant"' in content
        assert all(word in content for word in words), url
        for english in ("Requests today", "Ending", "Filters", "monthly budget"):
            assert english not in content


@pytest.mark.django_db
def test_language_can_be_switched(login: Login) -> None:
    client: Client = login("operator")
    assert client.post("/admin/i18n/setlang/", {"language": "zh-hant", "next": "/admin/"}).status_code == 302
    assert "首頁" in client.get("/admin/").text
