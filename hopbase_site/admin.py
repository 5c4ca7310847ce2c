"""Users and groups in Unfold's look. Users are disabled, never deleted: what they did stays theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User

from billing.admin.access import KeptAdmin
from hopbase_site import meter_page as meter_page  # its page is found by importing it

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
    list_display = ("username", "email", "is_active", "is_superuser", "last_login")
    list_filter = ("is_active", "is_superuser", "groups")
    list_filter_submit = False


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, KeptAdmin[Group]):
    list_display = ("name",)
