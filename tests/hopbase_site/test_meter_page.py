"""The page Meter health, and the strip on all the others."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.timezone import now
from pytest_django import DjangoAssertNumQueries

from billing.meter_health import Readings
from billing.meter_health.readings import Kind, Noted, Unpriced
from billing.models import MeterEvent
from hopbase_site.templatetags.alarm_strip import strip
from streaming.meter_watch import STALE_S, WATCH, MeterWatch
from streaming.models import Alarm
from tests.billing.admin_site import Login
from tests.billing.admin_world import World

pytestmark = pytest.mark.django_db

URL = "/admin/health/"


@pytest.mark.parametrize(
    ("who", "status"), [("root", 200), ("operator", 200), ("finance", 200), ("nobody", 403), ("", 302)]
)
def test_page_opens_for_both_groups(login: Login, who: str, status: int) -> None:
    assert (login(who) if who else Client()).get(URL).status_code == status


@pytest.mark.parametrize("language", ["en", "zh-hant"])
def test_page_shows_each_check(login: Login, world: World, language: str) -> None:
    response = login("operator").get(URL, headers={"accept-language": language})
    rows = {row["title"]: row for row in response.context["rows"]}
    assert len(rows) == 13
    links = set(re.findall(r'<td class="hb-wrap hb-advice"[^>]*>.*?<a href="([^"]+)"', response.text))
    assert len(links) >= 9
    client = login("operator")
    assert {client.get(link.replace("&amp;", "&")).status_code for link in links} == {200}


def test_page_says_what_is_wrong(login: Login, world: World) -> None:
    response = login("finance").get(URL)
    states = {row["title"]: row for row in response.context["rows"]}
    assert "unhealthy" in states["Unpriced records"]["state"]
    assert "umbrella/batch" in " ".join(states["Unpriced records"]["value"])
    assert "unhealthy" in states["Bills refused by the database"]["state"]
    assert "good" in states["Roll-up lag"]["state"]
    assert "unhealthy" in response.context["verdict"]["badge"]


def test_page_takes_few_queries(
    login: Login, world: World, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    client = login("operator")
    client.get(URL)
    with django_assert_max_num_queries(14):
        client.get(URL)


def test_sidebar_leads_there(login: Login) -> None:
    assert f'href="{URL}"' in login("finance").get(reverse("admin:index")).text


# --- acknowledging ---


def acknowledge_url(event: MeterEvent) -> str:
    return reverse("admin:billing_meterevent_acknowledge", args=[event.pk])


@pytest.mark.parametrize(("who", "status"), [("operator", 200), ("finance", 403), ("nobody", 403)])
def test_operators_acknowledge(login: Login, world: World, who: str, status: int) -> None:
    event = MeterEvent.objects.get(kind="dropped")
    assert login(who).get(acknowledge_url(event)).status_code == status
    event.refresh_from_db()
    assert event.acknowledged_at is None  # GET asks


def test_acknowledged_bill_alarms_no_more(login: Login, world: World) -> None:
    event, client = MeterEvent.objects.get(kind="dropped"), login("operator")
    assert client.post(acknowledge_url(event)).status_code == 302
    event.refresh_from_db()
    assert (event.acknowledged_by, event.acknowledged_at is not None) == ("operator", True)
    rows = {row["title"]: row["state"] for row in client.get(URL).context["rows"]}
    assert "good" in rows["Bills refused by the database"]
    assert client.get(acknowledge_url(event)).status_code == 302  # there is nothing left to do


def test_sweeps_need_no_acknowledgement(login: Login, world: World) -> None:
    event = MeterEvent.objects.create(
        kind="swept", process=world.stream.process, hour=now(), count=1, first_at=now(), last_at=now()
    )
    login("operator").post(acknowledge_url(event))
    event.refresh_from_db()
    assert event.acknowledged_at is None


# --- the strip ---


def watch_of(readings: Readings | None, age_s: float = 0.0) -> MeterWatch:
    seconds = [0.0]
    watch = MeterWatch(lambda: seconds[0])
    if readings is not None:
        watch.take(readings)
    seconds[0] = age_s
    return watch


NOON = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
UNHEALTHY = Readings(at=NOON, unpriced=Unpriced(3, NOON), noted={Kind.LATE: Noted(1, 1)})


def test_strip_names_what_is_bad() -> None:
    assert strip(watch_of(UNHEALTHY)) == {"unhealthy": ["Unpriced records"], "unknown": False, "url": URL}


def test_healthy_meter_has_no_strip() -> None:
    assert not strip(watch_of(Readings(at=NOON)))["unhealthy"]
    assert strip(watch_of(None)) == {}


def test_stale_readings_are_owned_up_to() -> None:
    assert strip(watch_of(UNHEALTHY, STALE_S + 1)) == {"unhealthy": [], "unknown": True, "url": URL}


def test_strip_stands_on_every_page(login: Login, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WATCH, "latest", UNHEALTHY)
    monkeypatch.setattr(WATCH, "taken_at", WATCH.clock())
    client = login("operator")
    for url in (
        reverse("admin:index"),
        reverse("admin:billing_apikey_changelist"),
        reverse("admin:billing_apikey_add"),
    ):
        assert "The meter is unhealthy: Unpriced records." in client.get(url).text, url
    assert "The meter is unhealthy: Unpriced records." not in client.get(URL).text
    assert "The meter is unhealthy" not in login("nobody").get(reverse("admin:index")).text


def test_alarms_are_listed(login: Login, world: World) -> None:
    response = login("operator").get(reverse("admin:streaming_alarm_changelist"))
    assert "dropped" in response.text
    assert (
        login("operator").get(reverse("admin:streaming_alarm_change", args=[Alarm.objects.get().pk])).status_code == 200
    )
