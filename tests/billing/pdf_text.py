"""What a PDF of ours says: its glyphs, looked up in the file's own tables, in the order in which they are drawn."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

OBJECT = re.compile(rb"^(\d+) 0 obj\n(.*?)\nendobj$", re.DOTALL | re.MULTILINE)
FONT = re.compile(rb"/(\w+) [\d.]+ Tf")
HEX = re.compile(rb"<([0-9A-F]+)>")
ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}


def text_of(raw: bytes) -> str:
    """Its words, each piece that is drawn at once in a line; of a word that is broken each character."""
    return "\n".join(pages_of(raw))


def pages_of(raw: bytes) -> list[str]:
    """The same by page."""
    objects = dict(OBJECT.findall(raw))
    pages = [one for one in objects.values() if one.startswith(b"<</Type/Page/")]
    return ["\n".join(_pieces(page, objects)) for page in pages]


def _pieces(page: bytes, objects: dict[bytes, bytes]) -> Iterator[str]:
    resources = _referred(page, b"Resources", objects)
    fonts = {
        name: _glyphs(_referred(objects[number], b"ToUnicode", objects))
        for name, number in re.findall(rb"/(f\d+) (\d+) 0 R", resources)
    }
    for font, codes in _drawn(_opened(_referred(page, b"Contents", objects))):
        yield "".join(fonts[font][codes[at : at + 2]] for at in range(0, len(codes), 2))


def _referred(given: bytes, name: bytes, objects: dict[bytes, bytes]) -> bytes:
    found = re.search(rb"/%s (\d+) 0 R" % name, given)
    assert found
    return objects[found[1]]


def _opened(stream: bytes) -> bytes:
    return zlib.decompress(stream.partition(b"stream\n")[2].rpartition(b"\nendstream")[0])


def _glyphs(table: bytes) -> dict[bytes, str]:
    """Code of a glyph -> what it stands for."""
    pairs = re.findall(rb"<([0-9A-F]{4})> <([0-9A-F]+)>\n", _opened(table))
    return {bytes.fromhex(code.decode()): bytes.fromhex(to.decode()).decode("utf-16-be") for code, to in pairs}


def _drawn(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The font and the codes of each piece."""
    font, codes, at = b"", b"", 0
    while at < len(content):
        if content.startswith(b"(", at):
            piece, at = _literal(content, at + 1)
            codes += piece
        elif found := HEX.match(content, at):
            codes, at = codes + bytes.fromhex(found[1].decode()), found.end()
        elif found := FONT.match(content, at):
            font, at = found[1], found.end()
        elif content.startswith((b"TJ", b"Tj"), at):
            yield font, codes
            codes, at = b"", at + 2
        else:
            at += 1


def _literal(content: bytes, at: int) -> tuple[bytes, int]:
    """A string of which the bracket was read, and where it ends; brackets in it may be in pairs."""
    found, depth = b"", 1
    while True:
        byte, at = content[at : at + 1], at + 1
        if byte == b"\\":
            octal = re.compile(rb"[0-7]{1,3}").match(content, at)
            byte = bytes([int(octal[0], 8)]) if octal else content[at : at + 1]
            found, at = found + (byte if octal else ESCAPES.get(byte, byte)), octal.end() if octal else at + 1
            continue
        depth += (byte == b"(") - (byte == b")")
        if not depth:
            return found, at
        found += byte
