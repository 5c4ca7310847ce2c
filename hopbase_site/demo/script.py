"""What the fake provider says. Words in square brackets in the prompt make it misbehave:

[slow]       ten times slower            [silent 12]  12 s without a word, after the first few
[cut]        the connection breaks off   [error]      an error event in the middle of the answer
[fail]       no stream: status 500       [fail 429]   no stream: that status
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PACE_S = 0.03
"""Between two words: the thirty or so tokens a second of a large model."""
FIRST_S = 0.25
SLOW_FACTOR = 10
SILENT_S = 12.0
LONGEST_SILENCE_S = 300.0
SILENT_AFTER, BREAK_AFTER = 8, 20
"""Words."""
SYSTEM_PROMPT = 24_000
"""Tokens that come with every prompt, so that each bucket costs something that an invoice can show."""

THOUGHT = "The reader wants a short and plain answer, so one picture and no jargon."
ANSWER = (
    "A gateway stands between your program and the companies whose models it uses. It passes every byte of a stream on"
    " as it came, keeps the line alive while a model is thinking, and counts what was used while it goes by. When"
    " something breaks, it says so in the words of the protocol, and bills what was delivered: no more, and no less."
)
ANSWER_ZH = (
    "網關 站在 你的 程式 與 模型 供應商 之間。 它 把 串流 的 每個 位元組 原樣 轉發， 在 模型 思考 時 保持 連線，"
    " 並且 在 資料 經過 時 計算 用量。 一旦 中途 出錯， 它會 依照 協定 的 方式 告知， 已經 產出 的 部分 依 用量 計費。"
)
CJK = re.compile(r"[\u3400-\u9fff]")
COMMAND = re.compile(r"\[(slow|silent|cut|error|fail)(?: (\d{1,4}))?\]")
STATUSES = (400, 401, 403, 404, 408, 413, 429, 500, 502, 503, 504, 529)


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts as this provider reports them; all four of the input are disjoint here."""

    fresh: int
    cached: int
    written: int
    thought: int
    said: int

    @property
    def input(self) -> int:
        return self.fresh + self.cached + self.written

    @property
    def output(self) -> int:
        """Reasoning inside."""
        return self.thought + self.said


@dataclass(frozen=True, slots=True)
class Script:
    """One answer: its pieces, its pace, how it goes wrong. `fail` is a status instead of an answer."""

    thoughts: tuple[str, ...]
    words: tuple[str, ...]
    usage: Usage
    pace_s: float = PACE_S
    silent_s: float = 0.0
    cut: bool = False
    error: bool = False
    fail: int | None = None

    @property
    def thought(self) -> str:
        return "".join(self.thoughts)

    @property
    def text(self) -> str:
        return "".join(self.words)


def write(prompt: str) -> Script:
    """The script for a prompt: the same prompt has always the same one."""
    answer = ANSWER_ZH if CJK.search(prompt) else ANSWER
    words = _pieces(answer)
    thoughts = _pieces(THOUGHT)
    commands = dict(COMMAND.findall(prompt))
    return Script(
        thoughts,
        words,
        _usage(prompt, len(thoughts), len(words)),
        pace_s=PACE_S * (SLOW_FACTOR if "slow" in commands else 1),
        silent_s=min(float(commands["silent"] or SILENT_S), LONGEST_SILENCE_S) if "silent" in commands else 0.0,
        cut="cut" in commands,
        error="error" in commands,
        fail=_status(commands["fail"]) if "fail" in commands else None,
    )


def _pieces(text: str) -> tuple[str, ...]:
    """Word by word, each with the space before it, as tokenizers cut."""
    if CJK.search(text):
        return tuple(text.split())
    return tuple(re.findall(r"\S+|\s+\S+", text))


def _status(number: str) -> int:
    return int(number) if number and int(number) in STATUSES else 500


def _usage(prompt: str, thought: int, said: int) -> Usage:
    """A token for four characters, and a long system prompt; half comes out of the cache, a quarter goes into it."""
    total = SYSTEM_PROMPT + len(prompt) // 4
    cached, written = total // 2, total // 4
    return Usage(total - cached - written, cached, written, thought, said)


def prompt_of(body: Mapping[str, Any]) -> str:
    """All the text that a request of any of the three wire formats holds."""
    return " ".join(_texts([body.get(name) for name in ("instructions", "system", "messages", "input")]))


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, Mapping):
        return _texts([value.get("content"), value.get("text")])
    return []
