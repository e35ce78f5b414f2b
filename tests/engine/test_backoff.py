"""Back-off formulas."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyresil import Constant, Decorrelated, Exponential, Linear, Retry
from pyresil.durations import LONGEST

draws = st.floats(0, 1, exclude_max=True)
lengths = st.floats(0, 1e7)
attempts = st.integers(1, 10**6)
jitters = st.sampled_from(["full", "equal", "none", "100ms", 0, 1000])


def none(backoff, *attempts):
    return [backoff.seconds_after(attempt, lambda: 0.5) for attempt in attempts]


def test_formulas():
    assert none(Exponential(1, factor=2, cap=10, jitter="none"), 1, 2, 3, 4, 5, 99) == [1, 2, 4, 8, 10, 10]
    assert none(Exponential("200ms", factor=1, cap=1, jitter="none"), 1, 50) == [0.2, 0.2]
    assert none(Constant("3s"), 1, 2, 99) == [3, 3, 3]
    assert none(Constant("3s", cap="2s"), 1) == [2]
    assert none(Linear(1, 2, cap=6), 1, 2, 3, 4, 99) == [1, 3, 5, 6, 6]
    assert none(Linear("500ms"), 1, 2, 3) == [0.5, 1.0, 1.5]


def test_jitter():
    for jitter, low, high in (
        ("full", 0, 8),
        ("equal", 4, 8),
        ("none", 8, 8),
        (2, 6, 10),
        ("500ms", 7.5, 8.5),
    ):
        backoff = Constant(8, jitter=jitter)
        assert backoff.seconds_after(1, lambda: 0.0) == low
        assert backoff.seconds_after(1, lambda: 1 - 2**-53) == pytest.approx(high)


def test_decorrelated_goes_from_the_base_to_three_times_the_one_before():
    backoff = Decorrelated(1, cap=20)
    assert backoff.seconds_after(1, lambda: 0.0) == 1
    assert backoff.seconds_after(1, lambda: 1.0) == 3
    assert backoff.seconds_after(2, lambda: 1.0, 2.0) == 6
    assert backoff.seconds_after(3, lambda: 1.0, 19.0) == 20
    assert backoff.seconds_after(3, lambda: 0.0, 19.0) == 1


@given(lengths, st.floats(1, 1e300), lengths, jitters, attempts, draws)
def test_exponential_is_finite_and_within_its_cap(delay, factor, cap, jitter, attempt, draw):
    value = Exponential(delay, factor=factor, cap=cap, jitter=jitter).seconds_after(attempt, lambda: draw)
    assert 0 <= value <= cap


@given(lengths, lengths, lengths, jitters, attempts, draws)
def test_linear_is_finite_and_within_its_cap(delay, step, cap, jitter, attempt, draw):
    value = Linear(delay, step, cap=cap, jitter=jitter).seconds_after(attempt, lambda: draw)
    assert 0 <= value <= cap


@given(lengths, jitters, draws)
def test_constant_is_finite_and_within_its_cap(delay, jitter, draw):
    backoff = Constant(delay, jitter=jitter)
    assert 0 <= backoff.seconds_after(1, lambda: draw) <= backoff.cap <= LONGEST


@given(lengths, lengths, attempts, st.none() | lengths, draws)
def test_decorrelated_is_finite_and_within_its_cap(base, cap, attempt, previous, draw):
    value = Decorrelated(base, cap=cap).seconds_after(attempt, lambda: draw, previous)
    assert min(base, cap) <= value <= cap


def test_called_as_a_function():
    for backoff in (Exponential(), Constant(1), Linear(1), Decorrelated()):
        for attempt in (1, 5, 100):
            assert 0 <= backoff(attempt, None) <= backoff.cap
            assert math.isfinite(backoff(attempt))


def test_values():
    assert Exponential() == Exponential("200ms", 2, "30s", "full")
    assert Exponential() != Exponential(1)
    assert Constant(1) != Linear(1)
    assert hash(Linear(1)) == hash(Linear("1s"))
    assert repr(Decorrelated("200ms")) == "Decorrelated(base=0.2, cap=30.0)"
    assert Linear(1).describe() == {
        "backoff": "linear",
        "delay": 1.0,
        "step": 1.0,
        "cap": 30.0,
        "jitter": "none",
    }


def test_a_retry_gives_decorrelated_the_delay_before():
    seen = []

    class Spy(Decorrelated):
        def seconds_after(self, attempt, draw, previous=None):
            seen.append((attempt, previous))
            return 0.25 * attempt

    from pyresil import Policy
    from pyresil.testing import InstantClock
    from tests.core.helpers import Flaky

    Policy(Retry(4, Spy()), clock=InstantClock()).settle(Flaky(*[ValueError] * 9))
    assert seen == [(1, None), (2, 0.25), (3, 0.5)]


@pytest.mark.parametrize("attempt", [1025, 10**6, 10**400], ids=["1025", "a million", "beyond floats"])
def test_numbers_of_attempts_beyond_every_float(attempt):
    for backoff in (Exponential(1, factor=1e308), Linear(1, 2), Decorrelated(1), Constant(1)):
        assert 0.0 <= backoff(attempt) <= backoff.cap
    assert Decorrelated(0).seconds_after(attempt, lambda: 0.5) == 0.0
