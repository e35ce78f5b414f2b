"""`AdaptiveBulkhead`: a bulkhead whose limit moves."""

from __future__ import annotations

import threading

import pytest

from pyresil import (
    AdaptiveBulkhead,
    BulkheadFullError,
    ConfigurationError,
    Policy,
    Timeout,
    TimeoutExceededError,
)
from pyresil.testing import record_events
from tests.support.processes import wait_until


def call(policy, work):
    return policy.call(work)


def block(policy, work):
    with policy.execute() as ctx:
        value = work()
        ctx.report(value)
    return value


form = pytest.mark.parametrize("form", [call, block])


def takes(clock, seconds, value=None, error=None):
    def work():
        clock.advance(seconds)
        if error is not None:
            raise error
        return value

    return work


@form
def test_the_limit_rises_while_it_is_used_up_and_latency_stays(clock, form):
    bulkhead = AdaptiveBulkhead(1, maximum=10)
    policy = Policy(bulkhead, clock=clock)
    for _ in range(20):
        form(policy, takes(clock, 0.1))
    assert bulkhead.limit == 2
    assert bulkhead.stats()[:4] == (0, 0, 2, 0)
    assert bulkhead.stats().latency == pytest.approx(0.1)
    assert bulkhead.stats().baseline == pytest.approx(0.1)
    for _ in range(200):
        form(policy, takes(clock, 0.1))
    assert bulkhead.limit == 2, "one caller at a time does not use up two"


@form
def test_a_raise_that_makes_it_slower_is_taken_back(clock, form):
    bulkhead = AdaptiveBulkhead(1, maximum=10)
    policy = Policy(bulkhead, clock=clock)
    for _ in range(20):
        form(policy, takes(clock, 0.1))
    assert bulkhead.limit == 2
    for _ in range(20):
        form(policy, takes(clock, 0.2))
    assert bulkhead.limit == 1


@form
def test_slowness_lowers_the_limit_and_the_slots_follow(clock, form):
    bulkhead = AdaptiveBulkhead(8)
    policy = Policy(bulkhead, clock=clock)
    for _ in range(20):
        form(policy, takes(clock, 0.1))
    for _ in range(20):
        form(policy, takes(clock, 1.0))
    assert bulkhead.limit == 4

    def nest(depth):
        return policy.call(nest, depth - 1) if depth else bulkhead.stats().active

    assert nest(4) == 4
    with pytest.raises(BulkheadFullError):
        nest(5)


@form
@pytest.mark.parametrize("failure", ["timeout", "error", "status", "keyboard"])
def test_only_good_results_teach_it(clock, form, failure):
    class Response:
        status_code = 503

    bulkhead = AdaptiveBulkhead(8)
    policy = Policy(bulkhead, Timeout("500ms"), clock=clock)
    for _ in range(20):
        form(policy, takes(clock, 0.1))
    before = bulkhead.stats()
    work = {
        "timeout": takes(clock, 1.0, error=OSError()),
        "error": takes(clock, 0.4, error=ValueError()),
        "status": takes(clock, 0.4, Response()),
        "keyboard": takes(clock, 0.4, error=KeyboardInterrupt()),
    }[failure]
    for _ in range(60):
        try:
            form(policy, work)
        except (ValueError, TimeoutExceededError, KeyboardInterrupt):
            pass
    assert bulkhead.stats() == before


def test_it_refuses_queues_and_tells_like_a_bulkhead(clock, caplog):
    bulkhead = AdaptiveBulkhead(1, max_queue=1, queue_timeout="50ms", name="a")
    policy = Policy(bulkhead, name="p", clock=clock)
    inside, go, errors = threading.Event(), threading.Event(), []

    def hold():
        inside.set()
        go.wait(10)

    def waits():
        try:
            policy.call(lambda: None)
        except BulkheadFullError as error:
            errors.append(error)

    holder = threading.Thread(target=policy.call, args=(hold,), daemon=True)
    holder.start()
    assert inside.wait(5)
    waiter = threading.Thread(target=waits, daemon=True)
    with record_events("bulkhead-rejected") as events:
        waiter.start()
        clock.wait_until_parked()
        assert bulkhead.stats()[:3] == (1, 1, 1)
        with pytest.raises(BulkheadFullError):
            policy.call(lambda: None)
        clock.advance("50ms")
        waiter.join(5)
    assert [(event.source, event.reason) for event in events] == [("a", "full"), ("a", "queue-timeout")]
    assert errors[0].reason == "queue-timeout"
    assert "adaptive bulkhead 'a' of policy 'p' rejected a call: full (1 active, 1 queued)" in caplog.text
    go.set()
    holder.join(5)
    assert bulkhead.stats()[:3] == (0, 0, 1)


@form
@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt()])
def test_the_slot_is_free_after_any_exception(form, error):
    bulkhead = AdaptiveBulkhead(1)
    policy = Policy(bulkhead)

    def work():
        raise error

    for _ in range(3):
        with pytest.raises(type(error)) as raised:
            form(policy, work)
        assert raised.value is error
    assert bulkhead.stats().active == 0


def test_describe_and_repr():
    assert AdaptiveBulkhead(name="a").describe() == {
        "strategy": "adaptive bulkhead",
        "name": "a",
        "initial": 10,
        "minimum": 1,
        "maximum": 200,
        "max_queue": 0,
        "queue_timeout": None,
        "tolerance": 1.5,
    }
    assert repr(AdaptiveBulkhead(3)) == "AdaptiveBulkhead(name=None, limit=3, active=0, queued=0)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"initial": 0}, "adaptive bulkhead: initial must be a positive integer, got 0"),
        ({"initial": True}, "initial"),
        ({"minimum": 0}, "minimum"),
        ({"maximum": 1.5}, "maximum"),
        ({"minimum": 5, "maximum": 4}, r"maximum must be an integer of 5 \(minimum\) or more, got 4"),
        ({"initial": 300}, r"initial must be from 1 \(minimum\) to 200 \(maximum\), got 300"),
        ({"initial": 3, "minimum": 4}, "initial must be from 4"),
        ({"max_queue": -1}, "max_queue"),
        ({"queue_timeout": "x"}, "queue_timeout"),
        ({"tolerance": 1}, "tolerance must be a number above 1"),
        ({"tolerance": float("nan")}, "tolerance"),
        ({"initial": "a", "max_queue": -1, "tolerance": 0}, "initial.*; max_queue.*; tolerance"),
    ],
)
def test_bad_options_are_refused_all_at_once(options, message):
    with pytest.raises(ConfigurationError, match=message):
        AdaptiveBulkhead(**options)


def test_threads_that_wait_are_served_when_the_limit_rises(clock):
    bulkhead = AdaptiveBulkhead(1, max_queue=5)
    policy = Policy(bulkhead, clock=clock)
    inside, go = [], threading.Event()

    def hold():
        inside.append(1)
        go.wait(10)

    threads = [threading.Thread(target=policy.call, args=(hold,), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: bulkhead.stats().queued == 2)
    bulkhead._slots.resize(3)
    wait_until(lambda: len(inside) == 3)
    go.set()
    for thread in threads:
        thread.join(5)
    assert bulkhead.stats().active == 0
