"""Charts as Chart.js's own JSON: columns over days, sorted bars, shares. Options replace Unfold's whole.

Colours are Okabe and Ito's, 3:1 on Unfold's white and dark ground; a series has its own wherever two of the four shown
do not claim the same one. Colour never stands alone: legend, dashes and the table below say the same. Amounts stay
text, for JSON's numbers are floats to those who read them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
OTHER = "#6B7280"
"""Other series, and whatever was before."""
DASHES = ((), (6, 3), (2, 3), (8, 3, 2, 3))
SERIES = len(COLOURS)
"""Series of a chart; the rest is one more, called Other."""


@dataclass(frozen=True, slots=True)
class Series:
    """A name and a value per day or bar, as texts."""

    name: str
    values: Sequence[str]
    colour: str = COLOURS[0]


Chart = dict[str, str]
"""`kind` (Unfold's component), `title`, `data` and `options` (JSON)."""


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each of up to four names, always the same one unless two claim it: then the later name gives way."""
    taken: dict[str, str] = {}
    for name in sorted(names):
        first = zlib.crc32(name.encode()) % SERIES
        free = [colour for colour in (*COLOURS[first:], *COLOURS[:first]) if colour not in taken.values()]
        taken[name] = free[0] if free else OTHER
    return taken


def columns(
    title: str, unit: str, labels: Sequence[str], series: Sequence[Series], *, before: Sequence[str] | None, whole: bool
) -> Chart:
    """Stacked columns over time; what was before as a dashed grey line."""
    datasets = [
        {
            "label": one.name, "data": list(one.values), "backgroundColor": one.colour, "maxBarThickness": 18,
            "stack": "now", "order": 1, "pointStyle": "rect",
        }
        for one in series
    ]  # fmt: skip
    if before is not None:
        datasets.append(
            {
                "type": "line", "label": _("before"), "data": list(before), "borderColor": OTHER,
                "backgroundColor": OTHER, "borderDash": [5, 4], "borderWidth": 2, "pointRadius": 0,
                "pointStyle": "line", "stack": "before", "order": 0,
            }
        )  # fmt: skip
    options = _options(unit, whole=whole, legend=len(datasets) > 1)
    options["scales"]["x"]["stacked"] = options["scales"]["y"]["stacked"] = True
    return _chart("bar", title, labels, datasets, options)


def bars(title: str, unit: str, labels: Sequence[str], values: Sequence[str]) -> Chart:
    """A rank: bars from the largest down, as given."""
    datasets = [{"label": unit, "data": list(values), "backgroundColor": COLOURS[0], "maxBarThickness": 18}]
    options = _options(unit, whole=False, legend=False)
    options["indexAxis"] = "y"
    scales = options["scales"]
    scales["x"], scales["y"] = scales["y"], {"grid": {"display": False}, "ticks": {"autoSkip": False}}
    return _chart("bar", title, labels, datasets, options)


def shares(title: str, labels: Sequence[str], series: Sequence[Series]) -> Chart:
    """Lines between 0 and 100 %, told apart by their dashes too."""
    datasets = [
        {
            "label": one.name, "data": [value or None for value in one.values], "borderColor": one.colour,
            "backgroundColor": one.colour, "borderDash": list(DASHES[at % SERIES]), "borderWidth": 2,
            "pointRadius": 2, "pointStyle": "line", "spanGaps": False,
        }
        for at, one in enumerate(series)
    ]  # fmt: skip
    options = _options("%", whole=False, legend=True)
    options["scales"]["y"].update({"min": 0, "max": 100})
    return _chart("line", title, labels, datasets, options)


def _chart(kind: str, title: str, labels: Sequence[str], datasets: object, options: object) -> Chart:
    data = {"labels": list(labels), "datasets": datasets}
    return {"kind": kind, "title": title, "data": json.dumps(data), "options": json.dumps(options)}


def _options(unit: str, *, whole: bool, legend: bool) -> dict[str, Any]:
    """Zero-based, the unit on the axis, the same separators in every language. `admin.js` tints the words."""
    return {
        "animation": False,
        "responsive": True,
        "maintainAspectRatio": False,
        "locale": "en-US",
        "interaction": {"mode": "index", "intersect": False},
        "plugins": {
            "legend": {
                "display": legend, "position": "bottom",
                "labels": {"usePointStyle": True, "boxHeight": 8, "padding": 12},
            },
            "tooltip": {"enabled": True},
        },
        "scales": {
            "x": {"grid": {"display": False}, "ticks": {"maxRotation": 0, "autoSkipPadding": 12}},
            "y": {
                "beginAtZero": True, "grid": {"lineWidth": 1}, "border": {"display": False},
                "ticks": {"maxTicksLimit": 6, **({"precision": 0} if whole else {})},
                "title": {"display": True, "text": unit},
            },
        },
    }  # fmt: skip
