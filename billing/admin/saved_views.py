"""Saved views: a report's state under a name, its owner's or shared with all."""

from __future__ import annotations

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponseBase, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from billing.admin.access import KeptAdmin
from billing.admin.display import ago, badge, link
from billing.admin.faults import fault_words
from billing.admin.pages import page
from billing.admin.typed import ModelForm
from billing.models import SavedView
from billing.report_query import BadQuery, Query


class ViewForm(forms.Form):
    """The name of a view, and whether others see it."""

    name = forms.CharField(max_length=100)
    shared = forms.BooleanField(required=False)
    query = forms.CharField(max_length=1000, required=False)


class RenameForm(ModelForm[SavedView]):
    """A view that is kept already."""

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        others = SavedView.objects.filter(owner=self.instance.owner_id, name=name).exclude(pk=self.instance.pk)
        if others.exists():
            raise ValidationError(_("You have another view of this name: choose another name."))
        return name


def views_of(request: HttpRequest) -> list[dict[str, str]]:
    """The viewer's own views, then what others share."""
    if not request.user.has_perm("billing.view_savedview"):
        return []
    views = SavedView.objects.filter(hidden=False).select_related("owner").order_by("name", "pk")
    mine = list(views.filter(owner_id=request.user.pk)[:100])
    others = views.filter(shared=True).exclude(owner_id=request.user.pk)[:100]
    return [
        {"name": view.name, "url": f"?{view.query}", "owner": "" if view in mine else view.owner.get_username()}
        for view in [*mine, *others]
    ]


@page("usage/save/", name="usage_save", right="billing.add_savedview")
@require_POST
def save_view(request: HttpRequest) -> HttpResponseBase:
    """Keep the present state under a name; one's own view of that name is replaced."""
    form = ViewForm(request.POST)
    url = reverse("admin:usage")
    if not form.is_valid():
        messages.error(request, _("The view was not saved: it needs a name of at most 100 characters."))
        return redirect(url)
    try:
        query = Query.parse(QueryDict(form.cleaned_data["query"]).dict()).url()
    except BadQuery as fault:
        messages.error(request, fault_words(fault))
        return redirect(url)
    name = form.cleaned_data["name"].strip()
    kept = {"query": query, "shared": form.cleaned_data["shared"], "hidden": False}
    _view, made = SavedView.objects.update_or_create(owner_id=request.user.pk, name=name, defaults=kept)
    words = _("The view “%(name)s” is saved.") if made else _("The view “%(name)s” is replaced.")
    messages.success(request, words % {"name": name})
    return redirect(f"{url}?{query}" if query else url)


@admin.register(SavedView)
class SavedViewAdmin(KeptAdmin[SavedView]):
    """One's own views, to be renamed, shared or hidden, and those that others share, to be seen."""

    form = RenameForm
    list_display = ("name", "open_link", "owner_name", "state", "created")
    list_display_links = ("name",)
    list_select_related = ("owner",)
    search_fields = ("name",)
    ordering = ("name", "pk")
    empty_text = gettext_lazy("No saved view yet. Save one on the page Usage.")
    list_note = gettext_lazy("Yours, and those that others share. A hidden one is not offered on the page Usage.")
    fields = ("name", "shared", "hidden", "open_link", "owner_name", "created")
    readonly_fields = ("open_link", "owner_name", "created")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """They are made on the page that they show."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: SavedView | None = None) -> bool:
        return super().has_change_permission(request, obj) and (obj is None or obj.owner_id == request.user.pk)

    def get_queryset(self, request: HttpRequest) -> QuerySet[SavedView]:
        return super().get_queryset(request).filter(Q(owner_id=request.user.pk) | Q(shared=True, hidden=False))

    @admin.display(description=gettext_lazy("report"))
    def open_link(self, view: SavedView) -> SafeString:
        return link(f"{reverse('admin:usage')}?{view.query}", _("Open"))

    @admin.display(description=gettext_lazy("owner"))
    def owner_name(self, view: SavedView) -> str:
        return view.owner.get_username()

    @admin.display(description=gettext_lazy("state"))
    def state(self, view: SavedView) -> SafeString:
        if view.hidden:
            return badge(_("hidden"), "calm", "visibility_off")
        return badge(_("shared"), "info", "group") if view.shared else badge(_("only yours"), "calm", "person")

    @admin.display(description=gettext_lazy("created"))
    def created(self, view: SavedView) -> SafeString | str:
        return ago(view.created_at)
