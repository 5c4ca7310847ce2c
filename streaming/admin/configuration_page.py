"""Configuration: the database as a file, and a file to make it match. A preview comes first; secrets never show.

What was uploaded waits in the session, encrypted, between the preview and the word of the operator. It is applied only
to the database that the preview was made of.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.cache import add_never_cache_headers
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.admin.display import number
from billing.admin.pages import page, show
from billing.admin.typed import FileWidget
from billing.phrases import said_by
from billing.words import in_words
from streaming import configuration, credentials
from streaming.configuration import ChangedMeanwhile, ConfigurationFaults, Lines, NotReadable, Preview

RIGHT = "streaming.change_provider"
RIGHTS = (
    "streaming.add_provider", "streaming.change_model", "streaming.add_model", "streaming.change_route",
    "streaming.add_route", "billing.change_account", "billing.add_account", "billing.change_apikey",
    "billing.add_apikey", "billing.add_price",
)  # fmt: skip
"""A file may change all of these, so whoever applies one has the right to each."""
BILLING_RIGHT = "billing.change_invoice"
WAITING = "configuration_import"
MAX_BYTES = 2 * 1024 * 1024
PATH = re.compile(r"([a-z_0-9]+(?:[.\[][a-z_0-9\].\[]*)?): ")


class UploadForm(forms.Form):
    """The file to look at."""

    file = forms.FileField(
        label=gettext_lazy("file"), widget=FileWidget(attrs={"accept": ".yaml,.yml,.json"}),
        help_text=gettext_lazy(
            "YAML, as the export writes it. What it does not name stays as it is; an api_key or secret is its value "
            "itself, for ${…} is expanded by the command line alone."
        ),
    )  # fmt: skip

    def clean_file(self) -> Any:
        file = self.cleaned_data["file"]
        if file.size > MAX_BYTES:
            raise forms.ValidationError(_("A configuration file has %(limit)s bytes at most.") % {"limit": MAX_BYTES})
        return file


class Waiting(NamedTuple):
    """A file between its preview and the operator's word. `digest` tells two tabs' files apart."""

    raw: bytes
    name: str
    version: int
    digest: str


@page("configuration/", name="configuration", right=RIGHT)
def start(request: HttpRequest) -> HttpResponse:
    """Export and import. POST looks at a file, and changes nothing."""
    _require_all(request)
    form = UploadForm(request.POST, request.FILES) if request.method == "POST" else UploadForm()
    if request.method == "POST" and form.is_valid():
        file = form.cleaned_data["file"]
        return _look(request, file.read(), file.name)
    return show(request, "admin/streaming/configuration.html", title=_("Configuration"), form=form)


@page("configuration/export/", name="configuration_export", right=RIGHT)
def export(request: HttpRequest) -> HttpResponse:
    """The database as a file, secrets left out."""
    _require_all(request)
    response = HttpResponse(configuration.export(), content_type="application/yaml; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="hopbase-{now():%Y%m%d-%H%M%S}.yaml"'
    add_never_cache_headers(response)
    return response


@page("configuration/apply/", name="configuration_apply", right=RIGHT)
def apply(request: HttpRequest) -> HttpResponse:
    """POST applies what was looked at; GET shows what waits, or leads back."""
    _require_all(request)
    waiting = _waiting(request)
    if waiting is None:
        messages.info(request, _("No file waits to be applied. Choose it once more."))
        return redirect("admin:configuration")
    if request.method != "POST":
        return _look(request, waiting.raw, waiting.name)
    if (request.POST.get("digest"), request.POST.get("version")) != (waiting.digest, str(waiting.version)):
        return _again(
            request, waiting, _("Another file was looked at since. This is its preview; nothing was applied.")
        )
    try:
        lines = configuration.apply(
            waiting.raw, variables=None, billing_details=_may_bill(request), seen=waiting.version
        )
    except ChangedMeanwhile:
        text = _("The database has changed since the preview. This is a new preview; nothing was applied.")
        return _again(request, waiting, text)
    except ConfigurationFaults:  # time has passed too: what was unused is used by now
        return _again(request, waiting, _("The file does not fit any more; nothing was applied."))
    del request.session[WAITING]
    return _done(request, waiting, lines)


def _look(request: HttpRequest, raw: bytes, name: str) -> HttpResponse:
    """The preview of a file, which then waits; or its faults, and nothing waits."""
    request.session.pop(WAITING, None)
    try:
        found = configuration.preview(raw, billing_details=_may_bill(request))
    except NotReadable as fault:
        return _faulty(request, name, [("", in_words(said_by(fault)))])
    except ConfigurationFaults as faults:
        return _faulty(request, name, _located(raw, faults.lines))
    if found.lines:
        _keep(request, raw, name, found)
    response = show(
        request, "admin/streaming/configuration_preview.html", title=_("Preview"), file_name=name,
        rows=_rows(found.lines), count=number(len(found.lines)), version=str(found.version), digest=_digest(raw),
    )  # fmt: skip
    add_never_cache_headers(response)
    return response


def _faulty(request: HttpRequest, name: str, faults: list[tuple[str, str]]) -> HttpResponse:
    return show(
        request, "admin/streaming/configuration_preview.html", title=_("Preview"), file_name=name,
        faults=faults,
    )  # fmt: skip


def _located(raw: bytes, faults: list[str]) -> list[tuple[str, str]]:
    """Each fault with its line, in the order of the lines."""
    lines = Lines(raw)
    found = [(lines.line_of(path[1]) if (path := PATH.match(fault)) else 1, fault) for fault in faults]
    return [(number(line), in_words(fault)) for line, fault in sorted(found, key=lambda one: one[0])]


def _again(request: HttpRequest, waiting: Waiting, text: str) -> HttpResponse:
    messages.warning(request, text)
    response = _look(request, waiting.raw, waiting.name)
    response.status_code = 409
    return response


def _done(request: HttpRequest, waiting: Waiting, lines: list[str]) -> HttpResponse:
    """What was done: the only page with the secrets of keys that the file made, so no redirect leads here."""
    response = show(
        request, "admin/streaming/configuration_preview.html", title=_("Configuration applied"),
        file_name=waiting.name, rows=_rows(lines), done=True,
    )  # fmt: skip
    add_never_cache_headers(response)
    return response


def _rows(lines: list[str]) -> list[dict[str, str]]:
    """`provider acme: auth bearer → x-api-key` by its columns."""
    return [{name: in_words(said) for name, said in configuration.columns_of(line).items()} for line in lines]


# --- what waits ---


def _keep(request: HttpRequest, raw: bytes, name: str, found: Preview) -> None:
    token = credentials.encrypt(raw.decode("utf-8-sig"), settings.ENCRYPTION_KEYS)
    request.session[WAITING] = {"file": token, "name": name, "version": found.version}


def _waiting(request: HttpRequest) -> Waiting | None:
    kept = request.session.get(WAITING)
    if kept is None:
        return None
    try:
        raw = credentials.decrypt(kept["file"], settings.ENCRYPTION_KEYS).encode()
    except credentials.CredentialUnreadable:  # the keys were changed between the two
        return None
    return Waiting(raw, kept["name"], kept["version"], _digest(raw))


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw.decode("utf-8-sig").encode()).hexdigest()


def _require_all(request: HttpRequest) -> None:
    if not request.user.has_perms(RIGHTS):
        raise PermissionDenied


def _may_bill(request: HttpRequest) -> bool:
    return bool(request.user.has_perm(BILLING_RIGHT))
