"""Prices: versions that can be added, and changed only until the first request was rated with them."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import ValidationError
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.forms.models import model_to_dict
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing import invoices
from billing.admin import price_preview_page, price_versions
from billing.admin.access import KeptAdmin
from billing.admin.display import UNKNOWN, badge, figure, moment, number, price_per_million
from billing.admin.fields import ScaledField, TableField, model_name, read_currency
from billing.admin.filters import Choice, ModelFilter
from billing.admin.typed import DropdownFilter, ModelAdmin, ModelForm, NumberWidget
from billing.models import Price
from billing.money import NANOS, parse, to_decimal
from billing.phrases import said_by
from billing.price_spec import describe_price, parse_price
from billing.usage import BUCKETS
from billing.words import in_words

LONG_CONTEXT = ("long_context_above", "long_context_input", "long_context_output")


def _bucket(label: Any) -> ScaledField:
    return ScaledField(
        scale=NANOS, required=False, label=label, help_text=gettext_lazy("Per million tokens. Empty: no price.")
    )


class PriceForm(ModelForm[Price]):
    """A price version, in amounts of its currency."""

    input = _bucket(gettext_lazy("input"))
    cache_read = _bucket(gettext_lazy("cache read"))
    cache_write = _bucket(gettext_lazy("cache write"))
    cache_write_1h = _bucket(gettext_lazy("cache write, 1 h"))
    output = _bucket(gettext_lazy("output"))
    tiers = TableField(
        label=gettext_lazy("service tiers"),
        help_text=gettext_lazy('A factor or a block of prices by tier: {"priority": "2", "batch": {"input": "1.25"}}.'),
    )
    server_tools = TableField(
        label=gettext_lazy("server tools"),
        help_text=gettext_lazy('The price of one request by tool: {"web_search": "0.01"}.'),
    )
    long_context_above = forms.IntegerField(
        required=False, min_value=1, label=gettext_lazy("long context above"), widget=NumberWidget(),
        help_text=gettext_lazy("Input tokens. Above them the whole request costs the factors below."),
    )  # fmt: skip
    long_context_input = ScaledField(scale=NANOS, required=False, label=gettext_lazy("factor of input"))
    long_context_output = ScaledField(scale=NANOS, required=False, label=gettext_lazy("factor of output"))

    class Meta:
        model = Price
        fields = ("model", "effective_from", "currency", *BUCKETS, "tiers", "server_tools")
        help_texts = {
            "effective_from": gettext_lazy("In UTC. The version in force when a request starts is its price.")
        }

    also_changed = ("long_context",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is None:
            return
        spec = described(self.instance)
        self.initial.update(tiers=spec.get("tiers", {}), server_tools=spec.get("server_tools", {}))
        if kept := spec.get("long_context"):
            self.initial["long_context_above"] = kept["above"]
            for name in ("input", "output"):
                self.initial[f"long_context_{name}"] = parse(kept[name])

    def clean_model(self) -> str:
        try:
            return model_name(self.cleaned_data["model"].strip())
        except ValueError as error:
            raise ValidationError(str(error)) from None

    def clean_currency(self) -> str:
        return read_currency(self.cleaned_data["currency"])

    def clean(self) -> dict[str, Any] | None:
        super().clean()
        if not self.errors:
            self._read_spec()
            self._check_issued_periods()
        return self.cleaned_data

    def _read_spec(self) -> None:
        """Read the whole like the configuration file's entry, so that there is one judge of what a price may be."""
        try:
            fields = parse_price(self._spec())
        except ValueError as fault:
            raise ValidationError(
                _("This price cannot be kept: %(reason)s.") % {"reason": in_words(said_by(fault))}
            ) from None
        self.cleaned_data.update(tiers=fields["tiers"], server_tools=fields["server_tools"])
        self.instance.long_context = fields["long_context"]

    def _spec(self) -> dict[str, Any]:
        given = {bucket: self.cleaned_data[bucket] for bucket in BUCKETS if self.cleaned_data[bucket] is not None}
        spec = {
            name: self.cleaned_data[name] for name in ("model", "effective_from", "currency", "tiers", "server_tools")
        }
        factors = {"above": self.cleaned_data["long_context_above"]}
        for name in ("input", "output"):
            nanos = self.cleaned_data[f"long_context_{name}"]
            factors[name] = None if nanos is None else to_decimal(nanos)
        set_factors = {name: value for name, value in factors.items() if value is not None}
        per_million = {bucket: to_decimal(nanos) for bucket, nanos in given.items()}
        return {**spec, "per_million": per_million, **({"long_context": set_factors} if set_factors else {})}

    def _check_issued_periods(self) -> None:
        number = invoices.billed_at(self.cleaned_data["model"], self.cleaned_data["effective_from"])
        if number:
            text = _("The invoice %(number)s has billed this model for that time already: choose a later start.")
            self.add_error("effective_from", ValidationError(text % {"number": number}))


class PriceStateFilter(DropdownFilter):
    title, parameter_name = gettext_lazy("state"), "state"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        return [(state, word) for state, (word, _tone, _icon) in price_versions.STATES.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        coming = Q(effective_from__gt=now())
        states = {"coming": coming, "in_force": ~coming & Q(superseded=False), "past": ~coming & Q(superseded=True)}
        return queryset.filter(states.get(self.value() or "", Q()))


@admin.register(Price)
class PriceAdmin(KeptAdmin[Price]):
    form = PriceForm
    list_before_template = "admin/billing/price/list_top.html"
    list_display = (
        "model", "state", "effective", "currency", "input_figure", "cache_read_figure", "cache_write_figure",
        "cache_write_1h_figure", "output_figure", "extras",
    )  # fmt: skip
    list_filter = (PriceStateFilter, ModelFilter)
    search_fields = ("model",)
    empty_text = gettext_lazy(
        "No price yet. Requests of a model without a price are kept unpriced, and block the invoice."
    )
    list_note = gettext_lazy(
        "Prices are per million tokens. A version that has rated a request never changes: add the next one."
    )
    fieldsets = (
        (None, {"fields": ("model", "effective_from", "currency")}),
        (gettext_lazy("Per million tokens"), {"fields": BUCKETS}),
        (gettext_lazy("Long context"), {"fields": LONG_CONTEXT}),
        (gettext_lazy("Service tiers and server tools"), {"fields": ("tiers", "server_tools")}),
    )
    change_form_before_template = "admin/billing/price/timeline.html"

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """A version is added once somebody has seen what it would have cost: the first POST shows that."""
        if request.method == "POST" and self.has_add_permission(request):
            form = self.get_form(request)(request.POST)
            if form.is_valid() and not price_preview_page.was_seen(request, form.instance):
                return price_preview_page.preview_page(request, self, form.instance)
        return super().add_view(request, form_url, extra_context)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """A version like another one, or like the one in force of a model, from the next month on."""
        kept = price_versions.to_copy(request.GET)
        if kept is None:
            return super().get_changeform_initial_data(request)
        spec = described(kept)
        factors = spec.get("long_context", {})
        return {
            **{name: getattr(kept, name) for name in ("model", "currency", *BUCKETS)},
            "effective_from": price_versions.next_month_start(now()),
            "tiers": spec.get("tiers", {}),
            "server_tools": spec.get("server_tools", {}),
            "long_context_above": factors.get("above"),
            **{f"long_context_{name}": parse(factors[name]) for name in ("input", "output") if factors},
        }

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        price = self.get_object(request, unquote(object_id))
        timeline = price_versions.timeline(request, price.model, shown=price.pk) if price else {}
        return super().change_view(request, object_id, form_url, {**timeline, **(extra_context or {})})

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        model = request.GET.get(ModelFilter.parameter_name or "", "")
        timeline = price_versions.timeline(request, model) if model else {}
        return super().changelist_view(request, {**timeline, **(extra_context or {})})

    def get_queryset(self, request: HttpRequest) -> QuerySet[Price]:
        later = Price.objects.filter(
            model=OuterRef("model"), effective_from__gt=OuterRef("effective_from"), effective_from__lte=now()
        )
        return super().get_queryset(request).annotate(superseded=Exists(later))

    def get_fieldsets(self, request: HttpRequest, obj: Price | None = None) -> Any:
        if obj is None or self.has_change_permission(request, obj):
            return super().get_fieldsets(request, obj)
        return (
            (None, {"fields": ("model", "effective", "currency", "state", "used")}),
            (gettext_lazy("Per million tokens"), {"fields": tuple(f"{bucket}_figure" for bucket in BUCKETS)}),
            (gettext_lazy("Other"), {"fields": ("long_context_shown", "tiers_shown", "tools_shown")}),
        )

    def is_closed(self, obj: Price) -> bool:
        return is_used(obj)

    @admin.display(description=gettext_lazy("state"))
    def state(self, price: Price) -> SafeString:
        past = getattr(price, "superseded", False)
        name = "coming" if price.effective_from > now() else "past" if past else "in_force"
        return badge(*price_versions.STATES[name])

    @admin.display(description=gettext_lazy("from"), ordering="effective_from")
    def effective(self, price: Price) -> str:
        return moment(price.effective_from)

    @admin.display(description=gettext_lazy("used"))
    def used(self, price: Price) -> str:
        if is_used(price):
            return _("Yes: it has rated requests, so it never changes. Add the next version instead.")
        return _("Not yet.")

    @admin.display(description=gettext_lazy("input"))
    def input_figure(self, price: Price) -> SafeString:
        return figure(price_per_million(price.input, price.currency))

    @admin.display(description=gettext_lazy("cache read"))
    def cache_read_figure(self, price: Price) -> SafeString:
        return figure(price_per_million(price.cache_read, price.currency))

    @admin.display(description=gettext_lazy("cache write"))
    def cache_write_figure(self, price: Price) -> SafeString:
        return figure(price_per_million(price.cache_write, price.currency))

    @admin.display(description=gettext_lazy("cache write, 1 h"))
    def cache_write_1h_figure(self, price: Price) -> SafeString:
        return figure(price_per_million(price.cache_write_1h, price.currency))

    @admin.display(description=gettext_lazy("output"))
    def output_figure(self, price: Price) -> SafeString:
        return figure(price_per_million(price.output, price.currency))

    @admin.display(description=gettext_lazy("more"))
    def extras(self, price: Price) -> str:
        found = [*price.tiers, *price.server_tools, *([_("long context")] if price.long_context else [])]
        return ", ".join(found) or UNKNOWN

    @admin.display(description=gettext_lazy("long context"))
    def long_context_shown(self, price: Price) -> str:
        if not price.long_context:
            return UNKNOWN
        words = _("above %(above)s input tokens: input × %(input)s, output × %(output)s")
        return words % {**price.long_context, "above": number(price.long_context["above"])}

    @admin.display(description=gettext_lazy("service tiers"))
    def tiers_shown(self, price: Price) -> str:
        return _written(described(price).get("tiers"))

    @admin.display(description=gettext_lazy("server tools"))
    def tools_shown(self, price: Price) -> str:
        return _written(described(price).get("server_tools"))


def described(price: Price) -> dict[str, Any]:
    """A kept price as the configuration file writes it."""
    return describe_price(model_to_dict(price))


def _written(table: Any) -> str:
    return json.dumps(table, ensure_ascii=False) if table else UNKNOWN


def is_used(price: Price) -> bool:
    """Whether a record was rated with this version. Looked up once per object: a page asks several times."""
    if "known_use" not in price.__dict__:
        price.__dict__["known_use"] = price.is_used()
    return bool(price.__dict__["known_use"])
