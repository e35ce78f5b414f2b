"""Rate limits under threads that change places as often as they can: exactly as many as allowed."""

from __future__ import annotations

import threading

import pytest

from pyresil import MemoryLimiterStore, Policy, RateLimit, RateLimitedError
from pyresil._engine.limiters import Spec
from pyresil.testing import ManualClock
from tests.support.processes import wait_until
from tests.support.threads import together

THREADS = 8
ALGORITHMS = ["sliding-window", "fixed-window", "token-bucket", "gcra"]


def tried(call, admitted, times):
    """A work for `together` that tries so often and notes what was admitted."""

    def work(number):
        mine = 0
        for _ in range(times):
            try:
                call(int)
                mine += 1
            except RateLimitedError:
                pass
        admitted.append(mine)

    return work


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("shared", [False, True])
def test_exactly_as_many_as_the_limit_are_admitted(algorithm, shared):
    clock = ManualClock()
    store = MemoryLimiterStore(clock) if shared else None
    burst = 500 if algorithm in ("token-bucket", "gcra") else None
    limiter = RateLimit("500/h", name="api", algorithm=algorithm, burst=burst, store=store, clock=clock)
    admitted = []
    together(THREADS, tried(Policy(limiter).call, admitted, 150))
    assert sum(admitted) == 500


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_exactly_as_many_as_the_limit_are_admitted_in_each_partition(algorithm):
    clock = ManualClock()
    limiter = RateLimit(
        "50/h",
        algorithm=algorithm,
        burst=50 if algorithm in ("token-bucket", "gcra") else None,
        per=lambda ctx: ctx.args[0],
        clock=clock,
    )
    call = Policy(limiter).call
    counted = dict.fromkeys(range(5), 0)
    lock = threading.Lock()

    def work(number):
        for step in range(200):
            try:
                call(int, step % 5)
            except RateLimitedError:
                continue
            with lock:
                counted[step % 5] += 1

    together(THREADS, work)
    assert counted == dict.fromkeys(range(5), 50)


def test_a_sliding_window_loses_no_hit_while_its_segments_turn_and_hits_are_cancelled():
    state = Spec("sliding-window", 10_000_000, 1_000_000.0, 1, 100).state()
    ticks = iter(range(10**9))
    kept = []

    def work(number):
        mine = 0
        for step in range(1_000):
            now = next(ticks) * 40.0  # a segment is 10,000 s: all turn, none is dropped
            at = now
            if not state.take(2, now):
                at = state.hit(2, now, 0.0).at
            mine += 2
            if step % 4 == 0:
                state.cancel(at, 2, now)
                mine -= 2
        kept.append(mine)

    together(THREADS, work)
    # A hit may be noted a moment after another thread's later one, in an entry that its time does not lie in, and then
    # it cannot be found again: what is cancelled is given back or kept for used, never more.
    assert state.total >= sum(kept)
    assert state.total <= sum(kept) + THREADS * 250 * 2
    assert state.total == sum(entry[2] for entry in state._entries()[2])


@pytest.mark.parametrize("algorithm", ["sliding-window", "token-bucket"])
def test_those_who_wait_never_come_too_early(algorithm):
    clock = ManualClock()
    limiter = RateLimit("4/s", algorithm=algorithm, max_wait="1h", clock=clock)
    call = Policy(limiter, clock=clock).call
    times, lock = [], threading.Lock()

    def note():
        with lock:
            times.append(clock.elapsed)

    def everybody_is_somewhere():
        # Noted, or waiting: the clock must not move while somebody who was let in is on the way to note its time.
        return clock.parked + len(times) == 20

    threads = [threading.Thread(target=call, args=(note,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    wait_until(everybody_is_somewhere)
    for _ in range(20):
        clock.advance(0.25)
        wait_until(everybody_is_somewhere)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    times.sort()
    for first in range(len(times)):
        within = sum(1 for time in times if times[first] <= time < times[first] + 1.0)
        assert within <= (4 if algorithm == "sliding-window" else 8)
    assert limiter.stats().waiting == 0
