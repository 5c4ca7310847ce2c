"""The runs without a wire: settling, roll-ups, invoices, and the admin's pages on a busy month's records.

Each also at a tenth of the size, so that growth shows.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from bench.runs import Bench, drive
from bench.systems import ROOT, BenchFailed, Cores, configure, hopbase, stores, upstream

RECORDS, KEYS = 1_000_000, 1_000
SETTLED = 20_000
TICKED = 5_000
MONTH = "from=2026-10-01&to=2026-10-31"
PAGES = (
    "",
    f"usage/?{MONTH}",
    f"usage/?{MONTH}&by=day",
    f"usage/?{MONTH}&by=key&then=model",
    f"usage/?{MONTH}&by=day&then=key",
    "statement/?account={account}&month=2026-10",
    "billing/invoice/run/?month=2026-10",
    "billing/usagerecord/",
    "billing/usagerecord/?period=all",
    "billing/openstream/",
    "billing/apikey/",
    "billing/account/",
    "billing/invoice/",
    "billing/creditnote/",
    "billing/adjustment/",
    "health/",
    "audit/",
    "unpriced/",
    "billing/reconciliation/",
    "billing/price/",
    "streaming/model/",
    "streaming/provider/",
    "configuration/",
)
"""Below /admin/. The month is that of the records."""
DETAILS = ("billing/usagerecord/?period=all", "billing/apikey/", "billing/account/")
"""Lists whose first row is opened, too."""
LOOKS = 5


def settle(bench: Bench) -> None:
    """Records a second that one process's ledger writes to PostgreSQL."""
    for records in (SETTLED // 10, SETTLED):
        with stores(Cores.of_this_machine()) as environment:
            name = "settle" if records == SETTLED else "settle at a tenth"
            bench.add(name, "hopbase", **inside(environment, "settle", str(records)))


def ticker(bench: Bench) -> None:
    """What one look at all open streams takes the event loop."""
    environment = {**os.environ, "DEBUG": "true", "HOPBASE_ENV_FILE": os.devnull}
    for streams in (TICKED // 10, TICKED):
        name = "ticker" if streams == TICKED else "ticker at a tenth"
        bench.add(name, "hopbase", **inside(environment, "tick", str(streams)))


def months(bench: Bench) -> None:
    """Roll-up and invoices of a month, and the admin's pages on it."""
    for size in (10, 1):
        with stores(Cores.of_this_machine()) as environment:
            _month(bench, environment, RECORDS // size, KEYS // size, "" if size == 1 else " at a tenth")


def export(bench: Bench) -> None:
    """The paced run by itself, and while a worker writes a file of a million requests."""
    cores = Cores.of_this_machine()
    with upstream(cores) as provider, stores(cores) as environment, ThreadPoolExecutor() as pool:
        inside(environment, "fill", str(RECORDS), str(KEYS))
        configure(environment, provider.port)
        with hopbase(environment, cores) as system:
            direct = drive(bench, "beside an export", provider, 100, "paced", None)
            alone = drive(bench, "without an export", system, 100, "paced", direct)
            file = pool.submit(inside, environment, "export")
            beside = drive(bench, "beside an export", system, 100, "paced", direct)
            if file.done():
                raise BenchFailed("the export was done before the measurement was: give a shorter --duration")
            p99_times = round(beside.quantile(0.99) / alone.quantile(0.99), 2)
            bench.add("export", "hopbase", records=RECORDS, first_p99_times=p99_times, **file.result())


def _month(bench: Bench, environment: dict[str, str], records: int, keys: int, tenth: str) -> None:
    inside(environment, "fill", str(records), str(keys))
    bench.add(f"roll-up{tenth}", "hopbase", records=records, **inside(environment, "roll-up"))
    _pages(bench, environment, records, tenth)
    bench.add(f"invoices{tenth}", "hopbase", records=records, **inside(environment, "invoice"))


def _pages(bench: Bench, environment: dict[str, str], records: int, tenth: str) -> None:
    cookie = inside(environment, "user")["cookie"]
    with hopbase(environment, Cores.of_this_machine(), role="admin") as admin:
        url = f"http://127.0.0.1:{admin.port}/admin/"
        with httpx.Client(base_url=url, headers={"cookie": cookie}, timeout=60) as browser:
            first = {each: _first_row(browser, each) for each in DETAILS}
            account = first["billing/account/"]
            opened = [f"{each.partition('?')[0]}{id}/change/" for each, id in first.items()]
            for page in (*(page.format(account=account) for page in PAGES), *opened):
                bench.add(f"page{tenth} /admin/{page}", "hopbase", records=records, took_ms=_look(browser, page))


def _first_row(browser: httpx.Client, page: str) -> str:
    """The id of a list's first row."""
    found = re.search(rf'href="/admin/{page.partition("?")[0]}([\w-]+)/change/', browser.get(page).text)
    if found is None:
        raise BenchFailed(f"/admin/{page} has no row that can be opened")
    return found[1]


def _look(browser: httpx.Client, page: str) -> float:
    """The median time of a page after one look at it, in ms."""
    times = []
    for _ in range(LOOKS + 1):
        began = time.perf_counter()
        answer = browser.get(page)
        times.append((time.perf_counter() - began) * 1000)
        if answer.status_code != 200:
            raise BenchFailed(f"/admin/{page}: status {answer.status_code}")
    return round(statistics.median(times[1:]), 1)


def inside(environment: dict[str, str], *what: str) -> dict[str, Any]:
    """Run a part inside HopBase; what it prints."""
    command = [sys.executable, "-W", "ignore", "-m", "bench.records", *what]
    own = {**environment, "DJANGO_SETTINGS_MODULE": "hopbase_site.settings"}
    ended = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise BenchFailed(f"{what[0]}: {ended.stderr.strip()[-1500:]}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found
