from __future__ import annotations

import gc
import logging
import math
import os
import sys
import threading
import time
import types
import weakref

import pytest

from pyresil import _watchdog
from pyresil._watchdog import Watchdog, call_later
from pyresil.clock import SYSTEM
from pyresil.errors import report_exception
from tests.support.processes import run_python, wait_until


@pytest.fixture
def watchdog():
    return Watchdog()


def test_nothing_starts_a_thread_before_something_is_scheduled(watchdog):
    assert watchdog._thread is None
    watchdog.call_later(60.0, print)
    assert watchdog._thread.is_alive()
    assert watchdog._thread.daemon


def test_actions_run_when_due_in_order_of_due_time(watchdog):
    seen = []
    done = threading.Event()
    begun = time.monotonic()
    watchdog.call_later(0.15, lambda: (seen.append((3, time.monotonic() - begun)), done.set()))
    watchdog.call_later(0.05, lambda: seen.append((1, time.monotonic() - begun)))
    watchdog.call_later(0.1, lambda: seen.append((2, time.monotonic() - begun)))
    quick = time.monotonic() - begun < 0.04  # else they are due in another order
    assert done.wait(5)
    wait_until(lambda: len(seen) == 3)
    assert not quick or [number for number, _ in seen] == [1, 2, 3]
    assert all(at >= number * 0.05 for number, at in seen)


def test_an_earlier_timer_wakes_a_sleeping_watchdog(watchdog):
    watchdog.call_later(60.0, print)
    wait_until(lambda: watchdog._parker is not None)
    time.sleep(0.05)
    done = threading.Event()
    watchdog.call_later(0.01, done.set)
    assert done.wait(5)


def test_equal_delays_keep_their_order(watchdog):
    seen = []
    done = threading.Event()
    for number in range(100):
        watchdog.call_later(0.0, lambda number=number: seen.append(number))
    watchdog.call_later(0.01, done.set)
    assert done.wait(5)
    assert seen == list(range(100))


def test_a_cancelled_timer_does_not_run_and_lets_its_action_go_at_once(watchdog):
    class Thing:
        def act(self):
            raise AssertionError

    thing = Thing()
    gone = weakref.ref(thing)
    timer = watchdog.call_later(1.0, thing.act)
    timer.cancel()
    timer.cancel()
    del thing
    assert gone() is None
    done = threading.Event()
    watchdog.call_later(1.1, done.set)
    assert done.wait(5)


def test_an_action_that_ran_is_let_go(watchdog):
    class Thing:
        ran = threading.Event()

        def act(self):
            self.ran.set()

    thing = Thing()
    gone = weakref.ref(thing)
    timer = watchdog.call_later(0.0, thing.act)
    assert thing.ran.wait(5)
    del thing
    wait_until(lambda: gc.collect() is not None and gone() is None)
    timer.cancel()


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_action_that_raises_does_not_stop_the_others(watchdog, caplog, error):
    def bad():
        raise error

    done = threading.Event()
    watchdog.call_later(0.0, bad)
    watchdog.call_later(0.01, done.set)
    assert done.wait(5)
    assert "action raised" in caplog.text


@pytest.mark.parametrize("error", [LookupError, SystemExit])
def test_a_log_filter_that_raises_does_not_end_the_watchdog(watchdog, monkeypatch, capfd, error):
    def refuse(record):
        raise error("of a filter")

    monkeypatch.setattr(logging.getLogger("pyresil"), "filters", [refuse])
    done = threading.Event()
    watchdog.call_later(0.0, lambda: 1 / 0)
    watchdog.call_later(0.01, done.set)
    assert done.wait(5)
    assert f"{error.__name__}: of a filter" in capfd.readouterr().err


def test_called_off_timers_do_not_pile_up(watchdog):
    keep = [watchdog.call_later(60.0, print) for _ in range(10)]
    for _ in range(20_000):
        watchdog.call_later(50.0, print).cancel()
    wait_until(lambda: len(watchdog._heap) < 500)
    assert sum(entry[2].action is not None for entry in watchdog._heap) == len(keep)


def test_live_timers_are_not_swept_again_and_again(watchdog, monkeypatch):
    for _ in range(1000):
        watchdog.call_later(60.0, print)
    for _ in range(100):
        watchdog.call_later(60.0, print).cancel()
    before = watchdog._heap
    done = threading.Event()
    watchdog.call_later(0.0, done.set)
    assert done.wait(5)
    assert watchdog._heap is before, "100 of 1,000 are not worth a rebuild"


def test_scheduling_from_an_action(watchdog):
    seen = []
    done = threading.Event()

    def again():
        seen.append(1)
        if len(seen) < 5:
            watchdog.call_later(0.001, again)
        else:
            done.set()

    watchdog.call_later(0.0, again)
    assert done.wait(5)


def test_one_watchdog_for_the_process():
    done = threading.Event()
    call_later(SYSTEM, 0.0, done.set)
    assert done.wait(5)
    first = _watchdog._watchdog
    call_later(SYSTEM, 60.0, print).cancel()
    assert _watchdog._watchdog is first


def test_without_threads_a_timer_is_kept_for_later(watchdog, monkeypatch, caplog):
    def none_left(target, name):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(type(SYSTEM), "spawn", lambda self, target, name: none_left(target, name))
        done = threading.Event()
        watchdog.call_later(0.0, done.set)
        assert "cannot be started" in caplog.text
        assert not done.is_set()
    watchdog.call_later(60.0, print)
    assert done.wait(5), "the next timer started the thread, which ran both"


def test_a_log_handler_may_wait_for_another_thread_that_schedules(watchdog, monkeypatch):
    waited, spawn = [], SYSTEM.spawn

    class Handler(logging.Handler):
        def emit(self, record):
            other = threading.Thread(daemon=True, target=watchdog.call_later, args=(60.0, print))
            other.start()
            other.join(5)
            waited.append(other.is_alive())

    def none_left_here(self, target, name):
        if threading.current_thread() is threading.main_thread():
            raise RuntimeError("can't start new thread")
        return spawn(target, name)

    handler = Handler()
    logging.getLogger("pyresil").addHandler(handler)
    try:
        monkeypatch.setattr(type(SYSTEM), "spawn", none_left_here)
        watchdog.call_later(60.0, print)
    finally:
        logging.getLogger("pyresil").removeHandler(handler)
    assert waited == [False]


def test_a_forked_child_starts_with_none_of_the_parents_timers():
    run_python(
        """
        import os, threading, time
        from pyresil import _watchdog
        from pyresil.clock import SYSTEM
        timer = _watchdog.call_later(SYSTEM, 0.3, lambda: os.write(2, b"parent's timer ran in the child"))
        _watchdog._watchdog._lock.acquire()          # held by the parent at the fork
        pid = os.fork()
        if pid == 0:
            timer.cancel()
            done = threading.Event()
            _watchdog.call_later(SYSTEM, 0.0, done.set)
            ok = done.wait(5)
            os._exit(0 if ok else 1)
        assert os.waitpid(pid, 0)[1] == 0
        """,
        flags=("-W", "ignore::DeprecationWarning"),
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals")
def test_a_signal_handler_may_schedule_at_any_point():
    """The handler schedules and cancels on the main thread, in the middle of the main thread's own scheduling."""
    done = run_python(
        """
        import signal, threading, time
        from pyresil import _watchdog
        from pyresil.clock import SYSTEM
        _watchdog._LONGEST_NAP = 1000.0  # or it would find after some seconds what it was not woken for
        fired = []
        handled = 0
        def handler(*_):
            global handled
            handled += 1
            _watchdog.call_later(SYSTEM, 0.0, lambda: fired.append(1))
            _watchdog.call_later(SYSTEM, 5000.0, print).cancel()
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        until = time.monotonic() + 1.5
        mine = 0
        while time.monotonic() < until:
            _watchdog.call_later(SYSTEM, 0.0, lambda: fired.append(1))
            _watchdog.call_later(SYSTEM, 5000.0, print).cancel()
            mine += 1
            if mine % 50 == 0:
                time.sleep(0.001)
        signal.setitimer(signal.ITIMER_REAL, 0)
        until = time.monotonic() + 60
        while len(fired) < mine + handled and time.monotonic() < until:
            time.sleep(0.01)
        print(handled > 10, len(fired) - mine - handled)
        """,
        timeout=90,
    )
    assert done.stdout.split() == ["True", "0"]
    assert done.stderr == ""


def test_signals_that_come_faster_than_a_thread_starts_do_not_keep_it_from_starting(watchdog, monkeypatch):
    real, depth = SYSTEM.spawn, [0]

    def cut_short(target, name):
        depth[0] += 1
        watchdog.call_later(60.0, print)  # as a handler does that comes in the middle of each start
        return real(target, name)

    monkeypatch.setattr(SYSTEM, "spawn", cut_short)
    watchdog.call_later(60.0, print)
    assert watchdog._serving.is_alive()
    assert 1 < depth[0] < 10, "a handler may start one of its own, but not without end"
    assert not watchdog._starts


def test_starts_that_are_cut_short_keep_no_other_thread_from_its_own(watchdog, monkeypatch):
    real, me, depth, done = SYSTEM.spawn, threading.current_thread(), [0], threading.Event()

    def cut_short(target, name):
        if threading.current_thread() is not me:
            return real(target, name)
        depth[0] += 1
        if depth[0] < 3:
            return watchdog.call_later(60.0, print)
        other = threading.Thread(daemon=True, target=watchdog.call_later, args=(0.0, done.set))
        other.start()
        other.join(20)
        raise KeyboardInterrupt

    monkeypatch.setattr(SYSTEM, "spawn", cut_short)
    with pytest.raises(KeyboardInterrupt):
        watchdog.call_later(60.0, print)
    assert done.wait(20)


def test_a_handler_that_raises_before_the_waking_leaves_no_deaf_thread(watchdog):
    begun, done, real, me = threading.Event(), threading.Event(), watchdog._lock, threading.current_thread()
    watchdog.call_later(0.0, begun.set)
    assert begun.wait(20)
    wait_until(lambda: watchdog._until == math.inf)

    class Lock:
        def __enter__(self):
            return real.__enter__()

        def __exit__(self, *error):
            real.__exit__(*error)
            if threading.current_thread() is me:
                raise KeyboardInterrupt

    watchdog._lock = Lock()
    with pytest.raises(KeyboardInterrupt):
        watchdog.call_later(0.05, print)
    watchdog._lock = real
    time.sleep(0.1)  # it is due, and the thread was not woken for it
    watchdog.call_later(0.0, done.set)
    assert done.wait(20)


@pytest.mark.parametrize("seconds", [3_600.0, 86_399.5])
def test_what_is_scheduled_after_a_suspend_is_not_late(seconds):
    done = run_python(
        f"""
        import threading, time
        from pyresil import _watchdog
        from pyresil.clock import SYSTEM
        _watchdog._LONGEST_NAP = 100_000.0
        watchdog = _watchdog.Watchdog()
        watchdog.call_later(86_400.0, threading.Event().set)
        while watchdog._until < 0:
            time.sleep(0.01)
        time.sleep(0.05)                     # the thread sleeps
        real, done = SYSTEM.boottime, threading.Event()
        SYSTEM.boottime = lambda: real() + {seconds}
        watchdog.call_later(1.0, done.set)
        print(done.wait(20))
        """
    )
    assert done.stdout == "True\n"


@pytest.mark.parametrize("half_made", ["pyresil._logs", "logging"])
def test_a_report_in_the_middle_of_the_import_that_it_needs_comes_out(monkeypatch, capfd, half_made):
    monkeypatch.delitem(sys.modules, "pyresil._logs", raising=False)
    monkeypatch.setitem(sys.modules, half_made, types.ModuleType(half_made))
    try:
        raise ValueError("of a listener")
    except ValueError:
        report_exception("a listener raised")
    assert "ValueError: of a listener" in capfd.readouterr().err
