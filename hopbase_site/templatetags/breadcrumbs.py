"""The way to a page, as the sidebar has it: group, entry, object. Unfold's own names the model's app for a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import template

from hopbase_site import navigation

register = template.Library()

Part = Mapping[str, Any]
"""Of a way: `title`, and `link` where it leads somewhere else."""

OBJECT = 2
"""Where the object stands in Unfold's parts: after its app and its model."""


@register.simple_tag(takes_context=True)
def breadcrumbs(context: Mapping[str, Any], parts: Sequence[Part]) -> list[Part]:
    """Unfold's parts with the sidebar's group and entry in front; as they are where no entry leads to the page."""
    path = context["request"].path
    place = navigation.place(path)
    if place is None:
        return list(parts)
    of_model = len(parts) >= OBJECT
    rest = parts[OBJECT:] if of_model else [] if path == place.url else parts
    entry = {"title": place.title} if path == place.url else {"title": place.title, "link": place.url}
    return [{"title": place.group}, entry, *rest]
