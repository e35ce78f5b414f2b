"""Rejections: what a caller pays to be told no. The exception is raised and caught."""

from __future__ import annotations

import threading

from benchmarks.model import Contender, Row, need, ours
from benchmarks.rows.calls import work


def rejecting(function, error):
    """The operation: call, and catch the rejection; anything else is a mistake of the benchmark."""

    def operation():
        try:
            function()
        except error:
            return
        raise RuntimeError("the call was admitted")

    return operation


def fail():
    raise ConnectionError("down")


def trip(call, error, times=12):
    """Lets enough calls fail."""
    for _ in range(times):
        try:
            call(fail)
        except (ConnectionError, error):
            pass


def our_open_breaker(form):
    def make():
        breaker = ours.CircuitBreaker(open_for="1h")
        policy = ours.Policy(breaker, name="bench")
        breaker.trip()
        error = ours.CircuitOpenError
        if form == "decorator":
            return rejecting(policy(work), error)
        return rejecting(lambda: policy.call(work), error)

    return make


def nopanic_open():
    n = need("nopanic")
    breaker = n.circuit_breaker(min_calls=10, reset_timeout=3600)
    breaker.force_open()
    return rejecting(breaker(work), n.CircuitOpen)


def circuitbreaker_open():
    c = need("circuitbreaker")
    breaker = c.CircuitBreaker(failure_threshold=10, recovery_timeout=3600, name="open")
    trip(breaker.call, c.CircuitBreakerError)
    return rejecting(breaker(work), c.CircuitBreakerError)


def pybreaker_open():
    p = need("pybreaker")
    breaker = p.CircuitBreaker(fail_max=10, reset_timeout=3600)
    breaker.open()
    return rejecting(breaker(work), p.CircuitBreakerError)


def interlock_open():
    i = need("interlock")
    breaker = i.CircuitBreaker(
        name="open", config=i.Config(minimum_number_of_calls=10, wait_duration_in_open=3600)
    )
    trip(breaker.call, i.CircuitOpenError)
    return rejecting(breaker(work), i.CircuitOpenError)


OPEN = Row(
    "rejection: breaker open",
    "The breaker is open for an hour.",
    (
        Contender("pyresil (decorator)", our_open_breaker("decorator")),
        Contender("pyresil (call)", our_open_breaker("call")),
        Contender("circuitbreaker", circuitbreaker_open),
        Contender("pybreaker", pybreaker_open),
        Contender("nopanic", nopanic_open),
        Contender("interlock", interlock_open),
    ),
)


def occupied(decorate, error):
    """One slot, taken for the whole measurement by a thread that waits."""
    taken = threading.Event()

    def occupy():
        taken.set()
        threading.Event().wait()

    threading.Thread(target=decorate(occupy), daemon=True).start()
    if not taken.wait(5):
        raise RuntimeError("nobody took the slot")
    return rejecting(decorate(work), error)


def our_full_bulkhead():
    policy = ours.Policy(ours.Bulkhead(max_concurrent=1), name="bench")
    return occupied(policy, ours.BulkheadFullError)


def nopanic_full():
    n = need("nopanic")
    return occupied(n.bulkhead(1, max_wait=0), n.BulkheadFull)


def grit_full():
    g = need("grit")
    return occupied(g.bulkhead(1), need("grit.exceptions").BulkheadFull)


def interlock_full():
    i = need("interlock")
    return occupied(i.Pipeline.builder().bulkhead(1).build(), i.BulkheadFullError)


FULL = Row(
    "rejection: bulkhead full",
    "One slot, which is taken; no queue.",
    (
        Contender("pyresil (decorator)", our_full_bulkhead),
        Contender("grit", grit_full),
        Contender("nopanic", nopanic_full),
        Contender("interlock", interlock_full),
    ),
)

ROWS = (OPEN, FULL)
