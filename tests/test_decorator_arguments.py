"""What decorators take in the place of their options, and what people write there by mistake."""

from __future__ import annotations

import functools

import pytest

from pyresil import (
    Bulkhead,
    Cache,
    CircuitBreaker,
    Fallback,
    Hedge,
    Lock,
    Locks,
    Policy,
    RateLimit,
    Retry,
    Timeout,
    bulkhead,
    cached,
    circuit_breaker,
    fallback,
    hedge,
    locked,
    policy_of,
    rate_limit,
    retry,
    timeout,
)
from pyresil.errors import ConfigurationError


def fails():
    raise ConnectionError("down")


@pytest.mark.parametrize(
    ("decorator", "ready"),
    [
        (fallback, Fallback("spare")),
        (cached, Cache()),
        (locked, Lock("nightly")),
        (retry, Retry(2)),
        (hedge, Hedge()),
        (circuit_breaker, CircuitBreaker()),
        (rate_limit, RateLimit("5/s")),
        (bulkhead, Bulkhead(1)),
        (timeout, Timeout("1s")),
    ],
    ids=lambda value: getattr(value, "__name__", value.__class__.__name__),
)
def test_every_decorator_takes_a_ready_strategy(decorator, ready):
    assert policy_of(decorator(ready)(fails)).strategies == (ready,)


def test_a_ready_fallback_is_no_value():
    assert fallback(Fallback(using=lambda error, ctx: str(error)))(fails)() == "down"
    with pytest.raises(
        ConfigurationError, match="fallback: a ready strategy must be of that stage, got Retry"
    ):
        fallback(Retry())
    with pytest.raises(
        ConfigurationError, match=r"fallback: options cannot be given together with Fallback\(1\)"
    ):
        fallback(Fallback(1), handle=OSError)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: retry(ConnectionError), "retry: .*ConnectionError.*; write handle=ConnectionError"),
        (lambda: circuit_breaker(OSError), "circuit_breaker: .*OSError.*; write handle=OSError"),
        (lambda: timeout(TimeoutError), "timeout: this class cannot be decorated: <class 'TimeoutError'>$"),
        (lambda: retry(Retry), r"retry: .*Retry.*; write Retry\(…\)"),
        (lambda: locked(Lock), r"lock: .*Lock.*; write Lock\(…\)"),
    ],
)
def test_a_class_of_errors_or_strategies_is_not_decorated(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize("descriptor", [property, functools.cached_property])
@pytest.mark.parametrize(
    "decorator",
    [
        retry,
        retry(2),
        timeout,
        locked,
        Policy(Retry()),
        Policy(Retry()).options(key="a"),
        Locks("memory:").without_overlapping(key="a"),
    ],
)
def test_a_decorator_above_a_property_says_that_it_belongs_below(descriptor, decorator):
    with pytest.raises(TypeError, match=f"put the decorator below @{descriptor.__name__}$"):
        decorator(descriptor(fails))


def test_policy_of_a_method():
    class Client:
        @retry(2)
        def get(self):
            return 1

    assert policy_of(Client().get) is policy_of(Client.get) is not None
