"""A provider's usage export or invoice, read by a mapping of its columns. Pure: text in, plain values out.

    guess(file)              the mapping that a file's own column names suggest
    read(file, mapping)      a line of tokens and cost per line of the file, and what is wrong with the others
    aliases(theirs, ours)    which of our model names a provider's dated or spelled-out names mean

What the exports look like (2026): OpenAI's usage has `start_time` (epoch), `model`, `input_tokens` (cached ones
inside), `input_cached_tokens`, `output_tokens`, `num_model_requests`; its costs `amount_value` with 30 decimals, and a
model within `line_item`; both fill days without use with empty lines. Anthropic's usage has `usage_date_utc`,
`model_version` and disjoint `usage_input_tokens_no_cache`, `…_cache_write_5m`, `…_cache_write_1h`, `…_cache_read`,
`usage_output_tokens`; its costs have one line per kind of token and spell models out ("Claude Haiku 4.5").
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from billing.csv_files import CsvFile, CsvLine
from billing.matching import Theirs
from billing.money import NANOS, divide_half_even, is_currency
from billing.usage import BUCKETS, MAX_COUNT

INPUT_WITH_CACHE = "input_with_cache"
"""Input that holds what was read from the cache and written to it, as OpenAI counts it."""

TOKEN_FIELDS = ("input", INPUT_WITH_CACHE, "cache_read", "cache_write", "cache_write_1h", "output")
FIELDS = ("day", "model", *TOKEN_FIELDS, "requests", "cost")
"""What a column can hold, in the order in which everything shows it."""

UNITS = {"tokens": 1, "thousands": 1000, "millions": 10**6}

MAX_MODEL = 200
MAX_COST = 10**8
"""Units of a currency in one line; more is a wrong column."""

MAX_SUM_NANOS = 2**63 - 1
"""What a column of the database holds."""


@dataclass(frozen=True, slots=True)
class FileMapping:
    """How to read a provider's files: remembered per provider.

    `columns`: field -> the column's name in the file. `zone`: in which days without an offset are meant, and whose days
    are compared. `unit`: what a token column counts. `decimal`: the sign between whole and fraction. `day_first`: how
    03/04/2026 is meant. `aliases`: a model's name there -> its upstream name here.
    """

    columns: Mapping[str, str]
    zone: str = "UTC"
    currency: str = "USD"
    unit: str = "tokens"
    decimal: str = "."
    day_first: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def buckets(self) -> tuple[str, ...]:
        """The buckets that the file tells, those to compare."""
        told = {"input" if name == INPUT_WITH_CACHE else name for name in self.columns}
        return tuple(bucket for bucket in BUCKETS if bucket in told)

    @property
    def has_cost(self) -> bool:
        return "cost" in self.columns

    def as_json(self) -> dict[str, Any]:
        """The mapping as a JSON column keeps it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FileMapping:
        """The same again."""
        return cls(**value)


@dataclass(frozen=True, slots=True)
class TheirLine:
    """What one line of the file says. `tokens`: of the mapping's buckets; None: the file does not tell."""

    number: int
    day: dt.date
    model: str
    tokens: Mapping[str, int]
    requests: int | None
    cost_nanos: int | None


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the line at `number` cannot be read.

    `code`: cells, no_day, day, no_model, long_model, number, negative, fraction, too_large, cache_exceeds_input,
    outside. `field` and `value`: which column, and what stands there.
    """

    number: int
    code: str
    field: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """A file as read. `empty`: lines that name no model and count nothing, which stand for days without use."""

    lines: tuple[TheirLine, ...]
    faults: tuple[Fault, ...]
    empty: int = 0

    @property
    def days(self) -> tuple[dt.date, dt.date] | None:
        """First and last day."""
        days = [line.day for line in self.lines]
        return (min(days), max(days)) if days else None

    @property
    def models(self) -> list[str]:
        """The models' names in the file."""
        return sorted({line.model for line in self.lines})


class _Bad(Exception):
    def __init__(self, code: str, field: str = "", value: str = "") -> None:
        super().__init__(code)
        self.code, self.field, self.value = code, field, value


# --- reading ---


def read(file: CsvFile, mapping: FileMapping) -> Reading:
    """Read all lines; the mapping's columns are those of the file (ValueError where one is not there)."""
    places = {name: file.header.index(column) for name, column in mapping.columns.items()}
    zone = ZoneInfo(mapping.zone)
    lines, faults, empty = [], [], 0
    for line in file.lines:
        try:
            found = _read_line(line, len(file.header), places, mapping, zone)
        except _Bad as bad:
            faults.append(Fault(line.number, bad.code, bad.field, bad.value[:60]))
            continue
        if found is None:
            empty += 1
        else:
            lines.append(found)
    return Reading(tuple(lines), tuple(faults), empty)


def _read_line(
    line: CsvLine, width: int, places: Mapping[str, int], mapping: FileMapping, zone: ZoneInfo
) -> TheirLine | None:
    if len(line.cells) != width and any(line.cells[width:] or [len(line.cells) < width]):
        raise _Bad("cells", value=f"{len(line.cells)}/{width}")
    cells = {name: line.cells[place] for name, place in places.items()}
    counts = {name: _count(name, cells[name], mapping) for name in (*TOKEN_FIELDS, "requests") if name in cells}
    cost = _cost(cells["cost"], mapping.decimal) if "cost" in cells else None
    model = cells["model"].partition(",")[0].strip()
    if not model and not any(counts.values()) and not cost:
        return None
    if not model or len(model) > MAX_MODEL:
        raise _Bad("long_model" if model else "no_model", "model", model)
    requests = counts.pop("requests", None)
    return TheirLine(
        line.number, read_day(cells["day"], zone, mapping.day_first), model, _disjoint(counts), requests, cost
    )


def _disjoint(counts: Mapping[str, int]) -> dict[str, int]:
    """Tokens by bucket: an input that holds what was cached gives it up."""
    tokens = dict(counts)
    if (whole := tokens.pop(INPUT_WITH_CACHE, None)) is not None:
        tokens["input"] = whole - sum(tokens.get(name, 0) for name in ("cache_read", "cache_write", "cache_write_1h"))
        if tokens["input"] < 0:
            raise _Bad("cache_exceeds_input", INPUT_WITH_CACHE, str(whole))
    return tokens


def _count(name: str, text: str, mapping: FileMapping) -> int:
    """A cell of tokens or requests; an empty one is zero."""
    numerator, denominator = _number(name, text, mapping.decimal).as_integer_ratio()
    count, rest = divmod(numerator * (UNITS[mapping.unit] if name in TOKEN_FIELDS else 1), denominator)
    if rest:
        raise _Bad("fraction", name, text)
    if count < 0:
        raise _Bad("negative", name, text)
    if count > MAX_COUNT:
        raise _Bad("too_large", name, text)
    return count


def _cost(text: str, decimal: str) -> int:
    """A cell of money in nanos, rounded half even; credits are below zero."""
    amount = _number("cost", text, decimal)
    if abs(amount) > MAX_COST:
        raise _Bad("too_large", "cost", text)
    numerator, denominator = amount.as_integer_ratio()
    return divide_half_even(numerator * NANOS, denominator)


_BLANKS = re.compile(r"[\s'’_]")
_CURRENCY = re.compile(r"^(?:[a-z]{2,3}\$?|[$€£¥₩])|(?:[a-z]{3}|[$€£¥₩元])$", re.IGNORECASE)
_NUMBERS = {
    decimal: re.compile(
        rf"(?!e)(?:\d{{1,3}}(?:\{group}\d{{2,3}})*\{group}\d{{3}}|\d+)?(?:\{decimal}\d*)?(?:e[+-]?\d{{1,2}})?",
        re.IGNORECASE,
    )
    for decimal, group in ((".", ","), (",", "."))
}


def _number(name: str, text: str, decimal: str) -> Decimal:
    """A number as people and programs write it: grouped, with a currency, in parentheses for a credit."""
    plain = _BLANKS.sub("", text).replace("−", "-")
    if not plain:
        return Decimal(0)
    negative = plain.startswith("(") and plain.endswith(")")
    plain = plain[1:-1] if negative else plain
    sign = plain[:1] if plain[:1] in ("+", "-") else ""
    plain = _CURRENCY.sub("", plain.removeprefix(sign)).lstrip("$")
    if plain.startswith("-") and not sign:  # USD -1.50
        sign, plain = "-", plain[1:]
    if len(plain) > 60 or not any(map(str.isdigit, plain)) or not _NUMBERS[decimal].fullmatch(plain):
        raise _Bad("number", name, text)
    amount = Decimal(plain.replace("," if decimal == "." else ".", "").replace(decimal, "."))
    return -amount if negative or sign == "-" else amount


# --- days ---

_EPOCH = re.compile(r"(\d{10})(?:\.\d+|\d{3}|\d{6})?")
_TIME = (
    r"(?:[T ,]+(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,]\d+)?)?\s*(?P<half>[APap]\.?[Mm]\.?)?)?"
)
_OFFSET = r"\s*(?P<offset>Z|UTC|GMT|[+-]\d{2}:?\d{2})?"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WORD = r"(?P<word>[A-Za-z]{3,9})\.?"
_DATES = [
    re.compile(date + _TIME + _OFFSET)
    for date in (
        r"(?P<year>\d{4})[-/.年](?P<month>\d{1,2})[-/.月](?P<day>\d{1,2})日?",
        r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})",
        r"(?P<one>\d{1,2})[-/.](?P<two>\d{1,2})[-/.](?P<year>\d{4})",
        rf"{_WORD} (?P<day>\d{{1,2}}),? (?P<year>\d{{4}})",
        rf"(?P<day>\d{{1,2}})[ -]{_WORD}[ -](?P<year>\d{{4}})",
    )
]


def read_day(text: str, zone: ZoneInfo, day_first: bool = False) -> dt.date:
    """The day that a cell means in a zone: an instant's there, or the one that stands there."""
    if not text:
        raise _Bad("no_day", "day")
    try:
        if epoch := _EPOCH.fullmatch(text):
            return dt.datetime.fromtimestamp(int(epoch[1]), dt.UTC).astimezone(zone).date()
        matches = (pattern.fullmatch(text) for pattern in _DATES)
        found = next((match.groupdict() for match in matches if match), None)
        if found is None:
            raise _Bad("day", "day", text)
        return _day(found, zone, day_first)
    except (ValueError, OverflowError):
        raise _Bad("day", "day", text) from None


def _day(found: Mapping[str, str | None], zone: ZoneInfo, day_first: bool) -> dt.date:
    """ValueError where there is no such day or time."""
    one, two = int(found.get("one") or 0), int(found.get("two") or 0)
    month = int(found.get("month") or (two if day_first else one))
    if word := found.get("word"):
        month = _MONTHS.index(word[:3].lower()) + 1
    date = dt.date(int(found["year"] or 0), month, int(found.get("day") or (one if day_first else two)))
    if not found["hour"]:
        return date
    time = dt.time(_hour(found), int(found["minute"] or 0), int(found["second"] or 0))
    if not found["offset"]:
        return date
    return dt.datetime.combine(date, time, _offset(found["offset"])).astimezone(zone).date()


def _hour(found: Mapping[str, str | None]) -> int:
    hour, half = int(found["hour"] or 0), (found["half"] or "")[:1].lower()
    if not half:
        return hour
    if not 1 <= hour <= 12:
        raise ValueError(f"{hour} is no hour of half a day")
    return hour % 12 + (12 if half == "p" else 0)


def _offset(text: str) -> dt.timezone:
    if text[0] not in "+-":
        return dt.UTC
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    return dt.timezone(dt.timedelta(minutes=-minutes if text[0] == "-" else minutes))


# --- sums ---


def sums(lines: Iterable[TheirLine], names: Mapping[str, str]) -> list[Theirs]:
    """The lines by day and model, by our names for the models; OverflowError where a sum is too large to be kept."""
    found: dict[tuple[dt.date, str], Theirs] = {}
    for line in lines:
        key = (line.day, names.get(line.model, line.model))
        before = found.get(key, Theirs(*key, {}))
        found[key] = Theirs(
            *key,
            tokens={bucket: before.tokens.get(bucket, 0) + count for bucket, count in line.tokens.items()},
            requests=_plus(before.requests, line.requests),
            cost_nanos=_plus(before.cost_nanos, line.cost_nanos),
            lines=before.lines + 1,
        )
    if any(abs(theirs.cost_nanos or 0) > MAX_SUM_NANOS for theirs in found.values()):
        raise OverflowError("the costs of a day and model are too large to be true")
    return list(found.values())


def _plus(one: int | None, other: int | None) -> int | None:
    return other if one is None else one + (other or 0)


# --- guessing ---

_USUAL_NAMES: Mapping[str, Sequence[str]] = {
    "day": (
        "usage_date_utc", "usage_date", "start_time", "start_time_iso", "starting_at", "bucket_start_time", "date",
        "day", "timestamp", "time", "usage_start_date", "日期",
    ),
    "model": ("model_version", "model", "model_name", "line_item", "模型"),
    "input": ("usage_input_tokens_no_cache", "input_uncached_tokens", "uncached_input_tokens"),
    INPUT_WITH_CACHE: ("input_tokens", "prompt_tokens", "n_context_tokens_total"),
    "cache_read": (
        "usage_input_tokens_cache_read", "input_cached_tokens", "cached_input_tokens", "cache_read_input_tokens",
        "cache_read_tokens", "cached_tokens",
    ),
    "cache_write": (
        "usage_input_tokens_cache_write_5m", "cache_creation_input_tokens", "input_cache_write_tokens",
        "cache_write_tokens",
    ),
    "cache_write_1h": ("usage_input_tokens_cache_write_1h", "cache_creation_1h_input_tokens"),
    "output": ("usage_output_tokens", "output_tokens", "completion_tokens", "n_generated_tokens_total"),
    "requests": ("num_model_requests", "num_requests", "requests", "request_count", "n_requests"),
    "cost": ("cost_usd", "amount_value", "cost", "amount", "total_cost", "金額"),
}  # fmt: skip
_ANTHROPIC_STYLE = ("cache_creation_input_tokens", "cache_read_input_tokens")
"""Beside columns of these names, `input_tokens` leaves out what was cached."""


def guess(file: CsvFile) -> FileMapping:
    """The mapping that the names of the columns and the first values suggest."""
    plain = {re.sub(r"\W+", "_", name.lower()).strip("_"): name for name in reversed(file.header)}
    columns = {}
    for name, usual in _USUAL_NAMES.items():
        if known := next((spelling for spelling in usual if spelling in plain), None):
            columns[name] = plain[known]
    if INPUT_WITH_CACHE in columns and ("input" in columns or any(name in plain for name in _ANTHROPIC_STYLE)):
        columns.setdefault("input", columns[INPUT_WITH_CACHE])
        del columns[INPUT_WITH_CACHE]
    return FileMapping(
        columns={name: columns[name] for name in FIELDS if name in columns},
        currency=_currency(file, plain),
        decimal=_decimal(file, columns),
        day_first=_is_day_first(file, columns),
    )


def fitting(mapping: FileMapping, file: CsvFile) -> bool:
    """Whether a remembered mapping's columns are all in the file."""
    return set(mapping.columns.values()) <= set(file.header)


def _samples(file: CsvFile, columns: Iterable[str]) -> list[str]:
    places = [file.header.index(column) for column in columns]
    return [line.cells[place] for line in file.lines[:200] for place in places if place < len(line.cells)]


def _currency(file: CsvFile, plain: Mapping[str, str]) -> str:
    named = [plain[name] for name in ("amount_currency", "currency", "currency_code") if name in plain]
    codes = {code.upper() for code in _samples(file, named) if code}
    return codes.pop() if len(codes) == 1 and is_currency(next(iter(codes))) else "USD"


def _decimal(file: CsvFile, columns: Mapping[str, str]) -> str:
    """A comma only where numbers can be read with nothing else."""
    samples = _samples(file, {columns[name] for name in (*TOKEN_FIELDS, "requests", "cost") if name in columns})
    with_point, with_comma = (all(_is_number(text, sign) for text in samples) for sign in (".", ","))
    return "," if with_comma and not with_point else "."


def _is_number(text: str, decimal: str) -> bool:
    try:
        _number("", text, decimal)
    except _Bad:
        return False
    return True


def _is_day_first(file: CsvFile, columns: Mapping[str, str]) -> bool:
    """03.04.2026 is April; 03/04/2026 is March, unless another line shows that it cannot be."""
    samples = _samples(file, [columns["day"]] if "day" in columns else [])
    pairs = [re.match(r"(\d{1,2})([-/.])(\d{1,2})[-/.]\d{4}", text) for text in samples]
    found = [pair for pair in pairs if pair]
    return any(int(pair[1]) > 12 or pair[2] == "." for pair in found)


# --- models ---

_DATED = re.compile(r"[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


def _spelling(name: str) -> str:
    """A name without its date, path, capitals and punctuation: "Claude Haiku 4.5", claude-haiku-4-5-20251001."""
    undated = _DATED.sub("", name.lower().strip())
    return re.sub(r"[\W_]+", "-", undated.rpartition("/")[2]).strip("-")


def aliases(theirs: Iterable[str], ours: Collection[str]) -> dict[str, str]:
    """Their names that are not ours -> ours, where exactly one of ours is the same but for date and spelling."""
    by_spelling: dict[str, list[str]] = {}
    for name in ours:
        by_spelling.setdefault(_spelling(name), []).append(name)
    found = {}
    for name in theirs:
        same = by_spelling.get(_spelling(name), [])
        if name not in ours and len(same) == 1:
            found[name] = same[0]
    return found
