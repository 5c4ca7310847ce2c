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

from django.conf import settings
from django.db import transaction
from django.utils.timezone import now

from billing.models import CatalogueVersion, one_version
from streaming.configuration.changes import plan
from streaming.configuration.entries import ConfigurationFaults, Reading
from streaming.configuration.export import describe
from streaming.configuration.text import NotReadable, dump, load

__all__ = ["ConfigurationFaults", "NotReadable", "apply", "export"]


def apply(raw: bytes, *, variables: Mapping[str, str] | None, dry_run: bool = False) -> list[str]:
    """Make the database match a file; returns a line per change, none where it matched already.

    `variables` are what `${NAME}` may name in `api_key` and `secret`; None expands nothing. NotReadable: the bytes are
    no YAML. ConfigurationFaults: everything that is wrong, and then nothing was changed.
    """
    value = load(raw)
    reading = Reading(variables, settings.STALL_RANGE_S)
    entries = reading.file(value)
    with transaction.atomic():
        # Two files applied at once wait for each other here, before either looks at what is there.
        list(CatalogueVersion.objects.select_for_update().filter(pk=1))
        planned = plan(entries, reading.faults, now())
        if reading.faults.lines:
            raise ConfigurationFaults(reading.faults.lines)
        if dry_run or not planned.steps:
            return planned.lines
        with one_version():
            return planned.run()


def export() -> str:
    """The database as a configuration file, secrets left out."""
    return dump(describe())
