"""The configuration file: the providers, models, prices, accounts and keys of an installation, as YAML.

    text      YAML <-> plain values, exact numbers, ${ENV}
    fields    one value
    entries   the whole file, every field checked on its own
    changes   against the database: what changes, what must not
    export    the database as a file

`apply` is all or nothing: every fault is found before the first row is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.conf import settings
from django.db import transaction
from django.utils.timezone import now

from billing.models import CatalogueVersion, one_version
from streaming.configuration.changes import columns_of, plan
from streaming.configuration.entries import ConfigurationFaults, Reading
from streaming.configuration.export import describe
from streaming.configuration.text import Lines, NotReadable, dump, load

__all__ = [
    "ChangedMeanwhile", "ConfigurationFaults", "Lines", "NotReadable", "Preview", "apply", "columns_of", "export",
    "preview",
]  # fmt: skip


class ChangedMeanwhile(Exception):
    """The database is no longer what the preview was made of."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a file would change, a line each, in a database of this catalogue version."""

    version: int
    lines: list[str]


def apply(
    raw: bytes,
    *,
    variables: Mapping[str, str] | None,
    dry_run: bool = False,
    in_full: bool = False,
    billing_details: bool = True,
    seen: int | None = None,
) -> list[str]:
    """Make the database match a file; returns a line per change, none where it matched already.

    `variables` are what `${NAME}` may name in `api_key` and `secret`; None expands nothing. `in_full`: a dry run says
    with what new rows begin, too. `billing_details`: whether it may change what invoices say of a customer. `seen`: the
    catalogue version of the preview that was agreed to.
    NotReadable: the bytes are no YAML. ConfigurationFaults: everything that is wrong. ChangedMeanwhile: as it says.
    Whichever is raised, nothing was changed.
    """
    value = load(raw)
    reading = Reading(variables, settings.STALL_RANGE_S)
    entries = reading.file(value)
    with transaction.atomic():
        # Two files applied at once wait for each other here, before either looks at what is there.
        list(CatalogueVersion.objects.select_for_update().filter(pk=1))
        if seen is not None and CatalogueVersion.current() != seen:
            raise ChangedMeanwhile
        planned = plan(entries, reading.faults, now(), billing_details=billing_details)
        if reading.faults.lines:
            raise ConfigurationFaults(reading.faults.lines)
        if dry_run or not planned.steps:
            return planned.in_full if in_full else planned.lines
        with one_version():
            return planned.run()


def preview(raw: bytes, *, billing_details: bool) -> Preview:
    """What `apply` would change, for whoever is not to read the server's environment. Raises as it does."""
    version = CatalogueVersion.current()  # before the look: what comes between makes the preview old, and not wrong
    return Preview(version, apply(raw, variables=None, dry_run=True, in_full=True, billing_details=billing_details))


def export() -> str:
    """The database as a configuration file, secrets left out."""
    return dump(describe())
