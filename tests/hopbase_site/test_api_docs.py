"""The customers' pages: complete, alike in both languages, served to anyone, and their examples work."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from billing.usage import ENDINGS
from billing.views import MAX_DAYS
from hopbase_site import asgi
from hopbase_site.api_docs import FOLDER, PAGES, WORDS, outline, page, parsed, rendered, source
from hopbase_site.docs_values import PLACEHOLDER, Values, filled, of_this_process, size
from streaming.errors import CODES
from streaming.limits.estimate import UNSAID_OUTPUT
from streaming.protocols import CHAT_COMPLETIONS, MESSAGES
from streaming.protocols.meter import MeterOptions
from streaming.relay import CUT, INTERRUPTIONS
from streaming.routing import api_routes
from tests.end_to_end import scenes
from tests.end_to_end.conftest import price_entry, provider_entry
from tests.end_to_end.formats import TEXT
from tests.end_to_end.product import Gateway, Installation
from tests.end_to_end.provider import Provider

LANGUAGES = tuple(WORDS)
EACH = [(language, name) for language in LANGUAGES for name in PAGES]
BASE_URL = "https://hopbase.example"
KEY = "sk-test-documents-0123456789abcdef"
NODE = shutil.which("node")
BROKEN = {f"broken-{number}": "cut" for number in range(3)}
"""Public model -> scene: one for each example that handles an interruption, since a failing route cools down."""


def values(base_url: str = BASE_URL) -> Values:
    return (*of_this_process(), ("base_url", base_url))


def text(language: str, name: str) -> str:
    return source(language, name, values())


def whole(language: str) -> str:
    return "\n".join(text(language, name) for name in PAGES)


def blocks(language: str, name: str, base_url: str = BASE_URL) -> list[tuple[str, str]]:
    """The code blocks: language and content."""
    return [
        (token.info, token.content)
        for token in parsed(source(language, name, values(base_url)))
        if token.type == "fence"
    ]


def examples(code: str) -> list[Any]:
    """Those in English; in Chinese they are the same."""
    return [
        pytest.param(name, place, id=f"{name}-{place}")
        for name in PAGES
        for place, (info, _) in enumerate(blocks("en", name))
        if info == code
    ]


def places(page_name: str) -> list[int]:
    """Where a page's Python examples are."""
    return [place for place, (info, _) in enumerate(blocks("en", page_name)) if info == "python"]


# --- what the pages say ---


def test_files_are_the_menu() -> None:
    for language in LANGUAGES:
        assert {path.stem for path in (FOLDER / language).iterdir()} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_languages_have_same_headings(name: str) -> None:
    english, chinese = ([entry["tag"] for entry in outline(parsed(text(language, name)))] for language in LANGUAGES)
    assert english == chinese
    assert english[0] == "h1"
    assert len(english) > 2


@pytest.mark.parametrize("name", PAGES)
def test_languages_have_same_programs(name: str) -> None:
    english, chinese = (blocks(language, name) for language in LANGUAGES)
    assert [info for info, _ in english] == [info for info, _ in chinese]
    programs = [[code for info, code in found if info != "text"] for found in (english, chinese)]
    assert programs[0] == programs[1]


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_alike(name: str) -> None:
    """The same rows, and in them the same names, in both languages."""
    english, chinese = (rows(text(language, name)) for language in LANGUAGES)
    assert english == chinese


def rows(markdown: str) -> list[list[str]]:
    return [sorted(re.findall(r"`[^`]+`", line)) for line in markdown.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("code", CODES)
def test_code_is_documented(language: str, code: str) -> None:
    status, kind = CODES[code]
    assert f"| {status} | `{code}` | `{kind}` |" in text(language, "errors")


@pytest.mark.parametrize("language", LANGUAGES)
def test_documented_codes_exist(language: str) -> None:
    documented = re.findall(r"^\| \d{3} \| `(\w+)` \| `\w+` \|", text(language, "errors"), re.MULTILINE)
    assert sorted({*documented} & {*CODES}) == sorted(CODES)
    assert len([code for code in documented if code in CODES]) == len(CODES)


@pytest.mark.parametrize("language", LANGUAGES)
def test_routes_are_documented(language: str) -> None:
    names = {"v1/models/<path:name>": "{id}", "v1/usage/requests/<path:name>": "{request_id}"}
    routes = [str(route.pattern) for route in api_routes if not str(route.pattern).startswith("^")]
    assert len(routes) == 8
    for route in routes:
        shown = route.replace("<path:name>", names.get(route, ""))
        assert re.search(rf"`(GET|POST) /{re.escape(shown)}`", whole(language)), route


@pytest.mark.parametrize("language", LANGUAGES)
def test_endings_are_documented(language: str) -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", text(language, "usage").rpartition("## ")[2], re.MULTILINE))
    assert documented - {"ending"} == set(ENDINGS)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("status", sorted({status for status, _ in CODES.values()}))
def test_exceptions_are_those_of_the_sdks(language: str, status: int) -> None:
    raised = [type(raised_by(client, status)).__name__ for client in (openai.OpenAI, anthropic.Anthropic)]
    assert f"| {status} | `{raised[0]}` | `{raised[1]}` |" in text(language, "errors")


def raised_by(sdk: Any, status: int) -> BaseException:
    """What an SDK makes of an answer with this status."""
    client = sdk(api_key="none")
    answer = httpx2.Response(status, request=httpx2.Request("POST", BASE_URL))
    made: BaseException = client._make_status_error("", body={}, response=answer)
    return made


@pytest.mark.parametrize("language", LANGUAGES)
def test_error_events_are_the_products(language: str) -> None:
    shown = [code for info, code in blocks(language, "streaming") if info == "text"]
    for wire in (CHAT_COMPLETIONS, MESSAGES):
        assert wire.Meter(MeterOptions("gpt-5.6-sol")).error_event(CUT).decode().strip() in [
            block.strip() for block in shown
        ]
    assert f"`{INTERRUPTIONS['stopped'][1].code}`" in text(language, "streaming")


@pytest.mark.parametrize("name", PAGES)
def test_chinese_punctuation_is_full_width(name: str) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`|\([^)]*\)", "", text("zh-Hant", name), flags=re.DOTALL)
    assert re.findall(r"[\u4e00-\u9fff][,;:!?()]|[,;!?(][\u4e00-\u9fff]", prose) == []
    assert "發票" not in prose


# --- how they are served ---


class Links(HTMLParser):
    """The links, ids and scripts of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"]] if found.get("id") else []
        self.links += [value for name in ("href", "src") if (value := found.get(name))]
        assert tag not in ("style", "script") or found.get("src"), "no inline script or style"
        assert not any(name.startswith("on") or name == "style" for name in found)


async def get(path: str, method: str = "GET", **headers: str) -> httpx.Response:
    """Ask the application."""
    transport = httpx.ASGITransport(asgi.application)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://elsewhere.example") as client:
        return await client.request(method, path, headers=headers)


@pytest.mark.parametrize(("language", "name"), EACH)
async def test_page_is_whole(language: str, name: str, settings: Any) -> None:
    settings.PUBLIC_URL = f"{BASE_URL}/"
    answer = await get(f"/docs/{language}/{name}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert f'<html lang="{language}">' in answer.text
    assert "{{" not in answer.text
    assert "elsewhere.example" not in answer.text
    assert answer.text.count("<h1") == 1
    assert answer.text.count('<button type="button" hidden') == len(blocks(language, name))
    assert "set-cookie" not in answer.headers
    for other in LANGUAGES:
        assert other == language or f'href="/docs/{other}/{name}"' in answer.text


async def test_base_url_is_filled_in(settings: Any) -> None:
    settings.PUBLIC_URL = f"{BASE_URL}/"
    for language in LANGUAGES:
        answer = await get(f"/docs/{language}/quickstart")
        assert f"curl -N &quot;{BASE_URL}/v1/chat/completions&quot;" in answer.text
        assert f"base_url=&quot;{BASE_URL}&quot;" in answer.text


async def test_settings_are_filled_in(settings: Any) -> None:
    settings.KEEPALIVE_S, settings.KEEPALIVE_BEFORE_HEADERS_S = 7.5, 13.0
    settings.STALL_RANGE_S = (130, 240)
    settings.BODY_TIMEOUT_S, settings.SLOW_READER_S, settings.CHECKPOINT_S = 31.0, 61.0, 4.0
    settings.MAX_BODY_BYTES, settings.MAX_ATTEMPTS = 5 * 2**20, 6
    told = {
        "streaming": (7.5, 130, 240),
        "billing": (7.5, 13, 130, 240, 600, 31, 61, 4, "5 MB", 6),
        "errors": (6,),
    }
    for language in LANGUAGES:
        for name, figures in told.items():
            shown = (await get(f"/docs/{language}/{name}")).text
            assert [figure for figure in figures if not re.search(rf"(?<![\d.]){figure}(?![\d.])", shown)] == []


@pytest.mark.parametrize("name", PAGES)
def test_languages_have_the_same_values(name: str) -> None:
    english, chinese = (PLACEHOLDER.findall((FOLDER / language / f"{name}.md").read_text()) for language in LANGUAGES)
    assert english == chinese


def test_every_value_is_used() -> None:
    used = {name for path in FOLDER.rglob("*.*") for name in PLACEHOLDER.findall(path.read_text())}
    assert used == {name for name, _ in of_this_process()}


def test_unknown_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="nothing"):
        filled("{{ nothing }}", of_this_process())


@pytest.mark.parametrize(
    ("count", "shown"),
    [(32 * 2**20, "32 MB"), (200_000, "195.3 KB"), (2**20 - 1, "1023.9 KB"), (1024, "1 KB"), (512, "512 bytes")],
)
def test_size_is_never_more_than_it_is(count: int, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize("language", LANGUAGES)
def test_fixed_figures_are_the_products(language: str) -> None:
    """Those that no setting changes."""
    assert f" {MAX_DAYS} " in text(language, "usage")
    assert f"{UNSAID_OUTPUT:,}" in text(language, "billing")


@pytest.mark.parametrize(("language", "name"), EACH)
async def test_links_lead_somewhere(language: str, name: str) -> None:
    here = f"/docs/{language}/{name}"
    found = Links((await get(here)).text)
    assert len(found.links) > len(PAGES)
    for link in set(found.links):
        url = httpx.URL(f"http://site.example{here}").join(link)
        assert url.host == "site.example", "nothing is loaded from elsewhere"
        answer = await get(url.path)
        assert answer.status_code in (200, 302), link
        if url.fragment:
            assert url.fragment in Links(answer.text).ids, link


@pytest.mark.parametrize(
    ("asked", "language"),
    [("", "en"), ("zh-TW,zh;q=0.9,en;q=0.8", "zh-Hant"), ("zh-CN", "zh-Hant"), ("de, en;q=0.5", "en"), ("fr", "en")],
)
async def test_reader_gets_a_language(asked: str, language: str) -> None:
    for path in ("/docs", "/docs/"):
        answer = await get(path, **{"accept-language": asked})
        assert (answer.status_code, answer.headers["location"]) == (302, f"/docs/{language}/{PAGES[0]}")
        assert answer.headers["vary"] == "accept-language"


@pytest.mark.parametrize("path", ["/docs/en/none", "/docs/fr/errors", "/docs/en/..%2F..%2FREADME", "/docs/page.html"])
async def test_unknown_page_is_404(path: str) -> None:
    assert (await get(path)).status_code == 404


async def test_last_slash_is_taken_off() -> None:
    assert (await get("/docs/en/errors/")).headers["location"] == "/docs/en/errors"


async def test_only_reading_is_allowed() -> None:
    answer = await get("/docs/en/errors", "POST")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    head = await get("/docs/en/errors", "HEAD")
    assert (head.status_code, head.text) == (200, "")
    assert int(head.headers["content-length"]) > 1000


def test_rest_of_markdown_is_text() -> None:
    """No HTML of a page's own: what looks like it is shown."""
    assert "&lt;key&gt;" in rendered(parsed("<key>"), WORDS["en"])
    assert "<script>alert" not in page("en", "errors", values("</code><script>alert(1)</script>")).decode()


# --- the examples ---


@pytest.mark.parametrize(("name", "place"), examples("python"))
def test_python_compiles(name: str, place: int) -> None:
    compile(blocks("en", name)[place][1], f"{name}.md", "exec")


@pytest.mark.skipif(NODE is None, reason="node is not installed")
@pytest.mark.parametrize(("name", "place"), examples("javascript"))
def test_javascript_is_javascript(name: str, place: int, tmp_path: Path) -> None:
    file = tmp_path / "example.mjs"
    file.write_text(blocks("en", name)[place][1])
    assert NODE is not None
    checked = subprocess.run([NODE, "--check", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway with the models of the examples, and a fake provider behind it."""
    with Provider(scenes.stage({})) as provider:
        made = Installation("", PROVIDER_KEY="sk-provider-7f3a9c1e5b-walrus")
        try:
            made.migrate()
            made.apply(configuration(provider.base_url))
            with made.serving("uvicorn") as running:
                yield running
        finally:
            made.remove()


def configuration(base_url: str) -> dict[str, Any]:
    played = {"gpt-5.6-sol": "plain", "claude-sonnet-5": "plain", **BROKEN}
    return {
        "providers": [provider_entry("acme", base_url, {})],
        "models": [
            {"name": name, "routes": [{"provider": "acme", "upstream_model": scene}]} for name, scene in played.items()
        ],
        "prices": [price_entry(name) for name in played],
        "accounts": [{"name": "northwind", "currency": "USD", "keys": [{"name": "documents", "secret": KEY}]}],
    }


def runnable(gateway: Gateway, name: str, place: int) -> str:
    return blocks("en", name, gateway.url)[place][1].replace("YOUR_API_KEY", KEY)


def run(code: str, capsys: pytest.CaptureFixture[str]) -> str:
    exec(compile(code, "example", "exec"), {"__name__": "example"})
    return capsys.readouterr().out


@pytest.mark.parametrize(("name", "place"), examples("bash"))
def test_curl_works(gateway: Gateway, name: str, place: int) -> None:
    command = runnable(gateway, name, place).replace("curl ", "curl -sS --fail-with-body ", 1)
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if name == "quickstart":
        assert "Föhn" in ended.stdout
        assert "text/event-stream" not in ended.stdout
    else:
        assert '"object":' in ended.stdout


@pytest.mark.parametrize(("name", "place"), examples("python"))
def test_python_works(
    gateway: Gateway, name: str, place: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPBASE_API_KEY", KEY)
    said = run(runnable(gateway, name, place).replace("time.sleep(5)", "time.sleep(1)"), capsys)
    expected = {"quickstart": TEXT, "streaming": TEXT, "authentication": "", "models": "", "billing": "66"}
    expected |= {"errors": TEXT, "usage": "complete 52 0.001612"}
    assert expected[name] in said
    assert said or name == "authentication"


@pytest.mark.parametrize(("place", "model"), [*zip(places("streaming"), BROKEN, strict=True)])
def test_interruption_is_handled(gateway: Gateway, place: int, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = runnable(gateway, "streaming", place)
    said = run(re.sub(r"gpt-5\.6-sol|claude-sonnet-5", model, code), capsys)
    assert said.startswith("Der Föhn weht \ninterrupted: ")
    assert "Response stream interrupted, please retry" in said


def test_pages_come_without_the_admin(gateway: Gateway) -> None:
    """This process has the role gateway: no admin there, no key needed, its own address in the examples."""
    answer = httpx.get(f"{gateway.url}/docs/zh-Hant/quickstart")
    assert answer.status_code == 200
    assert "快速開始" in answer.text
    assert httpx.get(f"{gateway.url}/docs/docs.css").headers["content-type"] == "text/css; charset=utf-8"
    assert httpx.get(f"{gateway.url}/admin/").status_code == 404
