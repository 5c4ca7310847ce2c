"""The lists of months that were dropped."""

from __future__ import annotations

import pytest
from django.urls import reverse

from billing.models import DroppedMonth
from billing.money import parse
from tests.billing.admin_site import Login
from tests.billing.admin_world import World
from tests.billing.factories import utc

pytestmark = pytest.mark.django_db


def test_month_says_file_hash_and_cost(login: Login, world: World) -> None:
    costs = {"USD": parse("1234.5"), "TWD": parse("0.000000001")}
    DroppedMonth.objects.create(
        partition="p", end=utc(2024, 2, 1), last_day=utc(2024, 2, 1).date(), records=12_345, costs=costs,
        file_name="usage-records-2024-01-abc.jsonl.gz", sha256="5" * 64, dropped_at=utc(2025, 2, 1),
    )  # fmt: skip
    content = login("root").get(reverse("admin:billing_droppedmonth_changelist")).text
    assert "usage-records-2024-01-abc.jsonl.gz" in content
    assert "5" * 64 in content
    assert "TWD 0.000000001 · USD 1,234.500000000" in content


def test_invoices_part_is_money(login: Login, world: World) -> None:
    content = login("root").get(reverse("admin:billing_droppedinvoice_changelist")).text
    assert f"{world.note.currency} 0.000000000" in content
