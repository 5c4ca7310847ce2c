"""Who is dead: locks of this host, and heartbeats of others."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from django.db import OperationalError

from billing.models import GatewayProcess
from billing.processes import Folder, Heartbeats, Onlooker, Standing, read_heartbeats, silent
from tests.billing.factories import utc

HOLD = """
import sys, time, uuid
from pathlib import Path
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
import django; django.setup()
from billing.processes import Folder
lock = Folder(Path(sys.argv[1])).hold(uuid.UUID(sys.argv[2]))
if sys.argv[3:]:
    import subprocess
    subprocess.Popen(["sleep", "20"], stdout=subprocess.DEVNULL)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def id() -> uuid.UUID:
    return uuid.uuid4()


@pytest.fixture
def other(tmp_path: Path, id: uuid.UUID) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds its lock, and has a child of its own."""
    command = [sys.executable, "-c", HOLD, str(tmp_path), str(id), "with a child"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def is_dead(folder: Folder, id: uuid.UUID) -> bool:
    with folder.adopted(id) as lock:
        return lock is not None


def test_killed_process_is_dead(folder: Folder, id: uuid.UUID, other: subprocess.Popen[str]) -> None:
    assert folder.processes() == {id}
    assert not is_dead(folder, id)
    other.kill()
    other.wait()
    assert is_dead(folder, id)  # though its child lives


def test_look_tells_the_living(folder: Folder, id: uuid.UUID, other: subprocess.Popen[str]) -> None:
    assert folder.is_held(id)
    assert not folder.is_held(uuid.uuid4())
    other.kill()
    other.wait()
    assert not folder.is_held(id)
    assert is_dead(folder, id)


def test_stopped_process_is_not_dead(folder: Folder, id: uuid.UUID, other: subprocess.Popen[str]) -> None:
    other.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    assert not is_dead(folder, id)


def test_own_lock_is_not_adopted(folder: Folder, id: uuid.UUID) -> None:
    lock = folder.hold(id)
    assert lock is not None
    assert not is_dead(folder, id)
    lock.close()
    assert is_dead(folder, id)


def test_only_one_adopts(folder: Folder, id: uuid.UUID) -> None:
    lock = folder.hold(id)
    assert lock is not None
    lock.close()
    with folder.adopted(id) as first, folder.adopted(id) as second:
        assert (first is not None, second) == (True, None)


def test_removed_lock_is_nobodys(folder: Folder, id: uuid.UUID) -> None:
    lock = folder.hold(id)
    assert lock is not None
    lock.remove()
    lock.close()
    assert (folder.processes(), is_dead(folder, id)) == (set(), False)


def test_unwritable_folder_holds_nothing(tmp_path: Path, id: uuid.UUID, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "processes").write_text("a file where the folder should be")
    assert Folder(tmp_path).hold(id) is None
    assert "cannot be held" in caplog.text


def test_journal_alone_names_a_process(folder: Folder, id: uuid.UUID, tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    folder.journal_path(id).touch()
    (tmp_path / "journal" / "notes.jsonl").touch()
    assert (folder.processes(), folder.sees(id)) == ({id}, False)


class Time:
    """A clock that only sleeping and reading move; heartbeats by a script."""

    def __init__(self, beats: dict[float, object], read_s: float = 0.0) -> None:
        self.now, self.beats, self.read_s = 0.0, beats, read_s

    def read(self, processes: Collection[uuid.UUID]) -> Heartbeats:
        """What was last set at this time; an error stands for a database that is away, a number for a slow answer."""
        beat = self.beats[max(at for at in self.beats if at <= self.now)]
        if isinstance(beat, Exception):
            raise beat
        if isinstance(beat, float):
            self.now += beat
            return {}
        self.now += self.read_s
        assert isinstance(beat, dict)
        return {id: number for id, number in beat.items() if id in processes}

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def watch(self, *processes: uuid.UUID) -> set[uuid.UUID]:
        return silent(processes, watch_s=20, read=self.read, clock=lambda: self.now, sleep=self.sleep)


A, B = uuid.UUID(int=1), uuid.UUID(int=2)


def test_standing_heartbeat_is_death() -> None:
    time = Time({0: {A: 5, B: 7}, 3: {A: 5, B: 8}})
    assert time.watch(A, B) == {A}
    assert 20 <= time.now < 22


def test_moving_heartbeats_end_the_watch() -> None:
    time = Time({0: {A: 5}, 2: {A: 6}})
    assert time.watch(A) == set()
    assert time.now < 4


def test_missing_row_is_watched_too() -> None:
    assert Time({0: {}}).watch(A) == {A}
    assert Time({0: {}, 10: {A: 1}}).watch(A) == set()


def test_outage_begins_the_watch_anew() -> None:
    """The number cannot move while nobody can write it."""
    outage = OperationalError("away")
    time = Time({0: {A: 5}, 15: outage, 25: {A: 5}, 30: {A: 6}})
    assert time.watch(A) == set()
    time = Time({0: {A: 5}, 15: outage, 25: {A: 5}})
    assert time.watch(A) == {A}
    assert time.now >= 45


def test_frozen_database_begins_it_anew() -> None:
    time = Time({0: {A: 5}, 15: 30.0, 16: {A: 5}, 50: {A: 6}})
    assert time.watch(A) == set()
    assert time.now > 45


def test_stopped_sweeper_begins_it_anew() -> None:
    time = Time({0: {A: 5}, 70: {A: 6}})
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        time.now += 40 if len(slept) == 5 else seconds

    assert silent([A], watch_s=20, read=time.read, clock=lambda: time.now, sleep=sleep) == set()


def test_endless_outage_ends_the_watch() -> None:
    time = Time({0: OperationalError("away")})
    assert time.watch(A) == set()
    assert time.now < 65


def test_nothing_to_watch_takes_no_time() -> None:
    assert Time({}).watch() == set()


@pytest.mark.django_db
def test_heartbeats_are_read() -> None:
    GatewayProcess.objects.create(id=A, label="gw", heartbeat=5, started_at=utc(2026, 11, 3))
    assert read_heartbeats([A, B]) == {A: 5}


# --- for people who look ---


class Looks:
    """An onlooker with a clock of the test's own."""

    def __init__(self, folder: Folder) -> None:
        self.now = 0.0
        self.onlooker = Onlooker(folder, still_s=10, clock=lambda: self.now)

    def at(self, now: float, process: uuid.UUID, heartbeat: int | None) -> Standing:
        self.now = now
        return self.onlooker.standing(process, heartbeat)


def test_free_lock_is_seen_at_once(folder: Folder, id: uuid.UUID) -> None:
    lock = folder.hold(id)
    assert lock is not None
    looks = Looks(folder)
    assert looks.at(0, id, 7) is Standing.ANSWERS
    lock.close()
    assert looks.at(1, id, 8) is Standing.GONE


def test_held_lock_without_heartbeat_is_silence(folder: Folder, id: uuid.UUID) -> None:
    """Stopped, or without its database: nobody sweeps it as long as it holds its lock."""
    lock = folder.hold(id)
    assert lock is not None
    looks = Looks(folder)
    assert [looks.at(now, id, 7) for now in (0, 9.9)] == [Standing.ANSWERS] * 2
    assert looks.at(10, id, 7) is Standing.SILENT
    assert looks.at(11, id, 8) is Standing.ANSWERS
    lock.close()


@pytest.mark.parametrize("heartbeat", [7, None])
def test_still_heartbeat_of_elsewhere_is_death(folder: Folder, id: uuid.UUID, heartbeat: int | None) -> None:
    looks = Looks(folder)
    assert looks.at(0, id, heartbeat) is Standing.ANSWERS
    assert looks.at(60, id, heartbeat) is Standing.GONE  # two looks a minute apart say as much as many
    assert looks.at(61, id, 8) is Standing.ANSWERS


def test_onlooker_forgets(folder: Folder) -> None:
    looks = Looks(folder)
    for _ in range(Onlooker.MOST + 5):
        looks.at(0, uuid.uuid4(), 1)
    assert len(looks.onlooker._seen) <= Onlooker.MOST
