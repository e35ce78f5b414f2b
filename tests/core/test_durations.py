"""Durations and rates."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyresil.durations import LONGEST, Rate, parse_rate, seconds


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, 0.0),
        (0.25, 0.25),
        (3, 3.0),
        ("250ms", 0.25),
        ("1.5s", 1.5),
        (" 2m ", 120.0),
        ("24h", 86400.0),
        ("7d", 604800.0),
        ("10us", 1e-5),
        ("5 s", 5.0),
        (".5s", 0.5),
        (timedelta(milliseconds=200), 0.2),
        (LONGEST, LONGEST),
    ],
)
def test_durations(given, expected):
    assert seconds(given) == pytest.approx(expected)


class Loud:
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    "value",
    [True, False, None, -1, -0.001, float("nan"), float("inf"), -float("inf"), 10**400, -(10**5000), "", "s", "5",
     "5 x", "1e3s", "-5s", "+5s", "nans", "infs", "1_000s", "1.2.3s", "٣s", ".s", "1s 500ms", "0x10s", b"5s", [5], object(),
     Loud(), timedelta(seconds=-1), timedelta, "9" * 400 + "s", LONGEST + 1, 1 + 0j],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_refused_durations(value):
    with pytest.raises(ValueError, match=r"must be a duration of 0 or more .*, got "):
        seconds(value)


@pytest.mark.parametrize(
    ("value", "bounds", "text"),
    [
        (-1, {}, r"must be a duration of 0 or more \(seconds, .*\), got -1"),
        (0, {"open_low": True}, "must be a duration above 0, got 0"),
        (-1, {"open_low": True}, r"must be a duration above 0 \(seconds, .*\), got -1"),
        ("1ms", {"minimum": 0.5}, "must be a duration of at least 0.5 s, got '1ms'"),
        ("x", {"minimum": 0.5}, r"must be a duration of at least 0.5 s \(seconds, .*\), got 'x'"),
        ("99999d", {}, "must be a duration of 0 or more and at most 100 years, got '99999d'"),
        (float("inf"), {"open_low": True}, "must be a duration above 0 and at most 100 years, got inf"),
    ],
)
def test_the_text_names_the_bound_that_was_broken(value, bounds, text):
    with pytest.raises(ValueError, match=f"^{text}$"):
        seconds(value, **bounds)


@given(st.floats(0, 1e6))
def test_any_number_of_milliseconds(number):
    assert seconds(f"{number:.6f}ms") == pytest.approx(number / 1000, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("100/minute", Rate(100, 60.0)),
        ("5/s", Rate(5, 1.0)),
        ("3/10s", Rate(3, 10.0)),
        ("0.5/s", Rate(1, 2.0)),
        ("1.5/second", Rate(3, 2.0)),
        ("10 / h", Rate(10, 3600.0)),
        ("1/day", Rate(1, 86400.0)),
        ((10, "1m"), Rate(10, 60.0)),
        ((10, timedelta(seconds=5)), Rate(10, 5.0)),
        ((0.25, 1), Rate(1, 4.0)),
        (Rate(3, 10.0), Rate(3, 10.0)),
    ],
)
def test_rates(given, expected):
    assert parse_rate(given) == expected


@pytest.mark.parametrize(
    "value",
    ["", "5", "/s", "5/", "5/x", "0/s", "-1/s", "nan/s", "inf/s", "5/0s", "5/s/s", (1,), (1, 2, 3), (True, 1), (1, True),
     (0, 1), (-1, 1), (float("nan"), 1), (float("inf"), 1), (10**400, 1), (1, 0), (1, "x"), None, 5, 5.0, [1, 1], "1e3/s",
     (1e-9, 1)],
    ids=repr,
)  # fmt: skip
def test_refused_rates(value):
    with pytest.raises(ValueError, match="must be a rate"):
        parse_rate(value)


@given(st.integers(1, 10**6), st.integers(1, 1000))
def test_a_fraction_of_a_permit_keeps_the_rate(numerator, denominator):
    exact = Fraction(numerator, denominator)
    rate = parse_rate((float(exact), 1))
    assert rate.permits / rate.window == pytest.approx(float(exact), rel=1e-3)
