"""Where requests go: providers, the public models, and the routes between them."""

from __future__ import annotations

from django.db import models
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _

from billing.audit import acting
from billing.models import CatalogueRow


class Provider(CatalogueRow):
    """A company whose API we call. The credential is encrypted (`streaming.credentials`) and never shown again."""

    class Auth(models.TextChoices):
        BEARER = "bearer", "Authorization: Bearer"
        X_API_KEY = "x-api-key", "x-api-key"

    class StoredObjects(models.TextChoices):
        REFUSED = "refused", _("refused")
        SHARED = "shared", _("shared")

    class RatelimitHeaders(models.TextChoices):
        PASS = "pass", _("passed on")
        HIDE = "hide", _("hidden")

    name = models.CharField(_("name"), max_length=100, unique=True)
    base_url = models.CharField(_("base URL"), max_length=300)
    credential = models.TextField(_("credential"), blank=True, editable=False)
    auth = models.CharField(_("authentication"), max_length=12, choices=Auth.choices, default=Auth.BEARER)
    wire_formats = models.JSONField(_("wire formats"), default=list)
    drain_s = models.PositiveIntegerField(_("drain (seconds)"), null=True, blank=True)
    max_drains = models.PositiveIntegerField(_("drains at a time"), null=True, blank=True)
    stored_objects = models.CharField(
        _("stored objects"), max_length=8, choices=StoredObjects.choices, default=StoredObjects.REFUSED
    )
    ratelimit_headers = models.CharField(
        _("rate-limit headers"), max_length=4, choices=RatelimitHeaders.choices, default=RatelimitHeaders.PASS
    )
    reasoning_outside = models.JSONField(_("reasoning outside"), default=list, blank=True)
    active = models.BooleanField(_("active"), default=True)

    class Meta:
        verbose_name = _("provider")
        verbose_name_plural = _("providers")
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Model(CatalogueRow):
    """A public model name that customers ask for."""

    name = models.CharField(_("name"), max_length=200, unique=True)
    stall_seconds = models.PositiveIntegerField(_("stall (seconds)"), default=120)
    total_timeout_s = models.PositiveIntegerField(_("total timeout, non-stream (seconds)"), default=600)
    active = models.BooleanField(_("active"), default=True)

    class Meta:
        verbose_name = _("model")
        verbose_name_plural = _("models")
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Route(CatalogueRow):
    """A way from a public model to a provider's model; lower priority first, then by weight.

    `out_reason`: why it is out until an operator acts (the provider refused our account), "" while it is in.
    """

    model = models.ForeignKey(Model, models.PROTECT, related_name="routes", verbose_name=_("model"))
    provider = models.ForeignKey(Provider, models.PROTECT, related_name="routes", verbose_name=_("provider"))
    upstream_model = models.CharField(_("upstream model"), max_length=200)
    priority = models.PositiveSmallIntegerField(_("priority"), default=0)
    weight = models.PositiveSmallIntegerField(_("weight"), default=1)
    active = models.BooleanField(_("active"), default=True)
    out_since = models.DateTimeField(_("out since"), null=True, blank=True, editable=False)
    out_reason = models.CharField(_("out because"), max_length=300, blank=True, editable=False)

    class Meta:
        verbose_name = _("route")
        verbose_name_plural = _("routes")
        ordering = ["model__name", "priority", "id"]
        constraints = [
            models.UniqueConstraint(fields=["model", "provider", "upstream_model"], name="route_once_per_model")
        ]

    def __str__(self) -> str:
        return f"{self.model.name} → {self.provider.name}/{self.upstream_model}"


class Alarm(models.Model):
    """Something that wants an operator: it stands from `raised_at` until `ended_at`.

    `name` is the same for the same trouble, so that it stands once however many see it. `told_at` and `end_told_at`
    are when the operator's webhook took the news; `next_try_at`: it is not told before, for it has just failed, or
    somebody is telling it.
    """

    class Kind(models.TextChoices):
        METER = "meter", _("meter")
        ROUTE = "route", _("route out")
        BUDGET = "budget", _("budget")

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(_("name"), max_length=200)
    kind = models.CharField(_("kind"), max_length=8, choices=Kind.choices)
    subject = models.CharField(_("subject"), max_length=300)
    message = models.TextField(_("message"))
    details = models.JSONField(_("details"), default=dict)
    raised_at = models.DateTimeField(_("raised"))
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)
    told_at = models.DateTimeField(_("told"), null=True, blank=True)
    end_told_at = models.DateTimeField(_("end told"), null=True, blank=True)
    tries = models.PositiveIntegerField(_("failed tries"), default=0)
    next_try_at = models.DateTimeField(_("next try"), null=True, blank=True)

    class Meta:
        verbose_name = _("alarm")
        verbose_name_plural = _("alarms")
        constraints = [
            models.UniqueConstraint(fields=["name"], condition=models.Q(ended_at=None), name="alarm_stands_once")
        ]
        indexes = [
            models.Index(fields=["name"], name="alarm_by_name"),
            models.Index(fields=["ended_at"], name="alarm_by_end"),
        ]

    def __str__(self) -> str:
        return self.subject


@acting("gateway")
def take_out(route_id: int, reason: str) -> None:
    """Mark a route as out until an operator resets it; the first reason stays."""
    route = Route.objects.filter(pk=route_id, out_since=None).first()
    if route is not None:
        route.out_since, route.out_reason = now(), reason[:300]
        route.save(update_fields=["out_since", "out_reason"])


def offered() -> dict[str, frozenset[str]]:
    """The public models that have a route now, by name -> the wire formats in which their providers can be asked."""
    ways = Route.objects.filter(active=True, out_since=None, model__active=True, provider__active=True)
    found: dict[str, frozenset[str]] = {}
    for name, wire_formats in ways.order_by("model__name").values_list("model__name", "provider__wire_formats"):
        found[name] = found.get(name, frozenset()).union(wire_formats)
    return found


def model_names() -> frozenset[str]:
    """All public models, with a route or without."""
    return frozenset(Model.objects.order_by().values_list("name", flat=True))


def put_back(route: Route) -> None:
    """An operator has acted: the route is in again."""
    route.out_since, route.out_reason = None, ""
    route.save(update_fields=["out_since", "out_reason"])


def put_back_all(provider: Provider) -> None:
    """The provider has a new credential: what was out because of the old one is in again."""
    for route in Route.objects.filter(provider=provider).exclude(out_since=None):
        put_back(route)
