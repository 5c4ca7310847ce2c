"""Count factors: what each model reports for a token that we count, now and before."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from django.contrib import admin
from django.db.models import Model, OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.admin.access import EndlessAdmin
from billing.admin.display import ago, figure, link, list_url, moment, number, number_column, stacked
from billing.count_factors import LEAST_RECORDS
from billing.models import CountFactor
from billing.models.count_factors import shown_factor

Named = TypeVar("Named", bound=Model)


def with_factor(rows: QuerySet[Named]) -> QuerySet[Named]:
    """Rows with a model's `name`, each with the factor that is in force for it, read in the same query."""
    newest = CountFactor.objects.filter(model=OuterRef("name")).order_by("-id")
    columns = {f"fitted_{column}": Subquery(newest.values(column)[:1]) for column in ("factor_ppm", "records")}
    return cast("QuerySet[Named]", rows.annotate(**columns, fitted_at=Subquery(newest.values("fitted_at")[:1])))


def factor_cell(row: Any, starting_ppm: int) -> SafeString:
    """A list's cell: the factor of a row from `with_factor`, and where it comes from."""
    if row.fitted_factor_ppm is None:
        return stacked(figure(shown_factor(starting_ppm)), _("starting value"))
    return stacked(figure(shown_factor(row.fitted_factor_ppm)), _("%(count)s records") % _records(row))


def factor_story(row: Any, starting_ppm: int) -> SafeString:
    """The same in sentences, with the way to what was in force before."""
    if row.fitted_factor_ppm is None:
        told = _("The starting value: fewer than %(least)s streams of text alone can be compared so far.")
        return stacked(figure(shown_factor(starting_ppm)), told % {"least": LEAST_RECORDS})
    told = _("The median of %(count)s records, in force since %(moment)s.") % {
        **_records(row), "moment": moment(row.fitted_at),
    }  # fmt: skip
    earlier = link(list_url(CountFactor, model=row.name), _("Earlier factors"))
    return stacked(figure(shown_factor(row.fitted_factor_ppm)), format_html("{} {}", told, earlier))


def _records(row: Any) -> dict[str, str]:
    return {"count": number(row.fitted_records)}


@admin.register(CountFactor)
class CountFactorAdmin(EndlessAdmin[CountFactor]):
    list_display = ("since", "model", "factor_figure", "records_figure")
    list_display_links = ("since", "model")
    ordering = ("-id",)
    search_fields = ("model",)
    search_help_text = gettext_lazy("The whole name of the model")
    empty_text = gettext_lazy("No count factor yet: a model gets one once a hundred of its streams can be compared.")
    list_note = gettext_lazy(
        "Tokens as reported, divided by our own count of the same output: the median of a model's newest streams of "
        "text alone, taken once a day. The newest is in force; a record keeps the factor that it was counted with."
    )
    fields = ("model", "factor_figure", "records_figure", "since")

    def lookup_allowed(self, lookup: str, value: object, request: HttpRequest) -> bool:
        return lookup == "model" or super().lookup_allowed(lookup, str(value), request)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[CountFactor], search_term: str
    ) -> tuple[QuerySet[CountFactor], bool]:
        term = search_term.strip()
        return (queryset.filter(model=term) if term else queryset), False

    @admin.display(description=gettext_lazy("since"))
    def since(self, row: CountFactor) -> SafeString | str:
        return ago(row.fitted_at)

    @admin.display(description=gettext_lazy("count factor"))
    def factor_figure(self, row: CountFactor) -> SafeString:
        return figure(shown_factor(row.factor_ppm))

    records_figure = number_column("records", gettext_lazy("from records"))
