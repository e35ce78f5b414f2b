"""Signal handlers that come at any moment, and use the very breaker that they interrupted or raise out of it."""

from __future__ import annotations

import pytest

from tests.support.processes import run_python

SETUP = """
    import signal, sys, time
    from pyresil import CircuitBreaker, CircuitOpenError, CircuitState, Policy
    from tests.support.depth import storm

    class Interrupted(BaseException):
        pass

    def ticking(handler):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)

    def quiet():
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def fail():
        raise OSError
"""


@pytest.mark.parametrize("window", ["1000000", "'7d'"])
def test_a_handler_that_re_enters_leaves_exact_counts(window):
    done = run_python(
        SETUP
        + f"""
    breaker = CircuitBreaker(window={window}, minimum_calls=1_000_000)
    call = Policy(breaker).call
    inside = failures = calls = 0

    def handler(*_):
        global inside
        inside += 1
        try:
            call(fail)
        except OSError:
            pass

    ticking(handler)
    for _ in storm(0.4, lambda: inside > 20):
        for _ in range(50):
            call(int)
            calls += 1
        try:
            call(fail)
        except OSError:
            failures += 1
            calls += 1
    quiet()
    stats = breaker.stats()
    assert inside > 20, inside
    assert stats.failures == failures + inside, (stats, failures, inside)
    assert stats.calls == calls + inside, (stats, calls, inside)
    """
    )
    assert done.returncode == 0


def test_a_handler_that_raises_leaks_no_permit():
    run_python(
        SETUP
        + """
    breaker = CircuitBreaker(half_open_calls=2, open_for=0.0001, probe_timeout=3600)
    call = Policy(breaker).call
    raised = 0

    def handler(*_):
        raise Interrupted

    def unjudged():
        raise GeneratorExit

    signal.signal(signal.SIGALRM, handler)
    breaker.trip()
    time.sleep(0.01)
    for _ in storm(0.4, lambda: raised > 20):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005)  # once
            while True:
                try:
                    call(unjudged)
                except GeneratorExit:
                    pass
        except Interrupted:
            raised += 1
    turn = breaker._circuit.round
    assert raised > 20, raised
    assert breaker.state is CircuitState.HALF_OPEN
    assert turn.free == 2 and not turn.probes, (turn.free, turn.probes)
    """
    )


def test_a_handler_that_re_enters_an_open_breaker_sees_one_round_of_probes():
    run_python(
        SETUP
        + """
    breaker = CircuitBreaker(open_for=0.0005, minimum_calls=1)
    call = Policy(breaker).call
    nested = 0

    def handler(*_):
        global nested
        try:
            call(fail if nested % 2 else int)
        except (OSError, CircuitOpenError):
            pass
        nested += 1

    ticking(handler)
    for _ in storm(0.4, lambda: nested > 20):
        for work in (int, fail):
            try:
                call(work)
            except (OSError, CircuitOpenError):
                pass
    quiet()
    assert nested > 20, nested
    time.sleep(0.01)
    breaker.reset()
    assert call(lambda: 5) == 5
    assert breaker.stats()[:3] == (CircuitState.CLOSED, 1, 0)
    turn = breaker._circuit.round
    assert turn is None
    """
    )
