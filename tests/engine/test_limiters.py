"""The algorithms of a rate limit: what each promises, against a brute-force look at every admission."""

from __future__ import annotations

import copy

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyresil._engine.limiters import Spec
from tests.support.depth import times

#: Rounding of sums of floats, in seconds and in permits.
EPSILON = 1e-6

steps = st.lists(
    st.tuples(
        st.one_of(
            st.just(0.0), st.sampled_from([0.25, 0.5, 1.0, 5.0]), st.floats(0.0, 12.0)
        ),  # time between hits
        st.integers(1, 3),  # weight
        st.sampled_from([0.0, 0.0, 1.0, 7.5, 30.0]),  # the longest wait
        st.integers(0, 5),  # 0: cancel an earlier one
    ),
    max_size=60,
)

specs = st.builds(
    lambda algorithm, permits, window, burst, segments: Spec(
        algorithm, permits, window, permits if "window" in algorithm else max(burst, 3), segments
    ),
    st.sampled_from(["sliding-window", "fixed-window", "token-bucket", "gcra"]),
    st.integers(3, 12),
    st.sampled_from([1.0, 7.0, 10.0, 0.3]),
    st.integers(1, 12),
    st.sampled_from([1, 2, 10, 37]),
)


def run(spec, steps, begin, phase=0.0):
    """Play the steps; the admissions that stood, as (time, weight)."""
    state = spec.state(phase)
    now, admitted = begin, []
    for pause, weight, max_wait, luck in steps:
        now += pause
        if luck == 0 and admitted:
            at, weight = admitted.pop(int(pause * 100) % len(admitted))
            state.cancel(at, weight, now)
            continue
        if state.take(weight, now):
            admitted.append((now, weight))
            continue
        verdict = state.hit(weight, now, max_wait)
        assert verdict.at >= now
        assert verdict.wait == verdict.at - now
        assert verdict.allowed == (verdict.wait <= max_wait)
        assert verdict.remaining >= 0
        if verdict.allowed:
            admitted.append((verdict.at, weight))
        else:
            # The wait is the least: a moment before it is refused, at its end admitted.
            early = now + verdict.wait * 0.999
            assert early == verdict.at or not copy.deepcopy(state).hit(weight, early, 0.0).allowed
    return admitted


def most_in(admitted, window, end=None):
    """The most permits in any half-open window of this length."""
    admitted = sorted(admitted)
    return max(
        (
            sum(weight for at, weight in admitted if begin <= at < begin + window - EPSILON)
            for begin, _ in admitted
        ),
        default=0,
    )


def window_of(at, window):
    """The number of the window that a time is in; its start may be rounded into the one before."""
    nearest = round(at / window)
    return nearest if at == nearest * window else at // window


@settings(max_examples=times(150))
@example(Spec("fixed-window", 3, 1.0, 3, 1), [(1.9999999999999982, 1, 0.0, 1), (0.0, 3, 0.0, 1)], 0.0)
@example(Spec("fixed-window", 3, 1.0, 3, 1), [(1.9999999999999982, 1, 0.0, 1), (0.0, 3, 1.0, 1)], 0.0)
@given(spec=specs, steps=steps, begin=st.sampled_from([0.0, 1000.0, 12345.678]))
def test_each_algorithm_keeps_its_promise(spec, steps, begin):
    admitted = run(spec, steps, begin)
    if spec.algorithm == "sliding-window":
        assert most_in(admitted, spec.window) <= spec.permits
    elif spec.algorithm == "fixed-window":
        for number in {window_of(at, spec.window) for at, _ in admitted}:
            assert sum(w for at, w in admitted if window_of(at, spec.window) == number) <= spec.permits
    else:
        admitted.sort()
        for first in range(len(admitted)):
            taken = 0
            for at, weight in admitted[first:]:
                taken += weight
                allowed = spec.burst + (at - admitted[first][0]) * spec.permits / spec.window
                assert taken <= allowed + EPSILON


@settings(max_examples=times(100))
@given(permits=st.integers(1, 9), steps=st.lists(st.floats(0.0, 3.0), max_size=60))
def test_smooth_with_a_burst_of_one_never_admits_more_than_the_limit_in_a_window(permits, steps):
    spec = Spec("gcra", permits, 7.0, 1)
    admitted = run(spec, [(pause, 1, 0.0, 1) for pause in steps], 1000.0)
    assert most_in(admitted, 7.0) <= permits


@pytest.mark.parametrize("algorithm", ["sliding-window", "fixed-window", "token-bucket", "gcra"])
@pytest.mark.parametrize("window", [1.0, 60.0, 49.0, 3600.0, 0.1])
@pytest.mark.parametrize("permits", [1, 3, 7, 100])
def test_what_is_refused_is_admitted_after_the_time_it_was_told(algorithm, window, permits):
    spec = Spec(algorithm, permits, window, 1 if algorithm == "gcra" else permits)
    state = spec.state()
    now = 1000.0
    for _ in range(permits * 3):
        verdict = state.hit(1, now, 0.0)
        if not verdict.allowed:
            assert 0.0 < verdict.wait <= window * 1.0000001
            now += verdict.wait
            assert state.take(1, now) or state.hit(1, now, 0.0).allowed


@settings(max_examples=times(100))
@given(spec=specs, weights=st.lists(st.integers(1, 3), max_size=30))
def test_who_waits_is_served_in_the_order_of_asking(spec, weights):
    state = spec.state()
    served = [state.hit(weight, 1000.0, 1e9).at for weight in weights]
    assert served == sorted(served)


@settings(max_examples=times(100))
@given(spec=specs, before=st.integers(0, 12), weight=st.integers(1, 3))
def test_cancelling_the_latest_leaves_things_as_they_were(spec, before, weight):
    twin, state = spec.state(), spec.state()
    for _ in range(before):
        for one in (twin, state):
            one.hit(1, 1000.0, 1e9)
    reserved = state.hit(weight, 1000.0, 1e9)
    state.cancel(reserved.at, weight, 1000.0)
    if spec.algorithm == "fixed-window":
        return  # what stood at the border of a window may be lost: see its own test
    after, same = state.hit(weight, 1000.0, 1e9), twin.hit(weight, 1000.0, 1e9)
    assert after.at == pytest.approx(same.at, abs=EPSILON)
    assert state.remaining(1000.0) == twin.remaining(1000.0)


def test_a_cancelled_hit_gives_its_permits_back_where_its_thread_read_the_clock_first_and_came_second():
    state = Spec("sliding-window", 10, 60.0, 10).state()
    assert state.hit(1, 1000.5, 0.0).allowed
    early = state.hit(3, 1000.25, 0.0)
    assert state.remaining(1000.5) == 6
    state.cancel(early.at, 3, 1000.5)
    assert state.remaining(1000.5) == 9


def test_a_cancelled_hit_of_a_fixed_window_gives_its_permits_back():
    state = Spec("fixed-window", 3, 60.0, 3).state()
    at = state.hit(3, 120.0, 0.0).at
    assert not state.take(1, 121.0)
    state.cancel(at, 3, 122.0)
    assert state.take(3, 123.0)


def test_a_fixed_window_begins_at_the_second_zero_of_the_clock():
    state = Spec("fixed-window", 1, 60.0, 1).state(phase=20.0)  # at 1,000 its clock shows 17:00
    assert state.hit(1, 1_010.0, 0.0).allowed
    assert state.hit(1, 1_015.0, 0.0).wait == 45.0
    assert not state.hit(1, 1_059.0, 0.0).allowed
    assert state.hit(1, 1_060.0, 0.0).allowed


def test_a_sliding_window_that_was_filled_at_once_is_free_again_after_exactly_a_window():
    state = Spec("sliding-window", 100, 60.0, 100).state()
    assert all(state.hit(1, 1000.0, 0.0).allowed for _ in range(100))
    assert state.hit(1, 1000.0, 0.0).wait == 60.0
    assert not state.hit(1, 1059.999, 0.0).allowed
    assert all(state.hit(1, 1060.0, 0.0).allowed for _ in range(100))


def test_a_sliding_window_keeps_few_entries():
    state = Spec("sliding-window", 1_000_000, 60.0, 1_000_000).state()
    for step in range(10_000):
        now = 1000.0 + step * 0.05
        assert state.take(1, now) or state.hit(1, now, 0.0).allowed
        assert len(state.past) <= 11


@settings(max_examples=times(50))
@given(spec=specs)
def test_draining_leaves_nothing(spec):
    state = spec.state()
    state.hit(1, 1000.0, 0.0)
    state.drain(1000.0)
    assert state.remaining(1000.0) == 0
    assert not state.take(1, 1000.0)
    assert not state.is_idle(1000.0)
    assert state.is_idle(1e6)
    assert state.hit(1, 1e6, 0.0).allowed


def test_a_hit_for_the_next_fixed_window_can_be_cancelled_whatever_the_rounding():
    for second in range(100):
        now = second / 10 + 0.05
        state = Spec("fixed-window", 1, 0.1, 1).state()
        assert state.hit(1, now, 0.0).allowed
        later = state.hit(1, now, 1.0)
        state.cancel(later.at, 1, now)
        assert state.hit(1, now, 1.0).at == later.at
