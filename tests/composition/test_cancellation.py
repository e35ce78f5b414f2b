"""The exception that an execution was cancelled with is a cancellation: it is not retried, counted, or replaced."""

from __future__ import annotations

import pytest

from pyresil import (
    CancelToken,
    CircuitBreaker,
    CircuitState,
    Constant,
    Fallback,
    Lock,
    LockLostError,
    MemoryLockStore,
    Policy,
    Retry,
    Timeout,
    current_context,
)
from pyresil.testing import ManualClock, record_events
from tests.support.processes import wait_until


class ShuttingDown(Exception):
    pass


def cancelled(token, reason):
    def work():
        token.cancel(reason)
        current_context().cancel.raise_if_cancelled()

    return work


def test_the_callers_reason_passes_every_strategy():
    token, reason = CancelToken(), ShuttingDown()
    breaker = CircuitBreaker(minimum_calls=1)
    policy = Policy(Fallback("never"), Retry(3, backoff=Constant(0)), breaker, Timeout("10s"))
    with (
        record_events(["retry", "fallback", "circuit-opened"]) as events,
        pytest.raises(ShuttingDown) as caught,
    ):
        policy.options(cancel=token).call(cancelled(token, reason))
    assert caught.value is reason
    assert not getattr(reason, "__notes__", None)
    assert events == []
    assert breaker.stats().calls == 0


def test_in_a_block_it_is_not_counted():
    token, reason = CancelToken(), ShuttingDown()
    breaker = CircuitBreaker(minimum_calls=1)
    with pytest.raises(ShuttingDown), Policy(breaker).execute(cancel=token):
        cancelled(token, reason)()
    assert breaker.stats().calls == 0


def test_a_probe_that_is_cancelled_gives_its_permit_back():
    clock, token = ManualClock(), CancelToken()
    breaker = CircuitBreaker(minimum_calls=1, clock=clock)
    policy = Policy(breaker)
    breaker.trip()
    clock.advance("30s")
    with pytest.raises(ShuttingDown):
        policy.options(cancel=token).call(cancelled(token, ShuttingDown()))
    assert breaker.state is CircuitState.HALF_OPEN
    assert policy.call(lambda: 1) == 1
    assert breaker.state is CircuitState.CLOSED


def test_an_error_of_the_same_type_without_a_cancel_is_a_failure():
    def work():
        current_context().cancel.is_set()
        raise ShuttingDown

    breaker = CircuitBreaker(minimum_calls=2)
    policy = Policy(Fallback("instead"), Retry(2, backoff=Constant(0)), breaker)
    assert policy.options(cancel=CancelToken()).call(work) == "instead"
    assert breaker.stats().failures == 2


def test_handle_decides_by_itself():
    token = CancelToken()
    breaker = CircuitBreaker(minimum_calls=1, handle=ShuttingDown)
    policy = Policy(Fallback("instead", handle=ShuttingDown), breaker)
    assert policy.options(cancel=token).call(cancelled(token, ShuttingDown())) == "instead"
    assert breaker.state is CircuitState.OPEN


def test_a_lost_lease_does_not_count_against_the_dependency():
    clock = ManualClock()
    store = MemoryLockStore(clock)
    breaker = CircuitBreaker(minimum_calls=1)

    def work():
        token = current_context().cancel
        store.force_release("export")
        store.acquire("export", "somebody", 60_000)
        clock.advance("11s")
        wait_until(token.is_set)
        token.raise_if_cancelled()

    policy = Policy(
        Fallback("instead"), Lock("export", store=store), Retry(3, backoff=Constant(0)), breaker, clock=clock
    )
    with record_events("fallback") as events:
        assert policy.call(work) == "instead"  # outside the lock it is the failure of what is inside
    assert isinstance(events[0].error, LockLostError)
    assert breaker.stats().calls == 0
