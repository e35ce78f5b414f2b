"""The cases of leases, by their ids."""

from __future__ import annotations

import itertools
import os
import threading
import time

import pytest

from pyresil import _dispatch
from pyresil.context import current_lease, fencing_token
from pyresil.errors import ConfigurationError, LockLostError
from pyresil.locks import Locks
from pyresil.stores.memory import MemoryLockStore
from pyresil.testing import ManualClock, record_events
from tests.locks.faults import FaultyStore
from tests.support.processes import run_python, wait_until
from tests.support.stores import LOCK_STORES


@pytest.fixture(params=["memory-real-time", "sqlite", "redis", "redis-cluster", "postgres", "postgres-pool"])
def real_store(request):
    harness = LOCK_STORES[request.param](request)
    yield harness.store()
    harness.close()


def manual(ttl="1s"):
    clock = ManualClock()
    store = FaultyStore(MemoryLockStore(clock=clock))
    return clock, store, Locks(store, ttl=ttl, clock=clock)


def of(lease, events):
    """Those of this lease: leases that other tests let go are lost at some time too."""
    return [event for event in events if (event.key, event.token) == (lease.key, lease.token)]


def test_L1_one_failed_renewal_does_not_lose_the_lease():
    clock, store, locks = manual()

    def once(number):
        if number == 1:
            raise ConnectionError("reset")

    store.faults["renew"] = once
    lease = locks.acquire("k")
    with record_events(["lock-lost", "lock-renew-failed"]) as events:
        clock.advance(2.5)
    assert lease.held
    assert not lease.lost.is_set()
    assert [event.type for event in of(lease, events)] == ["lock-renew-failed"]
    before = store.count("renew")
    clock.advance(1)
    assert store.count("renew") > before
    assert lease.release()


def test_L1_in_real_time(real_store):
    store = FaultyStore(real_store)
    store.faults["renew"] = lambda number: "drop-request" if number == 1 else None
    lease = Locks(store, ttl="2.5s").acquire("k")
    assert not lease.lost.wait(4.0)
    assert lease.held
    assert store.count("renew") >= 3
    lease.release()


@pytest.mark.parametrize("error", [ConnectionError("down"), OSError("down"), RuntimeError("bug")])
def test_L2_failing_renewals_lose_the_lease_at_its_deadline_once(error):
    clock, store, locks = manual()
    store.faults["renew"] = error
    lost = []
    with record_events("lock-lost") as events:
        lease = locks.acquire("k", on_lost=lost.append)
        clock.advance(0.9)
        assert lease.held
        assert not lease.lost.is_set()
        clock.advance(0.1)
        assert lease.lost.is_set()
        assert not lease.held
        clock.advance(60)
    assert lost == [lease]
    assert [event.detected_by for event in of(lease, events)] == ["deadline"]
    assert lease.cancel.reason.detected_by == "deadline"


def test_L2_in_real_time(real_store):
    store = FaultyStore(real_store)
    store.faults["renew"] = ConnectionError("down")
    asked = time.monotonic()
    lease = Locks(store, ttl="2s").acquire("k")
    granted = time.monotonic()
    assert lease.lost.wait(15)
    lost = time.monotonic()
    assert lost - asked >= 1.9
    assert lost - granted <= 2.1 + 4.0, "room for a busy machine"
    assert not lease.held
    assert lease.detected_by == "deadline"


def test_L2_a_renewal_that_hangs_does_not_delay_the_loss():
    clock, store, locks = manual("30s")
    go_on = threading.Event()

    def hang(number):
        with clock.blocked():
            go_on.wait(20)

    store.faults["renew"] = hang
    lease = locks.acquire("k")
    clock.advance("29s")
    assert lease.held
    clock.advance("1s")
    assert lease.lost.is_set()
    go_on.set()
    # the confirmation that comes at last is given back, not used
    wait_until(lambda: locks.status("k") is None)
    assert lease.lost.is_set()
    assert not lease.held


def test_L3_an_overtaken_holder_is_refused_and_touches_nothing():
    clock, store, locks = manual("30s")
    others = Locks(store.inner, ttl="60s", clock=clock)
    store.faults["renew"] = lambda number: "drop-request"
    lease = locks.acquire("k")
    clock.advance("30s")
    taken = others.acquire("k")
    assert taken.token > lease.token
    store.faults.clear()
    assert store.renew("k", lease.owner, 30_000) is False
    assert others.status("k").remaining_ms == 60_000
    assert others.status("k").owner == taken.owner


def test_L3_a_refused_renewal_loses_the_lease_at_once():
    clock, store, locks = manual("30s")
    lease = locks.acquire("k")
    locks.break_lease("k")
    taken = Locks(store.inner, clock=clock).acquire("k")
    clock.advance("10s")
    assert lease.lost.is_set()
    assert lease.detected_by == "refused"
    assert lease.cancel.is_set()
    with pytest.raises(LockLostError, match="refused"):
        lease.raise_if_lost()
    assert taken.held


def test_L4_releasing_an_overtaken_lease_is_no_error(real_store):
    store = FaultyStore(real_store)
    store.faults["renew"] = ConnectionError("down")
    locks, others = Locks(store, ttl="1.5s"), Locks(real_store, ttl="30s")
    lease = locks.acquire("k")
    assert lease.lost.wait(15)
    taken = others.acquire("k", wait=15)
    assert lease.release() is False
    with pytest.raises(LockLostError):
        lease.raise_if_lost()
    assert taken.held
    assert others.status("k").owner == taken.owner
    assert locks.acquire("k") is None
    taken.release()


def test_L6_acquired_in_one_thread_released_in_another(real_store):
    locks = Locks(real_store)
    found = []
    thread = threading.Thread(target=lambda: found.append(locks.acquire("k")))
    thread.start()
    thread.join()
    assert found[0].held
    assert found[0].release()
    assert locks.status("k") is None


def test_L6_two_leases_in_one_thread_keep_their_tokens(real_store):
    locks = Locks(real_store)
    with locks.hold("a") as a:
        assert (current_lease(), fencing_token()) == (a, a.token)
        with locks.hold("b") as b:
            assert a.owner != b.owner
            assert (current_lease(), fencing_token()) == (b, b.token)
        assert (current_lease(), fencing_token()) == (a, a.token)
        assert locks.status("b") is None
        assert locks.status("a").token == a.token
    assert current_lease() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_L7_a_forked_child_neither_has_nor_gives_back_the_lease(tmp_path):
    done = run_python(
        """
        import os, sys, time
        from pyresil.locks import Locks
        from pyresil.stores.sqlite import SQLiteLockStore
        path = sys.argv[1]
        locks = Locks(SQLiteLockStore(path), ttl="3s")
        with locks.hold("k") as lease:
            pid = os.fork()
            if pid == 0:
                ok = not lease.held and lease.remaining() == 0 and lease.release() is False
                sys.exit(0 if ok else 1)     # leaves the block and runs the exit hooks
            assert os.waitpid(pid, 0)[1] == 0
            time.sleep(4.5)                  # only renewals keep it this long
            assert lease.held and not lease.lost.is_set()
            contender = Locks(SQLiteLockStore(path))
            assert contender.acquire("k") is None
        assert contender.acquire("k").release()
        print("ok")
        """,
        tmp_path / "locks.db",
        flags=("-W", "ignore::DeprecationWarning"),
    )
    assert done.stdout.strip() == "ok"


def test_L11_a_waiter_is_judged_by_the_holders_ttl():
    clock = ManualClock()
    store = FaultyStore(MemoryLockStore(clock=clock))
    store.faults["renew"] = ConnectionError("the holder is dead")
    holder = Locks(store, ttl="5s", clock=clock)
    waiter = Locks(store.inner, ttl="1s", clock=clock)
    holder.acquire("k")
    clock.advance(2)
    assert waiter.acquire("k") is None
    clock.advance(3)
    assert waiter.acquire("k") is not None


def test_L12_minimum_hold_keeps_a_released_lock_closed():
    clock, store, locks = manual("30s")
    others = Locks(store.inner, clock=clock)
    with locks.hold("k", min_hold="3s"):
        clock.advance(0.01)
    assert clock.elapsed < 0.02, "release returned at once"
    assert others.status("k").owner == ""
    clock.advance(0.99)
    assert others.acquire("k") is None
    clock.advance(2.2)
    assert others.acquire("k").release()


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_L15_six_processes_on_one_file(tmp_path, spawn):
    code = """
        import sys
        from pyresil.locks import Locks
        from pyresil.stores.sqlite import SQLiteLockStore
        locks = Locks(SQLiteLockStore(sys.argv[1], timeout=30))
        for _ in range(100):
            with locks.hold("k", wait=60) as lease:
                with open(sys.argv[2], "a") as out:
                    out.write(f"{lease.token}\\n")
    """
    tokens = tmp_path / "tokens"
    processes = [spawn(code, tmp_path / "locks.db", tokens) for _ in range(6)]
    for process in processes:
        assert process.wait(80) == 0, process.output()
        assert process.output() == ""
    found = [int(line) for line in tokens.read_text().split()]
    assert len(found) == 600
    assert all(earlier < later for earlier, later in itertools.pairwise(found))


@pytest.mark.parametrize("ttl", [None, 0, -1, float("nan"), 0.0004, True, "soon", float("inf")])
def test_L17_a_ttl_that_cannot_work_is_refused(ttl):
    locks = Locks(MemoryLockStore())
    with pytest.raises(ConfigurationError, match="ttl must be"):
        Locks(MemoryLockStore(), ttl=ttl)
    with pytest.raises(ConfigurationError, match="lock 'k': ttl must be"):
        locks.acquire("k", ttl=ttl)
    with pytest.raises(ConfigurationError, match="lock 'k': ttl must be"):
        locks.hold("k", ttl=ttl)
    assert locks.list() == []


def test_L20_a_hung_job_is_lost_by_its_maximum_hold():
    clock, store, locks = manual("30s")
    lost = []
    with record_events("lock-lost") as events:
        lease = locks.acquire("k", max_hold="5m", on_lost=lost.append)
        clock.advance(299)
        assert lease.held
        clock.advance("1s")
        assert not lease.held
        assert lease.lost.is_set()
        assert lease.cancel.reason.detected_by == "max-hold"
        renewals = store.count("renew")
        clock.advance("30s")
    assert store.count("renew") == renewals
    assert [event.detected_by for event in of(lease, events)] == ["max-hold"]
    assert lost == [lease]
    assert locks.status("k") is None, "nobody renewed it, so it expired"
    _dispatch.dispatcher().flush(5)
