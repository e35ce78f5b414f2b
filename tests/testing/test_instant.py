from __future__ import annotations

import threading
import time

from pyresil import Policy
from pyresil.clock import SYSTEM, Parker
from pyresil.context import current_context
from pyresil.testing import instant


def sleepy():
    current_context().sleep(3600)
    return "done"


def test_nothing_sleeps_on_an_instant_clock_and_its_time_passes():
    clock = instant()
    begun, real = clock.monotonic(), time.monotonic()
    assert Policy(clock=clock).call(sleepy) == "done"
    clock.sleep(10)
    assert 3610 <= clock.monotonic() - begun < 3615
    assert clock.boottime() - SYSTEM.boottime() > 3609
    assert clock.wall() - SYSTEM.wall() > 3609
    assert 0 <= clock.random() < 1
    assert time.monotonic() - real < 5


def test_in_the_block_the_system_clock_does_not_wait_either():
    begun = time.monotonic()
    with instant():
        assert Policy().call(sleepy) == "done"
        SYSTEM.sleep(3600)
        with instant():
            SYSTEM.sleep(3600)
        SYSTEM.sleep(3600)
    assert time.monotonic() - begun < 5
    begun = time.monotonic()
    SYSTEM.sleep(0.05)
    assert time.monotonic() - begun > 0.04, "outside of the block it waits again"


def test_other_threads_wait_as_ever():
    with instant():
        thread = threading.Thread(daemon=True, target=SYSTEM.sleep, args=(0.1,))
        begun = time.monotonic()
        thread.start()
        thread.join()
    assert time.monotonic() - begun > 0.09


def test_a_wait_without_an_end_is_a_wait_and_a_wake_up_counts():
    clock = instant()
    parker = Parker()
    threading.Timer(0.05, parker.unpark).start()
    assert clock.park(parker, None) is True
    parker.unpark()
    assert clock.park(parker, 5.0) is True
    assert clock.park(parker, 5.0) is False


def test_a_thread_of_the_library_that_waits_in_a_circle_does_not_spin():
    clock = instant()
    rounds = []

    def serve():
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            clock.park(Parker(), 10.0)
            rounds.append(1)

    clock.spawn(serve, "pyresil-test").join(5)
    assert 1 <= len(rounds) <= 300
