"""What a process counts beside its requests: flags of usage, and what the ledger's thread saw."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter

from streaming import metrics


def counted(name: str, provider: str) -> float:
    return REGISTRY.get_sample_value(name, {"provider": provider}) or 0.0


def test_flags_are_counted_by_provider() -> None:
    metrics.count_flags("acme-of-flags", ["unknown:a", "unknown:b.c", "zero_with_output", "negative:output"])
    metrics.count_flags("beta-of-flags", [])
    assert counted("hopbase_unknown_counters_total", "acme-of-flags") == 2
    assert counted("hopbase_zero_usage_total", "acme-of-flags") == 1
    assert counted("hopbase_unknown_counters_total", "beta-of-flags") == 0


def test_counter_follows_a_number() -> None:
    registry = CollectorRegistry()
    follower = metrics.Follower(Counter("followed", "A number.", registry=registry))
    seen = []
    for number in (0, 3, 3, 7):
        follower.follow(number)
        seen.append(registry.get_sample_value("followed_total"))
    assert seen == [0, 3, 3, 7]
