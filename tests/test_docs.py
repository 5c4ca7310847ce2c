"""The documents are complete: every setting, metric, command, alarm and check that exists is in them."""

import datetime as dt
import re
from pathlib import Path

import prometheus_client
import pytest
import yaml
from django.core.management import get_commands
from django.utils import translation

import streaming.metrics  # noqa: F401 - the counters are made when it is read
from billing.meter_health import Readings, checks
from hopbase_site import settings
from hopbase_site.management.commands.serve import Command as Serve
from hopbase_site.servers import END_S, KEEP_ALIVE_S
from streaming.alarms import EVENTS
from streaming.exposition import MeterCollector
from streaming.models import Alarm, Model

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = (ROOT / "hopbase_site/settings.py").read_text()
ENVIRONMENT = (ROOT / "hopbase_site/environment.py").read_text()
SETTINGS_PAGE = (ROOT / "docs/operations/settings.md").read_text()
ALARMS_PAGE = (ROOT / "docs/operations/alarms.md").read_text()
METRICS_PAGE = (ROOT / "docs/operations/metrics.md").read_text()
OPERATIONS = sorted(path.name for path in ROOT.glob("docs/operations/*.md"))
PARTS = {"Means", "Bills", "Do"}


class Read:
    """A meter that has been read, and found nothing."""

    latest = Readings(dt.datetime(2026, 11, 30, tzinfo=dt.UTC))
    age_s = 0.0


def read_settings():
    """Those of settings.py, and which file they come from."""
    return sorted(
        {
            *re.findall(r'environment\.\w+\(\s*"([A-Z_]+)"', SETTINGS),
            *re.findall(r'environ(?:\.get\(|\[)"([A-Z_]+)"', ENVIRONMENT),
        }
    )


def test_settings_are_found():
    assert {"SECRET_KEY", "DATABASE_URL", "HOPBASE_KEEPALIVE_S", "HOPBASE_ENV_FILE"} <= set(read_settings())


@pytest.mark.parametrize("name", read_settings())
def test_setting_is_documented(name):
    assert f"`{name}`" in SETTINGS_PAGE


def test_documented_settings_exist():
    documented = set(re.findall(r"`(HOPBASE_[A-Z_]+)`", SETTINGS_PAGE))
    assert documented <= {*read_settings(), "HOPBASE_ROLE"}


def own_commands():
    return sorted(path.stem for path in ROOT.glob("*/management/commands/[!_]*.py"))


def test_commands_are_found():
    assert {"serve", "apply", "sweep", "demo"} <= set(own_commands())


@pytest.mark.parametrize("name", own_commands())
def test_command_is_documented(name):
    pages = [ROOT / "README.md", *ROOT.glob("docs/operations/*.md")]
    assert any(re.search(rf"(`|manage\.py |make ){name}\b", page.read_text()) for page in pages)


@pytest.mark.parametrize("page", OPERATIONS)
def test_commands_of_pages_exist(page):
    """Ours, Django's and those of its apps; `version` is no class of its own."""
    named = set(re.findall(r"manage\.py ([a-z_]+)", (ROOT / "docs/operations" / page).read_text()))
    assert named <= {*get_commands(), "version"}


def families():
    """What a running gateway answers, less what prometheus_client says of Python: the name that Prometheus sees -> its
    metric."""
    found = [*prometheus_client.REGISTRY.collect(), *MeterCollector(Read()).collect()]
    named = {family.name + ("_total" if family.type == "counter" else ""): family for family in found}
    return {name: family for name, family in named.items() if name.startswith(("hopbase_", "gen_ai_"))}


def test_metrics_are_documented():
    """Those that there are, and nothing else."""
    ours = set(families())
    assert {"hopbase_requests_total", "hopbase_meter_check", "hopbase_sweeps_total"} <= ours
    assert set(re.findall(r"^\| `((?:hopbase|gen_ai)_[a-z_]+)", METRICS_PAGE, re.MULTILINE)) == ours


def test_checks_have_runbooks():
    """Each says what it means, what becomes of bills, and what to do."""
    with translation.override("en"):
        names = {check.name for check in checks(Read.latest)}
    runbooks = dict(re.findall(r"^### `(\w+)`$(.*?)(?=^##|\Z)", ALARMS_PAGE, re.MULTILINE | re.DOTALL))
    assert set(runbooks) == names | {kind.value for kind in Alarm.Kind} - {Alarm.Kind.METER.value}
    lacking = [name for name, text in runbooks.items() if not set(re.findall(r"\*\*(\w+)\.\*\*", text)) >= PARTS]
    assert not lacking


def test_events_are_documented():
    events = {event for pair in EVENTS.values() for event in pair if event}
    assert events == {name for name in events if f"`{name}`" in ALARMS_PAGE}


def test_operators_index_is_complete():
    index = (ROOT / "docs/operations/README.md").read_text()
    assert [page for page in OPERATIONS if page != "README.md" and f"]({page})" not in index] == []


@pytest.mark.parametrize("path", sorted(filter(Path.is_file, ROOT.glob("deploy/**/*"))), ids=lambda path: path.name)
def test_deployment_files_use_settings_that_exist(path):
    named = set(re.findall(r"\b(HOPBASE_[A-Z_]+)\b", path.read_text()))
    assert named <= set(read_settings())


def test_caddy_lets_clients_leave():
    """With that setting it does not cancel what a client that left had asked for."""
    lines = (ROOT / "deploy/Caddyfile").read_text().splitlines()
    assert not [line for line in lines if line.strip().startswith("flush_interval")]


def test_supervisors_wait_for_drain():
    """Who kills earlier leaves streams to the sweep."""
    compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    units = [(ROOT / f"deploy/systemd/hopbase-{name}.service").read_text() for name in ("gateway", "admin")]
    waits = [int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[1]) for unit in units]
    waits += [int(compose[name]["stop_grace_period"].removesuffix("s")) for name in ("gateway", "admin")]
    assert min(waits) > settings.DRAIN_S + END_S


def test_nginx_leaves_limits_to_gateway():
    """What the gateway decides in the client's own error shape, nginx must not decide before it."""
    text = (ROOT / "deploy/nginx.conf").read_text()

    def said(name):
        return int(re.search(rf"\b{name} (\d+)[sm];", text)[1])

    assert said("client_max_body_size") * 2**20 > settings.MAX_BODY_BYTES
    assert said("client_body_timeout") > settings.BODY_TIMEOUT_S
    assert said("send_timeout") > settings.SLOW_READER_S
    assert said("proxy_read_timeout") > Model._meta.get_field("total_timeout_s").default * settings.MAX_ATTEMPTS
    assert said("keepalive_timeout") < KEEP_ALIVE_S


def test_nginx_sends_no_post_twice():
    """It may have reached a provider, which is paid for it."""
    directives = [
        line.partition("#")[0] for path in ROOT.glob("deploy/nginx*.conf") for line in path.read_text().splitlines()
    ]
    [told] = [line.split() for line in directives if "proxy_next_upstream" in line]
    assert set(told) == {"proxy_next_upstream", "error", "timeout;"}


@pytest.mark.parametrize("name", ["compose.yaml", "systemd/hopbase-gateway.service", "systemd/hopbase-admin.service"])
def test_deployment_files_start_serve_as_it_is(name):
    """The options of `serve` in a deployment file are options that it takes."""
    text = re.sub(r"[\[\],\"]", " ", (ROOT / "deploy" / name).read_text())
    lines = re.findall(r"\bserve(\s+--.*)", text)
    assert lines
    parser = Serve().create_parser("manage.py", "serve")
    assert {parser.parse_args(line.split()).role for line in lines} <= {"gateway", "admin"}


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_contributing_is_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 80


def test_decisions_are_listed():
    """Each under its number and title."""
    index = re.findall(r"^- \[(\d{4})\]\((\S+)\) (.+)$", (ROOT / "docs/adr/README.md").read_text(), re.MULTILINE)
    titles = {path.name: path.read_text().splitlines()[0] for path in ROOT.glob("docs/adr/0*.md")}
    assert {file: f"# {number} {title}" for number, file, title in index} == titles


PAGES = [path for part in ("", "docs/**/", "*/", "tests/**/") for path in ROOT.glob(f"{part}*.md")]


def anchors(page):
    """What a page's headings are called in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted({str(path.relative_to(ROOT)) for path in PAGES}))
def test_links_lead_somewhere(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors(target))):
            broken.append(link)
    assert not broken
