"""The options of each stage for type checkers; nothing imports this at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil._engine.backoff import Backoff, BackoffFunction
    from pyresil._engine.budget import RetryBudget
    from pyresil.clock import Clock
    from pyresil.context import Context
    from pyresil.durations import Duration

    Handle: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[Any], object] | None


class _Common(TypedDict, total=False):
    name: str | None
    clock: Clock | None


class _Judging(_Common, total=False):
    handle: Handle
    handle_result: Callable[[Any], object] | None


class RetryOptions(_Judging, total=False):
    """See `pyresil.Retry`."""

    attempts: int | None
    backoff: Backoff | BackoffFunction | None
    max_elapsed: Duration | None
    respect_retry_after: bool
    budget: RetryBudget | None
    discard: Callable[[Any], object] | None
    idempotent: bool


class TimeoutOptions(_Common, total=False):
    """See `pyresil.Timeout`."""

    mode: Literal["cooperative", "abandon"]
    strict: bool
    max_abandoned: int


class CircuitBreakerOptions(_Judging, total=False):
    """See `pyresil.CircuitBreaker`."""

    failure_rate: float
    minimum_calls: int
    window: int | Duration
    slow_call: Duration | None
    slow_call_rate: float
    open_for: Duration | Callable[[int], Duration]
    half_open_calls: int
    half_open_successes: int | None
    probe_timeout: Duration | None
    share: Any
    health_check: Callable[[], object] | None


class BulkheadOptions(_Common, total=False):
    """See `pyresil.Bulkhead`."""

    max_concurrent: int
    max_queue: int
    queue_timeout: Duration | None
    lock_store: Any


class FallbackOptions(_Judging, total=False):
    """See `pyresil.Fallback`."""


class RateLimitOptions(_Common, total=False):
    """See `pyresil.RateLimit`."""

    algorithm: Literal["sliding-window", "fixed-window", "token-bucket", "gcra"]
    segments: int
    burst: int | None
    max_wait: Duration
    max_queue: int
    weight: int | Callable[[Context], int]
    per: Callable[[Context], Any] | None
    max_partitions: int
    block_for: Duration | None
    allow: Any
    deny: Any
    drain_on: Any
    store: Any
    insurance: Any


class HedgeOptions(_Judging, total=False):
    """See `pyresil.Hedge`."""

    delay: Duration
    max_hedges: int
    budget: RetryBudget | None


class CacheOptions(_Judging, total=False):
    """See `pyresil.Cache`."""

    key: Callable[[Context], Any] | None
    ttl: Duration
    stale_ttl: Duration
    store: Any
    max_entries: int
    refresh: Literal["background", "inline"]
    stale_if_error: bool
    negative_ttl: Duration | None
    codec: Literal["json"] | None
    lock_store: Any


class LockOptions(_Common, total=False):
    """See `pyresil.Lock`."""

    ttl: Duration
    wait: Duration | None
    store: Any
    min_hold: Duration
    max_hold: Duration | None
    on_lost: Callable[[Any], object] | None
