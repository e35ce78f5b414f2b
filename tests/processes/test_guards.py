"""Bulkhead and timeout under signals, at exit, in children of a fork, and under gevent; each in a process of its own."""

from __future__ import annotations

import pytest

from tests.support.processes import run_python

HANDLERS = """
import signal, sys, threading, time
from tests.support.depth import storm

def fire(handler, interval=0.0003):
    "Runs `handler` on a timer signal for a while, in this thread."
    signal.signal(signal.SIGALRM, lambda *_: handler())
    signal.setitimer(signal.ITIMER_REAL, interval, interval)

def stop():
    signal.setitimer(signal.ITIMER_REAL, 0)
"""


@pytest.mark.parametrize("kind", ["Bulkhead", "AdaptiveBulkhead"])
@pytest.mark.parametrize("form", ["call", "block", "loop"])
def test_a_handler_that_raises_leaks_no_slot(kind, form):
    done = run_python(
        HANDLERS
        + """
import pyresil
from pyresil import Policy, Timeout

class Interrupted(BaseException):
    pass

bulkhead = getattr(pyresil, sys.argv[1])(5)
policy = Policy(Timeout(60), bulkhead)

def block(work):
    with policy.execute():
        return work()

def loop(work):
    for attempt in policy.execute():
        with attempt:
            return work()

run = {"call": policy.call, "block": block, "loop": loop}[sys.argv[2]]
armed = False

def handler():
    global armed
    if armed:
        armed = False
        raise Interrupted

count = hits = 0
fire(handler)
for _ in storm(0.4, lambda: hits > 50 and count > 100):
    try:
        armed = True
        run(int)
        armed = False
        count += 1
    except Interrupted:
        hits += 1
stop()
print(hits > 50, count > 100, bulkhead.stats().active)
""",
        kind,
        form,
    )
    assert done.stdout.split() == ["True", "True", "0"]


def test_a_handler_that_uses_the_same_policies_counts_exactly():
    done = run_python(
        HANDLERS
        + """
from pyresil import Bulkhead, BulkheadFullError, Policy, Timeout

bulkhead = Bulkhead(2, max_queue=5, queue_timeout=0)
policy = Policy(Timeout(60), bulkhead)
abandon = Policy(Timeout(60, mode="abandon"))
inside = refused = 0

def handler():
    global inside, refused
    try:
        policy.call(lambda: policy.call(int))
        inside += 1
    except BulkheadFullError:
        refused += 1
    assert abandon.call(lambda: 7) == 7

fire(handler, 0.005)
count = 0
for _ in storm(0.4, lambda: inside + refused > 20):
    try:
        policy.call(int)
    except BulkheadFullError:
        pass
    assert abandon.call(lambda: count) == count
    count += 1
stop()
print(inside + refused > 20, bulkhead.stats()[:2])
"""
    )
    assert done.stdout.strip() == "True (0, 0)"


def test_a_handler_that_raises_ends_a_wait_in_the_queue_and_one_for_a_worker():
    done = run_python(
        HANDLERS
        + """
from pyresil import Bulkhead, Policy, Timeout

class Interrupted(BaseException):
    pass

def handler():
    raise Interrupted

signal.signal(signal.SIGALRM, lambda *_: handler())
bulkhead = Bulkhead(1, max_queue=5)
policy = Policy(bulkhead)
go, inside = threading.Event(), threading.Event()
holder = threading.Thread(target=policy.call, args=(lambda: (inside.set(), go.wait(20)),))
holder.start()
inside.wait()
timeout = Timeout(60, mode="abandon")
tokens = []
def stuck():
    from pyresil import current_context
    tokens.append(current_context().cancel)
    go.wait(20)
for work in (lambda: policy.call(int), lambda: Policy(timeout).call(stuck)):
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    begun = time.monotonic()
    try:
        work()
    except Interrupted:
        print("left", time.monotonic() - begun < 5)
print(bulkhead.stats()[:2], timeout.abandoned, tokens[0].is_set())
go.set()
holder.join()
print(bulkhead.stats()[:2], policy.call(int))
"""
    )
    assert done.stdout.split("\n")[:4] == ["left True", "left True", "(1, 0) 1 True", "(0, 0) 0"]


def test_a_handler_may_cancel_the_call_that_it_interrupts():
    done = run_python(
        """
        import signal, time, threading
        from pyresil import CancelledError, Policy, Timeout, current_context

        timeout = Timeout(60, mode="abandon")
        signal.signal(signal.SIGALRM, lambda *_: current_context().cancel.cancel("handler"))
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        begun = time.monotonic()
        try:
            Policy(timeout).call(time.sleep, 30)
        except CancelledError as error:
            print(error.reason, time.monotonic() - begun < 5)
        """
    )
    assert done.stdout.split() == ["handler", "True"]


@pytest.mark.parametrize("idle", [True, False], ids=["idle worker", "new worker"])
def test_abandon_mode_while_the_interpreter_exits(idle):
    """With a worker at hand it works; without one it is a clear rejection where no thread can be started any more."""
    done = run_python(
        """
        import atexit, sys
        from pyresil import Policy, RejectedError, Timeout
        policy = Policy(Timeout("5s", mode="abandon"))

        @atexit.register
        def last():
            try:
                print(policy.call(lambda: "ran"))
            except RejectedError as error:
                print(error)

        if sys.argv[1] == "idle":
            policy.call(int)
        """,
        "idle" if idle else "new",
    )
    if idle:
        assert done.stdout.strip() == "ran"
    else:  # most Pythons from 3.12 on start no thread any more
        assert done.stdout.strip() == "ran" or "no worker thread can be started" in done.stdout
    assert done.stderr == ""


def test_work_in_a_worker_may_fork():
    done = run_python(
        """
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from pyresil import Bulkhead, Policy, Timeout
        policy = Policy(Bulkhead(1), Timeout("10s", mode="abandon"))

        def work():
            child = os.fork()
            if child == 0:
                try:
                    os._exit(policy.call(lambda: 7))
                finally:
                    os._exit(1)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        print(policy.call(work))
        """
    )
    assert done.stdout.strip() == "7"


def test_both_work_under_gevent():
    done = run_python(
        """
        from gevent import monkey
        monkey.patch_all()
        import gevent, time
        from pyresil import Bulkhead, BulkheadFullError, Policy, Timeout, TimeoutExceededError

        bulkhead = Bulkhead(2, max_queue=2)
        policy = Policy(bulkhead)
        most, inside, ended = [0], [0], []

        def work():
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            gevent.sleep(0.02)
            inside[0] -= 1

        def caller():
            try:
                policy.call(work)
                ended.append("ran")
            except BulkheadFullError:
                ended.append("full")

        gevent.joinall([gevent.spawn(caller) for _ in range(6)])
        print(most[0], sorted(ended), bulkhead.stats()[:2])

        timeout = Timeout("500ms", mode="abandon")
        abandon = Policy(timeout)
        begun = time.monotonic()
        try:
            abandon.call(gevent.sleep, 8)
        except TimeoutExceededError:
            print("left", time.monotonic() - begun < 6, timeout.abandoned)
        print(abandon.call(lambda: 5))
        """
    )
    assert done.stdout.splitlines() == [
        "2 ['full', 'full', 'ran', 'ran', 'ran', 'ran'] (0, 0)",
        "left True 1",
        "5",
    ]


def test_gevent_that_patches_after_the_policies_were_made():
    """As a preloading gunicorn master does: nothing that gevent would replace is made before the first call."""
    done = run_python(
        """
        import warnings
        from pyresil import Bulkhead, Policy, Timeout
        bulkhead = Policy(Bulkhead(1, max_queue=1))
        abandon = Policy(Timeout("5s", mode="abandon"))
        from gevent import monkey
        monkey.patch_all()
        import gevent
        jobs = [gevent.spawn(bulkhead.call, lambda: gevent.sleep(0.01) or 1) for _ in range(2)]
        gevent.joinall(jobs)
        print([job.value for job in jobs], abandon.call(lambda: 5))
        """
    )
    assert done.stdout.strip() == "[1, 1] 5"


def test_a_hedge_under_signals_forks_and_at_exit():
    done = run_python(
        HANDLERS
        + """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from pyresil import CancelledError, Hedge, Policy, current_context

class Interrupted(BaseException):
    pass

# A handler that raises ends the wait, and the copies are told.
hedge = Hedge("50ms")
policy = Policy(hedge)
go, tokens = threading.Event(), []

def stuck():
    tokens.append(current_context().cancel)
    go.wait(20)

def raises(*_):
    raise Interrupted

signal.signal(signal.SIGALRM, raises)
signal.setitimer(signal.ITIMER_REAL, 1.5)
try:
    policy.call(stuck)
except Interrupted:
    print("left", len(tokens), [token.is_set() for token in tokens], len(hedge._losers.stuck))

# A handler that hedges in the middle of a hedge.
counts = [0]

def hedges(*_):
    assert policy.call(lambda: 5) == 5
    counts[0] += 1

signal.signal(signal.SIGALRM, hedges)
signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
for _ in storm(0.4, lambda: counts[0] > 10):
    assert policy.call(lambda: 7) == 7
stop()
print("nested", counts[0] > 10)

# A child has no losers and no workers, and can hedge.
child = os.fork()
if child == 0:
    code = 1
    try:
        assert not hedge._losers.stuck
        assert policy.call(lambda: 7) == 7
        slow = [0.3, 0.0]
        assert Policy(Hedge("20ms")).call(lambda: time.sleep(slow.pop(0)) or 8) == 8
        code = 0
    finally:
        os._exit(code)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
# The stuck copies do not hold up the exit.
"""
    )
    assert done.stdout.splitlines() == ["left 2 [True, True] 2", "nested True", "child 0"]
    assert done.stderr == ""


def test_a_hedge_under_gevent():
    done = run_python(
        """
        from gevent import monkey
        monkey.patch_all()
        import gevent, time
        from pyresil import Hedge, Policy

        slow = [8.0, 0.0]
        begun = time.monotonic()
        print(Policy(Hedge("20ms")).call(lambda: gevent.sleep(slow.pop(0)) or "second"), time.monotonic() - begun < 6)
        """
    )
    assert done.stdout.split() == ["second", "True"]
