"""Whether a model has a price, shown the same wherever a model is shown."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import Exists, OuterRef
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _

from billing.admin.display import badge, link, list_url
from billing.models import Price


def is_priced(name_column: str) -> Exists:
    """For `annotate`: whether the model that a column names has a price in force."""
    return Exists(Price.objects.filter(model=OuterRef(name_column), effective_from__lte=now()))


def priced_among(names: Sequence[str]) -> frozenset[str]:
    """Of these models, those that have a price in force."""
    prices = Price.objects.filter(model__in=names, effective_from__lte=now())
    return frozenset(prices.order_by().values_list("model", flat=True).distinct())


def price_cell(model: str, *, priced: bool) -> SafeString:
    """A link to the model's prices, or a mark that it has none."""
    if priced:
        return link(list_url(Price, model=model), _("in force"))
    return badge(_("no price"), "bad", "money_off", _("Its requests are kept unpriced, and block the invoice."))


def no_price_marks(names: Sequence[str]) -> SafeString | str:
    """Those of some models that have no price, each by its name; "" where all have one."""
    priced = priced_among(names) if names else frozenset()
    marks = [(name, price_cell(name, priced=False)) for name in names if name not in priced]
    return format_html("<br>{}", format_html_join(" · ", "{} {}", marks)) if marks else ""
