"""The dashboard and the rules in deploy/ ask for metrics that there are, and name runbooks that there are."""

import json
import re
from pathlib import Path

import pytest
import yaml

from billing.meter_health import checks
from tests.test_docs import METRICS_PAGE, Read, families

ROOT = Path(__file__).resolve().parent.parent
DASHBOARD = json.loads((ROOT / "deploy/grafana/hopbase.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
ROWS = {"Traffic", "Latency", "Tokens", "Errors and retries", "Limits", "Billing lag and journal", "Process"}
OF_PROMETHEUS = {"job", "instance", "le"}
WORDS = re.compile(r"\b(?:hopbase|gen_ai)_[a-z_]+")
LABELS = re.compile(r"(?:by|ignoring|on)\s*\(([^)]*)\)|\{([^}]*)\}")


def expressions():
    yield from (target["expr"] for panel in PANELS for target in panel["targets"])
    yield from (rule["expr"] for rule in RULES)


def metrics_of(expression):
    return set(WORDS.findall(LABELS.sub("", expression)))


def labels_of(expression):
    """In selectors and groupings."""
    groups, selectors = zip(*LABELS.findall(expression), strict=True) if LABELS.search(expression) else ((), ())
    named = {label.strip() for group in groups for label in group.split(",") if label.strip()}
    return named | set(re.findall(r"(\w+)\s*[=!]", ",".join(selectors)))


def sample_names():
    for name, family in families().items():
        suffixes = ("_bucket", "_sum", "_count") if family.type == "histogram" else ("",)
        yield from (name + suffix for suffix in suffixes)


def known_labels():
    in_tables = re.findall(r"^\| `\w+\{([^}]*)\}`", METRICS_PAGE, re.MULTILINE)
    return OF_PROMETHEUS | set(WORDS.findall(METRICS_PAGE)) | set(re.findall(r"\w+", ",".join(in_tables)))


def test_expressions_are_taken_apart():
    expression = 'sum by (le, kind) (rate(hopbase_a_bucket{job=~"$job", gen_ai_b!="x"}[5m])) / ignoring (c) hopbase_d'
    assert metrics_of(expression) == {"hopbase_a_bucket", "hopbase_d"}
    assert labels_of(expression) == {"le", "kind", "job", "gen_ai_b", "c"}


def test_metrics_exist():
    asked = set().union(*map(metrics_of, expressions()))
    assert len(asked) > 25
    assert asked <= set(sample_names())


def test_labels_exist():
    assert set().union(*map(labels_of, expressions())) <= known_labels()


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_brackets_are_closed(expression):
    plain = re.sub(r'"[^"]*"', "", expression)
    assert [plain.count(left) for left in "([{"] == [plain.count(right) for right in ")]}"]


def test_dashboard_has_its_rows():
    assert {panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"} == ROWS


def test_dashboard_asks_the_chosen_prometheus():
    variables = {variable["name"]: variable["type"] for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"] == "datasource"
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_every_metric_of_the_gateway_is_shown_or_ruled():
    """Those of rare events are for whoever looks into one."""
    asked = {re.sub("_(bucket|sum|count)$", "", name) for name in set().union(*map(metrics_of, expressions()))}
    left = {name for name in families() if name not in asked}
    assert left == {
        "hopbase_unknown_counters_total", "hopbase_zero_usage_total", "hopbase_sweeps_total",
        "hopbase_swept_streams_total", "hopbase_unpriced_oldest_seconds",
    }  # fmt: skip


def headings(page):
    """As a link names them."""
    lines = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in lines}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_rule_has_a_runbook(rule):
    page, _, heading = rule["annotations"]["runbook"].partition("#")
    named = {check.name for check in checks(Read.latest)} if heading == "{{ $labels.check }}" else {heading}
    assert named <= headings(ROOT / page)
    assert rule["labels"]["severity"] in ("page", "ticket")
