"""The form of a row that is kept: it takes what the configuration file takes, and takes back nobody's change unseen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar, cast

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.utils.translation import gettext as _

from billing.admin.changes import value_text
from billing.admin.fields import read_by
from billing.admin.typed import ModelForm
from billing.readers import Reader

Row = TypeVar("Row", bound=Model)
MARK = "as_shown"


class Mark(forms.CharField):
    """What each field held when the page was made: nothing that anybody changes."""

    def __init__(self) -> None:
        super().__init__(required=False, strip=False, widget=forms.HiddenInput(attrs={"autocomplete": "off"}))

    def has_changed(self, initial: Any, data: Any) -> bool:
        return False


class KeptForm(ModelForm[Row]):
    """`readers` (by field) decide what is taken, and say what is wrong in the words of the configuration file.

    A field that somebody else has changed while the page was open is not overwritten at once, whether it was touched
    here or not: that is said first, and the next try counts.
    """

    readers: ClassVar[Mapping[str, Reader]] = {}
    as_shown = Mark()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in self.readers.keys() & self.fields.keys():  # not those that the viewer only reads
            read_by(self.readers[name], self.fields[name])
        if self.instance.pk is not None:
            self.initial[MARK] = json.dumps(self._now(), ensure_ascii=False)

    def _now(self) -> dict[str, str]:
        fields = ((name, field) for name, field in self.fields.items() if name != MARK)
        return {name: str(self.get_initial_for_field(field, name)) for name, field in fields}

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        for name in (changed := self._changed_meanwhile()):
            value = value_text(type(self.instance), name, getattr(self.instance, name, None), "")
            text = _("Somebody has changed this to %(value)s since the page was opened. Save again to keep yours.")
            self.add_error(name, ValidationError(text % {"value": value}))
        if changed:
            self._show_as_of_now()
        return cleaned

    def _changed_meanwhile(self) -> list[str]:
        """Fields that saving would write, and that no longer hold what the page showed."""
        shown, present = _read(self.cleaned_data.get(MARK, "")), self._now()
        return [name for name in self.changed_data if name in shown and shown[name] != present.get(name)]

    def _show_as_of_now(self) -> None:
        """Let the next try be held against what this answer tells."""
        data: Any = self.data
        self.data = data.copy()
        cast(Any, self.data)[self.add_prefix(MARK)] = self.initial[MARK]


def _read(mark: str) -> dict[str, str]:
    """What a page says it showed; nothing where it does not say."""
    try:
        shown = json.loads(mark)
    except (ValueError, RecursionError):
        return {}
    return shown if isinstance(shown, dict) else {}


def with_mark(fieldsets: Any) -> Any:
    """Fieldsets whose first one has the mark, too."""
    (title, first), *others = fieldsets
    return [(title, {**first, "fields": (*first["fields"], MARK)}), *others]
