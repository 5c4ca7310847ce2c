"""Testing a provider: asks first, then one small real request per wire format, and what came of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.conf import settings
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing import reconciliation
from billing.admin.access import ask
from billing.admin.display import UNKNOWN, badge, change_url, number
from billing.admin.filters import BUCKET_WORDS, WIRE_FORMATS
from billing.admin.pages import show
from billing.admin.typed import PlainSelectWidget
from billing.phrases import gettext_noop, phrase
from billing.usage import TokenUsage
from billing.words import know, stored_words
from streaming.catalogue import ProviderEntry, provider_entry
from streaming.credentials import CredentialUnreadable
from streaming.models import Provider, Route
from streaming.provider_tests import LIMIT_S, Outcome, run_tests

TESTED = gettext_noop("tested with %(model)s: %(answered)s of %(count)s wire formats answered")
CUT_OFF = gettext_noop("cut off by the test after %(seconds)s s")
know(TESTED, CUT_OFF)


class ModelForm(forms.Form):
    """Which of the provider's models is asked: those that its routes lead to, the first route's first."""

    upstream_model = forms.ChoiceField(label=gettext_lazy("upstream model"), widget=PlainSelectWidget())

    def __init__(self, names: list[str], data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data)
        self.fields["upstream_model"].choices = [(name, name) for name in names]  # type: ignore[attr-defined]


def test_page(request: HttpRequest, admin: Any, provider: Provider) -> HttpResponse:
    """GET asks; POST runs the test and shows it. Whoever calls has checked the right."""
    names = upstream_models(provider)
    form = ModelForm(names, request.POST if request.method == "POST" else None)
    blockers = _blockers(provider, names)
    if request.method != "POST" or blockers or not form.is_valid():
        return _asked(request, admin, provider, form, blockers)
    upstream_model = form.cleaned_data["upstream_model"]
    entry = provider_entry(provider, settings.ENCRYPTION_KEYS)
    outcomes = run_tests(entry, upstream_model, provider.wire_formats, connect_timeout_s=settings.CONNECT_TIMEOUT_S)
    _keep(request, entry, upstream_model, outcomes)
    return show(
        request, "admin/streaming/provider_test.html", opts=admin.opts, original=provider, object=provider,
        title=_("Test of %(provider)s") % {"provider": provider.name}, upstream_model=upstream_model,
        rows=[_row(outcome) for outcome in outcomes], provider_url=change_url(provider),
    )  # fmt: skip


def upstream_models(provider: Provider) -> list[str]:
    """The provider's models that routes lead to, in the routes' order, each once."""
    routes = Route.objects.filter(provider=provider, active=True).order_by("priority", "pk")
    return list(dict.fromkeys(routes.values_list("upstream_model", flat=True)))


def _blockers(provider: Provider, names: list[str]) -> list[str]:
    found = []
    if not names:
        found.append(_("No route leads to this provider, so it is not known which of its models to ask. Add one."))
    try:
        provider_entry(provider, settings.ENCRYPTION_KEYS)
    except CredentialUnreadable:
        found.append(_("The credential cannot be decrypted with the keys that are set: enter it anew."))
    return found


def _asked(request: HttpRequest, admin: Any, provider: Provider, form: ModelForm, blockers: list[str]) -> HttpResponse:
    formats = ", ".join(WIRE_FORMATS.get(name, name) for name in provider.wire_formats)
    effects = [
        _("One small real request per wire format; no account is billed."),
        _("The provider bills it: reconciliation counts it as a test."),
        _("Wire formats: %(names)s. It takes %(seconds)s s at most.") % {"names": formats, "seconds": LIMIT_S},
    ]
    return ask(
        request, admin, provider, title=_("Test a provider"), verb="" if blockers else _("Test"),
        question=_("Test the provider %(provider)s?") % {"provider": provider.name}, effects=effects,
        form=None if blockers else form, blockers=blockers, cancel_url=change_url(provider),
    )  # fmt: skip


def _keep(request: HttpRequest, entry: ProviderEntry, upstream_model: str, outcomes: list[Outcome]) -> None:
    """For reconciliation: what the provider may have taken, it may bill. And who did it, for the audit log."""
    user = request.user
    assert user.pk is not None
    for outcome in outcomes:
        if outcome.reached:
            reconciliation.keep_test(
                entry.name, upstream_model, outcome.wire_format, by=user.get_username(),
                started_at=outcome.started_at, ended_at=outcome.ended_at, usage=outcome.usage,
            )  # fmt: skip
    answered = sum(outcome.answered for outcome in outcomes)
    LogEntry.objects.create(
        user_id=user.pk, content_type=ContentType.objects.get_for_model(Provider), object_id=str(entry.id),
        object_repr=entry.name, action_flag=CHANGE,
        change_message=phrase(TESTED, model=upstream_model, answered=answered, count=len(outcomes)),
    )  # fmt: skip


def _row(outcome: Outcome) -> dict[str, Any]:
    return {
        "wire_format": WIRE_FORMATS.get(outcome.wire_format, outcome.wire_format),
        "state": badge(_("answered"), "good", "check_circle")
        if outcome.answered
        else badge(_("failed"), "bad", "error"),
        "reason": stored_words(outcome.reason),
        "status": UNKNOWN if outcome.status is None else str(outcome.status),
        "headers": _milliseconds(outcome.headers_ms),
        "first_output": _milliseconds(outcome.first_output_ms),
        "duration": _milliseconds(outcome.duration_ms),
        "usage": _usage(outcome.usage),
        "text": outcome.text,
    }


def _milliseconds(count: int | None) -> str:
    return UNKNOWN if count is None else _("%(count)s ms") % {"count": number(count)}


def _usage(usage: TokenUsage | None) -> list[tuple[Any, str]]:
    """What our meter read: the buckets that have something; nothing where no usage was reported."""
    if usage is None:
        return []
    used = [(BUCKET_WORDS[bucket], number(count)) for bucket, count in usage.buckets().items() if count]
    return [*used, *([(_("of which reasoning"), number(usage.reasoning))] if usage.reasoning else [])]
