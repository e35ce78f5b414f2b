"""Cases of circuit breakers, by their id."""

from __future__ import annotations

import contextvars
import itertools
import threading
import time

import pytest
import requests

from pyresil import (
    Bulkhead,
    CircuitBreaker,
    CircuitOpenError,
    CircuitState,
    Fallback,
    Policy,
    Retry,
    subscribe,
)
from pyresil.testing import ManualClock
from tests.support.processes import run_python


class Ignored(Exception):
    """What no breaker here judges."""


def in_threads(work, count):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def opened(clock, **options):
    """A breaker whose break is over."""
    breaker = CircuitBreaker(clock=clock, **options)
    breaker.trip()
    clock.advance(30)
    return breaker


def fail():
    raise OSError("down")


def test_P1_a_closed_breaker_does_not_make_calls_wait_for_each_other():
    call = Policy(CircuitBreaker()).call
    taken = []
    for _ in range(3):  # a busy machine may be late once
        begun = time.monotonic()
        in_threads(lambda: call(time.sleep, 0.25), 8)
        taken.append(time.monotonic() - begun)
    assert min(taken) < 1.5


def test_P2_only_as_many_probes_as_allowed_pass_the_barrier():
    clock = ManualClock()
    breaker = opened(clock)
    barrier, release = threading.Barrier(8), threading.Event()
    entered, rejections = [], []

    def probe():
        entered.append(1)
        release.wait(10)

    def caller():
        barrier.wait()
        try:
            Policy(breaker).call(probe)
        except CircuitOpenError as error:
            rejections.append(error)
            if len(rejections) == 7:
                release.set()

    in_threads(caller, 8)
    assert len(entered) == 1
    assert len(rejections) == 7
    assert breaker.state is CircuitState.CLOSED


@pytest.mark.parametrize("error", [Ignored, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("form", ["call", "block"])
def test_P3_a_probe_that_is_not_judged_leaves_the_breaker_half_open(error, form):
    clock = ManualClock()
    breaker = opened(clock, handle=OSError)
    policy = Policy(breaker)
    raised = error("probe")

    def work():
        raise raised

    with pytest.raises(error) as caught:
        if form == "call":
            policy.call(work)
        else:
            with policy.execute():
                work()
    assert caught.value is raised
    assert breaker.state is CircuitState.HALF_OPEN
    assert policy.call(lambda: 1) == 1
    assert breaker.state is CircuitState.CLOSED


def test_P4a_a_failure_of_the_closed_era_does_not_disturb_a_probe():
    clock = ManualClock()
    breaker = CircuitBreaker(clock=clock)
    call = Policy(breaker).call

    def outer():
        breaker.trip()
        clock.advance(30)
        call(probe)
        raise OSError

    def late():
        breaker.trip()
        clock.advance(30)
        ended = threading.Event()

        def probe():
            failing.set()
            assert ended.wait(10)

        prober = threading.Thread(target=call, args=(probe,))
        prober.start()
        assert failing.wait(10)
        late.finish = lambda: (ended.set(), prober.join(10))
        raise OSError("of the closed era")

    def probe():
        """Succeeds."""

    failing = threading.Event()
    with pytest.raises(OSError):
        call(late)
    assert breaker.state is CircuitState.HALF_OPEN
    late.finish()
    assert breaker.state is CircuitState.CLOSED
    with pytest.raises(OSError):
        call(outer)
    assert breaker.state is CircuitState.CLOSED
    assert breaker.stats().calls == 0


def test_P4b_a_probe_of_an_earlier_round_counts_nothing_and_frees_nothing():
    # The blocks end in another order than they began, and each restores the context that was current before it.
    contextvars.copy_context().run(_probes_of_two_rounds)


def _probes_of_two_rounds():
    clock = ManualClock()
    breaker = opened(clock, half_open_calls=2)
    policy = Policy(breaker)
    hanging = policy.execute()
    hanging.__enter__()  # A
    with pytest.raises(OSError):
        policy.call(fail)  # B
    assert breaker.state is CircuitState.OPEN
    clock.advance(30)
    third = policy.execute()
    third.__enter__()  # C
    hanging.__exit__(None, None, None)  # A succeeds
    assert breaker.state is CircuitState.HALF_OPEN
    turn = breaker._circuit.round
    assert (turn.free, turn.needed, len(turn.probes)) == (1, 2, 1)
    third.__exit__(None, None, None)
    policy.call(int)
    assert breaker.state is CircuitState.CLOSED


def test_P4c_a_success_of_the_closed_era_leaves_it_open():
    breaker = CircuitBreaker(window=2)
    call = Policy(breaker).call
    call(int)
    call(int)  # the window is full of successes: the hot path
    call(breaker.trip)
    assert breaker.state is CircuitState.OPEN
    for _ in range(3):
        with pytest.raises(CircuitOpenError):
            call(int)


def test_P5_listeners_may_use_the_breaker_and_may_raise():
    clock = ManualClock()
    breaker = CircuitBreaker(minimum_calls=1, name="api", clock=clock)
    call = Policy(breaker).call
    states = []

    def curious(event):
        states.append(breaker.state)
        with pytest.raises(CircuitOpenError):
            call(int)

    def broken(event):
        raise RuntimeError("listener")

    stops = [subscribe(curious, ["circuit-opened"]), subscribe(broken, ["circuit-opened"])]
    try:
        begun = time.monotonic()
        with pytest.raises(OSError, match="down"):
            call(fail)
        assert time.monotonic() - begun < 10
    finally:
        for stop in stops:
            stop()
    assert states == [CircuitState.OPEN]


def test_P5_each_transition_begins_where_the_one_before_it_ended():
    breaker = CircuitBreaker()
    told = []
    stop = subscribe(told.append, ["circuit-opened", "circuit-closed"])
    barrier = threading.Barrier(8)
    turns = iter(range(8))

    def flip():
        act = breaker.trip if next(turns) % 2 else breaker.reset
        barrier.wait()
        for _ in range(200):
            act()

    try:
        in_threads(flip, 8)
    finally:
        stop()
    assert told
    for before, after in itertools.pairwise(told):
        assert after.from_state is before.to_state


def test_P6_the_error_that_opens_it_reaches_the_caller_itself_and_is_told_to_the_next():
    call = Policy(CircuitBreaker(minimum_calls=1)).call
    raised = requests.ReadTimeout("slow")

    def work():
        raise raised

    with pytest.raises(requests.ReadTimeout) as caught:
        call(work)
    assert caught.value is raised
    with pytest.raises(CircuitOpenError) as rejected:
        call(work)
    assert rejected.value.retry_after > 0
    assert rejected.value.last_failure is raised


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_P7_a_base_exception_is_nobodys_business(error):
    breaker = CircuitBreaker()
    bulkhead = Bulkhead(1)
    policy = Policy(Fallback("unused"), Retry(3), breaker, bulkhead)
    raised, calls = error(), []

    def work():
        calls.append(1)
        raise raised

    with pytest.raises(error) as caught:
        policy.call(work)
    assert caught.value is raised
    assert len(calls) == 1
    assert breaker.stats().calls == 0
    assert bulkhead.stats().active == 0
    assert policy.call(lambda: "next") == "next"


def test_P16_a_forked_child_can_use_a_breaker_whose_probe_and_listener_run_in_the_parent():
    done = run_python(
        """
        import os, threading
        from pyresil import CircuitBreaker, CircuitState, Policy, subscribe

        breaker, counted = CircuitBreaker(open_for=0.01, probe_timeout=60), CircuitBreaker()
        told, seen = threading.Event(), []
        def listener(event):
            seen.append(event.to_state.value)
            if event.to_state is CircuitState.HALF_OPEN:
                told.set()
                threading.Event().wait()  # the parent's delivery hangs at the fork
        subscribe(listener, ["circuit-opened", "circuit-half-opened", "circuit-closed"])

        Policy(counted).call(int)
        breaker.trip()
        threading.Event().wait(0.05)
        threading.Thread(target=Policy(breaker).call, args=(int,), daemon=True).start()
        assert told.wait(10)
        assert breaker.state is CircuitState.HALF_OPEN
        pid = os.fork()
        if pid == 0:
            seen.clear()
            assert Policy(breaker).call(lambda: 5) == 5, "the parent's probe holds no permit here"
            assert breaker.state is CircuitState.CLOSED
            assert seen == ["closed"], seen
            assert counted.stats().calls == 1
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print("fine", flush=True)
        os._exit(0)
        """
    )
    assert "fine" in done.stdout
