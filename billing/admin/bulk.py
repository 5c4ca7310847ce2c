"""Changes of several rows at once: the list's action asks, with the rows by name; the same action, confirmed, does.

    def revoke_chosen(self, request, queryset):
        chosen = Chosen(request, self, queryset, "revoke_chosen")
        if not chosen.is_confirmed:
            return chosen.ask(question=…, effects=[…], verb=…)
        …

The question holds the rows themselves, so what is done is done to those that it named, whatever the list shows by then.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from billing.admin.access import NOTHING_LEFT, ask
from billing.admin.display import number

MOST = 500
"""Rows that a question can name; Django takes a thousand fields of a form."""
CONFIRMED = "confirmed"


class Chosen:
    """The rows of a list that somebody chose for an action; none where they are too many, or gone, which is said."""

    def __init__(self, request: HttpRequest, admin: Any, queryset: QuerySet[Any], action: str) -> None:
        self._request, self._admin, self._action = request, admin, action
        self.rows: list[Any] = list(queryset[: MOST + 1])
        if len(self.rows) > MOST:
            self.rows = []
            text = _("Choose at most %(count)s at a time; filters narrow the list.")
            messages.error(request, text % {"count": number(MOST)})
        elif not self.rows:
            messages.error(request, NOTHING_LEFT)

    @property
    def is_confirmed(self) -> bool:
        """Whether the question was answered with its button."""
        return self._request.POST.get(CONFIRMED) == "1"

    @property
    def answers(self) -> dict[str, Any] | None:
        """What a form of the question was filled in with; None while it is only asked."""
        return self._request.POST if self.is_confirmed else None

    def ask(self, rows: list[Any], **context: Any) -> TemplateResponse | None:
        """The question about these of the rows. `question`, `effects`, `verb` and so on as of `access.ask`."""
        if not self.rows:
            return None
        hidden = [
            ("action", self._action),
            ("select_across", "0"),
            (CONFIRMED, "1"),
            *((ACTION_CHECKBOX_NAME, row.pk) for row in rows),
        ]
        return ask(
            self._request, self._admin, None, names=[str(row) for row in rows], hidden=hidden,
            cancel_url=self._request.get_full_path(), **context,
        )  # fmt: skip

    def log(self, row: Model, fields: list[str]) -> None:
        """Tell Django's log of a row that was changed."""
        self._admin.log_change(self._request, row, [{"changed": {"fields": fields}}])
