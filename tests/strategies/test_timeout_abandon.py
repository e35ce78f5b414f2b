"""`Timeout(mode="abandon")`: the caller leaves, the worker goes on in vain."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import threading
import time
import weakref

import pytest

from pyresil import (
    CancelledError,
    CancelToken,
    Policy,
    RejectedError,
    Retry,
    Timeout,
    TimeoutExceededError,
    TimeoutSaturatedError,
    _workers,
    current_context,
)
from pyresil.testing import ManualClock, record_events
from tests.support.processes import wait_until


def abandon(limit, **options):
    return Timeout(limit, mode="abandon", **options)


class Stuck:
    """Work that stays until it is let go."""

    def __init__(self):
        self.go, self.left = threading.Event(), threading.Event()
        self.contexts = []

    def __call__(self):
        self.contexts.append(current_context())
        self.go.wait(10)
        self.left.set()
        return "late"


@pytest.fixture
def stuck():
    work = Stuck()
    yield work
    work.go.set()


def test_the_result_comes_back_from_another_thread():
    policy = Policy(abandon("5s"))
    assert policy.call(lambda x: (x, threading.current_thread().name), 3) == (3, "pyresil-worker")
    assert policy.call(threading.get_ident) != threading.get_ident()
    assert policy.call(lambda: threading.current_thread().daemon)


def test_a_caller_that_comes_back_finds_the_same_worker(monkeypatch):
    monkeypatch.setattr(_workers, "_workers", _workers.Workers())
    policy = Policy(abandon("5s"))
    workers = {policy.call(threading.get_ident) for _ in range(50)}
    assert len(workers) == 1


@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError("own"), KeyboardInterrupt(), SystemExit(3)])
def test_what_the_work_raises_comes_back_as_the_same_object(error):
    policy = Policy(abandon("5s"))

    def work():
        raise error

    with pytest.raises(type(error)) as raised:
        policy.call(work)
    assert raised.value is error
    assert raised.traceback[-1].name == "work"


def test_context_variables_and_the_current_context_are_there():
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("caller's")
    policy = Policy(abandon("60s"), name="p")

    def work():
        ctx = current_context()
        seen = (variable.get(), ctx.policy, ctx.key, ctx.attempt, 50.0 < ctx.remaining() <= 60.0)
        ctx.properties["from"] = "worker"
        variable.set("worker's")
        return seen

    assert policy.options(key="k").call(work) == ("caller's", "p", "k", 1, True)
    assert variable.get() == "caller's"
    assert current_context() is None


def test_the_caller_leaves_at_the_deadline_and_the_result_is_dropped(stuck):
    timeout = abandon("1s", name="t")
    policy = Policy(timeout, name="p")
    begun = time.monotonic()
    with record_events("timeout") as events, pytest.raises(TimeoutExceededError) as raised:
        policy.call(stuck)
    assert 1.0 <= time.monotonic() - begun < 8
    assert (raised.value.limit, raised.value.policy) == (1.0, "p")
    assert [(e.policy, e.source, e.limit, e.late) for e in events] == [("p", "t", 1.0, False)]
    assert timeout.abandoned == 1
    assert stuck.contexts[0].cancel.is_set(), "the work is told"
    stuck.go.set()
    wait_until(lambda: timeout.abandoned == 0)
    assert policy.call(lambda: 1) == 1


def test_a_cancel_ends_the_wait(stuck):
    token = CancelToken()
    timeout = abandon("30s")

    def cancel():
        wait_until(lambda: stuck.contexts)
        token.cancel("stop")

    threading.Thread(target=cancel).start()
    with pytest.raises(CancelledError) as raised:
        Policy(timeout).options(cancel=token).call(stuck)
    assert raised.value.reason == "stop"
    assert timeout.abandoned == 1
    assert stuck.contexts[0].cancel.is_set()


def test_cancelling_the_context_of_the_work_ends_the_wait(stuck):
    timeout = abandon("30s")

    def cancel():
        wait_until(lambda: stuck.contexts)
        stuck.contexts[0].cancel.cancel("from outside")

    threading.Thread(target=cancel).start()
    with pytest.raises(CancelledError, match="from outside"):
        Policy(timeout).call(stuck)


def test_an_outer_deadline_ends_the_wait_with_its_own_error(stuck):
    timeout = abandon("30s")
    with record_events("timeout") as events, pytest.raises(TimeoutExceededError) as raised:
        Policy(Timeout("1s", name="outer"), timeout).call(stuck)
    assert raised.value.limit == 1.0
    assert [event.source for event in events] == ["outer"]
    assert timeout.abandoned == 1


@pytest.mark.parametrize("watched", [True, False])
def test_the_caller_waits_for_its_own_deadline_and_not_for_one_inside(monkeypatch, watched):
    real, inside = _workers.submit, threading.Event()

    def submit(clock, job):
        real(clock, job)
        assert inside.wait(5)  # the worker is faster, as one that is fresh mostly is

    def work():
        token = current_context().cancel
        inside.set()
        assert token.wait(5)
        if not watched:
            current_context()._origin._waker()  # the caller looks
        time.sleep(0.05)
        return "late"

    monkeypatch.setattr("pyresil.strategies.timeout.submit", submit)
    policy = Policy(abandon("10s"), Timeout("10ms"))
    assert (policy.options(cancel=CancelToken()) if watched else policy).call(work) == "late"


def test_an_outer_policy_s_deadline_ends_the_wait(stuck):
    outer, inner = Policy(Timeout("50ms")), Policy(abandon("30s"))
    with pytest.raises(TimeoutExceededError):
        outer.call(lambda: inner.call(stuck))


def test_with_too_many_stuck_workers_it_rejects(caplog, stuck):
    timeout = abandon("20ms", max_abandoned=2)
    policy = Policy(timeout, name="p")
    while timeout.abandoned < 2:  # on a busy machine a worker may come too late to begin one at all
        with pytest.raises(TimeoutExceededError):
            policy.call(stuck)
    with pytest.raises(TimeoutSaturatedError) as raised:
        policy.call(lambda: pytest.fail("the work ran"))
    assert isinstance(raised.value, RejectedError)
    assert (raised.value.max_abandoned, raised.value.policy) == (2, "p")
    assert "2 abandoned calls still run" in caplog.text
    stuck.go.set()
    wait_until(lambda: timeout.abandoned == 0)

    def answer():
        with contextlib.suppress(TimeoutExceededError):  # 20 ms are not long on a busy machine
            return policy.call(lambda: 1)

    assert wait_until(answer) == 1


def test_a_rejection_for_saturation_is_not_retried(stuck):
    policy = Policy(Retry(5, backoff=lambda *_: 0), abandon("1s", max_abandoned=1))
    with pytest.raises(TimeoutSaturatedError):
        policy.call(stuck)
    assert len(stuck.contexts) == 1


def test_each_attempt_is_cancelled_alone():
    """The first attempt's worker is told to stop, the second one's is not."""
    policy = Policy(Retry(2, backoff=lambda *_: 0), abandon("2s"))
    seen = []

    def work():
        ctx = current_context()
        seen.append(ctx.cancel)
        if len(seen) == 1:
            ctx.cancel.wait(5)
            time.sleep(0.5)
        return ctx.cancel.is_set()

    assert policy.call(work) is False
    assert seen[0].is_set()


def test_late_exceptions_are_dropped_in_silence(caplog):
    go = threading.Event()
    timeout = abandon("20ms")

    def work():
        go.wait(10)
        raise ValueError("nobody hears this")

    with pytest.raises(TimeoutExceededError):
        Policy(timeout).call(work)
    go.set()
    wait_until(lambda: timeout.abandoned == 0)
    assert not caplog.records


def test_time_moves_by_hand():
    clock = ManualClock()
    timeout = abandon("10s")
    policy = Policy(timeout, clock=clock)
    ended = []

    def call():
        try:
            policy.call(lambda: current_context().sleep(60))
        except BaseException as error:
            ended.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    clock.wait_until_parked(2)
    clock.advance("9.9s")
    assert not ended
    clock.advance("0.1s")
    caller.join(5)
    assert isinstance(ended[0], TimeoutExceededError)
    assert ended[0].limit == 10.0
    wait_until(lambda: timeout.abandoned == 0)


def test_a_result_that_comes_while_the_caller_is_late_is_returned_or_refused():
    clock = ManualClock()

    def work():
        clock.advance("3s")
        return "late"

    # The worker moves the clock itself: both ends come together, and either is right.
    for strict in (False, True):
        policy = Policy(abandon("2s", strict=strict), clock=clock)
        try:
            assert policy.call(work) == "late"
            assert not strict
        except TimeoutExceededError:
            pass


def test_no_thread_to_be_had_is_a_clear_rejection(monkeypatch):
    timeout = abandon("5s")

    def none_left(job):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_workers, "_workers", _workers.Workers())
    monkeypatch.setattr(_workers._workers, "submit", none_left)
    with pytest.raises(RejectedError, match="no worker thread can be started"):
        Policy(timeout).call(lambda: pytest.fail("the work ran"))
    assert timeout.abandoned == 0


def test_idle_workers_end(monkeypatch):
    monkeypatch.setattr(_workers, "IDLE", 0.05)
    monkeypatch.setattr(_workers, "_workers", _workers.Workers())
    thread = Policy(abandon("5s")).call(threading.current_thread)
    thread.join(5)
    assert not thread.is_alive()
    assert Policy(abandon("5s")).call(lambda: 1) == 1


@pytest.mark.parametrize("fails", [True, False])
def test_locals_of_the_work_die_without_the_collector(fails):
    class Thing:
        pass

    kept = []
    policy = Policy(abandon("5s"))

    def work():
        thing = Thing()
        kept.append(weakref.ref(thing))
        if fails:
            raise ValueError
        return thing

    gc.collect()
    gc.disable()
    try:
        try:
            policy.call(work)
        except ValueError:
            pass
        # The worker lets go a moment after the caller has the result.
        wait_until(lambda: kept[0]() is None, 2)
    finally:
        gc.enable()


def test_a_workers_first_call_keeps_its_arguments_no_longer_than_later_ones(monkeypatch):
    class Thing:
        pass

    monkeypatch.setattr(_workers, "_workers", _workers.Workers())
    policy = Policy(abandon("5s"))
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            thing = Thing()
            watched = weakref.ref(thing)
            policy.call(lambda thing: None, thing)
            del thing
            wait_until(lambda watched=watched: watched() is None, 2)
    finally:
        gc.enable()


def test_the_result_of_an_abandoned_call_dies(stuck):
    class Thing:
        pass

    kept = []
    timeout = abandon("20ms")

    def work():
        stuck()
        thing = Thing()
        kept.append(weakref.ref(thing))
        return thing

    while not stuck.contexts:  # on a busy machine a worker may come too late to begin it at all
        with pytest.raises(TimeoutExceededError):
            Policy(timeout).call(work)
    stuck.go.set()
    wait_until(lambda: kept and kept[0]() is None)


def test_nested_abandon_modes():
    inner, outer = Policy(abandon("5s")), Policy(abandon("5s"), abandon("4s"))
    assert outer.call(lambda: inner.call(lambda: current_context().remaining() > 3))


def test_a_dropped_result_that_takes_its_time_to_die_keeps_no_other_call_waiting(stuck):
    dying, dead = threading.Event(), threading.Event()

    class Slow:
        def __del__(self):
            dying.set()
            dead.wait(10)

    def work():
        stuck()
        return Slow()

    with pytest.raises(TimeoutExceededError):
        Policy(abandon("1s")).call(work)
    stuck.go.set()
    assert dying.wait(10)
    try:
        assert Policy(abandon("5s")).call(lambda: dead.is_set()) is False
    finally:
        dead.set()


def test_an_exception_in_the_waiting_caller_cancels_that_copy_alone(stuck):
    """As from a signal handler that raises an `Exception`, such as Celery's soft time limit: a retry may go on."""

    class Interrupt(Exception):
        pass

    class Interrupts(ManualClock):
        """A clock whose first wait for work ends as if a signal handler had raised."""

        waits = 0

        def park_for_work(self, parker, timeout):
            self.waits += 1
            if self.waits == 1:
                wait_until(lambda: stuck.contexts)
                raise Interrupt
            return super().park_for_work(parker, timeout)

    clock = Interrupts()
    works = [stuck, lambda: current_context().cancel.is_set()]
    policy = Policy(Retry(2, backoff=lambda *_: 0), abandon("30s"), clock=clock)
    assert policy.call(lambda: works.pop(0)()) is False
    assert stuck.contexts[0].cancel.is_set()
