"""The admin's look and sidebar, as Unfold's settings. Read by the settings: no model is imported here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

Page = tuple[Any, str, str, str]
"""Title, icon, URL name below `admin:`, and the permission that shows it."""

GATEWAY: tuple[Page, ...] = (
    (_("Live streams"), "bolt", "billing_openstream_changelist", "billing.view_openstream"),
    (_("Requests"), "receipt_long", "billing_usagerecord_changelist", "billing.view_usagerecord"),
    (_("Keys"), "key", "billing_apikey_changelist", "billing.view_apikey"),
    (_("Accounts"), "groups", "billing_account_changelist", "billing.view_account"),
    (_("Models"), "neurology", "streaming_model_changelist", "streaming.view_model"),
    (_("Routes"), "alt_route", "streaming_route_changelist", "streaming.view_route"),
    (_("Providers"), "cloud", "streaming_provider_changelist", "streaming.view_provider"),
    (_("Meter health"), "monitor_heart", "health", "billing.view_meterevent"),
    (_("Configuration"), "settings", "configuration", "streaming.change_provider"),
)
MONEY: tuple[Page, ...] = (
    (_("Usage"), "monitoring", "usage", "billing.view_usagerecord"),
    (_("Statement"), "account_balance", "statement", "billing.view_invoice"),
    (_("Invoices"), "request_quote", "billing_invoice_changelist", "billing.view_invoice"),
    (_("Credit notes"), "undo", "billing_creditnote_changelist", "billing.view_creditnote"),
    (_("Adjustments"), "compare_arrows", "billing_adjustment_changelist", "billing.view_adjustment"),
    (_("Unpriced"), "money_off", "unpriced", "billing.view_usagerecord"),
    (_("Prices"), "sell", "billing_price_changelist", "billing.view_price"),
    (_("Spending"), "savings", "billing_budgetmonth_changelist", "billing.view_budgetmonth"),
    (_("Exports"), "download", "billing_export_changelist", "billing.view_export"),
    (_("Reconciliation"), "balance", "billing_reconciliation_changelist", "billing.view_reconciliation"),
    (_("Roll-ups"), "stacked_bar_chart", "billing_usagerollup_changelist", "billing.view_usagerollup"),
)
SYSTEM: tuple[Page, ...] = (
    (_("Audit log"), "history_edu", "audit", "billing.view_auditentry"),
    (_("Attempts"), "replay", "billing_attempt_changelist", "billing.view_attempt"),
    (_("Stored objects"), "inventory_2", "billing_storedobject_changelist", "billing.view_storedobject"),
    (_("Processes"), "memory", "billing_gatewayprocess_changelist", "billing.view_gatewayprocess"),
    (_("Roll-ups due"), "update", "billing_rollupdue_changelist", "billing.view_rollupdue"),
    (_("Alarms"), "notifications", "streaming_alarm_changelist", "streaming.view_alarm"),
    (_("Meter events"), "history", "billing_meterevent_changelist", "billing.view_meterevent"),
    (_("Flagged usage"), "flag", "billing_flagrollup_changelist", "billing.view_flagrollup"),
    (_("Count factors"), "straighten", "billing_countfactor_changelist", "billing.view_countfactor"),
    (_("Provider tests"), "science", "billing_providertest_changelist", "billing.view_providertest"),
    (_("Users"), "person", "auth_user_changelist", "auth.view_user"),
    (_("Groups"), "group", "auth_group_changelist", "auth.view_group"),
)


GROUPS = ((_("Gateway"), GATEWAY), (_("Money"), MONEY), (_("System"), SYSTEM))


class Place(NamedTuple):
    """Where a page stands in the sidebar: its group there, its entry, and that entry's address."""

    group: Any
    title: Any
    url: str


def place(path: str) -> Place | None:
    """Where the page at a path stands: at the entry that it is, or is below; None where there is no such entry."""
    found = [
        Place(group, title, url)
        for group, pages in GROUPS
        for title, _icon, name, _permission in pages
        if path.startswith(url := reverse(f"admin:{name}"))
    ]
    return max(found, key=lambda one: len(one.url), default=None)


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Home, then the viewer's own part first: Money for Finance, the gateway for all others."""
    home = {"title": _("Home"), "icon": "home", "link": reverse("admin:index")}
    gateway, money, system = (_part(*group) for group in GROUPS)
    parts = [money, gateway] if _is_finance(request) else [gateway, money]
    return [{"items": [home]}, *parts, system]


def _part(title: Any, pages: tuple[Page, ...]) -> dict[str, Any]:
    return {"title": title, "separator": True, "items": [_item(*page) for page in pages]}


def _item(title: Any, icon: str, name: str, permission: str) -> dict[str, Any]:
    return {"title": title, "icon": icon, "link": reverse(f"admin:{name}"), "permission": _allowed(permission)}


def _allowed(permission: str) -> Callable[[HttpRequest], bool]:
    return lambda request: bool(request.user.has_perm(permission))


def _is_finance(request: HttpRequest) -> bool:
    user = request.user
    return not user.is_superuser and bool(user.has_perm("billing.change_invoice"))


def account_links(request: HttpRequest) -> list[dict[str, Any]]:
    """The menu of who is logged in; Unfold adds the way out."""
    second_factor = {"title": _("Second factor"), "link": reverse("admin:second_factor")}
    if not getattr(request.user, "has_usable_password", bool)():
        return [second_factor]
    return [{"title": _("Change password"), "link": reverse("admin:password_change")}, second_factor]


def stylesheet(request: HttpRequest) -> str:
    """What Unfold's stylesheet lacks."""
    return static("hopbase/admin.css")


def favicon(request: HttpRequest) -> str:
    """The site's icon in the browser's tab."""
    return static("hopbase/favicon.svg")


def script(request: HttpRequest) -> str:
    """The few lines of script that our own pages need."""
    return static("hopbase/admin.js")


def dialogs(request: HttpRequest) -> str:
    """Questions in a dialog over the page, for links and forms with `data-ask`."""
    return static("hopbase/dialogs.js")


UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "HopBase",
    "SITE_HEADER": "HopBase",
    "SITE_SUBHEADER": _("Model gateway, metered and billed"),
    "SITE_SYMBOL": "swap_calls",
    "SITE_URL": None,
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "SHOW_LANGUAGES": True,
    "DASHBOARD_CALLBACK": "hopbase_site.admin_site.dashboard",
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": favicon}],
    "STYLES": [stylesheet],
    "SCRIPTS": [script, dialogs],
    "ACCOUNT": {"navigation": account_links},
    "SIDEBAR": {"show_search": False, "show_all_applications": False, "navigation": sidebar},
    "COLORS": {
        # A calm blue (Okabe and Ito's, of the charts), dark enough for white words on it.
        "primary": {
            "50": "#eff7fc",
            "100": "#d9edf8",
            "200": "#b5dbf0",
            "300": "#82c3e5",
            "400": "#4ba7d6",
            "500": "#2390c4",
            "600": "#0072b2",
            "700": "#075d90",
            "800": "#0b4c74",
            "900": "#0d3f60",
            "950": "#092941",
        },
    },
}
