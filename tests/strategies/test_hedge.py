"""`Hedge`: copies of slow work, of which the first success wins."""

from __future__ import annotations

import contextvars
import gc
import itertools
import threading
import time
import weakref

import pytest

from pyresil import (
    Bulkhead,
    CancelledError,
    CancelToken,
    ConfigurationError,
    Hedge,
    Policy,
    PolicyUsageError,
    RejectedError,
    Retry,
    RetryBudget,
    Timeout,
    TimeoutExceededError,
    _workers,
    current_context,
)
from pyresil._scope import Scope, scopes
from pyresil.strategies import hedge as module
from pyresil.testing import ManualClock, record_events
from tests.support.processes import wait_until


class Copies:
    """Work whose copies do different things, by their number from 0; the first one may wait until there is another."""

    def __init__(self, *behaviours, first_waits=False):
        self.behaviours = behaviours
        self.first_waits = first_waits
        self.lock = threading.Lock()
        self.contexts = []

    def __call__(self):
        with self.lock:
            number = len(self.contexts)
            self.contexts.append(current_context())
        if self.first_waits and number == 0:
            wait_until(lambda: len(self.contexts) > 1, what="the second copy")
        return self.behaviours[number]()


def sleeps(seconds, value=None, error=None):
    def behaviour():
        current_context().sleep(seconds)
        if error is not None:
            raise error
        return value

    return behaviour


class StatusError(Exception):
    def __init__(self, status):
        super().__init__(status)
        self.status = status


def test_fast_work_runs_once_in_another_thread():
    policy = Policy(Hedge("5s"), name="p")
    copies = Copies(threading.get_ident)
    with record_events("hedged") as events:
        assert policy.call(copies) != threading.get_ident()
    assert len(copies.contexts) == 1
    assert not events


def test_a_second_copy_starts_after_the_delay_and_wins():
    clock = ManualClock(wall=100.0)
    policy = Policy(Hedge("200ms", name="h"), name="p", clock=clock)
    copies = Copies(sleeps(60, "slow"), sleeps(0, "fast"))
    ended = []
    with record_events("hedged") as events:
        caller = threading.Thread(target=lambda: ended.append(policy.call(copies)), daemon=True)
        caller.start()
        clock.wait_until_parked(2)
        clock.advance("199ms")
        assert len(copies.contexts) == 1
        clock.advance("1ms")
        caller.join(5)
    assert ended == ["fast"]
    (event,) = events
    assert {name: getattr(event, name) for name in event.fields} == {
        "policy": "p",
        "source": "h",
        "at": pytest.approx(100.2),
        "copy": 1,
        "delay": 0.2,
    }
    loser, winner = copies.contexts
    assert loser.cancel.is_set()
    assert not winner.cancel.is_set()
    with pytest.raises(CancelledError):
        loser.cancel.raise_if_cancelled()


def test_the_first_copy_may_win_after_all():
    policy = Policy(Hedge("20ms"))
    copies = Copies(sleeps(0.1, "first"), sleeps(30, "second"), first_waits=True)
    assert policy.call(copies) == "first"
    assert len(copies.contexts) == 2
    assert not copies.contexts[0].cancel.is_set()
    assert copies.contexts[1].cancel.is_set()


def test_a_copy_that_fails_leaves_the_decision_to_the_others():
    policy = Policy(Hedge("100ms"))
    fails_first = Copies(sleeps(0.1, error=OSError("first")), sleeps(0.2, "second"), first_waits=True)
    assert policy.call(fails_first) == "second"
    fails_second = Copies(sleeps(0.1, "first"), sleeps(0, error=OSError("second")), first_waits=True)
    assert policy.call(fails_second) == "first"


def test_when_all_fail_the_first_one_s_error_comes_out():
    first, second = OSError("first"), OSError("second")
    policy = Policy(Hedge("300ms"))
    for one, other in ((0.2, 0.0), (0.1, 0.2)):
        with pytest.raises(OSError, match="first") as raised:
            policy.call(Copies(sleeps(one, error=first), sleeps(other, error=second), first_waits=True))
        assert raised.value is first


def test_work_that_fails_before_the_delay_is_not_started_again():
    error = OSError("at once")
    copies = Copies(sleeps(0, error=error))
    with pytest.raises(OSError, match="at once") as raised:
        Policy(Hedge("5s")).call(copies)
    assert raised.value is error
    assert len(copies.contexts) == 1


def test_bad_results_are_no_success():
    class Response:
        def __init__(self, status):
            self.status_code = status

    bad, good = Response(503), Response(200)
    policy = Policy(Hedge("300ms"))
    assert policy.call(Copies(sleeps(0.1, bad), sleeps(0.1, good), first_waits=True)) is good
    assert policy.call(Copies(sleeps(0.1, bad), sleeps(0.1, Response(503)), first_waits=True)) is bad
    picky = Policy(Hedge("300ms", handle_result=lambda value: value == "no"))
    assert picky.call(Copies(sleeps(0.1, "no"), sleeps(0.1, "yes"), first_waits=True)) == "yes"


def test_a_client_error_is_an_answer():
    policy = Policy(Hedge("20ms"))
    copies = Copies(sleeps(0.1, error=StatusError(404)), sleeps(30, "second"), first_waits=True)
    with pytest.raises(StatusError):
        policy.call(copies)
    assert copies.contexts[1].cancel.is_set()


def test_a_rejected_copy_does_not_end_the_race():
    policy = Policy(Hedge("20ms"), Bulkhead(1))
    copies = Copies(sleeps(0.2, "first"))
    assert policy.call(copies) == "first"
    assert len(copies.contexts) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_a_base_exception_comes_out_at_once(error):
    policy = Policy(Hedge("20ms"))
    copies = Copies(sleeps(0.5, error=error), sleeps(30), first_waits=True)
    with pytest.raises(type(error)) as raised:
        policy.call(copies)
    assert raised.value is error
    assert copies.contexts[1].cancel.is_set()


def test_several_copies_start_one_delay_apart():
    clock = ManualClock()
    policy = Policy(Hedge("1s", max_hedges=3), clock=clock)
    copies = Copies(*[sleeps(60, number) for number in range(4)])
    ended = []
    caller = threading.Thread(target=lambda: ended.append(policy.call(copies)), daemon=True)
    caller.start()
    clock.wait_until_parked(2)
    for expected in (2, 3, 4, 4, 4):
        clock.advance("1s")
        clock.wait_until_parked(expected + 1, 20)  # every copy, and who waits for them
        assert len(copies.contexts) == expected
    clock.advance("55s")
    caller.join(20)
    assert ended == [0]
    assert [ctx.cancel.is_set() for ctx in copies.contexts] == [False, True, True, True]


def test_all_losers_are_told_although_telling_one_of_them_is_interrupted():
    def interrupt():
        raise KeyboardInterrupt

    listens = threading.Event()

    def loses():
        ctx = current_context()
        if ctx is copies.contexts[0]:
            ctx.cancel.on_cancel(interrupt)
            listens.set()
        ctx.sleep(30)

    hedge = Hedge(0.05, max_hedges=2)
    copies = Copies(loses, loses, lambda: listens.wait(20) and "won")
    with pytest.raises(KeyboardInterrupt):
        Policy(hedge).call(copies)
    assert [ctx.cancel.is_set() for ctx in copies.contexts] == [True, True, False]
    wait_until(lambda: not hedge._losers.stuck)


@pytest.mark.parametrize(
    ("holder", "step", "times"),
    [
        (module._Race, "over", 1),
        (Scope, "token", 1),
        (CancelToken, "is_set", 1),
        (CancelToken, "cancel", 1),
        (CancelToken, "_fire", 2),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_all_losers_are_told_although_a_signal_handler_raises(monkeypatch, holder, step, times):
    """Python runs one where a function starts, in the main thread."""
    original, cuts, told = getattr(holder, step), [], []

    def interrupted(self, *args):
        if cuts and threading.current_thread() is threading.main_thread():
            raise cuts.pop()
        return original(self, *args)

    def loses():
        ctx = current_context()
        ctx.cancel.on_cancel(lambda: told.append(ctx))
        ctx.sleep(30)

    def wins():
        wait_until(lambda: all(ctx._base_token()._callbacks for ctx in copies.contexts[:2]))
        return "won"

    def last(self, copy):
        won = decided(self, copy)
        if won:
            cuts.extend(KeyboardInterrupt() for _ in range(times))
        return won

    decided = module._Race._wins
    monkeypatch.setattr(module._Race, "_wins", last)
    monkeypatch.setattr(holder, step, interrupted)
    hedge = Hedge(0.05, max_hedges=2)
    copies = Copies(loses, loses, wins)
    with pytest.raises(KeyboardInterrupt):
        Policy(hedge).call(copies)
    assert cuts == []
    assert [ctx.cancel.is_set() for ctx in copies.contexts] == [True, True, False]
    assert [scope.left for ctx in copies.contexts[:2] for scope in scopes(ctx)] == [True, True]
    assert told == copies.contexts[:2]
    wait_until(lambda: not hedge._losers.stuck, what="the end of those who were told")


def test_a_delay_of_nothing_starts_all_copies_at_once():
    def behaviour(number):
        return lambda: wait_until(lambda: len(copies.contexts) == 3) and number

    copies = Copies(*map(behaviour, range(3)))
    # On a clock that stands still nothing but a delay of 0 starts them.
    assert Policy(Hedge(0, max_hedges=2), clock=ManualClock()).call(copies) in (0, 1, 2)
    assert len(copies.contexts) == 3


def test_context_variables_and_properties():
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("caller's")
    policy = Policy(Hedge("10ms")).options(key="k", properties={"a": 1})
    lock = threading.Lock()

    def work():
        ctx = current_context()
        with lock:
            ctx.properties["seen"] = ctx.properties.get("seen", 0) + 1
        wait_until(lambda: ctx.properties["seen"] == 2)
        return variable.get(), ctx.key, ctx.attempt, ctx.properties["a"], ctx.properties["seen"]

    assert policy.call(work) == ("caller's", "k", 1, 1, 2)
    assert current_context() is None


def test_the_deadline_ends_the_race():
    policy = Policy(Timeout("100ms"), Hedge("20ms"))
    go = threading.Event()
    copies = Copies(lambda: go.wait(10), lambda: go.wait(10))
    begun = time.monotonic()
    with pytest.raises(TimeoutExceededError) as raised:
        policy.call(copies)
    assert time.monotonic() - begun < 5
    assert raised.value.limit == 0.1
    assert all(ctx.cancel.is_set() for ctx in copies.contexts)
    go.set()


@pytest.mark.parametrize("early", [True, False])
def test_a_cancel_ends_the_race(early):
    go, token = threading.Event(), CancelToken()
    policy = Policy(Hedge("20ms"))
    copies = Copies(lambda: go.wait(10), lambda: go.wait(10))

    def cancel():
        wait_until(lambda: len(copies.contexts) == 2)
        if early:
            token.cancel("stop")
        else:
            copies.contexts[0]._scope._above.cancel.cancel("stop")

    threading.Thread(target=cancel).start()
    with pytest.raises(CancelledError, match="stop"):
        (policy.options(cancel=token) if early else policy).call(copies)
    assert all(ctx.cancel.is_set() for ctx in copies.contexts)
    go.set()


def test_cancelling_one_copy_ends_that_copy_alone():
    policy = Policy(Hedge("20ms"))
    cancelled = threading.Event()

    def cancels_itself():
        ctx = current_context()
        ctx.cancel.cancel("just me")
        cancelled.set()
        ctx.cancel.raise_if_cancelled()

    def succeeds_later():
        cancelled.wait(20)
        current_context().sleep(0.2)
        return "second"

    copies = Copies(cancels_itself, succeeds_later, first_waits=True)
    assert policy.call(copies) == "second"
    assert not copies.contexts[1].cancel.is_set()


def test_later_attempts_of_a_copy_are_cancelled_with_it():
    policy = Policy(Hedge("50ms"), Retry(3, backoff=lambda *_: 0))
    numbers = itertools.count()
    tokens = []

    def work():
        ctx = current_context()
        if ctx.attempt > 1:  # of the first copy
            tokens.append(ctx.cancel)
            ctx.cancel.wait(20)
            raise OSError
        if next(numbers) == 0:
            raise OSError
        wait_until(lambda: tokens, what="the second attempt of the first copy")
        return "second"

    assert policy.call(work) == "second"
    assert tokens[0].is_set()


def test_a_call_counts_once_in_a_budget_that_is_shared_with_a_retry():
    budget = RetryBudget(ratio=0.5, min_per_second=0)
    clock = ManualClock()
    for around in (Retry(budget=budget), Retry(), Retry(budget=RetryBudget())):
        policy = Policy(around, Hedge(budget=budget), clock=clock)
        for _ in range(4):
            policy.call(dict)
        assert budget.available(clock.monotonic()) == 2.0
        clock.advance("1m")


def test_the_budget_is_shared_and_ends():
    budget = RetryBudget(ratio=0, min_per_second=0.1)  # one in ten seconds
    clock = ManualClock()
    hedge = Hedge("1s", budget=budget)
    policy = Policy(hedge, clock=clock)

    def copies_of_a_call():
        copies = Copies(sleeps(5), sleeps(5))
        caller = threading.Thread(target=policy.call, args=(copies,), daemon=True)
        caller.start()
        clock.wait_until_parked(2)
        clock.advance("5s")
        caller.join(5)
        return len(copies.contexts)

    assert copies_of_a_call() == 2
    assert copies_of_a_call() == 1
    clock.advance("10s")
    assert copies_of_a_call() == 2


def test_a_percentile_waits_for_enough_observations_and_then_hedges():
    clock = ManualClock()
    policy = Policy(Hedge("p95"), clock=clock)

    def call(*behaviours):
        copies = Copies(*behaviours)
        caller = threading.Thread(target=policy.call, args=(copies,), daemon=True)
        caller.start()
        clock.wait_until_parked(2)
        clock.advance("1s")
        caller.join(5)
        return len(copies.contexts)

    latencies = policy.strategies[0]._latencies
    for _ in range(9):
        assert call(sleeps(0.1)) == 1
    assert latencies.value() is None
    for _ in range(60):
        latencies.record(0.2)
    assert latencies.value() == 0.2
    assert call(sleeps(0.1)) == 1
    assert call(sleeps(0.9), sleeps(0.9)) == 2
    assert latencies._count == 9 + 60 + 2
    assert latencies.value() == 0.2


def test_a_first_copy_that_lost_counts_with_the_time_it_had_taken():
    """Else the percentile would sink with every hedge."""
    hedge = Hedge("p50")
    for _ in range(10):
        hedge._latencies.record(0.02)
    assert Policy(hedge).call(Copies(sleeps(30), sleeps(0.1, "second"))) == "second"
    assert hedge._latencies._ring[-1] > 0.1


def test_losers_that_heed_no_cancel_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MOST_STUCK", 2)
    hedge = Hedge(0)
    policy = Policy(hedge)
    go = threading.Event()
    for _ in range(2):
        assert policy.call(Copies(lambda: go.wait(20), lambda: "second")) == "second"
    assert len(hedge._losers.stuck) == 2
    assert policy.call(threading.get_ident) == threading.get_ident()
    go.set()
    wait_until(lambda: not hedge._losers.stuck)
    assert policy.call(threading.get_ident) != threading.get_ident()


def test_no_thread_to_be_had(monkeypatch):
    threads = [True]
    submit = module.submit

    def scarce(clock, job):
        if not threads:
            raise RuntimeError("can't start new thread")
        threads.pop()
        submit(clock, job)

    monkeypatch.setattr(module, "submit", scarce)
    hedge = Hedge("10ms", max_hedges=2)
    copies = Copies(sleeps(0.1, "first"))
    assert Policy(hedge).call(copies) == "first"
    assert len(copies.contexts) == 1
    with pytest.raises(RejectedError, match="no worker thread can be started"):
        Policy(hedge).call(lambda: pytest.fail("the work ran"))
    assert not hedge._losers.stuck


def test_errors_and_locals_die_without_the_collector():
    class Thing:
        pass

    kept = []
    policy = Policy(Hedge("10ms"))

    def work():
        thing = Thing()
        kept.append(weakref.ref(thing))
        wait_until(lambda: len(kept) == 2)
        raise OSError

    gc.collect()
    gc.disable()
    try:
        try:
            policy.call(work)
        except OSError:
            pass
        assert len(kept) == 2
        wait_until(lambda: kept[0]() is None and kept[1]() is None, 2)
    finally:
        gc.enable()


def test_nested_hedges_and_abandoned_calls():
    policy = Policy(Hedge("10ms"), Hedge("10ms"), Timeout("5s", mode="abandon"))
    assert policy.call(lambda: time.sleep(0.05) or 7) == 7


def test_it_cannot_surround_a_block():
    with pytest.raises(PolicyUsageError, match="hedge"), Policy(Hedge()).execute():
        pass


def test_describe_and_repr():
    assert Hedge().describe() == {
        "strategy": "hedge",
        "name": None,
        "delay": 0.2,
        "max_hedges": 1,
        "budget": None,
        "handle": "default",
        "handle_result": "default",
    }
    assert Hedge("p95", 2, budget=RetryBudget(), name="h").describe() == {
        "strategy": "hedge",
        "name": "h",
        "delay": "p95",
        "max_hedges": 2,
        "budget": {"ratio": 0.2, "min_per_second": 1.0},
        "handle": "default",
        "handle_result": "default",
    }
    assert repr(Hedge("p99.9")) == "Hedge(delay='p99.9', max_hedges=1)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delay": True}, "delay"),
        ({"delay": None}, "delay"),
        ({"delay": float("nan")}, "delay"),
        ({"delay": "p"}, "delay must be a duration of 0 or more, or a percentile such as 'p95', got 'p'"),
        ({"delay": "x"}, "delay must be a duration of 0 or more, or a percentile"),
        ({"delay": -1}, "hedge: delay must be a duration of 0 or more, or a percentile"),
        ({"delay": "p0"}, "delay must be a duration of 0 or more, or a percentile"),
        ({"delay": "p100"}, "delay must be a duration of 0 or more, or a percentile"),
        ({"delay": "p-5"}, "delay must be a duration of 0 or more, or a percentile"),
        ({"max_hedges": 0}, "max_hedges must be a positive integer, got 0"),
        ({"max_hedges": True}, "max_hedges"),
        ({"budget": 0.2}, "budget must be a RetryBudget or None, got 0.2"),
        ({"handle": 3}, "handle"),
        ({"delay": "soon", "max_hedges": 0, "budget": 1}, "delay.*; max_hedges.*; budget"),
    ],
)
def test_bad_options_are_refused_all_at_once(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Hedge(**options)


def test_idle_workers_are_shared_with_abandon_mode():
    assert _workers.submit is module.submit
