"""Durations and rates as people write them.

A duration is a number of seconds, a ``timedelta``, or a string with one unit: ``"250ms"``, ``"1.5s"``, ``"2m"``,
``"24h"``, ``"7d"``. A rate is ``"100/minute"``, ``"5/s"``, ``"3/10s"``, ``"0.5/s"`` or a pair ``(permits, window)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pyresil.errors import shown

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = ["Duration", "Rate", "RateLike", "parse_rate", "seconds"]

Duration: TypeAlias = "float | str | timedelta"
RateLike: TypeAlias = "str | tuple[float, Duration] | Rate"

#: The longest duration that is accepted, in seconds (a hundred years): every timeout call of the platform can take it.
LONGEST = 100 * 366 * 86400.0

#: The most permits of a rate.
_MOST = 1e12

FORMS = 'seconds, a timedelta, or a string such as "250ms", "1.5s", "2m", "24h", "7d"'
RATE_FORMS = '"100/minute", "5/s", "3/10s", or a pair (permits, window)'

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WINDOWS = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), 86400.0),
}
_DIGITS = frozenset("0123456789.")


class Rate(NamedTuple):
    """So many permits in a window of so many seconds; both above 0, permits whole."""

    permits: int
    window: float


def _decimal(text: str) -> float | None:
    """A plain decimal number without sign, exponent or separators, or None."""
    if not text or not _DIGITS.issuperset(text) or text.count(".") > 1 or text == ".":
        return None
    return float(text)


def seconds(value: Duration, minimum: float = 0.0, *, open_low: bool = False) -> float:
    """Turn a duration into seconds.

    Args:
        value: Seconds (int or float), a ``timedelta``, or a string with one unit (us, ms, s, m, h, d).
        minimum: The least that is accepted, in seconds; itself excluded with ``open_low``.
        open_low: See ``minimum``.

    Returns:
        A finite float from ``minimum`` to 100 years.

    Raises:
        ValueError: It is none of these, a bool, not finite, less than ``minimum``, or longer than 100 years.
    """
    result: float | None = None
    if isinstance(value, str):
        text = value.strip()
        for unit, factor in _UNITS.items():
            if text.endswith(unit):
                number = _decimal(text[: -len(unit)].rstrip())
                if number is not None:
                    result = number * factor
                    break
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            result = float(value)
        except OverflowError:
            result = None
    elif hasattr(value, "total_seconds"):
        try:
            result = float(value.total_seconds())
        except (TypeError, ValueError):  # the class itself, or something else with such a name
            result = None
    # The comparison is also what refuses NaN.
    if result is None or not minimum <= result <= LONGEST or (open_low and result == minimum):
        least = (
            f"above {minimum:g}" if open_low else f"of at least {minimum:g} s" if minimum else "of 0 or more"
        )
        if result is None or not result >= 0.0:
            least += f" ({FORMS})"
        elif result > LONGEST:
            least += " and at most 100 years"
        raise ValueError(f"must be a duration {least}, got {shown(value)}")
    return result


def parse_rate(value: RateLike) -> Rate:
    """Turn a rate into whole permits and a window in seconds.

    A fraction of a permit lengthens the window: ``"0.5/s"`` is 1 in 2 seconds.

    Args:
        value: ``"permits/window"`` with a window such as ``second``, ``min``, ``h``, ``10s``; or ``(permits, window)``.

    Returns:
        The `Rate`.

    Raises:
        ValueError: It does not parse, or permits or window are not above 0 and finite.
    """
    permits: float | None = None
    window: float | None = None
    if isinstance(value, str):
        left, slash, right = (part.strip() for part in value.partition("/"))
        permits = _decimal(left) if slash else None
        window = _WINDOWS.get(right)
        if window is None:
            window = _seconds_or_none(right)
    elif isinstance(value, tuple) and len(value) == 2:  # type: ignore[redundant-expr]  # what callers really pass
        first: object = value[0]
        if isinstance(first, (int, float)) and not isinstance(first, bool):
            permits = float(first) if first <= _MOST else None
        window = _seconds_or_none(value[1])
    if permits is None or window is None or not 0.0 < permits <= _MOST or not window > 0.0:
        raise ValueError(f"must be a rate above 0 ({RATE_FORMS}), got {shown(value)}")
    if permits == int(permits):
        return Rate(int(permits), window)
    from fractions import Fraction

    exact = Fraction(permits).limit_denominator(1000)
    if exact <= 0:
        raise ValueError(f"must be a rate of at least 1 permit in 1000 windows, got {shown(value)}")
    return Rate(exact.numerator, window * exact.denominator)


def _seconds_or_none(value: Duration) -> float | None:
    try:
        return seconds(value)
    except ValueError:
        return None
