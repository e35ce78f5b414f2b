from __future__ import annotations

import pytest

from pyresil import _dispatch, circuit_breaker, policy_of
from pyresil.context import _lease, current_lease
from pyresil.errors import ConfigurationError
from pyresil.events import Hedged, Retried, emit, subscribe
from pyresil.testing import fresh_state, record_events


def retried(attempt=1):
    return Retried(policy=None, source=None, at=0.0, attempt=attempt, delay=0.0, error=None)


def hedged():
    return Hedged(policy=None, source=None, at=0.0, copy=1, delay=0.0)


def test_events_are_recorded_in_the_block_only():
    emit(retried())
    with record_events() as events:
        emit(retried(2))
        emit(hedged())
    emit(retried(3))
    assert events == [retried(2), hedged()]
    assert events.types == ["retry", "hedged"]
    assert events.of(Retried) == events.of("retry") == [retried(2)]


@pytest.mark.parametrize("types", ["retry", Retried, ["retry"], (Retried,)])
def test_only_some_types(types):
    with record_events(types) as events:
        emit(hedged())
        emit(retried())
    assert events == [retried()]


def test_an_unknown_type_is_refused():
    with pytest.raises(ConfigurationError), record_events("no-such"):
        pass


def test_late_events_are_there_at_the_end():
    with record_events() as events:
        _dispatch.post(lambda: emit(retried()))
    assert events == [retried()]


def test_nobody_listens_after_an_exception():
    with pytest.raises(ZeroDivisionError), record_events("retry"):
        raise ZeroDivisionError
    assert Retried.listeners == ()


def test_fresh_state_forgets_listeners_and_brings_them_back():
    seen = []
    end = subscribe(seen.append, "retry")
    try:
        with fresh_state():
            assert Retried.listeners == ()
            subscribe(lambda event: None, "retry")
            _lease.set(object())
        assert len(Retried.listeners) == 1
        assert current_lease() is None
    finally:
        end()
    assert Retried.listeners == ()


def test_fresh_state_forgets_instances_that_are_shared_by_name():
    with fresh_state():
        first = circuit_breaker("shared by name", minimum_calls=3)(lambda: None)
    second = circuit_breaker("shared by name", minimum_calls=4)(lambda: None)
    made = [policy_of(fn).strategies[0].describe()["minimum_calls"] for fn in (first, second)]
    assert made == [3, 4]
    fresh_state()


def test_fresh_state_may_just_be_called():
    subscribe(lambda event: None)
    fresh_state()
    assert Retried.listeners == ()
