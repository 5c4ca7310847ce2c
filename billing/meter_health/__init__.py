"""Whether the figures can be trusted: what can be read of it (`readings`), and what that means (`checks`, pure)."""

from billing.meter_health.checks import Check, Link, State, checks
from billing.meter_health.readings import MeterReader, Readings

__all__ = ["Check", "Link", "MeterReader", "Readings", "State", "checks"]
