from __future__ import annotations

import os
import queue
import threading
import time

import pytest

from pyresil import _dispatch, _watchdog
from pyresil.cancel import CancelToken
from pyresil.clock import Clock, Parker
from pyresil.errors import ConfigurationError
from pyresil.testing import ManualClock, _activity
from tests.support.processes import run_python


def start(target, *args):
    thread = threading.Thread(daemon=True, target=target, args=args)
    thread.start()
    return thread


def test_it_moves_only_by_advance():
    clock = ManualClock()
    assert isinstance(clock, Clock)
    before = (clock.monotonic(), clock.boottime(), clock.wall())
    time.sleep(0.01)
    assert (clock.monotonic(), clock.boottime(), clock.wall()) == before
    clock.advance("5m")
    assert (clock.monotonic(), clock.boottime(), clock.wall()) == tuple(value + 300 for value in before)
    assert clock.elapsed == 300


@pytest.mark.parametrize("bad", [-1, float("nan"), "soon", True, None, float("inf")])
def test_it_refuses_what_is_no_duration(bad):
    with pytest.raises(ConfigurationError, match="manual clock"):
        ManualClock().advance(bad)


@pytest.mark.parametrize("steps", [1, 3, 7, 10, 1000])
@pytest.mark.parametrize("total", [0.1, 0.3, 1 / 3, 30.0, 86400.0 * 30])
def test_a_deadline_has_come_after_advancing_as_long_in_any_number_of_steps(steps, total):
    clock = ManualClock()
    clock.advance(0.123456)
    deadlines = [(read, read() + total) for read in (clock.monotonic, clock.boottime)]
    fired = []
    clock.call_later(total, lambda: fired.append(clock.monotonic()))
    for _ in range(steps):
        clock.advance(total / steps)
    # the parts themselves may add up to less than the whole
    clock.advance(max(0.0, total - sum([total / steps] * steps)))
    for read, deadline in deadlines:
        assert deadline <= read() <= deadline + 2e-6
    assert len(fired) == 1


def test_the_same_seed_gives_the_same_numbers():
    one, same, other = ManualClock(seed=1), ManualClock(seed=1), ManualClock(seed=2)
    numbers = [one.random() for _ in range(5)]
    assert numbers == [same.random() for _ in range(5)]
    assert numbers != [other.random() for _ in range(5)]
    assert all(0.0 <= number < 1.0 for number in numbers)


def test_what_is_due_fires_in_order_each_at_its_own_time():
    clock = ManualClock()
    seen = []
    for delay in (3.0, 1.0, 2.0, 2.0):
        clock.call_later(delay, lambda delay=delay: seen.append((delay, clock.elapsed)))
    clock.advance(2.5)
    assert seen == [(1.0, 1.0), (2.0, 2.0), (2.0, 2.0)]
    clock.advance(10)
    assert seen[3:] == [(3.0, 3.0)]


def test_a_timer_that_is_called_off_does_not_fire():
    clock = ManualClock()
    seen = []
    handle = clock.call_later(1.0, lambda: seen.append(1))
    assert clock.timers == 1
    handle.cancel()
    assert clock.timers == 0
    clock.advance(5)
    assert seen == []


def test_a_timer_set_by_a_timer_fires_in_the_same_advance():
    clock = ManualClock()
    seen = []

    def again():
        seen.append(clock.elapsed)
        clock.call_later(10.0, again)

    clock.call_later(10.0, again)
    clock.advance(35)
    assert seen == [10, 20, 30]


def test_a_timer_that_raises_is_logged_and_the_others_fire(caplog):
    clock = ManualClock()
    seen = []
    clock.call_later(1.0, lambda: 1 / 0)
    clock.call_later(2.0, lambda: seen.append(2))
    clock.advance(3)
    assert seen == [2]
    assert "action raised" in caplog.text


def test_a_delay_of_zero_runs_without_advance():
    ran = threading.Event()
    _watchdog.call_later(ManualClock(), 0.0, ran.set)
    assert ran.wait(5)


def test_fifteen_minutes_of_a_service_thread_are_a_moment():
    clock = ManualClock()
    beats = []

    def serve():
        while len(beats) < 1000:
            clock.park(Parker(), 10.0)
            beats.append(clock.elapsed)

    clock.spawn(serve, "pyresil-test")
    begun = time.monotonic()
    clock.advance("15m")
    assert beats == [10.0 * beat for beat in range(1, 91)]
    assert time.monotonic() - begun < 5
    clock.advance("3h")
    assert len(beats) == 1000, "the thread ended, and nothing waited for it"


def test_many_threads_sleep_as_if_alone():
    clock = ManualClock()
    results = queue.SimpleQueue()

    def work(number):
        for _ in range(5):
            clock.sleep(number)
        results.put((clock.elapsed, number))

    threads = [start(work, number) for number in range(1, 9)]
    clock.wait_until_parked(8)
    clock.advance(100)
    for thread in threads:
        thread.join(5)
    found = [results.get(timeout=1) for _ in threads]
    assert found == [(5.0 * number, number) for number in range(1, 9)]
    assert clock.parked == 0


def test_a_woken_wait_returns_true_and_one_whose_time_is_up_false():
    clock = ManualClock()
    results = []
    woken, late = Parker(), Parker()
    first = start(lambda: results.append(clock.park(woken, 100.0)))
    clock.wait_until_parked()
    woken.unpark()
    first.join(5)
    second = start(lambda: results.append(clock.park(late, 100.0)))
    clock.wait_until_parked()
    clock.advance(100)
    second.join(5)
    assert results == [True, False]


def test_an_unpark_that_came_first_is_remembered():
    clock = ManualClock()
    parker = Parker()
    parker.unpark()
    assert clock.park(parker, 5.0) is True
    assert clock.park(Parker(), 0.0) is False


def test_a_thread_woken_by_a_timer_is_waited_for():
    clock = ManualClock()
    seen = []
    parker = Parker()

    def serve():
        clock.park(parker, None)
        time.sleep(0.02)  # slow, but it moves on
        seen.append(clock.elapsed)

    clock.spawn(serve, "pyresil-test")
    clock.advance()
    clock.call_later(1.0, parker.unpark)
    clock.advance(100)
    assert seen == [1.0]


def test_threads_started_by_threads_count():
    clock = ManualClock()
    seen = []

    def inner():
        clock.sleep(1.0)
        seen.append(("inner", clock.elapsed))

    def outer():
        clock.sleep(1.0)
        clock.spawn(inner, "pyresil-inner")
        clock.sleep(5.0)
        seen.append(("outer", clock.elapsed))

    clock.spawn(outer, "pyresil-outer")
    clock.advance(10)
    assert seen == [("inner", 2.0), ("outer", 6.0)]


def test_a_thread_that_says_it_is_blocked_is_not_waited_for(monkeypatch):
    clock = ManualClock()
    clock.advance()  # threads of other tests that stand still are given up before it takes so long
    for bound in ("SERVICE_BOUND", "SERVICE_STILL"):
        monkeypatch.setattr(_activity, bound, 20.0)
    go_on = threading.Event()
    seen = []

    def serve():
        clock.sleep(1.0)
        with clock.blocked():
            go_on.wait(20)
        clock.sleep(1.0)
        seen.append(clock.elapsed)

    thread = clock.spawn(serve, "pyresil-test")
    begun = time.monotonic()
    clock.advance(10)
    assert time.monotonic() - begun < 5, "the bound for a hanging thread was not needed"
    assert seen == []
    go_on.set()
    clock.wait_until_parked(timeout=20)
    clock.advance(10)
    thread.join(20)
    assert seen == [11.0]


def test_a_service_thread_that_hangs_is_given_up_and_only_once():
    clock = ManualClock()
    go_on = threading.Event()

    def serve():
        clock.sleep(1.0)
        go_on.wait(20)

    clock.spawn(serve, "pyresil-test")
    for delay in range(2, 20):
        clock.call_later(delay, lambda: None)
    begun = time.monotonic()
    clock.advance(30)
    spent = time.monotonic() - begun
    go_on.set()
    assert 0.5 < spent < 5


def test_a_user_thread_that_goes_its_own_way_costs_little(monkeypatch):
    clock = ManualClock()
    clock.advance()  # as above
    monkeypatch.setattr(_activity, "USER_BOUND", 20.0)
    go_on = threading.Event()

    def work():
        clock.sleep(1.0)
        go_on.wait(20)

    start(work)
    clock.wait_until_parked(timeout=20)
    begun = time.monotonic()
    clock.advance(30)
    assert time.monotonic() - begun < 5
    go_on.set()


def test_callbacks_on_the_dispatch_thread_have_run():
    clock = ManualClock()
    token = CancelToken(timeout="1m", clock=clock)
    seen = []

    def callback():
        time.sleep(0.02)
        seen.append(clock.elapsed)

    token.on_cancel(callback)
    clock.advance("59s")
    assert seen == []
    clock.advance("1h")
    assert seen == [60.0]


def test_a_callback_that_waits_on_the_clock_does_not_stop_it():
    clock = ManualClock()
    seen = []

    def callback():
        clock.sleep(5.0)
        seen.append(clock.elapsed)

    clock.call_later(1.0, lambda: _dispatch.post(callback))
    clock.advance(10)
    assert seen == [6.0]


def test_two_clocks_are_two_instances_and_who_wakes_whom_is_seen():
    moving, paused = ManualClock(), ManualClock()
    parker = Parker()
    seen = []

    def serve():
        paused.park(parker, 100.0)
        time.sleep(0.02)
        seen.append((moving.elapsed, paused.elapsed))

    paused.spawn(serve, "pyresil-test")
    moving.advance()
    moving.call_later(5.0, parker.unpark)
    moving.advance(60)
    assert seen == [(5.0, 0.0)]


def test_an_exception_in_a_wait_leaves_nothing_behind():
    """As when a signal handler raises in it."""
    clock = ManualClock()

    class Bad(Parker):
        def wait(self, timeout=None):
            if timeout is None:
                raise KeyboardInterrupt
            return super().wait(timeout)

    with pytest.raises(KeyboardInterrupt):
        clock.park(Bad(), 5.0)
    assert clock.parked == 0
    clock.advance(10)


def test_waiting_for_parked_threads_gives_up():
    with pytest.raises(TimeoutError, match="0 of 1"):
        ManualClock().wait_until_parked(timeout=0.05)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_can_use_its_clock():
    run_python(
        """
        import os, threading, time
        from pyresil.testing import ManualClock, _activity
        clock = ManualClock()
        threading.Thread(target=clock.sleep, args=(5.0,), daemon=True).start()
        clock.wait_until_parked(timeout=20)
        clock.spawn(lambda: time.sleep(10), "pyresil-busy")
        pid = os.fork()
        if pid == 0:
            _activity.SERVICE_BOUND = _activity.SERVICE_STILL = 20.0
            seen = []
            def serve():
                clock.sleep(3.0)
                seen.append(clock.elapsed)
            clock.spawn(serve, "pyresil-test")
            begun = time.monotonic()
            clock.advance(10)
            ok = seen == [3.0] and time.monotonic() - begun < 5
            os._exit(0 if ok else 1)
        assert os.waitpid(pid, 0)[1] == 0
        """,
        flags=("-W", "ignore::DeprecationWarning"),
    )
