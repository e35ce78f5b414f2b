"""What type checkers say of circuit breakers and rate limits. Never run."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from pyresil import (
    CircuitBreaker,
    CircuitOpenError,
    CircuitState,
    CircuitStats,
    Fallback,
    MemoryLimiterStore,
    Policy,
    RateDecision,
    RateLimit,
    RateLimitedError,
    RateLimitStats,
    Reservation,
)

breaker = CircuitBreaker(
    "carrier",
    failure_rate=0.5,
    window=timedelta(minutes=1),
    slow_call="2s",
    open_for=lambda opened: min(2.0**opened, 60.0),
    half_open_calls=3,
    half_open_successes=2,
    probe_timeout=5,
    health_check=lambda: True,
    handle=(OSError, TimeoutError),
    handle_result=lambda value: value is None,
)
CircuitBreaker(window=50, open_for="30s", handle=lambda error: isinstance(error, OSError))
CircuitBreaker("carrier", window="one")  # a string is a duration, and this one is refused when it runs

assert_type(breaker.state, CircuitState)
assert_type(breaker.stats(), CircuitStats)
assert_type(breaker.stats().retry_after, float | None)
assert_type(Policy(breaker).call(len, "ab"), int)
assert_type(Policy(Fallback(None), breaker).call(len, "ab"), int | None)

limit = RateLimit(
    "100/minute",
    "search",
    algorithm="token-bucket",
    burst=20,
    max_wait="2s",
    weight=lambda ctx: len(ctx.args),
    per=lambda ctx: ctx.key,
    allow={"admin"},
    deny=lambda ctx: ctx.key is None,
    drain_on=(429, 503),
)
RateLimit((5, timedelta(seconds=1)), name="shared", store=MemoryLimiterStore(), insurance=RateLimit("1/s"))

assert_type(Policy(limit, breaker).call(len, "ab"), int)
assert_type(limit.hit(2), RateDecision)
assert_type(limit.reserve(key="a", max_wait="1m"), Reservation)
assert_type(limit.reserve().cancel(), bool)
assert_type(limit.stats(), RateLimitStats)


def refused(error: RateLimitedError, opened: CircuitOpenError) -> None:
    assert_type(error.retry_after, float | None)
    assert_type(opened.last_failure, Exception | None)


CircuitBreaker(1)  # type: ignore[arg-type]  # a name is a string
CircuitBreaker(failure_rate="0.5")  # type: ignore[arg-type]  # a number
RateLimit("1/s", store=limit)  # type: ignore[arg-type]  # a limiter store
RateLimit(5)  # type: ignore[arg-type]  # a rate
