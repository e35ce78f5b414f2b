"""Events of bulkheads, timeouts and hedges are not built when nobody listens."""

from __future__ import annotations

import time

import pytest

from pyresil import (
    AdaptiveBulkhead,
    Bulkhead,
    BulkheadFullError,
    Hedge,
    Policy,
    Timeout,
    TimeoutExceededError,
)
from pyresil.events import Event
from pyresil.testing import ManualClock, record_events
from tests.support.processes import wait_until


def refused(kind):
    policy = Policy(kind(1))
    with pytest.raises(BulkheadFullError):
        policy.call(lambda: policy.call(int))


def late():
    clock = ManualClock()
    Policy(Timeout("1s"), clock=clock).call(clock.advance, "2s")


def exceeded():
    with pytest.raises(TimeoutExceededError):
        Policy(Timeout("10ms", mode="abandon", strict=True)).call(time.sleep, 0.1)


def hedged():
    begun = []

    def work():
        begun.append(1)
        wait_until(lambda: len(begun) == 2)

    Policy(Hedge("5ms")).call(work)


SCENES = {
    "bulkhead": (lambda: refused(Bulkhead), "bulkhead-rejected"),
    "adaptive": (lambda: refused(AdaptiveBulkhead), "bulkhead-rejected"),
    "late": (late, "timeout"),
    "exceeded": (exceeded, "timeout"),
    "hedged": (hedged, "hedged"),
}


@pytest.mark.parametrize(("scene", "word"), SCENES.values(), ids=SCENES)
def test_an_event_that_nobody_listens_to_is_never_built(scene, word, monkeypatch):
    with record_events(word) as events:
        scene()
    assert [event.type for event in events] == [word]

    def built(self, **values):
        raise AssertionError("built for nobody")

    monkeypatch.setattr(Event, "__init__", built)
    scene()
