"""Event types, subscriptions, and what listeners may do."""

from __future__ import annotations

import copy
import logging
import pickle
import sys
import threading

import pytest

from pyresil import Event, Fallback, Policy, Retry, Success, events, subscribe
from pyresil.events import (
    TYPES,
    CircuitClosed,
    CircuitOpened,
    Executed,
    FellBack,
    LockLost,
    Retried,
    emit,
)
from pyresil.testing import InstantClock, fresh_state, record_events

# DESIGN's list: the word, and the fields besides policy, source and at.
DOCUMENTED = {
    "execution": ("duration", "outcome"),
    "retry": ("attempt", "delay", "error"),
    "timeout": ("limit", "late"),
    "circuit-opened": ("from_state", "to_state"),
    "circuit-half-opened": ("from_state", "to_state"),
    "circuit-closed": ("from_state", "to_state"),
    "circuit-isolated": ("from_state", "to_state"),
    "circuit-rejected": ("retry_after",),
    "circuit-store-error": ("error",),
    "bulkhead-rejected": ("reason", "active", "queued"),
    "rate-limited": ("retry_after",),
    "hedged": ("copy", "delay"),
    "fallback": ("error",),
    "cache-hit": ("key",),
    "cache-stale": ("key",),
    "cache-miss": ("key",),
    "cache-refresh-failed": ("key", "error"),
    "lock-acquired": ("key", "token"),
    "lock-rejected": ("key", "token"),
    "lock-renew-failed": ("key", "token"),
    "lock-lost": ("key", "token", "detected_by"),
    "lock-released": ("key", "token"),
    "job-skipped": ("key", "reason"),
    "leadership-acquired": ("key", "token"),
    "leadership-lost": ("key", "token", "reason"),
    "idempotency-replayed": ("handler", "key", "scope", "status"),
    "idempotency-rejected": ("handler", "key", "scope", "code", "status"),
    "idempotency-lock-lost": ("handler", "key", "scope", "phase"),
}


def make(kind, **values):
    return kind(**{name: values.get(name, name) for name in kind.fields})


def test_the_documented_events_and_no_others():
    assert {word: kind.fields for word, kind in TYPES.items() if kind.__module__ == "pyresil.events"} == {
        word: ("policy", "source", "at", *fields) for word, fields in DOCUMENTED.items()
    }


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_events_are_frozen_values(kind):
    event = make(kind)
    assert event.type == kind.type
    assert all(getattr(event, name) == name for name in kind.fields)
    with pytest.raises(AttributeError, match="frozen"):
        event.policy = "other"
    with pytest.raises(AttributeError, match="frozen"):
        event.new = 1
    with pytest.raises(AttributeError, match="frozen"):
        del event.at
    assert event == make(kind)
    assert hash(event) == hash(make(kind))
    assert event != make(kind, at=5)
    assert all(f"{name}={name!r}" in repr(event) for name in kind.fields)
    assert pickle.loads(pickle.dumps(event)) == event
    assert copy.copy(event) == event
    assert copy.deepcopy(event) == event


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_events_take_exactly_their_fields(kind):
    values = {name: name for name in kind.fields}
    with pytest.raises(TypeError, match="takes exactly"):
        kind(**values, other=1)
    values.pop("at")
    with pytest.raises(TypeError, match="takes exactly"):
        kind(**values)


def test_events_of_different_types_differ():
    assert make(CircuitOpened) != make(CircuitClosed)


def test_listeners_get_what_they_asked_for():
    everything, retries, words, base = [], [], [], []
    ends = [
        subscribe(everything.append),
        subscribe(retries.append, Retried),
        subscribe(words.append, ["fallback", LockLost]),
        subscribe(base.append, Event),
    ]
    try:
        for kind in (Retried, FellBack, LockLost, CircuitOpened):
            emit(make(kind))
    finally:
        for end in ends:
            end()
    assert [event.type for event in everything] == ["retry", "fallback", "lock-lost", "circuit-opened"]
    assert everything == base
    assert [event.type for event in retries] == ["retry"]
    assert [event.type for event in words] == ["fallback", "lock-lost"]
    emit(make(Retried))
    assert len(everything) == 4
    assert not any(kind.listeners for kind in TYPES.values())


def test_in_the_order_of_subscription():
    seen = []
    ends = [subscribe(lambda event, name=name: seen.append(name), "retry") for name in "abc"]
    emit(make(Retried))
    ends[1]()
    emit(make(Retried))
    ends[0](), ends[2]()
    assert "".join(seen) == "abcac"


def test_unsubscribing_twice_has_no_effect():
    seen = []
    first, second = subscribe(seen.append, "retry"), subscribe(seen.append, "retry")
    first()
    first()
    emit(make(Retried))
    assert len(seen) == 1
    second()
    emit(make(Retried))
    assert len(seen) == 1


def test_a_type_named_twice_is_heard_once():
    seen = []
    end = subscribe(seen.append, ["retry", Retried, Event])
    emit(make(Retried))
    end()
    assert len(seen) == 1
    assert not Retried.listeners


def test_unsubscribe_after_a_fresh_start():
    end = subscribe(print, "retry")
    Retried.listeners = ()
    end()
    assert Retried.listeners == ()


def test_what_a_listener_raises_is_logged_and_dropped(caplog):
    def broken(event):
        raise RuntimeError("listener is broken")

    seen = []
    ends = [subscribe(broken, "retry"), subscribe(seen.append, "retry")]
    try:
        with caplog.at_level(logging.ERROR, "pyresil"):
            result = Policy(Retry(), clock=InstantClock()).call(flaky(1))
    finally:
        for end in ends:
            end()
    assert result == "ok"
    assert len(seen) == 1
    assert "a listener of 'retry' events raised" in caplog.text
    assert "RuntimeError: listener is broken" in caplog.text, "the log has the traceback"


def flaky(failures, error=ValueError):
    left = [failures]

    def work():
        if left[0]:
            left[0] -= 1
            raise error
        return "ok"

    return work


def test_a_listener_may_use_the_policy_and_subscribe():
    policy = Policy(Retry(), Fallback(None), clock=InstantClock())
    seen, late, ends = [], [], []

    def listener(event):
        seen.append(event)
        if len(seen) == 1:
            ends.append(subscribe(late.append, "fallback"))
            policy.call(flaky(1))

    ends.append(subscribe(listener, "fallback"))
    try:
        policy.call(flaky(1))
    finally:
        for end in ends:
            end()
    assert len(seen) == 2
    assert len(late) == 1


def test_no_event_is_built_when_nobody_listens(monkeypatch):
    def built(self, **values):
        raise AssertionError("an event was built")

    monkeypatch.setattr(Event, "__init__", built)
    policy = Policy(Fallback(0), Retry(2), clock=InstantClock())
    assert policy.call(flaky(5)) == 0
    assert policy.call(flaky(1)) == "ok"
    for attempt in Policy(Retry(2), clock=InstantClock()).execute():
        with attempt:
            pass
    with Policy().execute():
        pass


def test_subscribing_from_many_threads_loses_nothing():
    threads, rounds = 8, 200
    before = sys.getswitchinterval()
    barrier = threading.Barrier(threads)
    counts = [0] * threads

    def work(number):
        def listener(event):
            counts[number] += 1

        barrier.wait()
        for _ in range(rounds):
            end = subscribe(listener, "retry")
            end()
        subscribe(listener, "retry")

    sys.setswitchinterval(1e-6)
    try:
        running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert len(Retried.listeners) == threads
        emit(make(Retried))
        assert counts == [1] * threads
    finally:
        sys.setswitchinterval(before)
        Retried.listeners = ()


def test_retry_and_fallback_tell_what_happened():
    clock = InstantClock()
    policy = Policy(Fallback("spare", name="spare"), Retry(2, name="again"), name="carrier", clock=clock)
    boom = ValueError("boom")

    def work():
        raise boom

    with record_events() as recorded:
        assert policy.options(source="orders").call(work) == "spare"
    assert recorded.types == ["retry", "fallback", "execution"]
    retry, fallback, execution = recorded
    assert (retry.policy, retry.source, retry.attempt, retry.error) == ("carrier", "again", 1, boom)
    assert 0 <= retry.delay <= 0.2
    assert (fallback.policy, fallback.source, fallback.error) == ("carrier", "spare", boom)
    assert (execution.policy, execution.source, execution.outcome) == ("carrier", "orders", Success("spare"))
    assert execution.duration >= retry.delay
    for event in recorded:
        assert abs(event.at - clock.wall()) < 60


def test_refused_results_have_no_error_in_the_event():
    policy = Policy(Fallback(0, handle_result=lambda value: value == 1), clock=InstantClock())
    with record_events(["fallback"]) as recorded:
        assert policy.call(lambda: 1) == 0
    assert [event.error for event in recorded] == [None]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_no_execution_event_for_base_exceptions(error):
    policy = Policy(Retry())
    with record_events(Executed) as recorded:
        with pytest.raises(error):
            policy.call(flaky(1, error))
        with pytest.raises(error), Policy().execute():
            raise error
        with pytest.raises(error):
            for attempt in policy.execute():
                with attempt:
                    raise error
    assert recorded == []


def test_what_hot_paths_ask_is_what_listens():
    policy = Policy(Retry())
    seen = []
    end = subscribe(seen.append, Executed)
    try:
        with fresh_state():
            inside = []
            unsubscribe = subscribe(inside.append, Executed)
            policy.call(int)
            unsubscribe()
            policy.call(int)
            assert (len(inside), seen) == (1, [])
        policy.call(int)
        assert len(seen) == 1, "listeners that were there before are back"
    finally:
        end()
    policy.call(int)
    assert len(seen) == 1
    assert all(tuple(kind.heard) == kind.listeners == () for kind in TYPES.values())


def test_all_is_complete():
    assert set(events.__all__) >= {
        kind.__name__ for kind in TYPES.values() if kind.__module__ == events.__name__
    }
