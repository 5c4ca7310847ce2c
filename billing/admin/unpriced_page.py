"""Unpriced: what blocks the invoices for want of a price, and rating it once there is one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.dateparse import parse_datetime
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from billing import unpriced
from billing.admin.display import UNKNOWN, ago, list_url, money, number
from billing.admin.pages import page, show
from billing.admin.typed import PlainSelectWidget
from billing.models import Invoice, UsageRecord
from billing.rerating import Outcome
from billing.unpriced import AT_ONCE, Cause, Terms, Waiting
from billing.words import stored_words

SEE, RATE = "billing.view_usagerecord", "billing.change_usagerecord"


class RateForm(forms.Form):
    """By which version; up to which moment, and what was shown for it: whoever confirms confirms that."""

    version = forms.ChoiceField(
        required=False, label=gettext_lazy("price version"), widget=PlainSelectWidget(),
        help_text=gettext_lazy(
            "By rule the version counts that was in force when a request started. Choose one where none of those can "
            "do: a missing tier, say, comes with a version that begins later."
        ),
    )  # fmt: skip
    until = forms.CharField(widget=forms.HiddenInput())
    seen = forms.CharField(required=False, widget=forms.HiddenInput())

    def __init__(self, cause: Cause, data: Mapping[str, Any]) -> None:
        super().__init__(data)
        in_force = ("", _("the one in force when each request started"))
        choices = [in_force, *((row.label, row.label) for row in unpriced.candidates(cause))]
        self.fields["version"].choices = choices  # type: ignore[attr-defined]

    def clean_until(self) -> dt.datetime:
        try:
            moment = parse_datetime(self.cleaned_data["until"])
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise forms.ValidationError(_("This is no moment."))
        return moment


@page("unpriced/", name="unpriced", right=SEE)
def unpriced_list(request: HttpRequest) -> HttpResponse:
    """The causes, those first that have waited longest."""
    rates = request.user.has_perm(RATE)
    return show(
        request,
        "admin/unpriced.html",
        title=_("Unpriced"),
        rows=[_row(each, rates=rates) for each in unpriced.waiting()],
        price_url=reverse("admin:billing_price_add"),
        drafts_url=list_url(Invoice, status=Invoice.Status.DRAFT),
    )


@page("unpriced/rate/", name="unpriced_rate", right=RATE)
def unpriced_rate(request: HttpRequest) -> HttpResponse:
    """Asks first: what rating would bring by the version chosen; does it when that has been seen."""
    cause = Cause(*(request.GET.get(name, "") for name in ("model", "tier", "reason")))
    posted = request.method == "POST"
    form = RateForm(cause, request.POST if posted else {"until": now().isoformat()})
    if not form.is_valid():
        messages.error(request, _("Nothing was rated: this price version is not there any more. Choose again."))
        return redirect(request.get_full_path())
    terms = Terms(cause, form.cleaned_data["version"], form.cleaned_data["until"])
    found = unpriced.preview(terms)
    if not found.records and not found.missing:
        messages.info(request, _("Nothing is left to rate: these records have their price by now."))
        return redirect("admin:unpriced")
    if posted and found.records and form.cleaned_data["seen"] == _seen(found):
        return _rate(request, terms)
    shown = {"version": terms.version, "until": terms.until.isoformat(), "seen": _seen(found)}
    return _asked(request, terms, RateForm(cause, shown), found)


def _rate(request: HttpRequest, terms: Terms) -> HttpResponse:
    done = unpriced.rate(terms)
    words = ngettext("%(count)s record is rated: %(amount)s.", "%(count)s records are rated: %(amount)s.", done.records)
    messages.success(request, words % {"count": number(done.records), "amount": _amounts(done)})
    return redirect("admin:unpriced")


def _asked(request: HttpRequest, terms: Terms, form: RateForm, found: Outcome) -> HttpResponse:
    words = {
        "count": number(found.records),
        "version": _("%(count)s price versions") % {"count": len(found.versions)}
        if len(found.versions) > 1
        else "".join(found.versions),
        "amount": _amounts(found),
    }
    if found.records:
        question = ngettext(
            "Rate %(count)s record with %(version)s: %(amount)s?",
            "Rate %(count)s records with %(version)s: %(amount)s?",
            found.records,
        )
        verb = ngettext("Rate %(count)s record", "Rate %(count)s records", found.records) % words
    else:
        question, verb = _("No record of %(model)s can be rated so far."), _("Look again")
        words = {"model": terms.cause.model}
    return show(
        request, "admin/ask.html", title=_("Rate unpriced records"), question=question % words, verb=verb, form=form,
        effects=_effects(found), cancel_url=reverse("admin:unpriced"),
    )  # fmt: skip


def _effects(found: Outcome) -> list[str]:
    effects = []
    if found.records:
        effects.append(_("Records that have a price do not change. These get theirs for good."))
        effects.append(
            _("Days, the spending of months, and drafts of invoices follow. Issued invoices stay as they are.")
        )
    if found.records == AT_ONCE:
        effects.append(
            _("These are the oldest %(count)s: rate again for the others.") % {"count": number(found.records)}
        )
    for reason, records in found.missing.most_common():
        words = ngettext(
            "%(count)s record stays unpriced: %(reason)s.", "%(count)s records stay unpriced: %(reason)s.", records
        )
        effects.append(words % {"count": number(records), "reason": stored_words(reason)})
    return effects


def _row(each: Waiting, *, rates: bool) -> dict[str, Any]:
    cause = each.cause
    query = urlencode({"model": cause.model, "tier": cause.service_tier, "reason": cause.reason})
    return {
        "cause": cause,
        "reason": stored_words(cause.reason),
        "tier": cause.service_tier or UNKNOWN,
        "first": ago(each.first),
        "last": ago(each.last),
        "records": number(each.records),
        "records_url": list_url(UsageRecord, unpriced=1, model=cause.model, period="all"),
        "drafts": number(each.drafts),
        "blocks": each.drafts > 0,
        "rate_url": f"{reverse('admin:unpriced_rate')}?{query}" if rates else "",
    }


def _amounts(found: Outcome) -> str:
    """Each currency by itself: they are never added."""
    return " · ".join(money(nanos, currency) for currency, nanos in sorted(found.costs.items()))


def _seen(found: Outcome) -> str:
    costs = ",".join(f"{currency}{nanos}" for currency, nanos in sorted(found.costs.items()))
    return f"{found.records}:{costs}:{','.join(sorted(found.versions))}"
