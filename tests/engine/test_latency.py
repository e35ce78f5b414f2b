"""Percentiles of late latencies against the definition."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pyresil._engine.latency import ENOUGH, SIZE, Latencies


def nearest_rank(values, percentile):
    return sorted(values)[max(0, math.ceil(percentile / 100 * len(values)) - 1)]


@given(
    st.lists(st.floats(0, 1e6), min_size=ENOUGH, max_size=600),
    st.floats(1, 99.9),
)
def test_a_fresh_percentile_is_that_of_the_last_observations(values, percentile):
    latencies = Latencies(percentile)
    for value in values:
        latencies.record(value)
    assert latencies.value() == nearest_rank(values[-SIZE:], percentile)


def test_there_is_none_before_there_are_enough():
    latencies = Latencies(50.0)
    for _ in range(ENOUGH - 1):
        latencies.record(1.0)
    assert latencies.value() is None
    latencies.record(1.0)
    assert latencies.value() == 1.0


def test_it_follows_what_changes():
    latencies = Latencies(95.0)
    for _ in range(SIZE):
        latencies.record(0.1)
        latencies.value()
    assert latencies.value() == 0.1
    for _ in range(SIZE):
        latencies.record(2.0)
        latencies.value()
        assert latencies.value() in (0.1, 2.0)
    assert latencies.value() == 2.0
