"""Leases over forks, pauses, kills and ends of real processes."""

from __future__ import annotations

import os
import signal
import time

import pytest

from pyresil.locks import Locks
from pyresil.stores.sqlite import SQLiteLockStore
from tests.support.processes import between_writes, run_python, wait_until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and signals")

HOLDER = """
    import sys, time
    from pyresil.locks import Locks
    from pyresil.stores.sqlite import SQLiteLockStore
    locks = Locks(SQLiteLockStore(sys.argv[1]), ttl=float(sys.argv[2]))
    lease = locks.acquire("k")
    print("held", lease.token, flush=True)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "locks.db"


@pytest.fixture
def locks(path):
    return Locks(SQLiteLockStore(path), ttl="30s")


def holding(process):
    wait_until(lambda: "held" in process.output(), what="the holder")
    return int(process.output().split()[1])


def test_a_killed_holder_frees_the_key_within_one_ttl(spawn, path, locks):
    holder = spawn(HOLDER + "    time.sleep(60)", path, 3)
    token = holding(holder)
    time.sleep(3.5)
    assert locks.acquire("k") is None, "longer than a ttl, it is renewed"
    holder.kill()
    begun = time.monotonic()
    lease = locks.acquire("k", wait=15)
    assert lease.token > token
    assert time.monotonic() - begun < 8
    lease.release()


def test_a_paused_holder_knows_at_once_that_it_lost(spawn, path, locks):
    holder = spawn(
        HOLDER
        + """
    told = []
    lease.cancel.on_cancel(lambda: told.append("cancelled"))
    while lease.held:
        pass                       # no library call, no sleep: the first look after the pause must be right
    looked = time.monotonic()
    assert lease.lost.wait(5), "not set"
    print("told after", time.monotonic() - looked, lease.detected_by, lease.remaining(), flush=True)
    for _ in range(500):
        if told:
            break
        time.sleep(0.01)
    print(told, flush=True)
""",
        path,
        1,
    )
    token = holding(holder)
    time.sleep(0.15)
    with between_writes(path):
        holder.pause()
    lease = locks.acquire("k", wait=15)
    assert lease.token > token
    holder.resume()
    assert holder.wait(20) == 0, holder.output()
    assert "told after" in holder.output()
    # Its own renewal may have asked the store before the watchdog looked at the clock.
    assert "deadline 0.0" in holder.output() or "refused 0.0" in holder.output()
    assert "['cancelled']" in holder.output()
    assert lease.held
    lease.release()


def test_what_is_held_at_a_normal_end_is_handed_back(spawn, path, locks):
    holder = spawn(HOLDER, path, 30)
    assert holder.wait(10) == 0, holder.output()
    assert locks.acquire("k").release()


def test_a_cooldown_outlives_the_process_and_a_lease_without_renewal_does_not(path, locks):
    run_python(
        """
        import sys
        from pyresil.locks import Locks
        from pyresil.stores.sqlite import SQLiteLockStore
        locks = Locks(SQLiteLockStore(sys.argv[1]))
        with locks.hold("cooldown", min_hold="5m"):
            pass
        assert locks.acquire("lease", ttl="5m", renew=False)
        """,
        str(path),
    )
    assert locks.acquire("cooldown") is None
    assert locks.status("cooldown").remaining_ms > 60_000
    assert locks.acquire("lease")


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise ValueError", "sys.exit('text')"])
def test_also_where_the_end_is_an_error(spawn, path, locks, end):
    holder = spawn(f"{HOLDER}    {end}", path, 30)
    assert holder.wait(10) != 0
    assert locks.acquire("k").release()


def test_work_that_still_runs_in_a_daemon_thread_keeps_its_lease(spawn, path, locks):
    holder = spawn(
        """
        import sys, threading, time
        from pyresil.locks import Locks
        from pyresil.stores.sqlite import SQLiteLockStore
        locks = Locks(SQLiteLockStore(sys.argv[1]), ttl=30)
        begun = threading.Event()
        def work():
            with locks.hold("k"):
                begun.set()
                time.sleep(60)
        threading.Thread(target=work, daemon=True).start()
        begun.wait()
        """,
        path,
    )
    assert holder.wait(10) == 0, holder.output()
    info = locks.status("k")
    assert info is not None, "left to expire"
    assert locks.acquire("k") is None


def test_a_forked_child_that_ends_normally_hands_nothing_back(path, locks):
    done = run_python(
        """
        import os, sys
        from pyresil.locks import Locks
        from pyresil.stores.sqlite import SQLiteLockStore
        locks = Locks(SQLiteLockStore(sys.argv[1]), ttl=30)
        lease = locks.acquire("k")
        pid = os.fork()
        if pid == 0:
            assert not lease.held
            assert locks.acquire("k") is None        # it is one more contender
            own = locks.acquire("child's")           # and may have leases of its own
            assert own.held
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert lease.held
        print(locks.status("k").owner == lease.owner, locks.status("child's"))
        """,
        path,
        flags=("-W", "ignore::DeprecationWarning"),
    )
    assert done.stdout.split() == ["True", "None"]
    assert locks.acquire("k").release()


def test_multiprocessing_children_hand_nothing_back(path):
    done = run_python(
        """
        import multiprocessing, sys
        from pyresil.locks import Locks
        from pyresil.stores.sqlite import SQLiteLockStore
        locks = Locks(SQLiteLockStore(sys.argv[1]), ttl=30)
        def child():
            locks.close()
        if __name__ == "__main__":
            context = multiprocessing.get_context("fork")
            with locks.hold("k") as lease:
                process = context.Process(target=child)
                process.start()
                process.join()
                assert lease.held and process.exitcode == 0
                print(locks.status("k").owner == lease.owner)
        """,
        path,
        flags=("-W", "ignore::DeprecationWarning"),
    )
    assert done.stdout.strip() == "True"


def test_a_thousand_leases_start_no_thread_and_take_little_memory(path):
    done = run_python(
        """
        import threading, tracemalloc
        from pyresil.locks import Locks
        from pyresil.stores.memory import MemoryLockStore
        locks = Locks(MemoryLockStore(), ttl=300)
        locks.acquire("warm").release()
        tracemalloc.start()
        leases = [locks.acquire(f"k{number}") for number in range(1000)]
        names = sorted(thread.name for thread in threading.enumerate())
        print(names, tracemalloc.get_traced_memory()[0] // 1000)
        """
    )
    names, _, per_lease = done.stdout.strip().rpartition(" ")
    assert names == "['MainThread', 'pyresil-watchdog']"
    assert int(per_lease) < 5000


def test_a_signal_handler_may_use_leases_while_the_main_thread_does(path):
    done = run_python(
        """
        import signal, time
        from pyresil.locks import Locks
        from pyresil.stores.memory import MemoryLockStore
        from tests.support.depth import storm
        locks = Locks(MemoryLockStore(), ttl=30)
        handled, busy = 0, False
        def handler(*_):
            global handled, busy
            if busy:
                return              # a handler of its own kind came in between
            busy = True
            handled += 1
            with locks.hold("handler's"):
                assert locks.acquire("handler's") is None
            busy = False
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for _ in storm(0.4, lambda: handled > 20):
            with locks.hold("main's") as lease:
                assert lease.held
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert locks.list() == [] and locks._leases == {}
        print(handled > 20)
        """
    )
    assert done.stdout.strip() == "True"


def test_a_signal_handler_that_raises_leaves_no_lock(path):
    """As Celery's soft time limit does, at any point of taking and giving back."""
    done = run_python(
        """
        import signal, time
        from pyresil.locks import Locks
        from pyresil.stores.memory import MemoryLockStore
        from tests.support.depth import storm
        class SoftLimit(Exception): pass
        armed = False
        def handler(*_):
            global armed
            if armed:
                armed = False
                raise SoftLimit
        signal.signal(signal.SIGALRM, handler)
        store = MemoryLockStore()
        locks = Locks(store, ttl=30)
        raised = 0
        number = 0
        for _ in storm(0.5, lambda: raised > 50):
            number += 1
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, 0.00001 + number % 40 * 0.000004)
                with locks.hold("k", wait=5):
                    pass
                armed = False
            except SoftLimit:
                raised += 1
        armed = False
        end = time.monotonic() + 20
        while (locks.list() or locks._leases) and time.monotonic() < end:
            time.sleep(0.01)
        print(raised > 50, len(locks.list()), len(locks._leases))
        """
    )
    assert done.stdout.split()[0] == "True"
    assert done.stdout.split()[1:] == ["0", "0"]


def test_sigterm_that_ends_in_an_orderly_exit_hands_back(spawn, path, locks):
    orderly = "import signal, sys, time\n    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))"
    # Not one long sleep: a signal just before it is handled after it.
    holder = spawn(HOLDER.replace("import sys, time", orderly) + "    while True: time.sleep(0.1)", path, 30)
    holding(holder)
    assert holder.stop(signal.SIGTERM) == 0
    assert locks.acquire("k").release()


def test_a_sick_store_does_not_hold_up_the_end_of_the_process(spawn):
    holder = spawn(
        """
        import time
        from pyresil import Locks, MemoryLockStore, StoreUnavailableError
        class Sick(MemoryLockStore):
            def release(self, *args, timeout=None, **kwargs):
                time.sleep(timeout)
                raise StoreUnavailableError("no answer")
        locks = Locks(Sick(), ttl=60)
        leases = [locks.acquire(f"k{number}") for number in range(100)]
        print("held", flush=True)
        """
    )
    wait_until(lambda: "held" in holder.output())
    begun = time.monotonic()
    assert holder.wait(15) == 0, holder.output()
    assert time.monotonic() - begun < 8


def test_under_gevent_also_when_imported_before_patching():
    pytest.importorskip("gevent")
    done = run_python(
        """
        from pyresil import Locks, MemoryLockStore
        import pyresil.locks.lease, pyresil._dispatch, pyresil._watchdog
        from gevent import monkey
        monkey.patch_all()
        import gevent, time
        store = MemoryLockStore()
        locks = Locks(store, ttl="3s")

        def soon(check):
            for _ in range(1000):
                if check():
                    break
                gevent.sleep(0.01)

        lost = []
        lease = locks.acquire("k")
        time.sleep(4)                       # only renewals keep it this long
        print(lease.held)
        got = []
        waiter = gevent.spawn(lambda: got.append(locks.acquire("k", wait=10, on_lost=lost.append)))
        gevent.sleep(0.1)
        lease.release()
        waiter.join(10)
        print(got[0].held)
        locks.break_lease("k")
        print(got[0].lost.wait(10))
        soon(lambda: lost)
        print(lost == got)
        election = locks.election("e", lambda lease: lease.cancel.wait(60))
        soon(lambda: election.is_leader)
        print(election.is_leader, election.stop())
        """,
        flags=("-W", "ignore"),
    )
    assert done.stdout.split() == ["True"] * 6
