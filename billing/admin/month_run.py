"""The month run: what stands against closing a month, its drafts, and their issue; the work is done by a worker."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils.formats import date_format
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from billing import invoice_runs, invoices, jobs, month_close
from billing.admin.access import EndlessAdmin, ReadOnlyAdmin, ask
from billing.admin.display import (
    UNKNOWN,
    ago,
    badge,
    change_url,
    code,
    link,
    list_url,
    money,
    number,
    number_column,
    signed,
)
from billing.admin.pages import page, show, site_admin
from billing.invoice_runs import Act, State
from billing.meter_health import MeterReader
from billing.models import Adjustment, Invoice, InvoiceDocument, InvoiceRun, OpenStream, RollupDue
from billing.month_close import MOST_COUNTED, Blocker, Compared, Kind
from billing.periods import parse_month
from billing.processes import Folder
from billing.words import stored_words

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

SEE, RUN = "billing.view_invoice", "billing.change_invoice"
MOST_SHOWN = 200
"""Drafts and invoices that the page names; the list has them all."""

STATE_LOOKS = {
    State.WAITING: ("calm", "hourglass_top"),
    State.RUNNING: ("info", "sync"),
    State.DONE: ("good", "check_circle"),
    State.FAILED: ("bad", "error"),
}

KINDS: dict[Kind, tuple[_StrPromise, _StrPromise]] = {
    Kind.UNPRICED: (
        gettext_lazy("requests without a price"),
        gettext_lazy("Finance: add the price, then rate them. Until then their invoices stay drafts."),
    ),
    Kind.PROPOSED: (
        gettext_lazy("adjustments that wait for approval"),
        gettext_lazy("Whoever may approve. Approved later, they are on the next invoice."),
    ),
    Kind.STREAMS: (
        gettext_lazy("streams of the period that are still open"),
        gettext_lazy("They end by themselves; Operators can stop them. What ends later is on the next invoice."),
    ),
    Kind.JOURNALS: (
        gettext_lazy("bills that wait in journals"),
        gettext_lazy("Operators: see to the database. Written later, they are late usage on the next invoice."),
    ),
    Kind.DEAD: (
        gettext_lazy("dead processes with streams that nobody has settled"),
        gettext_lazy("The sweep, within a minute; else Operators. Settled later, they are late usage."),
    ),
    Kind.ROLLUPS: (
        gettext_lazy("days to roll up"),
        gettext_lazy("Drafting the month does it. Invoices are made of the records: only reports wait for it."),
    ),
}
"""What each blocker is, and who clears it."""


@page("billing/invoice/run/", name="invoice_run", right=SEE)
def month_run(request: HttpRequest) -> HttpResponse:
    """One month: its run, what stands against it, its drafts, what is issued."""
    try:
        month = parse_month(request.GET["month"]) if request.GET.get("month") else last_month()
    except ValueError:
        messages.error(request, _("This is no month: write it as 2026-11."))
        return redirect("admin:invoice_run")
    found, run = month_close.compared(month), invoice_runs.of_month(month)
    stands = month_close.blockers(month, _reader(settings.VAR_DIR).read(now()))
    return show(
        request,
        "admin/billing/invoice/run.html",
        title=_("Month run"),
        month=f"{month:%Y-%m}",
        month_words=words_of(month),
        told=None if run is None else progress(run),
        outcome=None if run is None else _outcome(run),
        blockers=[_blocker_row(each) for each in stands],
        drafts=[_draft_row(each) for each in sorted(found, key=_plain)[:MOST_SHOWN]],
        more=number(len(found) - MOST_SHOWN) if len(found) > MOST_SHOWN else "",
        sums=_each_amount(each.invoice for each in found),
        issued=_issued(month),
        may=request.user.has_perm(RUN),
        draft_url=_url("invoice_run_draft", month),
        issue_url=_url("invoice_run_issue", month),
        issuable=len(_issuable(each.invoice for each in found)),
        invoices_url=list_url(Invoice, month=month),
    )


@page("billing/invoice/run/draft/", name="invoice_run_draft", right=RUN)
def draft(request: HttpRequest) -> HttpResponse:
    """Asks; at a POST a worker rolls the month up and drafts it."""
    month = _month(request)
    back = _url("invoice_run", month)
    if request.method == "POST":
        run = invoice_runs.ask_drafts(month, by=cast(User, request.user))
        _say_if_other(request, run, Act.DRAFT)
        return redirect(back)
    effects = [
        _("A worker rolls up the days that are due and drafts one invoice per key with usage; you may leave the page."),
        _("Drafts that exist are made again from the records. Issued invoices stay as they are."),
    ]
    return ask(
        request, site_admin(Invoice), None, title=_("Draft a month"), effects=effects, cancel_url=back,
        verb=_("Draft %(month)s") % {"month": words_of(month)},
        question=_("Draft the invoices for %(month)s?") % {"month": words_of(month)},
    )  # fmt: skip


@page("billing/invoice/run/issue/", name="invoice_run_issue", right=RUN)
def issue(request: HttpRequest) -> HttpResponse:
    """Asks, with the number and the totals; at a POST a worker issues what was seen."""
    month = _month(request)
    back = _url("invoice_run", month)
    drafts = list(month_close.drafts(month))
    chosen = _issuable(drafts)
    if not chosen:
        messages.info(request, _("There is nothing to issue: no draft of the month is without unpriced requests."))
        return redirect(back)
    if request.method == "POST" and request.POST.get("seen") == month_close.seen_of(chosen):
        run = invoice_runs.ask_issue(month, chosen, by=cast(User, request.user))
        _say_if_other(request, run, Act.ISSUE)
        return redirect(back)
    if request.method == "POST":
        messages.warning(request, _("The drafts have changed since you looked. Nothing was issued: look again."))
    question = ngettext(
        "Issue %(count)s invoice for %(month)s, %(totals)s?",
        "Issue %(count)s invoices for %(month)s, %(totals)s?",
        len(chosen),
    )
    words = {"count": number(len(chosen)), "month": words_of(month), "totals": _amounts(chosen)}
    return ask(
        request, site_admin(Invoice), None, title=_("Issue a month"), cancel_url=back, question=question % words,
        verb=ngettext("Issue %(count)s invoice", "Issue %(count)s invoices", len(chosen)) % words,
        effects=_effects(month, chosen, len(drafts) - len(chosen)), hidden=[("seen", month_close.seen_of(chosen))],
    )  # fmt: skip


@page("billing/invoice/run/<uuid:pk>/progress/", name="invoice_run_progress", right=SEE)
def tell(request: HttpRequest, pk: uuid.UUID) -> JsonResponse:
    """How far a run is, for the page that shows it."""
    return JsonResponse(progress(get_object_or_404(InvoiceRun, pk=pk)), headers={"Cache-Control": "no-store"})


def progress(run: InvoiceRun) -> dict[str, Any]:
    """What pages say of a run: `share` in per cent, or None where it is not known."""
    total = run.steps_total
    return {
        "state": _("%(act)s: %(state)s") % {"act": run.get_act_display(), "state": run.get_state_display()},
        "open": run.state in jobs.OPEN,
        "words": _words(run),
        "share": min(100, 100 * run.steps_done // total) if total else None,
        "progress_url": reverse("admin:invoice_run_progress", args=[run.pk]),
    }


def _words(run: InvoiceRun) -> str:
    who = {"name": run.asked_by.get_username() if run.asked_by else UNKNOWN}
    if run.state == State.WAITING:
        return _("Asked for by %(name)s. It waits for a worker.") % who
    if run.state == State.FAILED:
        return _("It could not be done. %(why)s") % {"why": stored_words(run.problem)}
    if run.state == State.DONE:
        when = f"{run.finished_at:%Y-%m-%d %H:%M:%S} UTC"
        return _("Asked for by %(name)s, done at %(time)s.") % {**who, "time": when}
    steps = {"done": number(run.steps_done), "total": number(run.steps_total)}
    return _("%(done)s of %(total)s steps are done.") % steps


def _outcome(run: InvoiceRun) -> dict[str, Any] | None:
    """What a run came to: how many are issued, and what stayed behind, with the reasons."""
    if run.state != State.DONE:
        return None
    if run.act == Act.DRAFT:
        refused = list(map(stored_words, run.result.get("refused", ())))
        return {"words": _("Not all could be rolled up and drafted."), "refused": refused} if refused else None
    issued = run.result["issued"]
    behind = dict(run.result["blocked"])
    standing = Invoice.objects.in_bulk(list(behind))
    words = ngettext("%(count)s invoice is issued.", "%(count)s invoices are issued.", len(issued))
    return {
        "words": words % {"count": number(len(issued))},
        "behind": [
            {
                "name": f"{invoice.account_name}/{invoice.key_name}",
                "url": change_url(invoice),
                "reasons": list(map(stored_words, behind[pk])),
            }
            for pk, invoice in standing.items()
        ],
    }


def _blocker_row(blocker: Blocker) -> dict[str, Any]:
    what, who = KINDS[blocker.kind]
    most = blocker.count >= MOST_COUNTED
    return {
        "what": what,
        "count": _("more than %(count)s") % {"count": number(MOST_COUNTED)} if most else number(blocker.count),
        "badge": _effect(blocker),
        "who": who,
        "url": _blocker_url(blocker.kind),
    }


def _effect(blocker: Blocker) -> SafeString:
    if blocker.kind == Kind.ROLLUPS:
        return badge(_("reports only"), "calm", "update")
    return badge(_("holds up"), "bad", "block") if blocker.holds_up else badge(_("late"), "warn", "schedule")


def _blocker_url(kind: Kind) -> str:
    if kind == Kind.UNPRICED:
        return reverse("admin:unpriced")
    if kind in (Kind.JOURNALS, Kind.DEAD):
        return reverse("admin:health")
    if kind == Kind.PROPOSED:
        return list_url(Adjustment, state=Adjustment.State.PROPOSED)
    return list_url(OpenStream if kind == Kind.STREAMS else RollupDue)


def _draft_row(each: Compared) -> dict[str, Any]:
    invoice, before = each.invoice, each.before_nanos
    jump = _jump(each) if each.jumps else ""
    return {
        "url": change_url(invoice),
        "account": invoice.account_name,
        "key": invoice.key_name,
        "total": money(invoice.total_nanos, invoice.currency),
        "before": UNKNOWN if before is None else money(before, invoice.currency),
        "change": UNKNOWN if before is None else signed(invoice.total_nanos - before, invoice.currency),
        "jump": badge(_("no invoice the month before"), "calm", "fiber_new") if before is None else jump,
        "unpriced": number(invoice.unpriced) if invoice.unpriced else "",
        "preview_url": reverse("admin:invoice_pdf", args=[invoice.pk]),
    }


def _plain(each: Compared) -> bool:
    """Whether there is nothing to look at: those stand below the others."""
    return not (each.invoice.unpriced or each.jumps or each.before_nanos is None)


def _jump(each: Compared) -> SafeString:
    more = each.invoice.total_nanos > (each.before_nanos or 0)
    return badge(_("jump up"), "warn", "trending_up") if more else badge(_("jump down"), "warn", "trending_down")


def _issued(month: dt.date) -> dict[str, Any] | None:
    """What of the month is issued already."""
    standing = list(invoices.of_month(month).exclude(status=Invoice.Status.DRAFT))
    if not standing:
        return None
    words = ngettext("%(count)s invoice, %(totals)s", "%(count)s invoices, %(totals)s", len(standing))
    return {
        "words": words % {"count": number(len(standing)), "totals": _amounts(standing)},
        "rows": [
            {"url": change_url(one), "number": one.number, "name": f"{one.account_name}/{one.key_name}",
             "total": money(one.total_nanos, one.currency)}
            for one in standing[:MOST_SHOWN]
        ],
    }  # fmt: skip


def _effects(month: dt.date, chosen: Sequence[Invoice], behind: int) -> list[str]:
    effects = [_("They never change again; corrections are credit notes.")]
    if any(invoice.period_end > now() for invoice in chosen):
        effects.append(_("The month still runs: what comes after the issue goes onto the next month's invoices."))
    if behind:
        words = ngettext(
            "%(count)s draft stays behind: it has unpriced requests.",
            "%(count)s drafts stay behind: they have unpriced requests.",
            behind,
        )
        effects.append(words % {"count": number(behind)})
    readings = _reader(settings.VAR_DIR).read(now())
    for blocker in month_close.blockers(month, readings):
        if not blocker.holds_up and blocker.kind != Kind.ROLLUPS:
            words = _("Not in these invoices, but late usage on the next ones: %(count)s %(what)s.")
            effects.append(words % {"count": number(blocker.count), "what": KINDS[blocker.kind][0]})
    return effects


def _issuable(drafts: Iterable[Invoice]) -> list[Invoice]:
    return [invoice for invoice in drafts if not invoice.unpriced]


def _each_amount(found: Iterable[Invoice]) -> list[str]:
    """Each currency by itself: they are never added."""
    return [money(nanos, currency) for currency, nanos in month_close.totals(found).items()]


def _amounts(found: Iterable[Invoice]) -> str:
    return " · ".join(_each_amount(found)) or UNKNOWN


def _say_if_other(request: HttpRequest, run: InvoiceRun, act: str) -> None:
    """Somebody else's run is under way, and it does something else."""
    if run.act != act:
        messages.warning(request, _("Nothing was begun: another run of this month is under way."))


def _month(request: HttpRequest) -> dt.date:
    try:
        return parse_month(request.GET.get("month", "") or f"{last_month():%Y-%m}")
    except ValueError:
        raise Http404 from None


def last_month() -> dt.date:
    """The first day of the month before this one, in the seller's zone."""
    today = dt.datetime.now(ZoneInfo(settings.SELLER["zone"] or "UTC")).date()
    return (today.replace(day=1) - dt.timedelta(days=1)).replace(day=1)


def words_of(month: dt.date) -> str:
    """`October 2026`, in the viewer's language."""
    return date_format(month, "YEAR_MONTH_FORMAT")


def _url(name: str, month: dt.date) -> str:
    return f"{reverse(f'admin:{name}')}?{urlencode({'month': f'{month:%Y-%m}'})}"


@cache
def _reader(var_dir: Path) -> MeterReader:
    """Kept, so that it learns which processes of other hosts fall silent."""
    return MeterReader(Folder(var_dir))


@admin.register(InvoiceRun)
class InvoiceRunAdmin(EndlessAdmin[InvoiceRun]):
    list_display = ("asked", "act", "about", "asked_by_name", "state_badge", "finished")
    list_display_links = ("asked",)
    list_select_related = ("asked_by", "invoice")
    ordering = ("-asked_at",)
    empty_text = gettext_lazy("No month was run yet.")
    list_note = gettext_lazy("Months drafted and issued, and invoices proved, in the background.")
    fields = ("act", "about", "asked_by_name", "state_badge", "asked", "finished", "why")

    @admin.display(description=gettext_lazy("asked for"))
    def asked(self, run: InvoiceRun) -> SafeString | str:
        return ago(run.asked_at)

    @admin.display(description=gettext_lazy("about"))
    def about(self, run: InvoiceRun) -> SafeString:
        if run.invoice is None:
            return link(_url("invoice_run", run.month), f"{run.month:%Y-%m}")
        return link(reverse("admin:invoice_prove", args=[run.invoice.pk]), str(run.invoice))

    @admin.display(description=gettext_lazy("by"))
    def asked_by_name(self, run: InvoiceRun) -> str:
        return run.asked_by.get_username() if run.asked_by else UNKNOWN

    @admin.display(description=gettext_lazy("state"))
    def state_badge(self, run: InvoiceRun) -> SafeString:
        return badge(run.get_state_display(), *STATE_LOOKS[State(run.state)])

    @admin.display(description=gettext_lazy("problem"))
    def why(self, run: InvoiceRun) -> str:
        return stored_words(run.problem) or UNKNOWN

    @admin.display(description=gettext_lazy("finished"))
    def finished(self, run: InvoiceRun) -> SafeString | str:
        return ago(run.finished_at)


@admin.register(InvoiceDocument)
class InvoiceDocumentAdmin(ReadOnlyAdmin[InvoiceDocument]):
    list_display = ("invoice_link", "size", "digest", "made")
    list_select_related = ("invoice",)
    ordering = ("-pk",)
    search_fields = ("=invoice__number", "=sha256")
    search_help_text = gettext_lazy("Number of the invoice, or SHA-256")
    empty_text = gettext_lazy("No invoice was issued yet.")
    list_note = gettext_lazy("The PDF of each issued invoice, made once and kept as it is.")
    fields = ("invoice_link", "pdf_link", "size", "digest", "made")

    def get_queryset(self, request: HttpRequest) -> QuerySet[InvoiceDocument]:
        """Without the files themselves."""
        return super().get_queryset(request).defer("content")

    @admin.display(description=gettext_lazy("invoice"))
    def invoice_link(self, document: InvoiceDocument) -> SafeString:
        return link(change_url(document.invoice), document.invoice)

    @admin.display(description="PDF")
    def pdf_link(self, document: InvoiceDocument) -> SafeString:
        return link(reverse("admin:invoice_pdf", args=[document.pk]), _("open"))

    size = number_column("size_bytes", gettext_lazy("bytes"))

    @admin.display(description="SHA-256")
    def digest(self, document: InvoiceDocument) -> SafeString:
        return code(document.sha256)

    @admin.display(description=gettext_lazy("made"))
    def made(self, document: InvoiceDocument) -> SafeString | str:
        return ago(document.made_at)
