"""Django's and Unfold's classes under one name each: generic for the type checker, plain at run time.

Unfold ships no types, but its classes are Django's with another look; so the checker sees Django's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin, TabularInline
    from django.contrib.admin import SimpleListFilter as DropdownFilter
    from django.contrib.admin import SimpleListFilter as TextFilter
    from django.forms import (
        CheckboxSelectMultiple as ChecksWidget,
    )
    from django.forms import (
        ClearableFileInput as FileWidget,
    )
    from django.forms import (
        ModelForm,
    )
    from django.forms import (
        NumberInput as NumberWidget,
    )
    from django.forms import (
        PasswordInput as SecretWidget,
    )
    from django.forms import (
        RadioSelect as RadioWidget,
    )
    from django.forms import (
        Select as PlainSelectWidget,
    )
    from django.forms import (
        Select as SelectWidget,
    )
    from django.forms import (
        SplitDateTimeWidget as MomentWidget,
    )
    from django.forms import (
        Textarea as TextsWidget,
    )
    from django.forms import (
        TextInput as TextWidget,
    )
else:
    from django import forms
    from unfold import admin
    from unfold.contrib.filters.admin import DropdownFilter, TextFilter
    from unfold.widgets import (
        UnfoldAdminCheckboxSelectMultipleWidget as ChecksWidget,
    )
    from unfold.widgets import (
        UnfoldAdminDecimalFieldWidget as NumberWidget,
    )
    from unfold.widgets import (
        UnfoldAdminFileFieldWidget as FileWidget,
    )
    from unfold.widgets import (
        UnfoldAdminPasswordWidget as SecretWidget,
    )
    from unfold.widgets import (
        UnfoldAdminRadioSelectWidget as RadioWidget,
    )
    from unfold.widgets import (
        UnfoldAdminSelect2Widget as SelectWidget,
    )
    from unfold.widgets import (
        UnfoldAdminSelectWidget as PlainSelectWidget,
    )
    from unfold.widgets import (
        UnfoldAdminSplitDateTimeWidget as MomentWidget,
    )
    from unfold.widgets import (
        UnfoldAdminTextareaWidget as TextsWidget,
    )
    from unfold.widgets import (
        UnfoldAdminTextInputWidget as TextWidget,
    )

    class Generic:
        """Takes the type parameters that only the checker needs."""

        def __class_getitem__(cls, _parameters: Any) -> type:
            return cls

    class ModelAdmin(Generic, admin.ModelAdmin):
        """Unfold's."""

    class TabularInline(Generic, admin.TabularInline):
        """Unfold's."""

    class ModelForm(Generic, forms.ModelForm):
        """Django's."""


__all__ = [
    "ChecksWidget",
    "DropdownFilter",
    "FileWidget",
    "ModelAdmin",
    "ModelForm",
    "MomentWidget",
    "NumberWidget",
    "PlainSelectWidget",
    "RadioWidget",
    "SecretWidget",
    "SelectWidget",
    "TabularInline",
    "TextFilter",
    "TextWidget",
    "TextsWidget",
]
