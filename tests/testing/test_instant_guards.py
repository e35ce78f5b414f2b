"""On a clock that leaves out waits, work in other threads is still waited for."""

from __future__ import annotations

import threading
import time

import pytest

from pyresil import (
    AdaptiveBulkhead,
    Bulkhead,
    BulkheadFullError,
    Hedge,
    Locks,
    MemoryLockStore,
    Policy,
    Timeout,
)
from pyresil.testing import instant


@pytest.mark.parametrize("given", [True, False], ids=["clock", "block"])
@pytest.mark.parametrize("make", [lambda: Timeout("30s", mode="abandon"), lambda: Hedge("30s")])
def test_the_work_takes_its_time(given, make):
    calls = []

    def work():
        calls.append(1)
        time.sleep(0.05)
        return "done"

    if given:
        assert Policy(make(), clock=instant()).call(work) == "done"
    else:
        with instant():
            assert Policy(make()).call(work) == "done"
    assert len(calls) == 1


@pytest.mark.parametrize("given", [True, False], ids=["clock", "block"])
@pytest.mark.parametrize("make", [Bulkhead, AdaptiveBulkhead])
def test_a_place_in_the_queue_is_not_waited_for(given, make):
    bulkhead = make(1, max_queue=5, queue_timeout="1h")
    clock = instant()
    policy = Policy(bulkhead, clock=clock if given else None)
    inside, go = threading.Event(), threading.Event()

    def hold():
        inside.set()
        go.wait(10)

    holder = threading.Thread(target=policy.call, args=(hold,), daemon=True)
    holder.start()
    assert inside.wait(5)
    begun = time.monotonic()
    with pytest.raises(BulkheadFullError) as refused:
        if given:
            policy.call(int)
        else:
            with clock:
                policy.call(int)
    assert refused.value.reason == "queue-timeout"
    assert time.monotonic() - begun < 5
    go.set()
    holder.join(5)
    assert bulkhead.stats().active == 0


def test_closing_waits_for_work_under_a_lease():
    clock = instant()
    store = MemoryLockStore(clock=clock)
    locks = Locks(store, clock=clock)
    lease = locks.acquire("k")
    inside = threading.Event()

    def work():
        inside.set()
        time.sleep(0.1)

    worker = threading.Thread(target=lease.run, args=(work,), daemon=True)
    worker.start()
    assert inside.wait(5)
    locks.close()
    assert not lease.cancel.is_set()
    assert store.inspect("k") is None
    worker.join(5)


def test_stopping_an_election_waits_for_the_leaders_work(caplog):
    clock = instant()
    store = MemoryLockStore(clock=clock)
    inside = threading.Event()

    def lead(lease):
        inside.set()
        lease.cancel.wait()
        time.sleep(0.1)

    election = Locks(store, clock=clock).election("k", lead)
    assert inside.wait(5)
    assert election.stop() is True
    assert store.inspect("k") is None
    assert caplog.text == ""
