"""Users and groups in Unfold's look. Users are disabled, never deleted: what they did stays theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.enums import ActionVariant

from billing.admin.access import KeptAdmin, ask, asks_first
from billing.admin.display import ago, badge, change_url, stacked
from hopbase_site import meter_page as meter_page  # their pages are found by importing them
from hopbase_site import search as search
from hopbase_site.second_factor import factors
from hopbase_site.second_factor import pages as pages  # so are its

if not TYPE_CHECKING:
    from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
else:
    from django.contrib.auth.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(DjangoUserAdmin, KeptAdmin[User]):  # type: ignore[type-arg]  # generic only in the stubs
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("username", "email", "is_active", "is_superuser", "second_factor_state", "last_login")
    list_filter = ("is_active", "is_superuser", "groups")
    list_filter_submit = False
    list_select_related = ("second_factor",)
    readonly_fields = ("second_factor_state",)
    fieldsets = (
        *(DjangoUserAdmin.fieldsets or ()),
        (gettext_lazy("Second factor"), {"fields": ("second_factor_state",)}),
    )
    actions_detail = ("take_off_second_factor",)

    def has_act_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Superusers alone: who may change users could else take a superuser's second factor off."""
        return request.user.is_superuser and super().has_act_permission(request, obj)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        others = User.objects.filter(pk=object_id, second_factor__isnull=False).exclude(
            username=request.user.get_username()
        )
        return list(super().get_actions_detail(request, object_id)) if others.exists() else []  # type: ignore[misc]  # Unfold's

    @asks_first(
        gettext_lazy("Take the second factor off"), "take-off-second-factor", icon="phonelink_erase",
        variant=ActionVariant.DANGER, dialog=True,
    )  # fmt: skip
    def take_off_second_factor(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """For a lost phone."""
        user = get_object_or_404(User, pk=object_id)
        if user == request.user:
            messages.info(request, _("Your own second factor is turned off here, with a code."))
            return redirect("admin:second_factor")
        if request.method == "POST" or factors.factor_of(user) is None:
            if request.method == "POST" and factors.take_off(user):
                messages.success(request, _("The second factor of %(user)s is off.") % {"user": user})
            else:
                messages.info(request, _("%(user)s has no second factor.") % {"user": user})
            return redirect(change_url(user))
        return ask(
            request, self, user, title=_("Take the second factor off"), danger=True, verb=_("Take it off"),
            question=_("Take the second factor of %(user)s off?") % {"user": user}, cancel_url=change_url(user),
            effects=[
                _("The password alone then logs in, until a new second factor is set up."),
                _("Make sure that it is really %(user)s who asks.") % {"user": user},
                _("If the phone was stolen, set a new password too: that ends all sessions."),
            ],
        )  # fmt: skip

    @admin.display(description=gettext_lazy("second factor"))
    def second_factor_state(self, user: User) -> SafeString:
        factor = factors.factor_of(user)
        if factor is None:
            return badge(_("off"), "calm", "lock_open")
        return stacked(badge(_("on"), "good", "lock"), ago(factor.since))


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, KeptAdmin[Group]):
    list_display = ("name",)
