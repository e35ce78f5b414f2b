"""A circuit breaker under threads that change places as often as they can: nothing is lost, nobody slips through."""

from __future__ import annotations

import itertools
import threading

import pytest

from pyresil import CircuitBreaker, CircuitOpenError, CircuitState, Policy, subscribe
from pyresil._engine.windows import FAILED, SLOW, Rules
from pyresil.testing import ManualClock
from tests.support.threads import together

THREADS = 8


def test_a_count_window_counts_exactly():
    window = Rules(100_000, None, 1, 1.0, 1.0).window()

    def work(number):
        for step in range(3_000):
            window.record((FAILED if step % 3 == 0 else 0) | (SLOW if step % 5 == 0 else 0), 0.0)

    together(THREADS, work)
    assert (window.calls, window.failures, window.slow) == (24_000, 8_000, 4_800)
    assert sum(window.ring) == 8_000 * FAILED + 4_800 * SLOW


def test_a_small_count_window_agrees_with_its_ring_after_many_rounds():
    window = Rules(7, None, 1, 1.0, 1.0).window()

    def work(number):
        for step in range(3_000):
            window.record((step * 7 + number) % 4, 0.0)

    together(THREADS, work)
    assert window.calls == 7
    assert window.failures == sum(1 for bits in window.ring if bits & FAILED)
    assert window.slow == sum(1 for bits in window.ring if bits & SLOW)


def test_a_time_window_loses_no_call_while_its_segments_turn():
    window = Rules(None, 1_000_000.0, 1, 1.0, 1.0).window()  # segments of 100,000 s: none is dropped
    ticks = iter(range(10**9))

    def work(number):
        for step in range(2_000):
            # Every thread runs through nine segments, so that they turn while others record.
            window.record(step % 4, next(ticks) * 50.0)

    together(THREADS, work)
    assert window.number == 7
    assert (window.calls, window.failures, window.slow) == (16_000, 8_000, 8_000)
    assert sum(segment[1] for segment in window.past) + window.own == 16_000


@pytest.mark.parametrize("window", [400_000, "7d"])
def test_calls_through_a_policy_are_counted_exactly(window):
    breaker = CircuitBreaker(window=window, minimum_calls=400_000)
    call = Policy(breaker).call

    def fail():
        raise OSError

    def work(number):
        for step in range(1_000):
            if step % 4 == 0:
                with pytest.raises(OSError):
                    call(fail)
            else:
                call(int)

    together(THREADS, work)
    assert breaker.stats()[1:3] == (8_000, 2_000)


def test_it_opens_once_however_many_threads_reach_the_rate():
    for _ in range(30):
        opened = []
        unsubscribe = subscribe(opened.append, ["circuit-opened"])
        breaker = CircuitBreaker(minimum_calls=1, window=50, name="api")
        call = Policy(breaker).call

        def fail():
            raise OSError

        def work(number, call=call, fail=fail):
            for _ in range(5):
                with pytest.raises((OSError, CircuitOpenError)):
                    call(fail)

        try:
            together(THREADS, work)
        finally:
            unsubscribe()
        assert len(opened) == 1
        assert breaker.stats().opened == 1


@pytest.mark.parametrize("permits", [1, 3])
def test_no_more_probes_than_permits_are_admitted_in_a_round(permits):
    clock = ManualClock()
    for _ in range(20):
        breaker = CircuitBreaker(half_open_calls=permits, clock=clock)
        call = Policy(breaker).call
        breaker.trip()
        clock.advance(30)
        inside, rejected, go = [], [], threading.Event()

        def probe(inside=inside, go=go):
            inside.append(1)
            go.wait(10)

        def work(number, call=call, probe=probe, rejected=rejected, go=go):
            try:
                call(probe)
            except CircuitOpenError:
                rejected.append(1)
                if len(rejected) == THREADS - permits:
                    go.set()

        together(THREADS, work)
        assert (len(inside), len(rejected)) == (permits, THREADS - permits)
        assert breaker.state is CircuitState.CLOSED


def test_permits_of_probes_that_end_unjudged_all_come_back():
    clock = ManualClock()
    breaker = CircuitBreaker(half_open_calls=3, clock=clock)
    call = Policy(breaker).call
    breaker.trip()
    clock.advance(30)

    def interrupted():
        raise GeneratorExit

    def work(number):
        for _ in range(300):
            with pytest.raises((GeneratorExit, CircuitOpenError)):
                call(interrupted)

    together(THREADS, work)
    assert breaker.state is CircuitState.HALF_OPEN
    turn = breaker._circuit.round
    assert (turn.free, turn.probes) == (3, {})


def test_states_set_by_many_threads_follow_one_another_for_every_listener():
    breaker = CircuitBreaker()
    seen = []
    unsubscribe = subscribe(seen.append, ["circuit-opened", "circuit-closed", "circuit-isolated"])

    def work(number):
        for _ in range(100):
            (breaker.trip, breaker.reset, breaker.isolate)[number % 3]()

    try:
        together(THREADS, work)
    finally:
        unsubscribe()
    assert seen[0].from_state is CircuitState.CLOSED
    for before, after in itertools.pairwise(seen):
        assert after.from_state is before.to_state
    assert seen[-1].to_state is breaker.state
