"""The adaptive limit against simulated dependencies whose latency depends on how many call them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyresil._engine.adaptive import HORIZON, LEAST, SLACK, AdaptiveLimit


class Dependency:
    """Serves `capacity` calls at once in `base` seconds; more share it, so latency grows in proportion."""

    def __init__(self, capacity, base=0.01, noise=0.0, seed=0):
        self.capacity, self.base, self.noise = capacity, base, noise
        self.random = random.Random(seed)

    def latency(self, active):
        return self.base * max(1, active / self.capacity) * (1 + self.noise * abs(self.random.gauss(0, 1)))

    def window(self, limit, demand=10**9):
        active = min(limit.limit, demand)
        limit.window([self.latency(active) for _ in range(max(LEAST, limit.limit))], active)
        return limit.limit


@pytest.mark.parametrize("noise", [0, 0.1])
@pytest.mark.parametrize("initial", [1, 10, 100, 500])
@pytest.mark.parametrize("capacity", [1, 3, 10, 50, 200])
def test_it_finds_the_capacity_from_below_and_from_above(capacity, initial, noise):
    limit, dependency = AdaptiveLimit(initial, 1, 1000, 1.5), Dependency(capacity, noise=noise)
    limits = [dependency.window(limit) for _ in range(300)][100:]
    typical = sorted(limits)[len(limits) // 2]
    assert 0.7 * capacity <= typical <= 1.2 * capacity + 1
    assert max(limits) <= 1.3 * capacity + 2


def test_it_is_not_raised_further_once_that_makes_it_slower():
    limit, dependency = AdaptiveLimit(8, 1, 1000, 1.5), Dependency(10)
    before = None
    for _ in range(200):
        was, latency = limit.limit, limit.latency
        dependency.window(limit)
        if before is not None and latency > before * (1 + SLACK):
            assert limit.limit <= was, "raised again although the last raise had made it slower"
        before = latency if limit.limit > was else None


def test_a_limit_that_is_not_used_up_is_not_raised():
    limit, dependency = AdaptiveLimit(10, 1, 1000, 1.5), Dependency(1000)
    assert {dependency.window(limit, demand=9) for _ in range(50)} == {10}


def test_it_falls_when_latency_leaves_the_tolerance_and_the_fall_helps():
    limit = AdaptiveLimit(40, 1, 40, 1.5)
    for _ in range(3):
        limit.window([0.1] * 40, 40)
    dependency = Dependency(10, base=0.1)
    for _ in range(20):
        dependency.window(limit)
    assert 8 <= limit.limit <= 15


def test_a_dependency_that_became_slower_for_good_is_learned_anew():
    limit, dependency = AdaptiveLimit(20, 1, 1000, 1.5), Dependency(20)
    for _ in range(100):
        dependency.window(limit)
    dependency.base *= 3
    limits = [dependency.window(limit) for _ in range(HORIZON)]
    assert 14 <= sorted(limits)[HORIZON // 2] <= 25
    assert limit.baseline == pytest.approx(0.03, rel=0.15)


def test_it_falls_by_half_at_the_most():
    limit = AdaptiveLimit(100, 1, 100, 1.5)
    limit.window([0.01] * 100, 1)
    limit.window([5.0] * 100, 1)
    assert limit.limit == 50


@given(
    st.integers(1, 20),
    st.integers(0, 50),
    st.integers(0, 50),
    st.lists(st.tuples(st.lists(st.floats(1e-6, 1e3), min_size=LEAST, max_size=40), st.integers(1, 200)), max_size=60),
)  # fmt: skip
def test_it_stays_within_its_bounds_whatever_comes(minimum, more, most, windows):
    maximum = minimum + more + most
    limit = AdaptiveLimit(minimum + more, minimum, maximum, 1.5)
    for latencies, peak in windows:
        limit.window(latencies, peak)
        assert minimum <= limit.limit <= maximum


def test_a_window_is_full_with_as_many_latencies_as_the_limit_admits():
    for initial, size in ((1, LEAST), (100, 100)):
        limit, applied = AdaptiveLimit(initial, 1, 1000, 1.5), []
        for number in range(1, 2 * size + 1):
            limit.record(0.1, 1, applied.append)
            assert len(applied) == number // size
        assert limit.latency == 0.1
        assert limit.baseline == 0.1
