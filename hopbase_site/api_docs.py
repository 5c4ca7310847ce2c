"""The customers' pages under /docs/: Markdown files of docs/api, one folder per language, as small HTML pages.

Plain ASGI, without Django's middleware, admin or database, so that a gateway process can serve them, too. A page is
rendered once, in a thread. Links between the files are made links between the pages. Beside them is docs/api's OpenAPI
file, as YAML and as JSON. What depends on the installation is filled in: see `docs_values`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import yaml
from django.conf import settings
from django.template import Context, Engine
from django.utils.safestring import mark_safe
from django.utils.translation.trans_real import parse_accept_lang_header
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from hopbase_site.docs_values import Values, filled, of_this_process

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

FOLDER = settings.BASE_DIR / "docs" / "api"
FILES = Path(__file__).resolve().parent / "static" / "hopbase"
ENGINE = Engine(dirs=[str(settings.BASE_DIR / "templates" / "docs")])
PAGES = ("quickstart", "authentication", "models", "streaming", "billing", "errors", "usage")
"""In the order of the menu; the first one is where /docs/ leads."""
OPENAPI = {"openapi.yaml": b"application/yaml", "openapi.json": b"application/json"}
WORDS = {
    "en": {
        "language": "English", "title": "API documentation", "menu": "Pages", "contents": "On this page",
        "skip": "Skip to the text", "copy": "Copy", "copied": "Copied",
        "openapi": "OpenAPI file",
    },
    "zh-Hant": {
        "language": "繁體中文", "title": "API 文件", "menu": "頁面", "contents": "本頁目錄",
        "skip": "跳到內文", "copy": "複製", "copied": "已複製",
        "openapi": "OpenAPI 檔案",
    },
}  # fmt: skip
"""Of the frame around the pages. Not gettext's: its catalogues hold the admin, which a gateway does not load."""
ASSETS = {
    "docs.css": b"text/css; charset=utf-8",
    "docs.js": b"text/javascript; charset=utf-8",
    "favicon.svg": b"image/svg+xml",
}
HTML = b"text/html; charset=utf-8"
POLICY = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
)
SAFE_HEADERS = (
    (b"content-security-policy", POLICY + b"frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"public, max-age=300"),
)
PAGE_LINK = re.compile(r"([a-z-]+)\.md(#.*)?")


class PageRenderer(RendererHTML):
    """Adds a button to each code block, with the words of `env`, and lets wide tables scroll within themselves."""

    def code_inline(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """A name within a text, which may be parted where its words are: tables are narrow."""
        return f"<code>{escape(tokens[idx].content).replace('_', '_<wbr>')}</code>"

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """A code block."""
        token, words = tokens[idx], env["words"]
        button = f'<button type="button" hidden data-copied="{words["copied"]}">{words["copy"]}</button>'
        code = f'<code class="language-{escape(token.info)}">{escape(token.content)}</code>'
        return f'<div class="code">{button}<pre tabindex="0">{code}</pre></div>\n'

    def table_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """A table's beginning."""
        return '<div class="table" tabindex="0"><table>\n'

    def table_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """A table's end."""
        return "</table></div>\n"


MARKDOWN = MarkdownIt("commonmark", {"html": False}, renderer_cls=PageRenderer).enable("table")
MARKDOWN.parse("a")  # now: two threads at once would find its rules half compiled


def is_docs(path: str) -> bool:
    """Whether a request's path is one of these pages'."""
    return path == "/docs" or path.startswith("/docs/")


async def application(scope: Mapping[str, Any], send: Send) -> None:
    """Answer a GET or HEAD below /docs."""
    if scope["method"] not in ("GET", "HEAD"):
        await _answer(send, 405, b"Use GET here.\n", [(b"content-type", b"text/plain"), (b"allow", b"GET, HEAD")])
        return
    status, headers, body = await asyncio.to_thread(respond, scope["path"], _accept_language(scope["headers"]))
    await _answer(send, status, b"" if scope["method"] == "HEAD" else body, headers, len(body))


def respond(path: str, accept_language: str = "") -> tuple[int, Headers, bytes]:
    """Status, headers and body of a GET."""
    parts = path.removeprefix("/docs").strip("/").split("/")
    first = parts[0] or preferred(accept_language)
    if first in WORDS and len(parts) == 1:
        return 302, [(b"location", f"/docs/{first}/{PAGES[0]}".encode()), (b"vary", b"accept-language")], b""
    if first in WORDS and len(parts) == 2 and parts[1] in PAGES:
        if path.endswith("/"):  # links between the pages are relative
            return 302, [(b"location", f"/docs/{first}/{parts[1]}".encode())], b""
        return 200, [(b"content-type", HTML), *SAFE_HEADERS], page(first, parts[1], of_this_process())
    if len(parts) == 1 and first in OPENAPI:
        return 200, [(b"content-type", OPENAPI[first]), *SAFE_HEADERS], openapi(first, of_this_process())
    if len(parts) == 1 and first in ASSETS:
        return 200, [(b"content-type", ASSETS[first]), *SAFE_HEADERS], (FILES / first).read_bytes()
    return 404, [(b"content-type", b"text/plain")], b"There is no such page. See /docs/\n"


def preferred(accept_language: str) -> str:
    """The language of a reader who has chosen none: Chinese of any kind is nearer to ours than English."""
    asked = next((name for name, _ in parse_accept_lang_header(accept_language) if name[:2] in ("en", "zh")), "en")
    return "zh-Hant" if asked.startswith("zh") else "en"


@cache
def page(language: str, name: str, values: Values) -> bytes:
    """A whole page."""
    words = WORDS[language]
    tokens = parsed(source(language, name, values))
    others = [{"code": code, "name": other["language"]} for code, other in WORDS.items() if code != language]
    context = {
        "language": language,
        "words": words,
        "heading": heading(tokens),
        "menu": [{"name": each, "title": title(language, each, values), "is_here": each == name} for each in PAGES],
        "contents": [entry for entry in outline(tokens) if entry["tag"] == "h2"],
        "others": others,
        "name": name,
        "body": mark_safe(rendered(tokens, words)),  # noqa: S308 - our own files
    }
    return ENGINE.get_template("page.html").render(Context(context)).encode()


@cache
def openapi(name: str, values: Values) -> bytes:
    """The OpenAPI file, as YAML or JSON by the name's ending."""
    text = filled((FOLDER / "openapi.yaml").read_text(encoding="utf-8"), values)
    if name.endswith(".json"):
        text = json.dumps(yaml.load(text, yaml.CSafeLoader), ensure_ascii=False, indent=2)
    return text.encode()


def source(language: str, name: str, values: Values) -> str:
    """A page's Markdown, filled in."""
    return filled((FOLDER / language / f"{name}.md").read_text(encoding="utf-8"), values)


@cache
def title(language: str, name: str, values: Values) -> str:
    """What a page is called in the menu: its first heading."""
    return heading(parsed(source(language, name, values)))


def heading(tokens: Sequence[Token]) -> str:
    """The first heading's text."""
    return str(outline(tokens)[0]["text"])


def outline(tokens: Sequence[Token]) -> list[dict[str, str]]:
    """The headings: tag, id and text."""
    return [
        {"tag": token.tag, "id": str(token.attrs["id"]), "text": _plain(tokens[place + 1])}
        for place, token in enumerate(tokens)
        if token.type == "heading_open"
    ]


def parsed(text: str) -> list[Token]:
    """Markdown's tokens: headings with ids, links to files as links to pages."""
    tokens = MARKDOWN.parse(text)
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", slug(_plain(tokens[place + 1])))
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", PAGE_LINK.sub(r"\1\2", str(child.attrs["href"])))
    return tokens


def rendered(tokens: Sequence[Token], words: Mapping[str, str]) -> str:
    """A text's HTML; no HTML of its own gets through."""
    html: str = MARKDOWN.renderer.render(tokens, MARKDOWN.options, {"words": words})
    return html


def slug(text: str) -> str:
    """A heading's id, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def _plain(inline: Token) -> str:
    return "".join(child.content for child in inline.children or ())


def _accept_language(headers: Headers) -> str:
    return next((value.decode("latin-1") for name, value in headers if name.lower() == b"accept-language"), "")


async def _answer(send: Send, status: int, body: bytes, headers: Headers, length: int | None = None) -> None:
    size = (b"content-length", str(len(body) if length is None else length).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, size]})
    await send({"type": "http.response.body", "body": body})
