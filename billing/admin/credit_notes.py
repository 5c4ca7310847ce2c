"""Credit notes: made from an invoice, after a look at what it owes before and after."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing import credit_notes
from billing.admin.access import EndlessAdmin, ask
from billing.admin.display import UNKNOWN, badge, change_url, figure, link, moment, money
from billing.admin.fields import ScaledField
from billing.admin.filters import AccountFilter
from billing.admin.typed import ChecksWidget, TextWidget
from billing.credit_notes import CreditRefused, Preview, Wanted
from billing.models import CreditNote, CreditNoteLine, Invoice
from billing.money import NANOS
from billing.row_ids import row_id

ADD = "billing.add_creditnote"


class CreditForm(forms.Form):
    """What is to be credited: whole lines, or an amount; and why. `seen` is what the preview before was of."""

    lines = forms.MultipleChoiceField(
        required=False, label=gettext_lazy("whole lines"), widget=ChecksWidget(),
    )  # fmt: skip
    amount_nanos = ScaledField(
        scale=NANOS, required=False, label=gettext_lazy("or an amount"),
        help_text=gettext_lazy("Off the invoice's total, its tax inside."),
    )  # fmt: skip
    reason = forms.CharField(
        label=gettext_lazy("reason"), max_length=300, widget=TextWidget(),
        help_text=gettext_lazy("The customer reads it on the credit note."),
    )  # fmt: skip
    seen = forms.CharField(required=False, widget=forms.HiddenInput())

    def __init__(self, invoice: Invoice, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        lines = credit_notes.creditable_lines(invoice)
        cast(forms.MultipleChoiceField, self.fields["lines"]).choices = [
            (str(line.pk), f"{money(line.amount_nanos, invoice.currency)} · {line.description}") for line in lines
        ]
        if not lines:
            del self.fields["lines"]

    def wanted(self) -> Wanted:
        lines = self.cleaned_data.get("lines") or []
        return Wanted([int(pk) for pk in lines], self.cleaned_data["amount_nanos"] or 0)


def credit_page(request: HttpRequest, page: Any, invoice: Invoice) -> HttpResponse:
    """The page that credits an invoice: first the form, then what it would come to, then the note."""
    if not request.user.has_perm(ADD):
        raise PermissionDenied
    form = CreditForm(invoice, request.POST or None)
    found = None
    if request.method == "POST" and form.is_valid():
        try:
            found = credit_notes.preview(invoice, form.wanted())
            if form.cleaned_data["seen"] == _seen(found):
                return _made(request, page, invoice, form)
            form = CreditForm(
                invoice, {**request.POST.dict(), "lines": request.POST.getlist("lines"), "seen": _seen(found)}
            )
        except CreditRefused as refused:
            form.add_error(None, str(refused))
    return _asked(request, page, invoice, form, found)


def _made(request: HttpRequest, page: Any, invoice: Invoice, form: CreditForm) -> HttpResponse:
    note = credit_notes.make(
        invoice.pk, form.wanted(), form.cleaned_data["reason"], by=cast(User, request.user), now=now()
    )
    page.log_change(request, invoice, [{"changed": {"fields": [f"credited by {note.number}"]}}])
    words = {"number": note.number, "amount": money(note.total_nanos, note.currency)}
    messages.success(request, _("The credit note %(number)s over %(amount)s is made.") % words)
    return redirect(change_url(note))


def _asked(request: HttpRequest, page: Any, invoice: Invoice, form: CreditForm, found: Preview | None) -> HttpResponse:
    currency, rest = invoice.currency, credit_notes.left(invoice)
    if found is None:
        question = _("Credit how much of the invoice %(number)s?") % {"number": invoice.number}
        effects = [_("%(amount)s of its total is left to credit.") % {"amount": money(rest.total_nanos, currency)}]
        verb = _("See what is due then")
    else:
        words = {"number": invoice.number, "amount": money(found.credit.total_nanos, currency)}
        question = _("Credit %(amount)s of the invoice %(number)s?") % words
        effects = _effects(found, currency)
        verb = _("Make the credit note")
    return ask(
        request, page, invoice, title=_("Credit an invoice"), question=question, effects=effects, verb=verb, form=form,
        cancel_url=change_url(invoice),
    )  # fmt: skip


def _effects(found: Preview, currency: str) -> list[str]:
    parts = {
        "net": money(found.credit.subtotal_nanos, currency),
        "tax": money(found.credit.tax_nanos, currency),
        "before": money(found.due_before_nanos, currency),
        "after": money(found.due_after_nanos, currency),
    }
    effects = [
        _("Of it, %(net)s is the amount and %(tax)s the tax.") % parts,
        _("Due on the invoice: before %(before)s, after %(after)s.") % parts,
    ]
    if found.due_after_nanos < 0:
        effects.append(_("The invoice is paid already: what is due below zero is to be paid back."))
    effects.append(_("The note gets the next number of its series, and never changes. The invoice stays as it is."))
    return effects


def _seen(found: Preview) -> str:
    """What a preview has shown, as one word: whoever confirms confirms that."""
    lines = ",".join(str(line.pk) if line else "-" for line, _nanos in found.lines)
    return f"{lines}:{found.credit.subtotal_nanos}:{found.credit.tax_nanos}:{found.due_before_nanos}"


@admin.register(CreditNote)
class CreditNoteAdmin(EndlessAdmin[CreditNote]):
    list_display = ("number", "invoice_link", "issued", "customer", "reason", "amount_figure", "paid_back")
    list_filter = (AccountFilter,)
    list_select_related = ("invoice", "account", "made_by")
    ordering = ("-id",)
    search_fields = ("number", "invoice_number", "account_name", "key_name")
    search_help_text = gettext_lazy("Number of the note or its invoice, account or key")
    empty_text = gettext_lazy("No credit note yet. Make one from the invoice that it corrects.")
    see_also = Invoice._meta
    list_note = gettext_lazy(
        "What issued invoices are owed less. Numbered in a series of their own; they never change."
    )
    change_form_outer_after_template = "admin/billing/creditnote/lines.html"
    fieldsets = (
        (
            None,
            {"fields": ("number", "invoice_link", "customer", "reason", "amount_figure", "paid_back", "issued", "by")},
        ),
        (gettext_lazy("Customer"), {"classes": ("tab",), "fields": ("legal_name", "address", "tax_id", "language")}),
        (gettext_lazy("Seller"), {"classes": ("tab",), "fields": ("seller_name", "seller_address", "seller_tax_id")}),
    )

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        note = CreditNote.objects.filter(pk=row_id(object_id)).first()
        context = {**(extra_context or {}), **({} if note is None else note_lines(note))}
        return super().change_view(request, object_id, form_url, context)

    @admin.display(description=gettext_lazy("invoice"))
    def invoice_link(self, note: CreditNote) -> SafeString:
        return link(change_url(note.invoice), note.invoice_number)

    @admin.display(description=gettext_lazy("date"))
    def issued(self, note: CreditNote) -> str:
        return f"{note.issued_on:%Y-%m-%d}"

    @admin.display(description=gettext_lazy("account · key"))
    def customer(self, note: CreditNote) -> SafeString:
        return link(change_url(note.account), f"{note.account_name}/{note.key_name}")

    @admin.display(description=gettext_lazy("amount"))
    def amount_figure(self, note: CreditNote) -> SafeString:
        return figure(money(note.total_nanos, note.currency))

    @admin.display(description=gettext_lazy("to be paid back"))
    def paid_back(self, note: CreditNote) -> SafeString | str:
        return badge(_("to be paid back"), "warn", "undo") if note.after_payment else UNKNOWN

    @admin.display(description=gettext_lazy("by"))
    def by(self, note: CreditNote) -> str:
        who = note.made_by.get_username() if note.made_by else UNKNOWN
        return f"{who} · {moment(note.issued_at, note.account.timezone)}"


def note_lines(note: CreditNote) -> dict[str, Any]:
    """What the page of a note shows below its fields."""
    currency = note.currency
    return {
        "lines": [(line.description, money(line.amount_nanos, currency)) for line in note.lines.all()],
        "sums": [
            (_("Subtotal"), money(note.subtotal_nanos, currency)),
            (_("Tax"), money(note.tax_nanos, currency)),
            (_("Total"), money(note.total_nanos, currency)),
        ],
    }


@admin.register(CreditNoteLine)
class CreditNoteLineAdmin(EndlessAdmin[CreditNoteLine]):
    list_display = ("credit_note", "position", "description", "amount_figure")
    list_select_related = ("credit_note",)
    ordering = ("-id",)
    search_fields = ("credit_note__number",)
    empty_text = gettext_lazy("No credit note has lines yet.")

    @admin.display(description=gettext_lazy("amount"))
    def amount_figure(self, line: CreditNoteLine) -> SafeString:
        return figure(money(line.amount_nanos, line.credit_note.currency))
