"""Decorators that are merged stage by stage.

Each adds one stage to a function. Stacked directly on one another they make one policy in canonical order, whatever order they
are written in: fallback > cache > lock > retry > hedge > circuit breaker > rate limit > bulkhead > timeout. Somebody else's
decorator in between ends the merging and keeps its place. A stage given twice is refused.

All of them raise `ConfigurationError` where an option is wrong, a stage is given twice, or a name is in use with other options,
and ``TypeError`` where the function is async or a generator function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from pyresil._merging import doubtful, stage_decorator
from pyresil.errors import ConfigurationError, shown
from pyresil.outcome import UNSET
from pyresil.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal, Unpack

    from pyresil._stage_options import (
        BulkheadOptions,
        CacheOptions,
        CircuitBreakerOptions,
        FallbackOptions,
        HedgeOptions,
        LockOptions,
        RateLimitOptions,
        RetryOptions,
        TimeoutOptions,
    )
    from pyresil.context import Context
    from pyresil.durations import Duration, RateLike

__all__ = [
    "bulkhead",
    "cached",
    "circuit_breaker",
    "fallback",
    "hedge",
    "locked",
    "rate_limit",
    "retry",
    "timeout",
]

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


class Decorator(Protocol):
    """Decorates a function and keeps its signature."""

    def __call__(self, fn: Callable[P, T], /) -> Callable[P, T]:
        """Decorate ``fn``."""
        ...


@overload
def retry(fn: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def retry(
    attempts: int | Strategy[Any] | Literal[False] | None = ..., /, **options: Unpack[RetryOptions]
) -> Decorator: ...
def retry(first: Any = UNSET, /, **options: Any) -> Any:
    """Retry the function: ``@retry``, ``@retry(5)``, ``@retry(attempts=5, backoff=...)``; ``@retry(False)`` turns it off.

    On a Flask view of an application with `Pyresil` it reruns the view for GET, HEAD and OPTIONS only.

    Args:
        first: The number of attempts (None for no limit), a ready `Retry`, False, or the function itself.
        **options: Those of `Retry`, and ``idempotent=True``: a view may be rerun for every method.
    """
    if not isinstance(options.get("idempotent", False), bool):
        raise ConfigurationError(
            f"retry: idempotent must be True or False, got {shown(options['idempotent'])}"
        )
    return stage_decorator("retry", first, options, extra=("idempotent",))


@overload
def timeout(
    limit: Duration | Strategy[Any] | Literal[False] = ..., /, **options: Unpack[TimeoutOptions]
) -> Decorator: ...
@overload
def timeout(*, limit: Duration, **options: Unpack[TimeoutOptions]) -> Decorator: ...
def timeout(first: Any = UNSET, /, **options: Any) -> Any:
    """Give each attempt of the function so much time: ``@timeout("2s")``.

    Args:
        first: The limit, a ready `Timeout`, or False to turn an inherited timeout off.
        **options: Those of `Timeout`.
    """
    return stage_decorator("timeout", first, options)


@overload
def circuit_breaker(fn: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def circuit_breaker(
    name: str | float | Strategy[Any] | Literal[False] | None = ...,
    /,
    **options: Unpack[CircuitBreakerOptions],
) -> Decorator: ...
def circuit_breaker(first: Any = UNSET, /, **options: Any) -> Any:
    """Put a circuit breaker around the function: ``@circuit_breaker``, ``@circuit_breaker("carrier")`` shares one by name.

    Args:
        first: A name, a failure rate, a ready `CircuitBreaker`, False, or the function itself.
        **options: Those of `CircuitBreaker`.
    """
    return stage_decorator("circuit_breaker", first, options, by_name=True)


@overload
def rate_limit(
    limit: RateLike | Strategy[Any] | Literal[False], /, **options: Unpack[RateLimitOptions]
) -> Decorator: ...
@overload
def rate_limit(*, limit: RateLike, **options: Unpack[RateLimitOptions]) -> Decorator: ...
def rate_limit(first: Any = UNSET, /, **options: Any) -> Any:
    """Limit how often the function is called: ``@rate_limit("100/minute")``; with ``name=`` the limit is shared by name.

    Args:
        first: The rate, a ready `RateLimit`, or False to turn an inherited one off.
        **options: Those of `RateLimit`.
    """
    return stage_decorator("rate_limit", first, options)


@overload
def hedge(fn: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def hedge(
    delay: Duration | Strategy[Any] | Literal[False] = ..., /, **options: Unpack[HedgeOptions]
) -> Decorator: ...
def hedge(first: Any = UNSET, /, **options: Any) -> Any:
    """Start another copy of a slow call: ``@hedge("200ms")``, ``@hedge("p95")``.

    Args:
        first: The delay before a copy, a ready `Hedge`, False, or the function itself.
        **options: Those of `Hedge`.
    """
    return stage_decorator("hedge", first, options)


@overload
def cached(fn: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def cached(
    ttl: Duration | Strategy[Any] | Literal[False] = ..., /, **options: Unpack[CacheOptions]
) -> Decorator: ...
def cached(first: Any = UNSET, /, **options: Any) -> Any:
    """Keep the function's results for a while, by its arguments: ``@cached("5m")``.

    Args:
        first: The ttl, a ready `Cache`, False, or the function itself.
        **options: Those of `Cache`.
    """
    return stage_decorator("cache", first, options)


@overload
def locked(
    key: str | Callable[[Context], str] | Strategy[Any] | Literal[False], /, **options: Unpack[LockOptions]
) -> Decorator: ...
@overload
def locked(*, key: str | Callable[[Context], str], **options: Unpack[LockOptions]) -> Decorator: ...
def locked(first: Any = UNSET, /, **options: Any) -> Any:
    """Run the function under a lease: ``@locked("export")``, ``@locked(lambda ctx: f"order:{ctx.args[0]}")``.

    Args:
        first: The key, a function of the context that gives it, or a ready `Lock`; False to turn an inherited lock off.
        **options: Those of `Lock`.
    """
    made = stage_decorator("lock", first, options, bare=False)
    return doubtful("locked", made) if callable(first) else made


@overload
def bulkhead(fn: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def bulkhead(
    name: str | int | Strategy[Any] | Literal[False] | None = ..., /, **options: Unpack[BulkheadOptions]
) -> Decorator: ...
def bulkhead(first: Any = UNSET, /, **options: Any) -> Any:
    """Cap how many calls of the function run at once: ``@bulkhead(max_concurrent=1)``, ``@bulkhead("exports")`` by name.

    Args:
        first: A name, the cap, a ready `Bulkhead`, False, or the function itself.
        **options: Those of `Bulkhead`.
    """
    return stage_decorator("bulkhead", first, options, by_name=True)


class _FallbackDecorator(Protocol[V_co]):
    def __call__(self, fn: Callable[P, T], /) -> Callable[P, T | V_co]: ...


@overload
def fallback(ready: Strategy[V], /) -> _FallbackDecorator[V]: ...
@overload
def fallback(value: V, /, **options: Unpack[FallbackOptions]) -> _FallbackDecorator[V]: ...
@overload
def fallback(
    *, using: Callable[[Any, Context], V], **options: Unpack[FallbackOptions]
) -> _FallbackDecorator[V]: ...
def fallback(*value: Any, **options: Any) -> Any:
    """Give the function a value, or ``using=`` another function's result, in the place of a failure or a rejection.

    Args:
        *value: The value, or a ready `Fallback`; False is a value here, not a switch.
        **options: ``using`` and the other options of `Fallback`.
    """
    if len(value) > 1:
        raise ConfigurationError(f"fallback: one value can be given, got {len(value)}")
    ready = value[0] if value and isinstance(value[0], Strategy) else UNSET
    if value and ready is UNSET:
        options["value"] = value[0]
    made = stage_decorator("fallback", ready, options)
    return doubtful("fallback", made) if value and callable(value[0]) else made
