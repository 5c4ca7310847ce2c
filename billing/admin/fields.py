"""Form fields for what the database keeps as nanos, millionths or JSON, but people write otherwise.

All conversions are exact: text to Decimal to integer and back, never through a float.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from billing.admin.typed import NumberWidget, TextsWidget
from billing.money import MAX_NANOS, is_currency
from billing.phrases import said_by
from billing.readers import Reader, Whole
from billing.words import in_words

PPM_PER_CENT = 10_000


def read_by(reader: Reader, field: forms.Field) -> None:
    """Let a reader alone decide what a field takes."""

    def check(value: Any) -> None:
        try:
            reader(value)
        except ValueError as fault:
            raise ValidationError(in_words(said_by(fault))) from None

    field.validators = [check]
    if isinstance(reader, Whole):
        field.widget.attrs |= {"min": reader.low, "max": reader.high}


def plain(amount: Decimal) -> str:
    """A decimal without exponent or trailing zeros."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


class ScaledField(forms.DecimalField):
    """An amount of `scale` stored units, as the stored integer: `scale=NANOS` takes 1.5 for 1_500_000_000.

    Bounded by what a column holds; below zero only where it is `signed`.
    """

    def __init__(self, *, scale: int, signed: bool = False, **kwargs: Any) -> None:
        self.scale = scale
        places, most = len(str(scale)) - 1, Decimal(MAX_NANOS) / scale
        widget = NumberWidget(attrs={"step": "any", "inputmode": "decimal"})
        bounds = {"min_value": -most if signed else 0, "max_value": most}
        super().__init__(**{**bounds, "decimal_places": places, "widget": widget, **kwargs})

    def prepare_value(self, value: Any) -> Any:
        return plain(Decimal(value) / self.scale) if isinstance(value, int) else value

    def clean(self, value: Any) -> Any:
        amount: Decimal | None = super().clean(value)
        return None if amount is None else int(amount * self.scale)

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.clean(data) != initial)
        except ValidationError:
            return True


class NamesField(forms.CharField):
    """A list of texts, one a line or separated by commas; `check` returns each as it is kept or raises ValueError."""

    def __init__(self, *, empty: Any, check: Callable[[str], str] = str, **kwargs: Any) -> None:
        self.empty, self.check = empty, check
        super().__init__(**{"required": False, "widget": TextsWidget(attrs={"rows": 3}), **kwargs})

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value

    def clean(self, value: Any) -> Any:
        text: str = super().clean(value)
        words = [word.strip() for word in text.replace(",", "\n").splitlines() if word.strip()]
        try:
            return list(dict.fromkeys(self.check(word) for word in words)) or self.empty
        except ValueError as error:
            raise ValidationError(str(error)) from None

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.clean(data) != initial)
        except ValidationError:
            return True


def network(word: str) -> str:
    """A network or an address, as it is kept; ValueError says what is wrong."""
    try:
        return str(ipaddress.ip_network(word))
    except ValueError:
        raise ValueError(
            _("“%(word)s” is not a network: write it as 10.0.0.0/8 or 2001:db8::/32.") % {"word": word}
        ) from None


def model_name(word: str) -> str:
    """A public model name; ValueError says what is wrong."""
    if len(word) > 200 or any(letter.isspace() for letter in word):
        raise ValueError(
            _("“%(word)s” is not a model name: it has a space, or more than 200 characters.") % {"word": word}
        )
    return word


def read_currency(text: str) -> str:
    """A currency's three letters, in capitals."""
    code = text.strip().upper()
    if not is_currency(code):
        raise ValidationError(_("“%(code)s” is no currency: write its three letters, such as USD.") % {"code": code})
    return code


def _is_deep(table: Any, most: int = 2) -> bool:
    """Whether a table holds others within its own. What is deep enough could be parsed, but not be shown or kept."""
    level = [table]
    for _depth in range(most):
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
        level = [inner for inner in level if isinstance(inner, dict | list)]
    return bool(level)


class TableField(forms.CharField):
    """A JSON object, as a dict whose fractions are Decimals."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"required": False, "widget": TextsWidget(attrs={"rows": 4, "class": "hb-code"}), **kwargs})

    def prepare_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return value
        return json.dumps(value, indent=1, ensure_ascii=False) if value else ""

    def clean(self, value: Any) -> Any:
        text: str = super().clean(value)
        try:
            table = json.loads(text, parse_float=Decimal, parse_constant=str) if text.strip() else {}
        except ValueError:
            raise ValidationError(_("This is not JSON.")) from None
        except RecursionError:
            table = None
        if not isinstance(table, dict) or _is_deep(table):
            raise ValidationError(_("Write a JSON object: names and numbers within braces."))
        return table

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.clean(data) != (initial or {}))
        except ValidationError:
            return True
