"""What the page of a comparison shows, and its CSV: cards, margins by model, the rows of a tab."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from billing.admin import charts
from billing.admin.display import UNKNOWN, badge, change_url, moment, money, number
from billing.matching import KINDS, Totals
from billing.models import Reconciliation, ReconciliationRow
from billing.money import NANO_PLACES, to_decimal
from billing.provider_files import FileMapping
from billing.reconciliation import totals_of

State = ReconciliationRow.State
PAGE_ROWS = 50
TOP_MODELS = 10
"""Bars of the chart; the rest is one more."""

KIND_WORDS = {
    "failed": gettext_lazy("failed attempt"),
    "test": gettext_lazy("test"),
    "boundary": gettext_lazy("day boundary"),
    "estimate": gettext_lazy("estimate"),
    "unknown": gettext_lazy("unknown"),
    "price": gettext_lazy("price"),
}
STATE_LOOKS = {
    State.MATCHED: ("good", "check_circle"),
    State.DIFFERS: ("warn", "difference"),
    State.ONLY_THEIRS: ("bad", "call_received"),
    State.ONLY_OURS: ("info", "call_made"),
}


def signed(tokens: int) -> str:
    """`+1,234`."""
    return f"{tokens:+,}" if tokens else "0"


def state_badge(row: ReconciliationRow) -> SafeString:
    """Whether both sides have the day and model, and agree; a difference that is explained is told from others."""
    if row.state == State.DIFFERS and not row.unexplained:
        return badge(_("explained"), "calm", "task_alt")
    return badge(row.get_state_display(), *STATE_LOOKS[State(row.state)])


def rows_of(reconciliation: Reconciliation, state: str) -> Any:
    """The rows of a tab: by day and model; those that differ with the largest unexplained first."""
    rows = reconciliation.rows.order_by("day", "model")
    if state in State.values:
        rows = rows.filter(state=state)
    return rows.order_by("-unexplained", "day", "model") if state == State.DIFFERS else rows


def state_of(request: HttpRequest) -> str:
    """The tab asked for; "": all."""
    state = request.GET.get("state", "")
    return state if state in State.values else ""


# --- the page ---


def context(reconciliation: Reconciliation, request: HttpRequest) -> dict[str, Any]:
    """All that the result's templates need."""
    if reconciliation.totals is None or reconciliation.mapping is None:
        return {"waiting": True}
    state = state_of(request)
    view = View(reconciliation)
    totals = _totals(reconciliation, state)
    at = _page(request, totals.rows)
    rows = rows_of(reconciliation, state)[at * PAGE_ROWS : (at + 1) * PAGE_ROWS]
    return {
        "cards": view.cards(_totals(reconciliation, "")),
        "tabs": [_tab(reconciliation, tab, label, state) for tab, label in (("", _("all")), *State.choices)],
        "rows": [view.row(row) for row in rows],
        "total": view.total(totals),
        "pages": _pages(state, at, totals.rows),
        "models": view.models(),
        "chart": view.chart(),
        "csv_query": f"?state={state}" if state else "",
        "has_cost": view.has_cost,
        "currency": view.currency,
    }


def _totals(reconciliation: Reconciliation, state: str) -> Totals:
    """The sums of a tab's rows, all of its pages."""
    kept: Mapping[str, Any] = reconciliation.totals or {}
    return totals_of(kept["states"][state] if state else kept["all"])


def _tab(reconciliation: Reconciliation, tab: str, label: Any, chosen: str) -> dict[str, Any]:
    return {
        "url": f"?state={tab}#rows" if tab else "?#rows",
        "label": label,
        "count": number(_totals(reconciliation, tab).rows),
        "chosen": tab == chosen,
    }


def _page(request: HttpRequest, rows: int) -> int:
    """Pages count from 0 here and from 1 in the URL; one that is not there is the nearest."""
    text = request.GET.get("p", "")
    last = max(0, (rows - 1) // PAGE_ROWS)
    return min(last, max(0, int(text) - 1)) if text.isascii() and text.isdecimal() and len(text) < 9 else 0


def _pages(state: str, at: int, rows: int) -> dict[str, Any] | None:
    if rows <= PAGE_ROWS:
        return None
    query = f"state={state}&" if state else ""
    return {
        "shown": _("Rows %(first)s to %(last)s of %(all)s; the CSV has them all.")
        % {"first": number(at * PAGE_ROWS + 1), "last": number(min(rows, (at + 1) * PAGE_ROWS)), "all": number(rows)},
        "before": f"?{query}p={at}#rows" if at else "",
        "after": f"?{query}p={at + 2}#rows" if (at + 1) * PAGE_ROWS < rows else "",
    }


class View:
    """A comparison's figures as texts."""

    def __init__(self, reconciliation: Reconciliation) -> None:
        self._totals: Mapping[str, Any] = reconciliation.totals or {}
        self._mapping = FileMapping.from_json(reconciliation.mapping or {"columns": {}})
        self.currency = self._mapping.currency
        self.has_cost, self.has_tokens = self._mapping.has_cost, bool(self._mapping.buckets)

    def money(self, nanos: int | None) -> str:
        """In the file's currency, which stands in the column's head."""
        return money(nanos, self.currency, NANO_PLACES).removeprefix(f"{self.currency} ")

    def billed(self, billed: Mapping[str, int]) -> list[str]:
        """Each currency's amount, that of the file first: they are never added."""
        others = [money(nanos, name, NANO_PLACES) for name, nanos in sorted(billed.items()) if name != self.currency]
        return [self.money(billed[self.currency]), *others] if self.currency in billed else others or [self.money(0)]

    def tokens(self, count: int) -> str:
        """What the file says in tokens; a dash where it says nothing."""
        return number(count) if self.has_tokens else UNKNOWN

    def cards(self, sums: Totals) -> list[dict[str, Any]]:
        cards = [
            _card(_("Theirs"), [self.tokens(sums.theirs)], _("tokens in the file")),
            _card(_("Ours"), [number(sums.ours)], _("tokens that we billed")),
            _card(_("Explained"), [signed(sums.explained)], self._explained(sums)),
            _card(_("Unexplained"), [signed(sums.kinds["unknown"])], _unexplained(sums), alarm=bool(sums.unsettled)),
        ]
        if not self.has_tokens:
            cards = cards[:2]
        if self.has_cost:
            cards += [
                _card(_("Their cost"), [money(sums.cost_nanos, self.currency)], _("as the file has it")),
                _card(_("Billed"), self._billed_short(sums), _("to our customers")),
                _card(_("Margin"), [money(sums.margin_nanos, self.currency)], self._margin_note(sums)),
            ]
        return cards

    def _billed_short(self, sums: Totals) -> list[str]:
        billed = sorted((sums.billed or {self.currency: 0}).items())
        return [money(nanos, currency) for currency, nanos in billed]

    def _explained(self, sums: Totals) -> str:
        parts = [f"{KIND_WORDS[kind]} {signed(sums.kinds[kind])}" for kind in KINDS[:-1] if sums.kinds[kind]]
        return " · ".join(parts) or _("nothing needed it")

    def _margin_note(self, sums: Totals) -> str:
        if sums.margin_nanos is None:
            return _("not known: other currencies were billed too")
        if sums.unpriced:
            return _("too low: %(count)s requests are unpriced") % {"count": number(sums.unpriced)}
        return _("%(share)s of what was billed") % {
            "share": share(sums.margin_nanos, sums.billed.get(self.currency, 0))
        }

    def row(self, row: ReconciliationRow) -> dict[str, Any]:
        """A row's cells."""
        return {
            "url": change_url(row),
            "day": str(row.day),
            "model": row.model,
            "state": state_badge(row),
            "attempts": number(row.attempts),
            "notes": _attempt_notes(row),
            "silent": _silent(row.silent) if row.silent else "",
            "ours": number(sum(row.ours.values())) if row.state != State.ONLY_THEIRS else UNKNOWN,
            "theirs": UNKNOWN if row.theirs is None else self.tokens(sum(row.theirs.values())),
            "kinds": self._kinds({kind: sum(tokens.values()) for kind, tokens in row.kinds.items()}, row.price_nanos),
            "shifted": bool(row.unexplained) and not sum(row.kinds["unknown"].values()),
            "cost": self.money(row.cost_nanos) if row.theirs is not None or row.cost_nanos else UNKNOWN,
            "billed": self.billed(row.billed) if row.billed else [UNKNOWN],
            "margin": self.money(row.margin_nanos),
        }

    def total(self, sums: Totals) -> dict[str, Any]:
        """The same cells, added up over all rows of the tab."""
        return {
            "attempts": number(sums.attempts),
            "ours": number(sums.ours),
            "theirs": self.tokens(sums.theirs),
            "kinds": self._kinds(sums.kinds, sums.price_nanos),
            "cost": self.money(sums.cost_nanos),
            "billed": self.billed(sums.billed),
            "margin": self.money(sums.margin_nanos),
        }

    def _kinds(self, kinds: Mapping[str, int], price_nanos: int | None) -> list[tuple[Any, str]]:
        found: list[tuple[Any, str]] = [(KIND_WORDS[kind], signed(kinds[kind])) for kind in KINDS if kinds[kind]]
        price = money(price_nanos, self.currency, NANO_PLACES)
        return [*found, (KIND_WORDS["price"], price)] if price_nanos else found

    def models(self) -> list[dict[str, Any]]:
        """Margin by model, the largest first."""
        return [
            {
                "model": model,
                "cost": self.money(sums.cost_nanos),
                "billed": self.billed(sums.billed),
                "margin": self.money(sums.margin_nanos),
                "share": share(sums.margin_nanos, sums.billed.get(self.currency, 0)),
            }
            for model, sums in self._by_margin()
        ]

    def _by_margin(self) -> list[tuple[str, Totals]]:
        models = [(model, totals_of(kept)) for model, kept in self._totals.get("models", {}).items()]
        return sorted(models, key=lambda pair: (pair[1].margin_nanos is None, -(pair[1].margin_nanos or 0), pair[0]))

    def chart(self) -> charts.Chart | None:
        """Margins that are known, as sorted bars."""
        known = [(model, sums.margin_nanos) for model, sums in self._by_margin() if sums.margin_nanos is not None]
        if not (self.has_cost and known):
            return None
        shown, rest = known[:TOP_MODELS], known[TOP_MODELS:]
        if rest:
            shown.append((_("Other"), sum(nanos for _model, nanos in rest)))
        return charts.bars(
            _("Margin by model"),
            self.currency,
            [model for model, _nanos in shown],
            [f"{to_decimal(nanos):f}" for _model, nanos in shown],
        )


def _card(title: str, figures: list[str], note: str, *, alarm: bool = False) -> dict[str, Any]:
    return {"title": title, "figures": figures, "note": note, "alarm": alarm}


def _unexplained(sums: Totals) -> str:
    """How many tokens too many and too few, which may cancel out in the sum; and what nobody can know."""
    if not sums.unsettled:
        return _("nothing is left over")
    words = ngettext("%(count)s row: %(many)s, %(few)s", "%(count)s rows: %(many)s, %(few)s", sums.unsettled)
    told = words % {"count": number(sums.unsettled), "many": signed(sums.too_many), "few": signed(sums.too_few)}
    if sums.silent:
        told += " · " + _silent(sums.silent)
    return told


def _silent(count: int) -> str:
    words = ngettext("%(count)s attempt reported nothing", "%(count)s attempts reported nothing", count)
    return words % {"count": number(count)}


def _attempt_notes(row: ReconciliationRow) -> list[str]:
    notes = []
    if row.requests is not None:
        notes.append(_("theirs: %(count)s") % {"count": number(row.requests)})
    if row.unpriced:
        notes.append(_("%(count)s unpriced") % {"count": number(row.unpriced)})
    return notes


def share(part: int | None, whole: int) -> str:
    """`12.3 %`, rounded down; a dash where there is nothing to be a part of."""
    if part is None or whole <= 0:
        return UNKNOWN
    sign, permille = ("-" if part < 0 else ""), abs(part) * 1000 // whole
    return f"{sign}{permille // 10:,}.{permille % 10} %"


# --- the file ---


def csv_rows(reconciliation: Reconciliation, state: str) -> Iterator[list[object]]:
    """What a tab shows, all of its pages: in the same order, with the same totals."""
    mapping = FileMapping.from_json(reconciliation.mapping or {})
    sums = _totals(reconciliation, state)
    currencies = sorted({mapping.currency, *sums.billed})
    yield from _head(reconciliation, mapping, state)
    yield [
        _("day"), _("model"), _("state"), _("attempts"), _("their requests"), _("ours"), _("theirs"), _("difference"),
        *(str(KIND_WORDS[kind]) for kind in KINDS), _("their cost"),
        *(_("billed, %(currency)s") % {"currency": currency} for currency in currencies),
        _("margin"), str(KIND_WORDS["price"]),
    ]  # fmt: skip
    for row in rows_of(reconciliation, state).iterator(chunk_size=1000):
        yield _csv_row(row, bool(mapping.buckets), currencies)
    theirs = sums.theirs if mapping.buckets else None
    yield [
        _("Total"), "", "", sums.attempts, None, sums.ours, theirs, None if theirs is None else theirs - sums.ours,
        *(sums.kinds[kind] for kind in KINDS), *_amounts(sums, currencies),
    ]  # fmt: skip


def _head(reconciliation: Reconciliation, mapping: FileMapping, state: str) -> Iterable[list[object]]:
    assert reconciliation.compared_at is not None  # there are totals
    yield [_("provider"), reconciliation.provider]
    yield [_("file"), reconciliation.file_name, reconciliation.sha256]
    yield [_("days"), f"{reconciliation.first_day} – {reconciliation.last_day}", mapping.zone]
    yield [_("currency"), mapping.currency]
    yield [_("compared"), moment(reconciliation.compared_at.replace(microsecond=0).astimezone(dt.UTC))]
    yield [_("rows"), str(State(state).label) if state else _("all")]
    yield []


def _csv_row(row: ReconciliationRow, has_tokens: bool, currencies: list[str]) -> list[object]:
    ours = sum(row.ours.values())
    theirs = sum(row.theirs.values()) if row.theirs is not None and has_tokens else None
    return [
        str(row.day), row.model, str(row.get_state_display()), row.attempts, row.requests, ours, theirs,
        (theirs or 0) - ours if has_tokens else None, *(sum(row.kinds[kind].values()) for kind in KINDS),
        *_amounts(row, currencies),
    ]  # fmt: skip


def _amounts(row: Any, currencies: list[str]) -> list[object]:
    nanos = [row.cost_nanos, *(row.billed.get(name, 0) for name in currencies), row.margin_nanos, row.price_nanos]
    return [None if amount is None else to_decimal(amount) for amount in nanos]
