from __future__ import annotations

import os
import sys
import threading

import pytest

from pyresil.clock import SYSTEM
from pyresil.errors import ConfigurationError
from pyresil.stores.backend import connect
from pyresil.stores.base import Granted, Held
from pyresil.stores.memory import MemoryLockStore
from pyresil.testing import ManualClock
from tests.support.processes import run_python, wait_until


def in_thread(function):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(function()), daemon=True)
    thread.start()
    return thread, answers


@pytest.mark.parametrize("clock", [5, ManualClock, "system"])
def test_what_is_no_clock_is_refused(clock):
    with pytest.raises(ConfigurationError, match="memory lock store: clock must be a Clock or None, got "):
        MemoryLockStore(clock=clock)
    with pytest.raises(ConfigurationError, match="connect: clock must be a Clock or None, got "):
        connect("memory:", clock=clock)


def test_a_release_wakes_a_waiter_at_once():
    store = MemoryLockStore()
    store.acquire("k", "a", 60_000)
    thread, answers = in_thread(lambda: store.wait_for_release("k", timeout=20))
    wait_until(lambda: store._waiters)
    began = SYSTEM.monotonic()
    store.release("k", "a")
    thread.join(5)
    assert answers == [True]
    assert SYSTEM.monotonic() - began < 2
    assert store._waiters == {}


def test_a_waiter_that_gives_up_leaves_nothing_behind():
    store = MemoryLockStore()
    store.acquire("k", "a", 60_000)
    assert store.wait_for_release("k", timeout=0.01) is False
    assert store._waiters == {}


def test_a_waiter_wakes_when_the_lock_expires():
    store = MemoryLockStore()
    store.acquire("k", "a", 50)
    assert store.wait_for_release("k", timeout=20) is True
    assert isinstance(store.acquire("k", "b", 50), Granted)


def test_waiting_runs_on_its_clock():
    clock = ManualClock()
    store = MemoryLockStore(clock=clock)
    store.acquire("k", "a", 60_000)
    thread, answers = in_thread(lambda: store.wait_for_release("k", timeout=30))
    clock.wait_until_parked()
    clock.advance(29)
    assert answers == []
    clock.advance(1)
    thread.join(5)
    assert answers == [False]


def test_expired_rows_are_swept():
    clock = ManualClock()
    store = MemoryLockStore(clock=clock)
    for number in range(2_000):
        store.acquire(f"k{number}", "a", 1_000)
        clock.advance(0.01)
    assert len(store._rows) < 600


def test_tokens_grow_for_a_key_that_was_forgotten_and_with_a_clock_set_back(monkeypatch):
    clock = ManualClock()
    store = MemoryLockStore(clock=clock)
    first = store.acquire("k", "a", 1_000).token
    store.release("k", "a")
    assert not store._rows
    monkeypatch.setattr(clock, "wall", lambda: 5.0)
    assert store.acquire("k", "b", 1_000).token > first


def test_the_child_of_a_fork_starts_empty():
    store = MemoryLockStore()
    store.acquire("k", "a", 60_000)
    guard = store._guard()
    guard.acquire()  # held at the fork, by a thread that the child does not have
    locked = threading.Event()
    done = threading.Event()

    def hold():
        with guard:
            locked.set()
            done.wait(10)

    guard.release()
    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    locked.wait(5)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if isinstance(store.acquire("k", "b", 1_000), Granted) else 1)
    _, status = os.waitpid(pid, 0)
    done.set()
    thread.join(5)
    assert os.waitstatus_to_exitcode(status) == 0
    assert isinstance(store.acquire("k", "c", 1_000), Held)


@pytest.mark.timeout(60)
def test_a_signal_handler_may_use_the_store_in_the_middle_of_a_call():
    """Every grant has its own token, and no row is left wrong, however often a handler cuts in."""
    done = run_python(
        """
        import signal, sys
        from pyresil.stores.base import Granted
        from pyresil.stores.memory import MemoryLockStore

        store = MemoryLockStore()
        tokens = []
        count = 0

        def handler(*_):
            global count
            count += 1
            answer = store.acquire("k", f"h{count}", 60_000)
            if isinstance(answer, Granted):
                tokens.append(answer.token)
                assert store.release("k", f"h{count}")
            signal.setitimer(signal.ITIMER_REAL, 0.0001)

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0001)
        turn = 0
        while count < 2_000:
            turn += 1
            answer = store.acquire("k", f"m{turn}", 60_000)
            if isinstance(answer, Granted):
                tokens.append(answer.token)
                assert store.renew("k", f"m{turn}", 60_000)
                assert store.release("k", f"m{turn}")
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # stopping the timer is not enough: a late handler starts it again
        assert len(tokens) == len(set(tokens)), "a token was given out twice"
        assert store.inspect("k") is None
        print(count, len(tokens))
        """,
        timeout=50,
    )
    assert done.stdout


def test_a_signal_handler_that_acquires_in_the_middle_of_a_sweep_keeps_its_lock(clock):
    store = MemoryLockStore(clock=clock)
    for number in range(255):
        store.acquire(f"k{number}", "early", 1_000)
    clock.advance(2)
    seen, granted = set(), []

    def at_a_jump_back(frame, event, arg):
        """Where Python runs signal handlers."""
        if event == "line":
            if frame.f_lineno in seen and not granted:
                granted.append(store.acquire("k254", "handler", 60_000))
            seen.add(frame.f_lineno)
        return at_a_jump_back

    def trace(frame, event, arg):
        return at_a_jump_back if frame.f_code is MemoryLockStore._sweep.__code__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        store.acquire("one more", "main", 1_000)
    finally:
        sys.settrace(before)
    assert granted
    assert store.inspect("k254").owner == "handler"
    assert store.inspect("k1") is None


def test_a_signal_handler_that_raises_as_a_wait_begins_leaves_no_waiter(clock):
    class Interrupted:
        """A lock after whose first release a signal handler raises."""

        armed = True

        def __enter__(self):
            pass

        def __exit__(self, *exc_info):
            if self.armed:
                self.armed = False
                raise KeyboardInterrupt

    store = MemoryLockStore(clock=clock)
    store._lock = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        store.wait_for_release("k", timeout=5.0)
    assert store._waiters == {}
