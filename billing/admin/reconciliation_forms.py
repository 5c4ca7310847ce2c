"""The forms of a reconciliation: the file, and what its columns mean; and the words for what cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import UploadedFile
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing import quarters
from billing.admin.accounts import zone_choices
from billing.admin.display import number
from billing.admin.fields import read_currency
from billing.admin.typed import FileWidget, PlainSelectWidget, SelectWidget, TextsWidget, TextWidget
from billing.csv_files import NotCsv
from billing.matching import Tokens
from billing.models import ReconciliationMapping
from billing.provider_files import FIELDS, INPUT_WITH_CACHE, MAX_MODEL, TOKEN_FIELDS, Fault, FileMapping
from billing.reconciliation import MAX_BYTES, MAX_DAYS

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

FIELD_WORDS: dict[str, _StrPromise | str] = {
    "day": gettext_lazy("day or time"),
    "model": gettext_lazy("model"),
    "input": gettext_lazy("input, cache left out"),
    INPUT_WITH_CACHE: gettext_lazy("input, cache inside"),
    "cache_read": gettext_lazy("cache read"),
    "cache_write": gettext_lazy("cache write"),
    "cache_write_1h": gettext_lazy("cache write, 1 h"),
    "output": gettext_lazy("output"),
    "requests": gettext_lazy("requests"),
    "cost": gettext_lazy("cost"),
}
UNIT_WORDS = {
    "tokens": gettext_lazy("tokens"),
    "thousands": gettext_lazy("thousands of tokens"),
    "millions": gettext_lazy("millions of tokens"),
}
DECIMAL_WORDS = {".": gettext_lazy("1,234.56 (point)"), ",": gettext_lazy("1.234,56 (comma)")}
ORDER_WORDS = {"month": gettext_lazy("03/04/2026 is 4 March"), "day": gettext_lazy("03/04/2026 is 3 April")}


class UploadForm(forms.Form):
    """A provider and its file."""

    provider = forms.ChoiceField(
        label=gettext_lazy("provider"), widget=PlainSelectWidget(),
        help_text=gettext_lazy("The one whose attempts are compared, by its name here."),
    )  # fmt: skip
    file = forms.FileField(
        label=gettext_lazy("file"), widget=FileWidget(attrs={"accept": ".csv,.tsv,.txt,text/csv"}),
        help_text=gettext_lazy("A usage export or an invoice as CSV, as the provider's console saves it."),
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        mapped = ReconciliationMapping.objects.values_list("provider", flat=True)
        names = sorted({*quarters.providers(), *mapped})
        field = self.fields["provider"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(name, name) for name in names]

    def clean_file(self) -> UploadedFile[Any]:
        file: UploadedFile[Any] = self.cleaned_data["file"]
        if (file.size or 0) > MAX_BYTES:
            megabytes = MAX_BYTES // 1024**2
            raise ValidationError(
                _("The file is larger than %(most)s MB: export fewer days, or days instead of hours.")
                % {"most": megabytes}
            )
        return file


def not_csv_words(fault: NotCsv) -> str:
    """Why a file is no table, and what to do."""
    words = {
        "empty": _("The file is empty."),
        "binary": _("This is no text: save the sheet as CSV."),
        "no_header": _("No line has two columns or more: is this the right file?"),
        "broken": _("Near line %(line)s a quotation mark is not closed, or stands in the wrong place."),
        "too_many_lines": _("The file has more than %(line)s lines: export days instead of hours."),
    }
    return words[fault.code] % {"line": number(fault.line)}


class AliasesField(forms.CharField):
    """Names of models, one pair a line: theirs = ours."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"required": False, "widget": TextsWidget(attrs={"rows": 4, "class": "hb-code"}), **kwargs})

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(f"{theirs} = {ours}" for theirs, ours in value.items()) if isinstance(value, dict) else value

    def clean(self, value: Any) -> Any:
        found: dict[str, str] = {}
        for line in filter(str.strip, super().clean(value).splitlines()):
            theirs, sign, ours = (part.strip() for part in line.partition("="))
            if not (sign and theirs and ours) or len(theirs) > MAX_MODEL or len(ours) > MAX_MODEL:
                raise ValidationError(
                    _("“%(line)s” is no pair of names: write it as their-name = our-name.") % {"line": line.strip()}
                )
            found[theirs] = ours
        return found


class MappingForm(forms.Form):
    """What the columns of a file mean, and in which units. `columns()`, `units()` are its two halves for the page."""

    zone = forms.ChoiceField(
        label=gettext_lazy("time zone"), choices=zone_choices, widget=SelectWidget(),
        help_text=gettext_lazy("Whose days the file counts. Providers mostly count in UTC."),
    )  # fmt: skip
    currency = forms.CharField(label=gettext_lazy("currency"), max_length=3, widget=TextWidget())
    unit = forms.ChoiceField(
        label=gettext_lazy("unit of tokens"), choices=UNIT_WORDS.items(), widget=PlainSelectWidget()
    )
    decimal = forms.ChoiceField(
        label=gettext_lazy("numbers"), choices=DECIMAL_WORDS.items(), widget=PlainSelectWidget()
    )
    order = forms.ChoiceField(label=gettext_lazy("dates"), choices=ORDER_WORDS.items(), widget=PlainSelectWidget())
    first = forms.DateField(
        label=gettext_lazy("compare from"), required=False, widget=TextWidget(attrs={"type": "date"}),
        help_text=gettext_lazy("Empty: from the file's first day."),
    )  # fmt: skip
    last = forms.DateField(
        label=gettext_lazy("compare to"), required=False, widget=TextWidget(attrs={"type": "date"}),
        help_text=gettext_lazy("Empty: to the file's last day. What they left out after it shows as only ours."),
    )  # fmt: skip
    aliases = AliasesField(
        label=gettext_lazy("models' names"),
        help_text=gettext_lazy("One a line: their name = our upstream name. Names that are the same need none."),
    )

    def __init__(
        self,
        header: Sequence[str],
        mapping: FileMapping,
        days: Mapping[str, Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        initial = {
            **{f"column_{name}": column for name, column in mapping.columns.items()},
            "zone": mapping.zone,
            "currency": mapping.currency,
            "unit": mapping.unit,
            "decimal": mapping.decimal,
            "order": "day" if mapping.day_first else "month",
            "aliases": dict(mapping.aliases),
            **(days or {}),
        }
        super().__init__(*args, **{"initial": initial, **kwargs})
        choices = [("", "—"), *((name, name) for name in header)]
        for name in FIELDS:
            self.fields[f"column_{name}"] = forms.ChoiceField(
                label=FIELD_WORDS[name], choices=choices, required=name in ("day", "model"), widget=PlainSelectWidget()
            )

    def columns(self) -> list[forms.BoundField]:
        return [self[f"column_{name}"] for name in FIELDS]

    def units(self) -> list[forms.BoundField]:
        return [self[name] for name in ("zone", "currency", "unit", "decimal", "order", "first", "last")]

    def clean_currency(self) -> str:
        return read_currency(self.cleaned_data["currency"])

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        chosen = self._chosen()
        taken: dict[str, str] = {}
        for name, column in chosen.items():
            if column in taken:
                self.add_error(f"column_{name}", _("This column is chosen twice."))
            taken[column] = name
        if "input" in chosen and INPUT_WITH_CACHE in chosen:
            self.add_error(f"column_{INPUT_WITH_CACHE}", _("Choose one of the two kinds of input."))
        if not {*TOKEN_FIELDS, "cost"} & set(chosen):
            raise ValidationError(_("Choose at least one column of tokens or of cost: there is nothing to compare."))
        return cleaned

    def _chosen(self) -> dict[str, str]:
        return {name: column for name in FIELDS if (column := self.cleaned_data.get(f"column_{name}"))}

    def mapping(self) -> FileMapping:
        """The mapping that was chosen, of a valid form."""
        given = self.cleaned_data
        return FileMapping(
            columns=self._chosen(),
            zone=given["zone"],
            currency=given["currency"],
            unit=given["unit"],
            decimal=given["decimal"],
            day_first=given["order"] == "day",
            aliases=given["aliases"],
        )


def fault_words(fault: Fault) -> str:
    """What is wrong with a line, or with the whole."""
    words = {
        "cells": _("It has another number of columns than the header: %(value)s."),
        "no_day": _("It has no day."),
        "day": _("“%(value)s” is no day that can be read; is it a line of totals?"),
        "no_model": _("It counts something, but names no model."),
        "long_model": _("The model's name is too long."),
        "number": _("%(field)s: “%(value)s” is no number."),
        "negative": _("%(field)s: %(value)s tokens are less than none."),
        "fraction": _("%(field)s: “%(value)s” is no whole number of tokens; is the unit right?"),
        "too_large": _("%(field)s: “%(value)s” is too large to be true; is this the right column?"),
        "cache_exceeds_input": _("%(field)s: %(value)s is less than what was cached of it; it may be the other kind."),
        "outside": _("%(value)s is outside the days that are to be compared."),
        "no_lines": _("No line counts anything: is this the right column for the model?"),
        "sums": _("The costs of one day are too large to be true; is this the right column?"),
        "order": _("The first day must not be after the last one."),
        "too_long": _("These are %(value)s days, more than %(most)s: is a date read wrongly?"),
    }
    named = {"field": FIELD_WORDS.get(fault.field, fault.field), "value": fault.value, "most": MAX_DAYS}
    return words[fault.code] % named


def tokens_words(tokens: Tokens | None, buckets: Iterable[str]) -> list[str]:
    """Tokens by bucket, as figures; dashes where there are none."""
    return [number(None if tokens is None else tokens.get(bucket, 0)) for bucket in buckets]
