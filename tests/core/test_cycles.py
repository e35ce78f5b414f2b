"""Nothing of a failed attempt outlives it, with the garbage collector off."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest

from pyresil import (
    AdaptiveBulkhead,
    Bulkhead,
    Cache,
    CircuitBreaker,
    Constant,
    Failure,
    Fallback,
    Hedge,
    Lock,
    MemoryLockStore,
    Policy,
    RateLimit,
    RejectedError,
    Retry,
    Timeout,
)
from pyresil.events import Event
from pyresil.testing import InstantClock, ManualClock, record_events
from tests.core.helpers import Again, Noted
from tests.support.processes import wait_until


@pytest.fixture(autouse=True)
def no_collector():
    gc.disable()
    logging.disable()  # records hold what was raised, and pytest holds the records
    yield
    logging.disable(logging.NOTSET)
    gc.enable()


class Quiet(Noted):
    """It keeps nothing of what it saw."""

    def exit(self, ctx, token, outcome):
        try:
            return super().exit(ctx, token, outcome)
        finally:
            self.notes.clear()


class Local:
    """What a failed attempt leaves behind if anything holds its frame."""


class Work:
    """Raises with a `Local` in its frame, and watches it, the error, and what it was called with."""

    def __init__(self, failures=100, kind=ValueError):
        self.failures = failures
        self.kind = type(kind.__name__, (kind,), {})  # the builtin types cannot be watched
        self.watched = []

    def watch(self, thing):
        self.watched.append(weakref.ref(thing))
        return thing

    def __call__(self, argument=None):
        local = Local()
        self.watch(local)
        if self.failures:
            self.failures -= 1
            raise self.watch(self.kind("boom"))  # in no variable of this frame
        return local

    @property
    def alive(self):
        return sum(ref() is not None for ref in self.watched)


def replaced(outcome):
    return Failure(KeyError("other"))


CALLS = {
    "retry": lambda: Policy(Retry(3), clock=InstantClock()),
    "retry-function": lambda: Policy(Retry(3, lambda attempt, outcome: 0.1), clock=InstantClock()),
    "fallback": lambda: Policy(Fallback(None)),
    "fallback-using": lambda: Policy(Fallback(using=lambda error, ctx: None)),
    "fallback-reraises": lambda: Policy(Fallback(using=lambda error, ctx: 1 / 0)),
    "guard": lambda: Policy(Quiet()),
    "guard-replaces": lambda: Policy(Quiet(replace=replaced)),
    "guard-fails": lambda: Policy(Quiet(fail=KeyError)),
    "guard-rejects": lambda: Policy(Quiet(replace=replaced), Quiet(reject=lambda: True)),
    "own-retry": lambda: Policy(Again(3)),
    "nested": lambda: Policy(Retry(2), Policy(Retry(2), Quiet()), clock=InstantClock()),
    "bound": lambda: Policy(Retry(2), clock=InstantClock()).options(key="k", deadline="1h", properties={"a": 1}),
    "deadline": lambda: Policy(Retry(5, Constant("1h")), clock=InstantClock()).options(deadline="1m"),
    "everything": lambda: Policy(
        Fallback(using=lambda error, ctx: ctx.attempt), Quiet(), Retry(3), Quiet(replace=replaced), clock=InstantClock()
    ),
}  # fmt: skip


@pytest.mark.parametrize("listening", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_call(name, listening):
    policy, work = CALLS[name](), Work()
    ended = 0
    decorated = policy(work)
    with record_events(Event if listening else []) as recorded:
        for run in (
            lambda: policy.call(work),
            lambda: decorated(),
            lambda: policy.settle(work),
            lambda: policy.settle(work).unwrap(),
            lambda: policy.call(work, Local()),
        ):
            try:
                run()
            except Exception:
                ended += 1
            recorded.clear()
            assert work.alive == 0, f"run {ended}"


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_call_with_base_exceptions(name, kind):
    policy, work = CALLS[name](), Work(kind=kind)
    try:
        policy.call(work)
    except (kind, RejectedError, KeyError):
        pass
    assert work.alive == 0


STRATEGIES = {
    "circuit breaker": lambda: [CircuitBreaker(minimum_calls=3)],
    "rate limit": lambda: [RateLimit("3/h")],
    "bulkhead": lambda: [Bulkhead(1)],
    "adaptive bulkhead": lambda: [AdaptiveBulkhead()],
    "timeout": lambda: [Timeout("1m")],
    "abandon": lambda: [Timeout("1m", mode="abandon")],
    "hedge": lambda: [Hedge("1m")],
    "cache": lambda: [Cache(lambda ctx: "k")],
    "lock": lambda: [Lock("k", store=MemoryLockStore())],
    "all": lambda: [
        Fallback(using=lambda error, ctx: 1 / 0), Cache(lambda ctx: "k"), Lock("k", store=MemoryLockStore()), Retry(2, Constant(0)),
        Hedge("1m"), CircuitBreaker(minimum_calls=3), RateLimit("9/h"), Bulkhead(1), Timeout("1m"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("form", ["call", "decorator", "settle", "options"])
def test_no_strategy_keeps_what_a_failure_leaves_behind(name, form):
    policy = Policy(*STRATEGIES[name]())
    watched = []

    def work():
        local = Local()
        watched.append(weakref.ref(local))
        raise ValueError

    run = {
        "call": lambda: policy.call(work),
        "decorator": policy(work),
        "settle": lambda: policy.settle(work),
        "options": lambda: policy.options(key="k", deadline="1m").call(work),
    }[form]
    for _ in range(5):
        try:
            run()
        except Exception:
            pass
        # Workers of hedges and abandoned calls let go a moment after the caller left.
        wait_until(
            lambda: not any(ref() is not None for ref in watched), 5, "freeing what the failure left behind"
        )
    assert watched


@pytest.mark.parametrize("refresh", ["background", "inline"])
def test_a_cache_keeps_nothing_of_a_refresh_that_failed(refresh):
    clock, watched = ManualClock(), []
    policy = Policy(Cache(lambda ctx: "k", ttl="1s", stale_ttl="1h", refresh=refresh), clock=clock)

    def failing():
        local = Local()
        watched.append(weakref.ref(local))
        raise ValueError

    assert policy.call(lambda: 1) == 1
    clock.advance("2s")
    assert policy.call(failing) == 1
    wait_until(lambda: watched and watched[0]() is None, 5, "freeing what the refresh left behind")


def test_a_failed_attempt_is_gone_before_the_next_one_begins():
    work = Work(2)
    alive = []

    def watched():
        alive.append(work.alive)
        return work()

    Policy(Retry(3), clock=InstantClock()).call(watched)
    assert alive == [0, 0, 0]


def test_a_result_that_was_given_up_is_gone_before_the_next_attempt():
    watched, alive = [], []

    def work():
        alive.append(sum(ref() is not None for ref in watched))
        local = Local()
        local.status_code = 503
        watched.append(weakref.ref(local))
        return local

    result = Policy(Retry(3), clock=InstantClock()).call(work)
    assert alive == [0, 0, 0]
    assert watched[-1]() is result
    del result
    assert watched[-1]() is None


BLOCKS = {
    "none": list,
    "guard": lambda: [Quiet()],
    "replaces": lambda: [Quiet(replace=replaced), Quiet()],
    "fails": lambda: [Quiet(), Quiet(fail=KeyError), Quiet()],
    "rejects": lambda: [Quiet(), Quiet(reject=lambda: True)],
    "replaces-rejection": lambda: [Quiet(replace=replaced), Quiet(reject=lambda: True)],
}


@pytest.mark.parametrize("listening", [False, True])
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("name", BLOCKS)
def test_block(name, kind, listening):
    work = Work(kind=kind)
    policy = Policy(*BLOCKS[name]())

    def run():
        with policy.execute(deadline="1h") as ctx:
            work.watch(ctx)
            ctx.report(work())

    with record_events(Event if listening else []) as recorded:
        try:
            run()
        except (ValueError, KeyError, RejectedError, KeyboardInterrupt):
            pass
        recorded.clear()
        assert work.alive == 0


@pytest.mark.parametrize("reporting", [False, True])
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("inner", BLOCKS)
@pytest.mark.parametrize("outer", BLOCKS)
def test_loop(outer, inner, kind, reporting):
    work = Work(2 if reporting else 100, kind=kind)
    policy = Policy(*BLOCKS[outer](), Retry(3), *BLOCKS[inner](), clock=InstantClock())

    def run():
        for attempt in policy.execute():
            with attempt as ctx:
                assert not any(isinstance(ref(), (Local, BaseException)) for ref in work.watched)
                work.watch(ctx)
                ctx.report(work())

    try:
        run()
    except (ValueError, KeyError, RejectedError, KeyboardInterrupt):
        pass
    assert work.alive == 0


def test_the_error_of_an_attempt_is_not_kept_by_what_the_loop_leaves_behind():
    work = Work(1)
    for attempt in Policy(Retry(3), Quiet(), clock=InstantClock()).execute():
        with attempt as ctx:
            work()
    assert (attempt.number, ctx.attempt) == (2, 2)
    assert work.alive == 0


def test_a_context_with_tokens_is_gone_with_its_execution():
    watched = []

    def work():
        from pyresil import current_context

        ctx = current_context()
        watched.append(weakref.ref(ctx))
        watched.append(weakref.ref(ctx.cancel))
        ctx.cancel.as_event()
        ctx.cancel.on_cancel(lambda: ctx)
        if ctx.attempt < 3:
            raise ValueError

    Policy(Retry(3), clock=InstantClock()).options(deadline="1h").call(work)
    assert [ref() for ref in watched] == [None] * 6


def test_a_decorated_function_and_its_policy_are_gone_when_dropped():
    work = Work()
    policy = Policy(Retry(2), Quiet(), clock=InstantClock())
    decorated = policy(work)
    watched = [weakref.ref(policy), weakref.ref(decorated), weakref.ref(work)]
    with pytest.raises(ValueError):
        decorated()
    del policy, decorated, work
    assert [ref() for ref in watched] == [None] * 3
