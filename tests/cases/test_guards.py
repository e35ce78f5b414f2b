"""Cases that broke other libraries: bulkhead and timeout."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from pyresil import (
    Bulkhead,
    BulkheadFullError,
    CircuitOpenError,
    Policy,
    Timeout,
    TimeoutExceededError,
    TimeoutSaturatedError,
)
from tests.support.processes import run_python


def test_P13_queue_timeouts_leave_nothing_behind():
    bulkhead = Bulkhead(1, max_queue=20, queue_timeout="50ms")
    policy = Policy(bulkhead)
    inside, go = threading.Event(), threading.Event()

    def hold():
        inside.set()
        go.wait(20)

    holder = threading.Thread(target=policy.call, args=(hold,))
    holder.start()
    assert inside.wait(5)
    waits = []

    def caller():
        begun = time.monotonic()
        try:
            policy.call(lambda: None)
        except BulkheadFullError as error:
            waits.append((time.monotonic() - begun, error.reason))

    callers = [threading.Thread(target=caller) for _ in range(20)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(20)
    assert len(waits) == 20
    assert all(reason == "queue-timeout" for _, reason in waits)
    assert all(0.05 <= waited < 5 for waited, _ in waits), "50 ms, and room for a busy machine"
    assert bulkhead.stats().queued == 0
    go.set()
    holder.join(5)
    assert bulkhead.stats()[:2] == (0, 0)
    assert policy.call(lambda: "next") == "next"


def test_P14_hung_calls_do_not_stop_a_healthy_one():
    go = threading.Event()
    policy = Policy(Timeout("200ms", mode="abandon"))
    for _ in range(4):
        with pytest.raises(TimeoutExceededError):
            policy.call(go.wait, 20)
    begun = time.monotonic()
    answer = None
    while answer is None and time.monotonic() - begun < 10:  # on a busy machine 200 ms may be too short once
        with contextlib.suppress(TimeoutExceededError):
            answer = policy.call(lambda: "instant")
    assert answer == "instant"

    timeout = Timeout("30ms", mode="abandon", max_abandoned=1)
    limited = Policy(timeout)
    while not timeout.abandoned:  # on a busy machine the worker may come too late to begin it at all
        with pytest.raises(TimeoutExceededError):
            limited.call(go.wait, 20)
    begun = time.monotonic()
    with pytest.raises(TimeoutSaturatedError):
        limited.call(lambda: "instant")
    assert time.monotonic() - begun < 5
    go.set()


def test_P14_the_works_own_timeout_error_is_that_object():
    own = TimeoutError("mine")

    def work():
        raise own

    for mode in ("cooperative", "abandon"):
        with pytest.raises(TimeoutError) as raised:
            Policy(Timeout("5s", mode=mode)).call(work)
        assert raised.value is own


def test_P14_a_dozen_socket_timeouts_then_a_healthy_call():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = silent.getsockname()

        def work():
            with socket.create_connection(address, timeout=5) as connection:
                connection.settimeout(0.01)
                connection.recv(1)

        policy = Policy(Timeout("5s", mode="abandon", max_abandoned=4))
        for _ in range(12):
            with pytest.raises(TimeoutError) as raised:
                policy.call(work)
            assert not isinstance(raised.value, (TimeoutExceededError, CircuitOpenError))
        assert policy.call(lambda: "ok") == "ok"


def test_P15_an_abandoned_call_does_not_hold_up_the_exit():
    begun = time.monotonic()
    done = run_python(
        """
        import time
        from pyresil import Policy, Timeout, TimeoutExceededError
        policy = Policy(Timeout("50ms", mode="abandon"))
        try:
            policy.call(time.sleep, 60)
        except TimeoutExceededError:
            print("left")
        begun = time.monotonic()
        import atexit
        atexit.register(lambda: print("exit", time.monotonic() - begun < 10))
        """
    )
    assert done.stdout.split() == ["left", "exit", "True"]
    assert done.stderr == ""
    assert time.monotonic() - begun < 20, "interpreter start and exit included"


def test_P16_bulkhead_and_timeouts_work_in_a_forked_child():
    done = run_python(
        """
        import os, threading, time, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: fork with threads, which is what is tested
        from pyresil import Bulkhead, BulkheadFullError, Policy, Timeout, TimeoutExceededError, TimeoutSaturatedError

        bulkhead = Bulkhead(2, max_queue=3)
        timeout = Timeout("30ms", mode="abandon", max_abandoned=1)
        policy = Policy(bulkhead, Timeout("20s"), name="p")
        abandon = Policy(timeout)
        inside, go = threading.Barrier(3), threading.Event()

        def hold():
            inside.wait()
            go.wait(20)

        holders = [threading.Thread(target=policy.call, args=(hold,), daemon=True) for _ in range(2)]
        waiter = threading.Thread(target=policy.call, args=(lambda: None,), daemon=True)
        for thread in holders:
            thread.start()
        inside.wait()
        waiter.start()
        while bulkhead.stats().queued < 1:
            time.sleep(0.001)
        while not timeout.abandoned:  # on a busy machine the worker may come too late to begin it at all
            try:
                abandon.call(go.wait, 20)
            except TimeoutExceededError:
                pass
        assert timeout.abandoned == 1
        assert bulkhead.stats()[:2] == (2, 1)

        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert bulkhead.stats()[:2] == (0, 0), bulkhead.stats()
                assert policy.call(lambda: policy.call(lambda: bulkhead.stats().active)) == 2
                try:
                    policy.call(lambda: policy.call(lambda: Policy(bulkhead, Timeout(1)).options(deadline="50ms").call(lambda: 0)))
                except TimeoutExceededError:
                    pass
                else:
                    raise AssertionError("three at once")
                with policy.execute():
                    assert bulkhead.stats().active == 1
                assert bulkhead.stats()[:2] == (0, 0)
                assert timeout.abandoned == 0
                while True:  # 30 ms may be too short for the first worker; the whole is limited
                    try:
                        assert abandon.call(lambda: "runs") == "runs"
                        break
                    except (TimeoutExceededError, TimeoutSaturatedError):
                        pass
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert bulkhead.stats()[:2] == (2, 1)
        go.set()
        for thread in (*holders, waiter):
            thread.join(5)
        assert bulkhead.stats()[:2] == (0, 0)
        print("ok")
        """
    )
    assert done.stdout.strip() == "ok"
