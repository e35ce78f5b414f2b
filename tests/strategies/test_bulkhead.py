"""`Bulkhead`: admission, the queue, how waiting ends, what it tells."""

from __future__ import annotations

import logging
import pickle
import threading

import pytest

from pyresil import (
    AdaptiveBulkhead,
    Bulkhead,
    BulkheadFullError,
    CancelledError,
    CancelToken,
    ConfigurationError,
    Policy,
    Success,
    TimeoutExceededError,
)
from pyresil._admission import Admission
from pyresil._engine.slots import Waiter
from pyresil.testing import ManualClock, record_events
from tests.locks.faults import Interrupt, interrupt
from tests.support.threads import Caller


class Held:
    """A call that stays inside a policy until it is let go."""

    def __init__(self, policy):
        self.inside, self.go = threading.Event(), threading.Event()
        self.caller = Caller(lambda: policy.call(self.work))
        assert self.inside.wait(5)

    def work(self):
        self.inside.set()
        assert self.go.wait(10)
        return "held"

    def let_go(self):
        self.go.set()
        return self.caller.ended()


FORMS = {
    "call": lambda policy, work: policy.call(work),
    "block": lambda policy, work: _block(policy, work),
    # Through the nested closures, where a plain call takes the flat function.
    "bound": lambda policy, work: policy.options(source="s").call(work),
}


def _block(policy, work):
    with policy.execute():
        return work()


form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@form
def test_whoever_comes_when_all_slots_are_taken_is_refused(form):
    bulkhead = Bulkhead(2, name="exports")
    policy = Policy(bulkhead, name="p")
    held = [Held(policy), Held(policy)]
    with pytest.raises(BulkheadFullError) as refused:
        form(policy, lambda: pytest.fail("the work ran"))
    assert refused.value.reason == "full"
    assert (refused.value.name, refused.value.policy) == ("exports", "p")
    assert str(refused.value) == "bulkhead 'exports' has no free slot"
    assert repr(pickle.loads(pickle.dumps(refused.value))) == repr(refused.value)
    assert bulkhead.stats() == (2, 0, 2, 0)
    for call in held:
        call.let_go()
    assert bulkhead.stats().active == 0
    assert form(policy, lambda: 1) == 1


@form
@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), GeneratorExit()])
def test_the_slot_is_free_after_any_exception(form, error):
    policy = Policy(Bulkhead(1))

    def work():
        raise error

    for _ in range(3):
        with pytest.raises(type(error)) as raised:
            form(policy, work)
        assert raised.value is error
    assert policy.strategies[0].stats().active == 0


@form
def test_those_who_wait_are_served_first_come_first_served(form):
    clock = ManualClock()
    bulkhead = Bulkhead(1, max_queue=5, clock=clock)
    policy = Policy(bulkhead)
    served = []
    held = Held(policy)
    callers = []
    for number in range(5):
        callers.append(Caller(lambda number=number: form(policy, lambda: served.append(number))))
        clock.wait_until_parked(number + 1)
    assert bulkhead.stats() == (1, 5, 1, 5)
    with pytest.raises(BulkheadFullError) as refused:
        form(policy, lambda: None)
    assert refused.value.reason == "full"
    held.let_go()
    for caller in callers:
        assert caller.ended().error is None
    assert served == [0, 1, 2, 3, 4]
    assert bulkhead.stats() == (0, 0, 1, 5)


@pytest.mark.parametrize("kind", [Bulkhead, AdaptiveBulkhead])
def test_a_signal_handler_that_raises_where_a_block_leaves_keeps_nobody_waiting(monkeypatch, kind):
    clock = ManualClock()
    bulkhead = kind(1, max_queue=1, clock=clock)
    policy = Policy(bulkhead)
    with pytest.raises(Interrupt), policy.execute():
        waiting = Caller(lambda: policy.call(lambda: "ran"))
        clock.wait_until_parked()
        interrupt(monkeypatch, Admission, "exit")
    assert waiting.ended().value == "ran"
    assert bulkhead.stats()[:2] == (0, 0)


@form
def test_the_queue_timeout_ends_the_wait_and_leaves_nothing_behind(form):
    clock = ManualClock()
    bulkhead = Bulkhead(1, max_queue=2, queue_timeout="50ms", clock=clock)
    policy = Policy(bulkhead)
    held = Held(policy)
    waiting = Caller(lambda: form(policy, lambda: None))
    clock.wait_until_parked()
    clock.advance("49ms")
    assert bulkhead.stats().queued == 1
    clock.advance("1ms")
    error = waiting.ended().error
    assert isinstance(error, BulkheadFullError)
    assert error.reason == "queue-timeout"
    assert bulkhead.stats() == (1, 0, 1, 2)
    held.let_go()
    assert bulkhead.stats().active == 0
    assert form(policy, lambda: 1) == 1


def test_a_queue_timeout_of_nothing_does_not_wait():
    policy = Policy(Bulkhead(1, max_queue=5, queue_timeout=0))
    held = Held(policy)
    with pytest.raises(BulkheadFullError, match="within the queue timeout"):
        policy.call(lambda: None)
    held.let_go()


def test_the_deadline_of_the_context_ends_the_wait():
    clock = ManualClock()
    bulkhead = Bulkhead(1, max_queue=1, queue_timeout="5s")
    policy = Policy(bulkhead, clock=clock)
    held = Held(policy)
    waiting = Caller(lambda: policy.options(deadline="1s").call(lambda: None))
    clock.wait_until_parked()
    clock.advance("1s")
    assert isinstance(waiting.ended().error, TimeoutExceededError)
    assert bulkhead.stats().queued == 0
    held.let_go()


def test_a_cancel_ends_the_wait():
    token = CancelToken()
    clock = ManualClock()
    bulkhead = Bulkhead(1, max_queue=1)
    policy = Policy(bulkhead, clock=clock)
    held = Held(policy)
    waiting = Caller(lambda: policy.options(cancel=token).call(lambda: None))
    clock.wait_until_parked()
    token.cancel("stop")
    error = waiting.ended().error
    assert isinstance(error, CancelledError)
    assert error.reason == "stop"
    assert bulkhead.stats() == (1, 0, 1, 1)
    held.let_go()
    assert policy.call(lambda: 1) == 1


@pytest.mark.parametrize("shrunk", [False, True])
@pytest.mark.parametrize("another_waits", [False, True])
@form
def test_a_slot_that_comes_with_a_cancel_is_given_on(form, another_waits, shrunk):
    bulkhead, token, woken = Bulkhead(1, max_queue=2), CancelToken(), []
    another = Waiter(lambda: woken.append(1))

    class Meanwhile(ManualClock):
        """The slot comes free and the token is cancelled while the first who waits is parked."""

        def park(self, parker, timeout):
            if another_waits:
                assert bulkhead._slots.join(another, 2)
            bulkhead.exit(ctx, ticket, Success(None))
            if shrunk:
                bulkhead._slots.resize(0)
            token.cancel("stop")
            return True

    policy = Policy(bulkhead, clock=Meanwhile())
    ctx = policy._context()
    ticket = bulkhead.enter(ctx)
    with pytest.raises(CancelledError, match="stop"):
        with_token = policy.options(cancel=token)
        form(with_token, lambda: pytest.fail("cancelled work ran"))
    assert another.granted == (another_waits and not shrunk)
    assert bulkhead.stats().active == len(woken) == another.granted
    assert bulkhead.stats().queued == (another_waits and shrunk)


def test_work_inside_may_use_other_slots_of_the_same_bulkhead():
    bulkhead = Bulkhead(2)
    policy = Policy(bulkhead)
    assert policy.call(lambda: policy.call(lambda: bulkhead.stats().active)) == 2
    with pytest.raises(BulkheadFullError):
        policy.call(lambda: policy.call(lambda: policy.call(lambda: None)))
    assert bulkhead.stats().active == 0


def test_one_bulkhead_in_two_policies_counts_for_both():
    bulkhead = Bulkhead(1)
    one, other = Policy(bulkhead), Policy(bulkhead)
    held = Held(one)
    with pytest.raises(BulkheadFullError):
        other.call(lambda: None)
    held.let_go()


def test_a_refusal_is_told_and_logged(caplog):
    bulkhead = Bulkhead(1, max_queue=1, queue_timeout=0, name="exports")
    policy = Policy(bulkhead, name="p", clock=ManualClock(wall=100.0))
    held = Held(policy)
    caplog.set_level(logging.WARNING, "pyresil")
    with record_events("bulkhead-rejected") as events, pytest.raises(BulkheadFullError):
        policy.call(lambda: None)
    held.let_go()
    (event,) = events
    assert {name: getattr(event, name) for name in event.fields} == {
        "policy": "p",
        "source": "exports",
        "at": 100.0,
        "reason": "queue-timeout",
        "active": 1,
        "queued": 0,
    }
    assert caplog.messages == [
        "bulkhead 'exports' of policy 'p' rejected a call: queue-timeout (1 active, 0 queued)"
    ]
    assert caplog.records[0].levelname == "WARNING"


def test_a_listener_may_use_the_policy_and_raise():
    from pyresil import subscribe

    bulkhead = Bulkhead(1)
    policy, other = Policy(bulkhead), Policy(Bulkhead(1))
    seen = []

    def listener(event):
        seen.append((bulkhead.stats().active, other.call(lambda: 2)))
        raise RuntimeError("a listener's own fault")

    held = Held(policy)
    unsubscribe = subscribe(listener, "bulkhead-rejected")
    try:
        with pytest.raises(BulkheadFullError):
            policy.call(lambda: None)
    finally:
        unsubscribe()
    assert seen == [(1, 2)]
    held.let_go()


def test_describe_and_repr():
    bulkhead = Bulkhead(3, max_queue=2, queue_timeout="1s", name="b")
    assert bulkhead.describe() == {
        "strategy": "bulkhead",
        "name": "b",
        "max_concurrent": 3,
        "max_queue": 2,
        "queue_timeout": 1.0,
        "lock_store": None,
    }
    assert repr(bulkhead) == "Bulkhead(name='b', max_concurrent=3, active=0, queued=0)"
    assert Bulkhead().describe() == {
        "strategy": "bulkhead",
        "name": None,
        "max_concurrent": 10,
        "max_queue": 0,
        "queue_timeout": None,
        "lock_store": None,
    }
    with pytest.raises(AttributeError):
        bulkhead.stats().active = 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_concurrent": True, "name": "export"}, "bulkhead 'export': max_concurrent must be a positive integer, got True"),
        ({"max_concurrent": 0}, "max_concurrent must be a positive integer, got 0"),
        ({"max_concurrent": 2.0}, "max_concurrent must be a positive integer, got 2.0"),
        ({"max_queue": -1}, "max_queue must be an integer of 0 or more, got -1"),
        ({"max_queue": False}, "max_queue must be an integer of 0 or more, got False"),
        ({"queue_timeout": float("nan")}, "queue_timeout"),
        ({"queue_timeout": -1}, "queue_timeout"),
        ({"queue_timeout": True}, "queue_timeout"),
        ({"name": ""}, "name must be a non-empty string or None, got ''"),
        ({"clock": 1}, "clock must be a Clock or None, got 1"),
        ({"lock_store": 1}, "lock_store"),
        ({"max_concurrent": 0, "max_queue": "x", "queue_timeout": "soon"}, "max_concurrent.*; max_queue.*; queue_timeout"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_all_at_once(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Bulkhead(**options)


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="max_concurent"):
        Bulkhead(max_concurent=1)


def test_a_slot_whose_exit_never_ran_comes_back():
    """As where a signal handler raises just as the exit begins."""
    bulkhead = Bulkhead(1)
    ctx = Policy(bulkhead)._context()
    ticket = bulkhead.enter(ctx)
    assert bulkhead.stats().active == 1
    del ticket
    assert bulkhead.stats().active == 0
    ticket = bulkhead.enter(ctx)
    bulkhead.exit(ctx, ticket, Success(None))
    bulkhead.exit(ctx, ticket, Success(None))
    del ticket
    assert len(bulkhead._slots.permits) == 1


def test_nothing_is_formatted_for_a_log_that_nobody_reads(monkeypatch):
    from pyresil import _logs

    assert not _logs.heard(logging.DEBUG)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    assert not _logs.heard(logging.WARNING)
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler()])
    assert _logs.heard(logging.WARNING)
    monkeypatch.setattr(_logs.logger(), "propagate", False)
    assert not _logs.heard(logging.WARNING)


def test_a_bulkhead_takes_part_in_the_flat_function_of_its_policy():
    class Mine(Bulkhead):
        def compile(self, inner, clock):
            return lambda ctx: f"mine {super(Mine, self).compile(inner, clock)(ctx)}"

    assert Policy(Bulkhead(1))._maker is not None
    assert Policy(Mine(1)).call(lambda: "work") == "mine work"
