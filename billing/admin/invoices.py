"""Invoices: everybody reads them; Finance drafts, issues, credits and voids them, each on a page that asks first."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.decorators import action
from unfold.enums import ActionVariant

from billing import credit_notes, invoice_pdf, invoices, month_close
from billing.admin.access import EndlessAdmin, ReadOnlyAdmin, ask, asks_first
from billing.admin.credit_notes import ADD as ADD_CREDIT_NOTE
from billing.admin.credit_notes import credit_page
from billing.admin.display import (
    UNKNOWN,
    badge,
    change_url,
    figure,
    link,
    list_url,
    moment,
    money,
    number,
    number_column,
    price_per_million,
)
from billing.admin.fields import PPM_PER_CENT, plain
from billing.admin.filters import BUCKET_WORDS, METERING_WORDS, AccountFilter, Choice
from billing.admin.lines import records_of
from billing.admin.typed import DropdownFilter, ModelAdmin, TextWidget
from billing.credit_notes import Credited, due_nanos
from billing.lines import ADJUSTMENT, CARRIED_OVER
from billing.models import Adjustment, ApiKey, CreditNote, Invoice, InvoiceCounter, InvoiceLine, UsageRecord
from billing.money import NANO_PLACES
from billing.row_ids import row_id
from billing.words import in_words, stored_words

OF_ADJUSTMENTS = (ADJUSTMENT, CARRIED_OVER)
IN_ADVANCE = dt.timedelta(days=92)
"""A payment may come so long before the month that an invoice bills; a slip of the year is further off."""
STATUS_LOOKS = {
    Invoice.Status.DRAFT: ("calm", "edit_note"),
    Invoice.Status.OPEN: ("warn", "hourglass_top"),
    Invoice.Status.PAID: ("good", "check_circle"),
    Invoice.Status.VOID: ("bad", "cancel"),
}


class StatusFilter(DropdownFilter):
    title, parameter_name = gettext_lazy("status"), "status"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        return list(Invoice.Status.choices)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(status=self.value()) if self.value() else queryset


class MonthFilter(DropdownFilter):
    title, parameter_name = gettext_lazy("month"), "month"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        months = Invoice.objects.order_by("-month").values_list("month", flat=True).distinct()[:36]
        return [(f"{month:%Y-%m-%d}", f"{month:%Y-%m}") for month in months]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        try:
            return queryset.filter(month=dt.date.fromisoformat(self.value() or ""))
        except ValueError:
            return queryset


class VoidForm(forms.Form):
    """Why an invoice is void; its number retyped, for this cannot be undone."""

    reason = forms.CharField(label=gettext_lazy("reason"), max_length=300, widget=TextWidget())
    number = forms.CharField(label=gettext_lazy("the invoice's number, retyped"), max_length=20, widget=TextWidget())

    def __init__(self, expected: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.expected = expected

    def clean_number(self) -> str:
        typed: str = self.cleaned_data["number"].strip()
        if typed != self.expected:
            raise ValidationError(_("This is not the number of this invoice."))
        return typed


class PaidForm(forms.Form):
    """When and how an invoice was paid."""

    paid_on = forms.DateField(label=gettext_lazy("paid on"), widget=TextWidget(attrs={"type": "date"}))
    reference = forms.CharField(
        label=gettext_lazy("payment reference"), max_length=100, required=False, widget=TextWidget(),
        help_text=gettext_lazy("What your bank calls the payment."),
    )  # fmt: skip

    def __init__(self, invoice: Invoice, today: dt.date, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"initial": {"paid_on": today}, **kwargs})
        self.first, self.last = invoice.month - IN_ADVANCE, today + dt.timedelta(days=1)

    def clean_paid_on(self) -> dt.date:
        day: dt.date = self.cleaned_data["paid_on"]
        if not self.first <= day <= self.last:
            words = {"first": self.first.isoformat(), "last": self.last.isoformat()}
            raise ValidationError(_("Write the day of the payment, from %(first)s to %(last)s.") % words)
        return day


@admin.register(Invoice)
class InvoiceAdmin(ReadOnlyAdmin[Invoice]):
    list_display = (
        "title", "account_link", "key_name", "month_shown", "status_badge", "issued", "total_figure", "credited_figure",
        "due_figure",
    )  # fmt: skip
    list_display_links = ("title",)
    list_filter = (StatusFilter, MonthFilter, AccountFilter)
    list_select_related = ("account",)
    search_fields = ("number", "account_name", "key_name", "legal_name")
    search_help_text = gettext_lazy("Number, account or key")
    empty_text = gettext_lazy("No invoice yet. Draft a month to see what it would bill.")
    list_note = gettext_lazy("One invoice per key and month, in the month of the account's own zone.")
    next_step = ("admin:invoice_run", gettext_lazy("Month run"))
    actions_list = ("run_month",)
    actions_detail = ("issue", "mark_paid", "credit", "void")
    change_form_outer_after_template = "admin/billing/invoice/lines.html"
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "title",
                    "status_badge",
                    "account_link",
                    "key_link",
                    "period",
                    "records_link",
                    "total_figure",
                    "credited_figure",
                    "due_figure",
                )
            },
        ),
        (gettext_lazy("Dates"), {"classes": ("tab",), "fields": ("drafted", "issued", "due", "paid", "voided")}),
        (gettext_lazy("Customer"), {"classes": ("tab",), "fields": ("legal_name", "address", "tax_id", "language")}),
        (gettext_lazy("Seller"), {"classes": ("tab",), "fields": ("seller_name", "seller_address", "seller_tax_id")}),
    )

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        """Only what can be done in the invoice's present status."""
        invoice = self.get_queryset(request).filter(pk=object_id).first()
        if invoice is None:
            return []
        fitting = {"draft": {"issue"}, "open": {"mark_paid", "void", "credit"}, "paid": {"credit"}}
        names = {f"billing_invoice_{name}" for name in fitting.get(invoice.status, ())}
        if credited(invoice).total_nanos:
            names.discard("billing_invoice_void")
        if credited(invoice).total_nanos >= invoice.total_nanos or not request.user.has_perm(ADD_CREDIT_NOTE):
            names.discard("billing_invoice_credit")
        found: list[Any] = super().get_actions_detail(request, object_id)  # type: ignore[misc]  # Unfold's
        return [action for action in found if action.action_name in names]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Invoice]:
        """With what its credit notes come to, for the columns that tell what is due."""
        notes = CreditNote.objects.filter(invoice=OuterRef("pk")).order_by().values("invoice")
        return (
            super()
            .get_queryset(request)
            .annotate(
                noted_nanos=Subquery(notes.annotate(sum=Sum("total_nanos")).values("sum")),
                paid_back_nanos=Subquery(
                    notes.annotate(sum=Sum("total_nanos", filter=Q(after_payment=True))).values("sum")
                ),
            )
        )

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        invoice = Invoice.objects.filter(pk=row_id(object_id)).first()
        context = {**(extra_context or {}), **({} if invoice is None else statement(invoice))}
        return super().change_view(request, object_id, form_url, context)

    # --- changes ---

    @action(  # type: ignore[untyped-decorator]  # Unfold's
        description=gettext_lazy("Month run"), url_path="month-run", icon="event_available", permissions=["view"]
    )
    def run_month(self, request: HttpRequest) -> HttpResponse:
        """Where months are drafted and issued."""
        return redirect("admin:invoice_run")

    @asks_first(gettext_lazy("Issue"), "issue", icon="send", variant=ActionVariant.PRIMARY)
    def issue(self, request: HttpRequest, object_id: str) -> HttpResponse:
        invoice = self._standing(request, object_id, Invoice.Status.DRAFT)
        if isinstance(invoice, HttpResponse):
            return invoice
        blockers: list[SafeString | str] = []
        if request.method == "POST":
            try:
                issued = month_close.issue_one(invoice.pk, now=now(), seen=request.POST.get("seen", ""), waiting=True)
            except invoices.IssueBlocked as blocked:
                blockers = explain(invoice, blocked)
            except month_close.DraftChanged:
                invoices.draft_again([invoice.api_key_id])
                messages.warning(request, _("The draft has changed since you looked. Nothing was issued: look again."))
                return redirect(request.path)
            else:
                self.log_change(request, issued, [{"changed": {"fields": ["issued"]}}])
                messages.success(request, _("The invoice %(number)s is issued.") % {"number": issued.number})
                return redirect(change_url(issued))
        effects = [
            _("It gets the next number, and never changes again; corrections are credit notes."),
            _("The records that it bills are on it for good, unless it is made void."),
        ]
        if invoice.period_end > now():
            effects.append(_("Its month still runs: what comes after now goes onto the next month's invoice."))
        total = money(invoice.total_nanos, invoice.currency)
        return ask(
            request, self, invoice, title=_("Issue an invoice"), verb=_("Issue"), effects=effects, blockers=blockers,
            question=_("Issue the invoice of %(key)s for %(month)s, %(total)s as drafted?")
            % {"key": f"{invoice.account_name}/{invoice.key_name}", "month": f"{invoice.month:%Y-%m}", "total": total},
            cancel_url=change_url(invoice), hidden=[("seen", month_close.seen_of([invoice]))],
        )  # fmt: skip

    @asks_first(gettext_lazy("Mark paid"), "mark-paid", icon="payments", variant=ActionVariant.PRIMARY)
    def mark_paid(self, request: HttpRequest, object_id: str) -> HttpResponse:
        invoice = self._standing(request, object_id, Invoice.Status.OPEN)
        if isinstance(invoice, HttpResponse):
            return invoice
        form = PaidForm(invoice, dt.datetime.now(seller_zone()).date(), request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                invoices.mark_paid(invoice.pk, form.cleaned_data["paid_on"], form.cleaned_data["reference"])
            except invoices.InvoiceError:  # somebody was quicker: the page tells how it stands now
                return redirect(request.path)
            self.log_change(request, invoice, [{"changed": {"fields": ["paid"]}}])
            messages.success(request, _("The invoice %(number)s is paid.") % {"number": invoice.number})
            return redirect(change_url(invoice))
        notes = credit_notes.credited([invoice.pk])[invoice.pk]
        nanos = {"due": due_nanos(invoice, notes), "total": invoice.total_nanos, "credited": notes.total_nanos}
        words = {name: money(amount, invoice.currency) for name, amount in nanos.items()}
        effects = [_("It owes nothing any more. Date and reference stay with it.")]
        if notes.total_nanos:
            effects.insert(0, _("Its total is %(total)s, of which credit notes took %(credited)s back.") % words)
        return ask(
            request, self, invoice, title=_("Mark an invoice paid"), verb=_("Mark paid"), form=form,
            question=_("Mark the invoice %(number)s paid? %(due)s is due.") % {"number": invoice.number, **words},
            effects=effects, cancel_url=change_url(invoice),
        )  # fmt: skip

    @asks_first(gettext_lazy("Credit note"), "credit", icon="undo")
    def credit(self, request: HttpRequest, object_id: str) -> HttpResponse:
        invoice = self._standing(request, object_id, Invoice.Status.OPEN, Invoice.Status.PAID)
        return invoice if isinstance(invoice, HttpResponse) else credit_page(request, self, invoice)

    @asks_first(gettext_lazy("Void"), "void", icon="cancel", variant=ActionVariant.DANGER)
    def void(self, request: HttpRequest, object_id: str) -> HttpResponse:
        invoice = self._standing(request, object_id, Invoice.Status.OPEN)
        if isinstance(invoice, HttpResponse):
            return invoice
        form, blockers = VoidForm(invoice.number or "", request.POST or None), []
        if invoice.credit_notes.exists():
            blockers = [_("It has credit notes, which stand: credit the rest of it instead.")]
        elif invoice.dropped.exists():
            blockers = [
                _("Records of its days were dropped, and could not be billed again: give a credit note instead.")
            ]
        elif request.method == "POST" and form.is_valid():
            try:
                invoices.void(invoice.pk, form.cleaned_data["reason"], now=now())
            except invoices.InvoiceError:  # as above
                return redirect(request.path)
            self.log_change(request, invoice, [{"changed": {"fields": ["void"]}}])
            messages.success(request, _("The invoice %(number)s is void.") % {"number": invoice.number})
            return redirect(change_url(invoice))
        effects = [
            _("What it bills is free again: the next draft of the month bills it anew."),
            _("It keeps its number and stays readable. This is final."),
        ]
        return ask(
            request, self, invoice, title=_("Void an invoice"), danger=True, verb="" if blockers else _("Void"),
            form=None if blockers else form, effects=effects, blockers=blockers,
            question=_("Make the invoice %(number)s void?") % {"number": invoice.number},
            cancel_url=change_url(invoice),
        )  # fmt: skip

    def _standing(self, request: HttpRequest, object_id: str, *wanted: str) -> Invoice | HttpResponse:
        """The invoice, if its status lets it be changed so; else the way back to it, with the reason."""
        invoice = get_object_or_404(Invoice, pk=object_id)
        if invoice.status in wanted:
            return invoice
        words = {"invoice": invoice, "status": invoice.get_status_display()}
        messages.error(request, _("Nothing was changed: the invoice %(invoice)s is %(status)s.") % words)
        return redirect(change_url(invoice))

    # --- columns and fields ---

    @admin.display(description=gettext_lazy("number"), ordering="number")
    def title(self, invoice: Invoice) -> SafeString:
        return format_html('<span class="hb-nowrap">{}</span>', invoice.number or _("no number yet"))

    @admin.display(description=gettext_lazy("account"), ordering="account_name")
    def account_link(self, invoice: Invoice) -> SafeString:
        return link(change_url(invoice.account), invoice.account_name)

    @admin.display(description=gettext_lazy("key"))
    def key_link(self, invoice: Invoice) -> SafeString:
        return link(change_url(ApiKey(pk=invoice.api_key_id)), invoice.key_name)

    @admin.display(description=gettext_lazy("month"), ordering="month")
    def month_shown(self, invoice: Invoice) -> str:
        return f"{invoice.month:%Y-%m}"

    @admin.display(description=gettext_lazy("status"), ordering="status")
    def status_badge(self, invoice: Invoice) -> SafeString:
        return badge(invoice.get_status_display(), *STATUS_LOOKS[Invoice.Status(invoice.status)])

    @admin.display(description=gettext_lazy("period"))
    def period(self, invoice: Invoice) -> str:
        start, end = moment(invoice.period_start, invoice.timezone), moment(invoice.period_end, invoice.timezone)
        return _("%(start)s up to %(end)s") % {"start": start, "end": end}

    @admin.display(description=gettext_lazy("total"), ordering="total_nanos")
    def total_figure(self, invoice: Invoice) -> SafeString:
        return figure(money(invoice.total_nanos, invoice.currency))

    @admin.display(description=gettext_lazy("credited"))
    def credited_figure(self, invoice: Invoice) -> SafeString | str:
        nanos = credited(invoice).total_nanos
        return figure(money(nanos, invoice.currency)) if nanos else UNKNOWN

    @admin.display(description=gettext_lazy("Due"))
    def due_figure(self, invoice: Invoice) -> SafeString | str:
        if invoice.status in (Invoice.Status.DRAFT, Invoice.Status.VOID):
            return UNKNOWN
        return figure(money(due_nanos(invoice, credited(invoice)), invoice.currency))

    @admin.display(description=gettext_lazy("records"))
    def records_link(self, invoice: Invoice) -> SafeString | str:
        if invoice.status == Invoice.Status.VOID:
            return _("freed when it was made void")
        if invoice.status == Invoice.Status.DRAFT:
            return link(
                list_url(UsageRecord, api_key=invoice.api_key_id, invoice__isnull=True, period="all"), _("on none yet")
            )
        return link(list_url(UsageRecord, invoice=invoice.pk), _("all records on it"))

    @admin.display(description=gettext_lazy("drafted"))
    def drafted(self, invoice: Invoice) -> str:
        return moment(invoice.drafted_at, invoice.timezone)

    @admin.display(description=gettext_lazy("issued"), ordering="issued_at")
    def issued(self, invoice: Invoice) -> str:
        return moment(invoice.issued_at, invoice.timezone)

    @admin.display(description=gettext_lazy("due on"), ordering="due_on")
    def due(self, invoice: Invoice) -> str:
        return f"{invoice.due_on:%Y-%m-%d}" if invoice.due_on else UNKNOWN

    @admin.display(description=gettext_lazy("paid"))
    def paid(self, invoice: Invoice) -> str:
        if invoice.paid_on is None:
            return UNKNOWN
        return " · ".join(part for part in (f"{invoice.paid_on:%Y-%m-%d}", invoice.payment_reference) if part)

    @admin.display(description=gettext_lazy("voided"))
    def voided(self, invoice: Invoice) -> str:
        if invoice.voided_at is None:
            return UNKNOWN
        return f"{moment(invoice.voided_at, invoice.timezone)} · {invoice.void_reason}"


def credited(invoice: Invoice) -> Credited:
    """What the notes of an invoice of the admin's queryset take back."""
    noted: Any = invoice
    return Credited(noted.noted_nanos or 0, noted.paid_back_nanos or 0)


def explain(invoice: Invoice, blocked: invoices.IssueBlocked) -> list[SafeString | str]:
    """Why an invoice cannot be issued, with the way to what has to be mended first."""
    unpriced = records_of(invoice, UsageRecord.objects.filter(unpriced=True))
    found: list[SafeString | str] = []
    for row in unpriced.order_by("unpriced_reason").values("unpriced_reason").annotate(requests=Count("*")):
        words = _("%(count)s unpriced requests (%(reason)s).")
        sentence = words % {"count": number(row["requests"]), "reason": stored_words(row["unpriced_reason"])}
        found.append(link(list_url(UsageRecord, api_key=invoice.api_key_id, unpriced=1, period="all"), sentence))
    return found or [in_words(reason) for reason in blocked.reasons]


def seller_zone() -> ZoneInfo:
    """The zone in which the seller keeps its books."""
    return ZoneInfo(settings.SELLER["zone"] or "UTC")


def statement(invoice: Invoice) -> dict[str, Any]:
    """What the page of an invoice shows below its fields: lines and their sums."""
    lines = [_line_row(invoice, line) for line in invoice.lines.all()]
    currency = invoice.currency
    rate = plain(Decimal(invoice.tax_rate_ppm) / PPM_PER_CENT)
    return {
        "lines": lines,
        "files": {name: reverse(f"admin:invoice_{name}", args=[invoice.pk]) for name in ("pdf", "csv", "prove")},
        "draft": invoice.status == Invoice.Status.DRAFT,
        "not_shown": " ".join(invoice_pdf.not_shown(invoice)) if invoice.status == Invoice.Status.DRAFT else "",
        "unpriced": invoice.unpriced,
        "unpriced_text": number(invoice.unpriced),
        "unpriced_url": list_url(UsageRecord, api_key=invoice.api_key_id, unpriced=1, period="all"),
        "notes": [
            {"url": change_url(note), "note": note, "amount": money(note.total_nanos, currency)}
            for note in invoice.credit_notes.order_by("pk")
        ],
        "sums": [
            (_("Subtotal"), money(invoice.subtotal_nanos, currency)),
            (_("Tax (%(rate)s %%)") % {"rate": rate}, money(invoice.tax_nanos, currency)),
            (_("Total"), money(invoice.total_nanos, currency)),
        ],
    }


def _line_row(invoice: Invoice, line: InvoiceLine) -> dict[str, Any]:
    currency = invoice.currency
    adjusts = line.bucket in OF_ADJUSTMENTS
    tiers = [line.service_tier, _("long context") if line.long_context else ""]
    return {
        "line": line,
        "part": _("Adjustments") if adjusts else _("Late usage") if line.late else _("Use in the period"),
        "tier": " · ".join(tier for tier in tiers if tier) or UNKNOWN,
        "name": line.description if line.bucket in OF_ADJUSTMENTS else line.model,
        "bucket": BUCKET_WORDS.get(line.bucket, line.bucket),
        "metering": UNKNOWN if line.bucket in OF_ADJUSTMENTS else METERING_WORDS.get(line.metering, line.metering),
        "notes": line.price_version,
        "quantity": number(line.quantity),
        "unit": price_per_million(line.unit_nanos, currency),
        "exact": money(line.exact_nanos, currency, NANO_PLACES),
        "rounding": money(line.rounding_nanos, currency, NANO_PLACES),
        "amount": money(line.amount_nanos, currency),
        "url": _behind(invoice, line),
    }


def _behind(invoice: Invoice, line: InvoiceLine) -> str:
    """The list of what a line sums; empty where there is none."""
    if invoice.status == Invoice.Status.VOID or line.bucket == CARRIED_OVER:
        return ""
    if line.bucket in OF_ADJUSTMENTS:
        if invoice.status == Invoice.Status.DRAFT:
            return list_url(Adjustment, api_key=invoice.api_key_id, invoice__isnull=True)
        return list_url(Adjustment, invoice=invoice.pk)
    return list_url(UsageRecord, line=line.pk)


@admin.register(InvoiceLine)
class InvoiceLineAdmin(EndlessAdmin[InvoiceLine]):
    list_display = ("invoice", "position", "model", "bucket", "metering", "quantity_figure", "amount_figure", "late")
    list_select_related = ("invoice",)
    ordering = ("-invoice_id", "position")
    search_fields = ("invoice__number", "model")
    empty_text = gettext_lazy("No invoice has lines yet.")

    quantity_figure = number_column("quantity", gettext_lazy("quantity"))

    @admin.display(description=gettext_lazy("amount"))
    def amount_figure(self, line: InvoiceLine) -> SafeString:
        return figure(money(line.amount_nanos, line.invoice.currency))


@admin.register(InvoiceCounter)
class InvoiceCounterAdmin(ReadOnlyAdmin[InvoiceCounter]):
    list_display = ("series", "year", "last")
    empty_text = gettext_lazy("No number has been given yet.")
    list_note = gettext_lazy("The last number given in each series and year.")
