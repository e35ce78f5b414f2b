"""Chaos strategies: what they inject, how often, and that everything around them meets it as real."""

from __future__ import annotations

import gc
import weakref

import pytest

from pyresil import (
    CancelledError,
    CancelToken,
    CircuitBreaker,
    CircuitOpenError,
    ConfigurationError,
    Fallback,
    Policy,
    PolicyUsageError,
    Retry,
    Timeout,
    TimeoutExceededError,
)
from pyresil.testing import InjectFault, InjectLatency, InjectResult, ManualClock


def call(policy, work):
    return policy.call(work)


def block(policy, work):
    with policy.execute():
        return work()


form = pytest.mark.parametrize("form", [call, block])


@form
@pytest.mark.parametrize(
    "error", [ConnectionError, ConnectionError("x"), lambda ctx: ConnectionError(ctx.policy), SystemExit]
)
def test_a_fault_takes_the_place_of_the_work(form, error):
    policy = Policy(InjectFault(error), name="p")
    for _ in range(3):
        with pytest.raises((ConnectionError, SystemExit)):
            form(policy, lambda: pytest.fail("the work ran"))


def test_the_same_instance_is_raised_and_its_traceback_does_not_grow():
    error = ConnectionError("x")
    policy = Policy(InjectFault(error))
    lengths = set()
    for _ in range(5):
        with pytest.raises(ConnectionError) as raised:
            policy.call(int)
        assert raised.value is error
        lengths.add(len(raised.traceback))
    assert len(lengths) == 1


def test_a_function_that_gives_no_error_lets_the_work_run():
    policy = Policy(InjectFault(lambda ctx: OSError() if ctx.attempt == 1 else None))
    assert Policy(Retry(2, backoff=lambda *_: 0), policy.strategies[0]).call(lambda: 7) == 7


def test_what_stands_around_it_meets_the_fault_as_real():
    fault = InjectFault(ConnectionError)
    breaker = CircuitBreaker(minimum_calls=3, failure_rate=1.0)
    policy = Policy(Fallback("fallback"), breaker, fault)
    assert [policy.call(lambda: "real") for _ in range(4)] == ["fallback"] * 4
    with pytest.raises(CircuitOpenError):
        Policy(breaker).call(int)
    fault.enabled = False
    breaker.reset()
    assert policy.call(lambda: "real") == "real"


@form
def test_latency_comes_before_the_work_and_heeds_the_deadline(form):
    policy = Policy(Timeout("20ms"), InjectLatency("30s"))
    with pytest.raises(TimeoutExceededError):
        form(policy, lambda: pytest.fail("the work ran"))


def test_latency_takes_as_long_as_it_says():
    import threading

    clock, done = ManualClock(), []
    policy = Policy(InjectLatency(lambda ctx: ctx.key), clock=clock).options(key="3s")
    thread = threading.Thread(target=lambda: done.append(policy.call(clock.monotonic)), daemon=True)
    begun = clock.monotonic()
    thread.start()
    clock.wait_until_parked()
    clock.advance("2.9s")
    assert not done
    clock.advance("0.1s")
    thread.join(5)
    assert done[0] - begun == pytest.approx(3.0)


def test_a_cancel_ends_the_latency():
    token = CancelToken(timeout="20ms")
    with pytest.raises((CancelledError, TimeoutExceededError)):
        Policy(InjectLatency("30s")).options(cancel=token).call(int)


def test_a_result_takes_the_place_of_the_work():
    assert Policy(InjectResult(None)).call(lambda: pytest.fail("the work ran")) is None
    assert Policy(InjectResult(using=lambda ctx: ctx.key)).options(key=5).call(int) == 5
    with pytest.raises(PolicyUsageError, match="inject result"), Policy(InjectResult(1)).execute():
        pass


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: InjectFault(OSError, **options),
        lambda **options: InjectResult("hit", **options),
        lambda **options: InjectResult(using=lambda ctx: "hit", **options),
    ],
)
def test_the_rate_and_the_seed_decide_which_executions_are_hit(make):
    def hits(**options):
        policy = Policy(Fallback("hit"), make(**options))
        return [policy.call(lambda: "real") == "hit" for _ in range(1000)]

    seeded = hits(rate=0.3, seed=7)
    assert 240 <= sum(seeded) <= 360
    assert hits(rate=0.3, seed=7) == seeded
    assert hits(rate=0.3, seed="7") != seeded
    assert 200 <= sum(hits(rate=0.3)) <= 400
    assert not any(hits(rate=0))
    assert all(hits(rate=1))
    assert not any(hits(rate=1, enabled=False))
    manual = ManualClock(seed=3)
    assert 240 <= sum(hits(rate=0.3, clock=manual)) <= 360


def test_enabled_may_be_a_function_and_may_change():
    fault = InjectFault(OSError, enabled=lambda ctx: ctx.key == "hit me")
    policy = Policy(fault)
    assert policy.call(lambda: 1) == 1
    with pytest.raises(OSError):
        policy.options(key="hit me").call(int)
    fault.enabled = True
    with pytest.raises(OSError):
        policy.call(int)
    with pytest.raises(ConfigurationError, match="enabled must be"):
        fault.enabled = "yes"


def test_injected_errors_die_without_the_collector():
    class Mine(Exception):
        pass

    kept = []

    def make(ctx):
        error = Mine()
        kept.append(weakref.ref(error))
        return error

    gc.collect()
    gc.disable()
    try:
        try:
            Policy(InjectFault(make)).call(int)
        except Mine:
            pass
        assert kept[0]() is None
    finally:
        gc.enable()


def test_describe_and_repr():
    assert InjectFault(OSError, 0.5, seed=1).describe() == {
        "strategy": "inject fault",
        "name": None,
        "error": "OSError",
        "rate": 0.5,
        "enabled": True,
        "seed": 1,
    }
    assert InjectLatency("1s", name="slow").describe()["delay"] == 1.0
    assert InjectResult(3).describe()["value"] == 3
    assert repr(InjectFault(OSError)) == "InjectFault(<class 'OSError'>, rate=1.0)"
    assert repr(InjectLatency("1s", 0.1)) == "InjectLatency(1.0, rate=0.1)"
    assert repr(InjectResult("x")) == "InjectResult('x', rate=1.0)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InjectFault("boom"), "inject fault: error must be an exception, its class, or a function"),
        (lambda: InjectFault(int), "error"),
        (lambda: InjectFault(OSError, 1.1), "rate must be a number of 0 or more and at most 1, got 1.1"),
        (lambda: InjectFault(OSError, True), "rate"),
        (lambda: InjectFault(OSError, float("nan")), "rate"),
        (lambda: InjectFault(OSError, enabled="yes"), "enabled must be True, False, or a function"),
        (lambda: InjectFault(OSError, seed=1.5), "seed must be an int, a string or None, got 1.5"),
        (lambda: InjectFault(OSError, seed=True), "seed"),
        (lambda: InjectLatency(-1), "delay"),
        (lambda: InjectLatency("x", 2, enabled=0, seed=[]), "delay.*; rate.*; enabled.*; seed"),
        (lambda: InjectResult(), "exactly one of a value and using= must be given, got neither"),
        (lambda: InjectResult(1, using=lambda ctx: 1), "got both"),
        (lambda: InjectResult(using=3), "using must be callable"),
    ],
)
def test_bad_options_are_refused_all_at_once(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
