"""What is wrong with a report's query, in words."""

from __future__ import annotations

from django.utils.translation import gettext as _

from billing.admin.display import number
from billing.report_query import MAX_DAYS, BadQuery
from billing.usage_report import MAX_ROWS


def fault_words(fault: BadQuery) -> str:
    """What is wrong with a query, and what to do."""
    words = {
        "date": _("This is no day: write it as 2026-11-03."),
        "month": _("This is no month: write it as 2026-11."),
        "order": _("The first day must not be after the last one."),
        "long": _("A report has at most %(days)s days: choose fewer.") % {"days": MAX_DAYS},
        "twice": _("The two dimensions are the same: choose another second one."),
        "rows": _("These are more than %(rows)s rows: choose fewer days, or a filter.") % {"rows": number(MAX_ROWS)},
        "gone": _("The draft is not there any more: what it would bill is on another invoice."),
        "absent": _("There is no such account or key, or the key is another account's."),
    }
    return words.get(fault.code, _("The field “%(field)s” has an unknown value.") % {"field": fault.field})
