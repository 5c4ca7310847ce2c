"""What a new price version would have cost in the last full month, account by account, before it is added."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from typing import Any

from django.db.models import Sum
from django.forms.models import model_to_dict
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.timezone import now
from django.utils.translation import gettext as _

from billing.admin.display import UNKNOWN, money, number, signed
from billing.catalogue import readable_price
from billing.models import Price, UsageRollup
from billing.money import NANO_PLACES
from billing.periods import next_month
from billing.price_preview import AccountPreview, TokenSum, preview
from billing.price_spec import describe_price
from billing.usage import BUCKETS
from billing.words import in_words

SEEN = "_seen"
"""Field of the second POST: the digest of the version whose preview was seen."""


def digest(price: Price) -> str:
    """What a version is, in one word: whoever confirms confirms that."""
    spec = describe_price(model_to_dict(price))
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()


def was_seen(request: HttpRequest, price: Price) -> bool:
    """Whether this POST comes from the preview of this very version."""
    return request.POST.get(SEEN) == digest(price)


def preview_page(request: HttpRequest, admin: Any, price: Price) -> HttpResponse:
    """The page with the figures; its button posts the form once more."""
    month = last_full_month(now())
    old = in_force_before(price)
    rows = preview(sums_of(price.model, month), readable_price(old) if old else None, readable_price(price))
    data = [(name, value) for name, values in request.POST.lists() for value in values if name not in UNKEPT]
    context = {
        **admin.admin_site.each_context(request), "opts": admin.opts, "title": _("Preview of a price"), "price": price,
        "old": old, "month": f"{month:%Y-%m}", "rows": [_row(row) for row in rows], "totals": _totals(rows),
        "hidden": [*data, (SEEN, digest(price))], "add_url": reverse("admin:billing_price_add"),
        "cancel_url": reverse("admin:billing_price_changelist"),
    }  # fmt: skip
    request.current_app = admin.admin_site.name
    return TemplateResponse(request, "admin/billing/price/preview.html", context)


UNKEPT = frozenset({"csrfmiddlewaretoken", SEEN})


def last_full_month(moment: dt.datetime) -> dt.date:
    """The first day of the month before this one."""
    return (moment.date().replace(day=1) - dt.timedelta(days=1)).replace(day=1)


def in_force_before(price: Price) -> Price | None:
    """The version that the new one takes over from."""
    earlier = Price.objects.filter(model=price.model, effective_from__lt=price.effective_from)
    return earlier.order_by("-effective_from").first()


def sums_of(model: str, month: dt.date) -> list[TokenSum]:
    """A model's month by account, tier and long context: days are each account's own."""
    hours = UsageRollup.objects.filter(day__gte=month, day__lt=next_month(month), model=model)
    groups = ("account__name", "currency", "service_tier", "long_context")
    rows = hours.values(*groups).annotate(asked=Sum("requests"), **{f"sum_{name}": Sum(name) for name in BUCKETS})
    return [
        TokenSum(
            row["account__name"], row["currency"], row["service_tier"], row["long_context"], row["asked"],
            {name: row[f"sum_{name}"] for name in BUCKETS},
        )
        for row in rows.order_by(*groups)
    ]  # fmt: skip


def _row(row: AccountPreview) -> dict[str, Any]:
    return {
        "account": row.account,
        "requests": number(row.requests),
        "old": money(row.old_nanos, row.currency, NANO_PLACES),
        "new": money(row.new_nanos, row.currency, NANO_PLACES),
        "difference": UNKNOWN
        if row.difference_nanos is None
        else signed(row.difference_nanos, row.currency, NANO_PLACES),
        "why": [in_words(reason) for reason in row.why],
    }


def _totals(rows: list[AccountPreview]) -> list[dict[str, str]]:
    """Of the accounts whose both figures are known, by currency: those are never added up."""
    known = [row for row in rows if row.difference_nanos is not None]
    totals = []
    for currency in sorted({row.currency for row in known}):
        mine = [row for row in known if row.currency == currency]
        old, new = (sum(getattr(row, name) for row in mine) for name in ("old_nanos", "new_nanos"))
        totals.append(
            {
                "requests": number(sum(row.requests for row in mine)),
                "old": money(old, currency, NANO_PLACES),
                "new": money(new, currency, NANO_PLACES),
                "difference": signed(new - old, currency, NANO_PLACES),
            }
        )
    return totals
