"""Money as integers of nano-units (10^-9 of a currency), and the one place where it is rounded."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from billing.phrases import phrase as _

NANOS = 10**9
"""Nano-units in one unit of a currency."""

NANO_PLACES = 9

MAX_NANOS = 2**63 - 1
"""What a column of the database holds: the bound of every amount that is entered."""

UNUSUAL_PLACES = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
TWO_PLACES = """
    AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CNY COP CRC CUP CVE
    CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR
    KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD PAB
    PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY
    TTD TWD TZS UAH USD UYU UZS VES WST XCD YER ZAR ZMW ZWG
"""
PLACES = {code: places for places, codes in {2: TWO_PLACES, **UNUSUAL_PLACES}.items() for code in codes.split()}
"""The currencies of ISO 4217 (list one) and their minor units."""

MAX_DIGITS = 30
"""Larger exponents in an amount are a mistake, or an attack on our memory."""


def is_currency(code: str) -> bool:
    """Whether this is a currency of ISO 4217, in capitals."""
    return code in PLACES


def currency_places(code: str) -> int:
    """How many decimal places amounts of a currency have; 2 where nothing else is known."""
    return PLACES.get(code, 2)


def to_decimal(nanos: int) -> Decimal:
    """The amount in units of the currency, exact, with nine places."""
    return Decimal(nanos).scaleb(-NANO_PLACES)


def show(nanos: int, places: int = NANO_PLACES) -> str:
    """`0.001630000`: fixed places, no separators, no exponent. Fewer places than nine round as an invoice line does."""
    rounded = round_to_places(nanos, places)
    whole, rest = divmod(abs(rounded), NANOS)
    sign = "-" if rounded < 0 else ""
    return f"{sign}{whole}.{rest:09d}"[: -(NANO_PLACES - places) or None].rstrip(".")


def parse(value: str | int | Decimal) -> int:
    """Units of a currency as nanos. ValueError, saying what to do, for whatever is not exact in nine places."""
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise ValueError(
            _("%(value)s is not an exact amount: write it as text or as a Decimal, never as a float", value=repr(value))
        )
    try:
        amount = Decimal(value)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or abs(amount.adjusted()) > MAX_DIGITS:
        raise ValueError(
            _("%(value)s is not an amount: write it as a plain number, for example 0.25", value=repr(value))
        )
    numerator, denominator = amount.as_integer_ratio()
    nanos, rest = divmod(numerator * NANOS, denominator)
    if rest:
        raise ValueError(_("%(value)s has more than nine decimal places: round it to nine or fewer", value=value))
    return nanos


def divide_half_even(numerator: int, denominator: int) -> int:
    """The quotient as an integer, halves to the even neighbour. The denominator is positive."""
    quotient, rest = divmod(numerator, denominator)
    beyond_half = 2 * rest - denominator
    return quotient + (beyond_half > 0 or (beyond_half == 0 and quotient % 2 == 1))


def divide_half_up(numerator: int, denominator: int) -> int:
    """The quotient as an integer, halves away from zero (decimal.ROUND_HALF_UP). The denominator is positive."""
    quotient = (2 * abs(numerator) + denominator) // (2 * denominator)
    return -quotient if numerator < 0 else quotient


def round_to_places(nanos: int, places: int) -> int:
    """Nanos that are whole in so many decimal places, halves away from zero."""
    step: int = 10 ** (NANO_PLACES - places)
    return divide_half_up(nanos, step) * step


def share(nanos: int, ppm: int, places: int) -> int:
    """So many millionths of an amount (a tax), rounded once, to whole nanos in so many decimal places."""
    step: int = 10 ** (NANO_PLACES - places)
    return divide_half_up(nanos * ppm, 10**6 * step) * step
