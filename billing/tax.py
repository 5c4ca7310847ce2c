"""How a credit is split into what it takes off before tax and the tax of that, to the last place of the currency."""

from __future__ import annotations

from dataclasses import dataclass

from billing import money


@dataclass(frozen=True, slots=True)
class Credit:
    """An amount and its tax, in nanos, whole in the currency's places."""

    subtotal_nanos: int
    tax_nanos: int

    @property
    def total_nanos(self) -> int:
        return self.subtotal_nanos + self.tax_nanos


def with_tax(net_nanos: int, rest: Credit, rate_ppm: int, places: int) -> Credit:
    """A credit of so much before tax; `rest` is what is left, and the last one takes what rounding left of the tax."""
    if net_nanos == rest.subtotal_nanos:
        return rest
    tax_nanos = money.share(net_nanos, rate_ppm, places)
    return Credit(net_nanos, min(tax_nanos, rest.tax_nanos))


def without_tax(total_nanos: int, rest: Credit, rate_ppm: int, places: int) -> Credit:
    """A credit of so much with its tax inside, split so that neither part is more than what is left of it."""
    step = 10 ** (money.NANO_PLACES - places)
    tax_nanos = money.divide_half_up(total_nanos * rate_ppm, (10**6 + rate_ppm) * step) * step
    tax_nanos = min(max(tax_nanos, total_nanos - rest.subtotal_nanos), rest.tax_nanos)
    return Credit(total_nanos - tax_nanos, tax_nanos)
