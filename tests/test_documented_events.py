"""Every documented event is emitted, with the documented fields, and none is built when nobody listens."""

from __future__ import annotations

import pytest

from pyresil import (
    Bulkhead,
    Cache,
    CircuitBreaker,
    Constant,
    Fallback,
    Hedge,
    LockLostError,
    LockNotAcquiredError,
    Locks,
    MemoryLockStore,
    Policy,
    RateLimit,
    RejectedError,
    Retry,
    StoreUnavailableError,
    Timeout,
)
from pyresil.events import Event
from pyresil.testing import ManualClock, record_events


def fails(*args):
    raise ConnectionError("down")


def executed(clock):
    Policy(name="p", clock=clock).call(int)


def retried(clock):
    Policy(Retry(2, Constant(0)), name="p", clock=clock).settle(fails)


def late(clock):
    Policy(Timeout("1s"), name="p", clock=clock).call(clock.advance, "2s")


def opened_and_closed(clock):
    breaker = CircuitBreaker(name="b", minimum_calls=1, open_for="1s", clock=clock)
    policy = Policy(breaker, name="p")
    policy.settle(fails)
    with pytest.raises(RejectedError):
        policy.call(int)
    clock.advance("2s")
    policy.call(int)
    breaker.isolate()


def bulkhead_full(clock):
    policy = Policy(Bulkhead(1, name="b"), name="p", clock=clock)
    with pytest.raises(RejectedError):
        policy.call(lambda: policy.call(int))


def limited(clock):
    policy = Policy(RateLimit("1/s", name="b"), name="p", clock=clock)
    policy.call(int)
    with pytest.raises(RejectedError):
        policy.call(int)


def hedged(clock):
    # A hedge waits in real time here: its copies are threads, and nobody is left to move the clock.
    import threading

    second = threading.Event()
    copies = iter((lambda: second.wait(5), second.set))
    Policy(Hedge("5ms", name="b"), name="p").call(lambda: next(copies)())


def fell_back(clock):
    Policy(Fallback(1, name="b"), name="p", clock=clock).call(fails)


def cached(clock):
    results = iter([1])
    cache = Cache(lambda ctx: "k", "1s", stale_ttl="9s", refresh="inline", name="b", clock=clock)
    policy = Policy(cache, name="p")
    policy.call(next, results)
    policy.call(next, results)
    clock.advance("2s")
    policy.call(fails)


class Sick(MemoryLockStore):
    sick = False

    def renew(self, *args, **kwargs):
        if self.sick:
            raise StoreUnavailableError("down")
        return super().renew(*args, **kwargs)


def leases(clock):
    store = Sick(clock=clock)
    locks, other = Locks(store, clock=clock), Locks(store, clock=clock)
    with locks.hold("k"), pytest.raises(LockNotAcquiredError), other.hold("k"):
        pass
    lease = locks.acquire("k", ttl="3s")
    store.sick = True
    clock.advance("4s")
    with pytest.raises(LockLostError):
        lease.raise_if_lost()
    locks.close()


def jobs(clock):
    store = MemoryLockStore(clock=clock)
    one, two = Locks(store, clock=clock), Locks(store, clock=clock)
    ran = []
    first = one.on_one_instance(key="job")(lambda: ran.append("one"))
    second = two.on_one_instance(key="job")(lambda: ran.append("two"))
    first()
    second()
    assert ran == ["one"]
    one.close()
    two.close()


def elected(clock):
    locks = Locks(MemoryLockStore(clock=clock), clock=clock)
    led = []
    election = locks.election("leader", on_acquired=led.append)
    for _ in range(20):
        clock.advance("1s")
        if led:
            break
    election.stop()
    locks.close()
    assert led


#: The words and their own fields, as documented; beside policy, source and at.
DOCUMENTED = {
    executed: {"execution": ["duration", "outcome"]},
    retried: {"retry": ["attempt", "delay", "error"]},
    late: {"timeout": ["limit", "late"]},
    opened_and_closed: {
        "circuit-opened": ["from_state", "to_state"],
        "circuit-half-opened": ["from_state", "to_state"],
        "circuit-closed": ["from_state", "to_state"],
        "circuit-isolated": ["from_state", "to_state"],
        "circuit-rejected": ["retry_after"],
    },
    bulkhead_full: {"bulkhead-rejected": ["reason", "active", "queued"]},
    limited: {"rate-limited": ["retry_after"]},
    hedged: {"hedged": ["copy", "delay"]},
    fell_back: {"fallback": ["error"]},
    cached: {
        "cache-miss": ["key"],
        "cache-hit": ["key"],
        "cache-stale": ["key"],
        "cache-refresh-failed": ["key", "error"],
    },
    leases: {
        "lock-acquired": ["key", "token"],
        "lock-rejected": ["key", "token"],
        "lock-released": ["key", "token"],
        "lock-renew-failed": ["key", "token"],
        "lock-lost": ["key", "token", "detected_by"],
    },
    jobs: {"job-skipped": ["key", "reason"]},
    elected: {"leadership-acquired": ["key", "token"], "leadership-lost": ["key", "token", "reason"]},
}


@pytest.mark.parametrize("scene", DOCUMENTED, ids=lambda scene: scene.__name__)
def test_documented_events_are_emitted_with_their_fields(scene):
    with record_events() as events:
        scene(ManualClock())
    first = {}
    for event in events:
        first.setdefault(event.type, event)
    for word, fields in DOCUMENTED[scene].items():
        event = first[word]
        assert set(vars(event)) == {"policy", "source", "at", *fields}
        assert isinstance(event.at, float)
        if not word.startswith(("lock-", "job-", "leadership-")):
            assert (
                event.policy == "p" or word == "circuit-isolated"
            )  # that one came from outside every policy
            assert event.source == (None if scene in {executed, retried, late} else "b")


@pytest.mark.parametrize("scene", DOCUMENTED, ids=lambda scene: scene.__name__)
def test_no_event_is_built_when_nobody_listens(scene, monkeypatch):
    def built(self, **values):
        raise AssertionError(f"{type(self).__name__} was built for nobody")

    monkeypatch.setattr(Event, "__init__", built)
    scene(ManualClock())
