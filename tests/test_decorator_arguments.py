"""What decorators take in the place of their options, and what people write there by mistake."""

from __future__ import annotations

import pytest

from pyresil import (
    Bulkhead,
    Cache,
    CircuitBreaker,
    Fallback,
    Hedge,
    Lock,
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
