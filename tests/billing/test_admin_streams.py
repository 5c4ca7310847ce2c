"""Live streams: what the list says of each, what its script fetches, and how a stream is stopped."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from django.utils.timezone import now
from pytest_django import DjangoAssertNumQueries

from billing.admin import live
from billing.models import ApiKey, AuditEntry, GatewayProcess, OpenStream
from billing.processes import Folder, Standing
from tests.billing.admin_site import Login
from tests.billing.admin_world import make_stream
from tests.billing.factories import make_account, make_key, make_record

pytestmark = pytest.mark.django_db
LIST, ROWS, STOP_SELECTED = (f"/admin/billing/openstream/{name}" for name in ("", "rows/", "stop/"))


@dataclass
class World:
    """Less than the whole business: two keys, and a stream of the first."""

    key: ApiKey
    other_key: ApiKey
    stream: OpenStream


@pytest.fixture
def world(db: None) -> World:
    key = make_key(make_account(timezone="Asia/Taipei"))
    other = make_key(make_account("umbrella"), "batch")
    return World(key, other, make_stream(key, now()))


def stop_url(stream: OpenStream) -> str:
    return reverse("admin:billing_openstream_stop", args=[stream.pk])


def another(world: World, **fields: Any) -> OpenStream:
    """A stream like the world's, under a name of its own."""
    given = {field.attname: getattr(world.stream, field.attname) for field in OpenStream._meta.concrete_fields}
    name = f"req-{uuid.uuid4().hex[:8]}"
    return OpenStream.objects.create(**{**given, "id": uuid.uuid4(), "request_name": name, **fields})


def kill(world: World, settings: Any, folder: Path) -> None:
    """Let the stream's process be dead, as its lock file tells."""
    settings.VAR_DIR = folder
    live._onlooker = None
    lock = Folder(folder).hold(world.stream.process)
    assert lock is not None
    lock.close()


@pytest.fixture(autouse=True)
def fresh_onlooker() -> Any:
    """No test looks with another's eyes."""
    live._onlooker = None
    yield
    live._onlooker = None


# --- the list ---


def seconds(count: float) -> dt.timedelta:
    return dt.timedelta(seconds=count)


@pytest.mark.parametrize(
    ("silent_s", "fields", "standing", "state"),
    [
        (5, {"last_output_at": None}, "answers", "waiting"),
        (91, {"last_output_at": None}, "answers", "stalling"),
        (3, {}, "answers", "streaming"),
        (30, {}, "answers", "silent"),
        (90, {}, "answers", "stalling"),
        (90, {"silence_limit_s": None}, "answers", "silent"),
        (90, {"stop_requested": True}, "answers", "stopping"),
        (3, {"stop_requested": True}, "gone", "unanswered"),
        (3, {}, "silent", "unanswered"),
    ],
)
def test_state_follows_silence_and_process(
    world: World, silent_s: int, fields: dict[str, Any], standing: str, state: str
) -> None:
    moment = now()
    since = moment - seconds(silent_s)
    stream = another(world, **{"attempt_started_at": since, "last_output_at": since, **fields})
    assert live.look(stream, Standing(standing), moment).state == state


def test_silence_runs_from_the_attempt(world: World) -> None:
    """An attempt has a clock of its own: what the one before it was silent does not count."""
    moment = now()
    stream = another(world, last_output_at=None, first_output_at=None, attempt_started_at=moment - seconds(7))
    assert live.look(stream, Standing.ANSWERS, moment).silence == seconds(7)
    stream.attempt_started_at = None  # not yet told by a checkpoint
    assert live.look(stream, Standing.ANSWERS, moment).silence == moment - stream.started_at


def test_most_silent_comes_first(login: Login, world: World) -> None:
    moment = now()
    hangs = another(world, last_output_at=moment - seconds(80))
    waits = another(world, last_output_at=None, attempt_started_at=moment - seconds(40))
    talks = another(world, last_output_at=moment)
    page = login("operator").get(LIST).context["cl"]
    assert list(page.result_list) == [hangs, waits, world.stream, talks]


def test_row_tells_what_is_known(login: Login, world: World) -> None:
    text = login("operator").get(LIST).text
    for part in ("northwind/production", "gpt-5.6-sol", "acme-cloud", "streaming", "attempt 1", "gw-1", "/ 120 s"):
        assert part in text
    assert 'aria-label="3 s of 120 s"' in text or 'aria-label="4 s of 120 s"' in text
    assert "1 stream under way." in text


def test_detail_says_all(login: Login, world: World) -> None:
    text = login("operator").get(reverse("admin:billing_openstream_change", args=[world.stream.pk])).text
    for part in (str(world.stream.pk), "req-under-way", "prov-live-1", "auto", "sol-large", "Asia/Taipei", "Messages"):
        assert part in text


@pytest.mark.parametrize("term", ["req-under-way", "prov-live-1", "id", "nobody's"])
def test_search_takes_exact_ids(login: Login, world: World, term: str) -> None:
    another(world, provider_request_id="")
    query = str(world.stream.pk) if term == "id" else term
    found = list(login("operator").get(LIST, {"q": query}).context["cl"].result_list)
    assert found == ([] if term == "nobody's" else [world.stream])


# --- what the page's script fetches ---


def test_fragment_holds_the_same_rows(login: Login, world: World) -> None:
    client = login("operator")
    other = another(world, model="another-model")
    whole, fragment = client.get(LIST), client.get(ROWS)
    assert "no-store" in fragment.headers["cache-control"]
    for part in ("2 streams under way.", other.request_name, "req-under-way", stop_url(other)):
        assert part in whole.text
        assert part in fragment.text
    assert "<html" not in fragment.text
    narrowed = client.get(ROWS, {"model": "another-model"}).text
    assert (other.request_name in narrowed, "req-under-way" in narrowed) == (True, False)
    assert "1 stream under way." in narrowed


def test_empty_fragment_says_so(login: Login, world: World) -> None:
    OpenStream.objects.all().delete()
    assert "No stream is under way." in login("operator").get(ROWS).text


def test_full_page_counts_no_further(login: Login, world: World) -> None:
    assert "50 or more streams under way." not in login("operator").get(ROWS).text
    for _ in range(50):
        another(world)
    assert "50 or more streams under way." in login("operator").get(ROWS).text


def test_fragment_takes_few_queries(
    login: Login, world: World, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    client = login("operator")
    client.get(ROWS)
    for _ in range(30):
        another(world)
    with django_assert_num_queries(8) as seen:
        assert client.get(ROWS).status_code == 200
    assert not any("COUNT(" in query["sql"].upper() for query in seen.captured_queries)


@pytest.mark.parametrize(("who", "status"), [("operator", 200), ("finance", 200), ("nobody", 403)])
def test_fragment_follows_the_groups(login: Login, world: World, who: str, status: int) -> None:
    answer = login(who).get(ROWS)
    assert answer.status_code == status
    assert (stop_url(world.stream) in answer.text) == (who == "operator")


def test_fragment_sends_strangers_to_the_login(world: World) -> None:
    assert Client().get(ROWS).status_code == 302


# --- stop ---


def test_stop_asks_first(login: Login, world: World) -> None:
    client = login("operator")
    text = client.get(stop_url(world.stream)).text
    assert "Stop this stream of northwind/production?" in text
    assert "The client gets an error event; the 1,204 tokens so far are billed." in text
    assert "what is produced until then is billed too" in text
    world.stream.refresh_from_db()
    assert not world.stream.stop_requested


def test_stop_is_asked_of_the_owner(login: Login, world: World) -> None:
    client = login("operator")
    answer = client.post(stop_url(world.stream), follow=True)
    assert "Stopping the stream of northwind/production." in answer.text
    assert "stop requested" in answer.text
    assert stop_url(world.stream) not in answer.text
    world.stream.refresh_from_db()
    assert world.stream.stop_requested
    entry = LogEntry.objects.get(object_id=str(world.stream.pk))
    assert (entry.user.get_username(), entry.object_repr) == ("operator", "req-under-way")
    assert "being stopped already" in client.post(stop_url(world.stream), follow=True).text
    assert LogEntry.objects.count() == 1
    audited = AuditEntry.objects.get(table="billing.openstream")
    assert (audited.who, audited.object_id, audited.object_name) == (
        "operator", str(world.stream.pk), "req-under-way",
    )  # fmt: skip


@pytest.mark.parametrize("who", ["finance", "nobody"])
def test_others_cannot_stop(login: Login, world: World, who: str) -> None:
    client = login(who)
    for url in (stop_url(world.stream), f"{STOP_SELECTED}?id={world.stream.pk}"):
        assert (client.get(url).status_code, client.post(url).status_code) == (403, 403)
    world.stream.refresh_from_db()
    assert not world.stream.stop_requested


def test_stop_before_output_bills_nothing(login: Login, world: World) -> None:
    stream = another(world, last_output_at=None, first_output_at=None, counted_input=0, counted_output=0)
    assert "The client gets an error; nothing is billed so far." in login("operator").get(stop_url(stream)).text


def test_whole_answer_is_not_billed(login: Login, world: World) -> None:
    stream = another(world, stream=False, last_output_at=None, first_output_at=None)
    text = login("operator").get(stop_url(stream)).text
    assert "An answer that is no stream is not billed" in text
    assert "until then is billed too" not in text


def test_dead_process_cannot_stop(login: Login, world: World, settings: Any, tmp_path: Path) -> None:
    kill(world, settings, tmp_path)
    client = login("operator")
    words = "Process gw-1 does not answer; settled within 60 s."
    for answer, status in ((client.get(stop_url(world.stream)), 200), (client.post(stop_url(world.stream)), 409)):
        assert answer.status_code == status
        assert words in answer.text
        assert 'type="submit"' not in answer.text.partition('class="hb-ask"')[2].partition("</form>")[0]
    world.stream.refresh_from_db()
    assert not world.stream.stop_requested
    listed = client.get(LIST).text
    assert "process does not answer" in listed
    assert "settled within 60 s" in listed


def test_silent_process_stops_later(world: World) -> None:
    words = live.unanswered("gw-1", Standing.SILENT)
    assert words.startswith("Process gw-1 lives but does not answer")
    assert live.unanswered("gw-1", Standing.ANSWERS) == ""


def test_ended_stream_leads_to_its_record(login: Login, world: World) -> None:
    record = make_record(world.key, now(), id=world.stream.pk)
    OpenStream.objects.all().delete()
    client = login("operator")
    page = reverse("admin:billing_openstream_change", args=[record.pk])
    for answer in (client.get(page), client.get(stop_url(world.stream)), client.post(stop_url(world.stream))):
        assert answer.headers["location"] == reverse("admin:billing_usagerecord_change", args=[record.pk])
    gone = client.get(reverse("admin:billing_openstream_change", args=[uuid.uuid4()]))
    assert gone.headers["location"] == LIST
    assert client.get(reverse("admin:billing_openstream_change", args=["nonsense"])).headers["location"] == LIST


def test_list_shows_what_became_of_it(login: Login, world: World) -> None:
    """The record's link, for those who stopped the stream and for those who just look."""
    client = login("operator")
    client.post(stop_url(world.stream))
    url = reverse("admin:billing_usagerecord_change", args=[world.stream.pk])
    assert url not in client.get(ROWS).text
    make_record(world.key, now(), id=world.stream.pk, request_name="req-under-way", ending="stopped")
    OpenStream.objects.all().delete()
    for text in (client.get(ROWS).text, client.get(LIST).text, login("finance").get(LIST).text):
        assert url in text
        assert "northwind/production · gpt-5.6-sol: stopped by operator, USD 0.001630000." in text
    assert "Stopped by operator." in client.get(url).text
    LogEntry.objects.update(action_time=now() - dt.timedelta(minutes=11))
    assert url not in client.get(ROWS).text


def test_stopped_without_record_is_told(login: Login, world: World) -> None:
    client = login("operator")
    client.post(stop_url(world.stream))
    OpenStream.objects.all().delete()
    assert "it left no record, nothing is billed" in client.get(ROWS).text


def test_way_back_keeps_the_filters(login: Login, world: World) -> None:
    client = login("operator")
    row = client.get(f"{LIST}?model=gpt-5.6-sol").text
    assert f"{stop_url(world.stream)}?back=model%3Dgpt-5.6-sol" in row
    answer = client.post(f"{stop_url(world.stream)}?back=model%3Dgpt-5.6-sol")
    assert answer.headers["location"] == f"{LIST}?model=gpt-5.6-sol"
    other = another(world)
    assert client.post(f"{stop_url(other)}?back=//evil.test").headers["location"] == f"{LIST}?//evil.test"


# --- several at once ---


def test_selected_streams_are_stopped(login: Login, world: World) -> None:
    client = login("operator")
    other, third = another(world), another(world)
    url = f"{STOP_SELECTED}?id={world.stream.pk}&id={other.pk}&id=nonsense"
    text = client.get(url).text
    assert "Stop 2 streams?" in text
    assert "The clients get an error event; the 2,408 tokens so far are billed." in text
    assert OpenStream.objects.filter(stop_requested=True).count() == 0
    assert "Stopping 2 streams." in client.post(url, follow=True).text
    asked = set(OpenStream.objects.filter(stop_requested=True))
    assert asked == {world.stream, other}
    assert LogEntry.objects.count() == 2
    assert third not in asked


def test_nothing_selected_is_told(login: Login, world: World) -> None:
    client = login("operator")
    for answer in (client.get(STOP_SELECTED, follow=True), client.post(STOP_SELECTED, follow=True)):
        assert "None of the chosen streams is under way any more, or none was chosen." in answer.text


def test_selection_leaves_the_dead_to_the_sweep(login: Login, world: World, settings: Any, tmp_path: Path) -> None:
    kill(world, settings, tmp_path)
    living = GatewayProcess.objects.create(id=uuid.uuid4(), label="gw-2", started_at=now())
    other = another(world, process=living.pk)
    client = login("operator")
    url = f"{STOP_SELECTED}?id={world.stream.pk}&id={other.pk}"
    text = client.get(url).text
    assert "Stop 1 stream?" in text
    assert "Process gw-1 does not answer; settled within 60 s." in text
    client.post(url)
    assert list(OpenStream.objects.filter(stop_requested=True)) == [other]
    alone = client.post(f"{STOP_SELECTED}?id={world.stream.pk}")
    assert (alone.status_code, "Stop 1 stream?" in alone.text) == (409, True)


def test_stops_need_the_csrf_token(world: World, users: dict[str, Any]) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(users["operator"])
    for url in (stop_url(world.stream), f"{STOP_SELECTED}?id={world.stream.pk}"):
        assert client.post(url).status_code == 403


# --- with a key ---


@pytest.mark.parametrize("choice", [{}, {"streams": "finish"}, {"streams": "stop"}])
def test_revocation_asks_about_streams(login: Login, world: World, choice: dict[str, str]) -> None:
    client = login("operator")
    elsewhere = another(world, api_key_id=world.other_key.pk)
    url = reverse("admin:billing_apikey_revoke", args=[world.key.pk])
    text = client.get(url).text
    assert "Its 1 open stream" in text
    assert 'name="streams"' in text
    answer = client.post(url, choice, follow=True)
    world.key.refresh_from_db()
    world.stream.refresh_from_db()
    elsewhere.refresh_from_db()
    assert world.key.revoked_at is not None
    assert world.stream.stop_requested == (choice.get("streams") == "stop")
    assert not elsewhere.stop_requested
    assert ("Stopping 1 stream." in answer.text) == world.stream.stop_requested
    assert LogEntry.objects.filter(object_id=str(world.stream.pk)).exists() == world.stream.stop_requested


def test_revocation_refuses_odd_choices(login: Login, world: World) -> None:
    url = reverse("admin:billing_apikey_revoke", args=[world.key.pk])
    assert login("operator").post(url, {"streams": "explode"}).status_code == 200
    world.key.refresh_from_db()
    assert world.key.revoked_at is None


def test_idle_key_is_revoked_without_a_choice(login: Login, world: World) -> None:
    OpenStream.objects.all().delete()
    url = reverse("admin:billing_apikey_revoke", args=[world.key.pk])
    client = login("operator")
    assert 'name="streams"' not in client.get(url).text
    assert client.post(url).status_code == 302


def test_record_of_another_ending_names_nobody(login: Login, world: World) -> None:
    assert live.stopped_by(make_record(world.key, now())) == "—"
