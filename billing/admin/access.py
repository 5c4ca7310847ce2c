"""What all pages of the admin share: who may do what, what is never possible, and changes that ask first.

Nothing is ever deleted, by nobody. A change with an effect on money or access has a page of its own: GET
asks, POST does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django.contrib import messages
from django.contrib.admin import ShowFacets
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import FieldDoesNotExist, PermissionDenied, ValidationError
from django.db.models import IntegerField, Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _
from unfold.enums import ActionVariant
from unfold.paginator import InfinitePaginator

from billing.admin.changes import columns_readable, history_of
from billing.admin.display import change_url
from billing.admin.forms import KeptForm, with_mark
from billing.admin.typed import ModelAdmin, ModelForm, TabularInline
from billing.audit import SECRET
from billing.row_ids import MOST_DIGITS

if TYPE_CHECKING:
    from django.db.models.options import Options
    from django.utils.functional import _StrPromise

Row = TypeVar("Row", bound=Model)
Parent = TypeVar("Parent", bound=Model)
PageView = Callable[..., HttpResponse]


NOTHING_LEFT = _("None of the chosen rows is there any more: nothing was done.")

UNASKED = SECRET | {"previous_digest"}
"""Columns by which nobody may filter."""


class KeptAdmin(ModelAdmin[Row]):
    """Rows that are kept for ever: no delete view, button, action or cascade, for superusers neither."""

    list_per_page = 50
    show_facets = ShowFacets.NEVER  # counts per filter would read whole tables
    list_filter_submit = True
    list_filter_sheet = True
    compressed_fields = True
    empty_value_display = "—"
    change_form_show_cancel_button = True
    list_before_template = "admin/list_note.html"
    change_form_after_template = "admin/as_shown.html"
    empty_text: ClassVar[_StrPromise | str] = _("Nothing here yet.")
    """The one sentence of an empty list."""
    nothing_found: ClassVar[_StrPromise | str] = _("Nothing fits this search and these filters.")
    """The sentence of a list that a search or filters leave empty."""
    see_also: ClassVar[Options[Any] | None] = None
    """Another model whose list may have what is not found here; the search is taken along."""
    next_step: ClassVar[tuple[str, _StrPromise | str] | None] = None
    """The page to which an empty list leads, by the name of its URL, and its button."""
    list_note: ClassVar[_StrPromise | str] = ""
    """What the figures of a list mean, where it is not plain."""

    def has_delete_permission(self, request: HttpRequest, obj: Row | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Row | None = None) -> bool:
        return super().has_change_permission(request, obj) and not (obj is not None and self.is_closed(obj))

    def is_closed(self, obj: Row) -> bool:
        """Whether the row takes no more changes, whoever asks."""
        return False

    def has_act_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """The right to what `asks_first` pages do: Django's to change, also where no field can be edited."""
        return bool(request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}"))

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        """Whether a list's URL may ask so: not by what the viewer's pages do not show, or the answers would tell it."""
        column, readable = lookup.partition("__")[0], columns_readable(request, self.opts.label_lower)
        if column in UNASKED or (readable is not None and column in self._columns() - readable):
            return False
        return super().lookup_allowed(lookup, value, request)

    def _columns(self) -> set[str]:
        return {name for field in self.opts.concrete_fields for name in (field.name, field.attname)}

    def save_model(self, request: HttpRequest, obj: Row, form: ModelForm[Row], change: bool) -> None:
        """Write only what the form changed: the rest may be newer than the form (a revocation, a last use)."""
        if not change:
            super().save_model(request, obj, form, change)
            return
        columns = {field.name for field in obj._meta.concrete_fields}
        if changed := columns.intersection((*form.changed_data, *getattr(form, "also_changed", ()))):
            obj.save(update_fields=changed)

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """A number in the URL that no column holds is a wrong filter: told as such, before a database fails on it."""
        if any(self._is_beyond(name, text) for name, texts in request.GET.lists() for text in texts):
            raise IncorrectLookupParameters
        return super().get_changelist_instance(request)

    def _is_beyond(self, lookup: str, text: str) -> bool:
        name = lookup.partition("__")[0]
        try:
            field: Any = self.opts.pk if name == "pk" else self.opts.get_field(name)
        except FieldDoesNotExist:
            return False
        numbers = isinstance(field.target_field if field.is_relation else field, IntegerField)
        return numbers and any(len(part) > MOST_DIGITS and part.lstrip("-").isdecimal() for part in text.split(","))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Row | None:
        return super().get_object(request, object_id, from_field) if is_id(self.opts, object_id) else None

    def response_action(self, request: HttpRequest, queryset: QuerySet[Row], *args: Any) -> HttpResponse | None:
        """Act on the rows that were ticked, whether or not they still fit the filters of the list."""
        ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if not all(is_id(self.opts, text) for text in ticked):
            messages.error(request, NOTHING_LEFT)
            return None
        if request.POST.get("select_across", "0") == "0":
            related = self.get_list_select_related(request)
            queryset = self.get_queryset(request)
            queryset = queryset.select_related(*related) if isinstance(related, list | tuple) else queryset
        return super().response_action(request, queryset, *args)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """What is no id is the id of no row: so it is said, before anything asks the database for it."""
        if object_id is not None and not is_id(self.opts, object_id):
            told: HttpResponse = self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined]  # Django's
            return told
        if request.method == "POST" and object_id is not None and self.has_change_permission(request):
            row = self.get_object(request, unquote(object_id))
            if row is not None and self.is_closed(row):
                text = _("This was changed meanwhile and takes no more changes: nothing was saved.")
                messages.error(request, text)
                return redirect(change_url(row))
        return super().changeform_view(request, object_id, form_url, extra_context)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """What the audit log has of the object, with old and new values, in place of Django's own list of acts."""
        obj = self.get_object(request, unquote(object_id))
        if obj is None:
            return super().history_view(request, object_id, extra_context)  # which says so
        if not self.has_view_or_change_permission(request, obj):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request), "title": _("History: %(name)s") % {"name": obj}, "opts": self.opts,
            "object": obj, "original": obj, **history_of(obj, request, most=100), **(extra_context or {}),
        }  # fmt: skip
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/history.html", context)


def is_id(opts: Options[Any], text: str) -> bool:
    """Whether a part of a URL may be the id of a row."""
    field: Any = opts.pk
    if field.is_relation:
        field = field.target_field
    try:
        field.run_validators(field.to_python(unquote(text)))
    except ValidationError:
        return False
    return True


class ReadOnlyAdmin(KeptAdmin[Row]):
    """Rows that only the program writes."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Row | None = None) -> bool:
        return False


class EndlessAdmin(ReadOnlyAdmin[Row]):
    """Rows of a table that grows without end: nothing is counted, and only an index decides their order."""

    paginator = InfinitePaginator
    show_full_result_count = False
    sortable_by = ()
    list_fullwidth = True


class KeptInline(TabularInline[Row, Parent]):
    """Kept rows on their parent's page."""

    extra = 0
    can_delete = False
    show_change_link = False

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """With the mark of a form that knows what its page showed; a page that is only read has no form."""
        fieldsets = super().get_fieldsets(request, obj)
        is_marked = issubclass(self.form, KeptForm) and self.has_change_permission(request, obj)
        return with_mark(fieldsets) if is_marked else fieldsets

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def asks_first(
    label: _StrPromise | str,
    path: str,
    *,
    icon: str,
    variant: ActionVariant = ActionVariant.DEFAULT,
    dialog: bool = False,
) -> Callable[[PageView], PageView]:
    """Make an admin's method a page of its own with a button, for those with `has_act_permission`, on GET and POST.

    `dialog`: its question opens over the page that the button is on; without script the page itself does.
    """

    def mark(view: PageView) -> PageView:
        @functools.wraps(view)
        def guarded(admin: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not admin.has_act_permission(request):
                raise PermissionDenied
            if "object_id" in kwargs and not is_id(admin.opts, kwargs["object_id"]):
                raise Http404
            return view(admin, request, *args, **kwargs)

        marks = {
            "short_description": label,
            "url_path": path,
            "icon": icon,
            "variant": variant,
            "attrs": {"data-ask": True} if dialog else {},
            "allowed_permissions": ["act"],
        }
        guarded.__dict__.update(marks)
        return guarded

    return mark


def ask(request: HttpRequest, admin: Any, obj: Model | None, **context: Any) -> TemplateResponse:
    """The page that asks: `question`, `effects` (sentences), `verb` (the button; "": nothing can be done).

    Also `names` (what it is about, where that is several), `form`, `hidden` (more fields: name, value), `blockers`,
    `danger`, `in_pairs` (fields side by side).
    """
    here: dict[str, Any] = {
        **admin.admin_site.each_context(request),
        "opts": admin.opts,
        "original": obj,
        "object": obj,
        **context,
    }
    request.current_app = admin.admin_site.name
    status = 409 if request.method == "POST" and context.get("blockers") else 200
    return TemplateResponse(request, "admin/ask.html", here, status=status)
