"""Reading the options of a rate limit."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeAlias

from pyresil._engine.limiters import Spec
from pyresil.durations import Rate, parse_rate
from pyresil.outcome import Failure, status_of

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pyresil._validate import Checker
    from pyresil.context import Context
    from pyresil.outcome import Outcome

ALGORITHMS = ("sliding-window", "fixed-window", "token-bucket", "gcra")

#: Whether a call with this context, of this partition, is meant.
Meant: TypeAlias = Callable[["Context", Any], object]
#: Whether this outcome says that the limit of the dependency is used up.
Drains: TypeAlias = Callable[["Outcome[Any]"], object]

_MOST_SEGMENTS = 1_000


def spec_of(check: Checker, limit: Any, algorithm: Any, segments: Any, burst: Any) -> Spec:
    """The rate and the algorithm."""
    rate = Rate(1, 1.0)
    try:
        rate = limit if isinstance(limit, Rate) and limit.permits > 0 else parse_rate(limit)
    except ValueError as error:
        check.faults.append(f"limit {error}")
    word = check.choice("algorithm", algorithm, ALGORITHMS)
    parts = check.integer("segments", segments, 1, _MOST_SEGMENTS)
    size = 1 if word == "gcra" else rate.permits
    if burst is not None:
        if word in ("token-bucket", "gcra"):
            size = check.integer("burst", burst)
        else:
            check.fault("burst", "None: only token-bucket and gcra have one", burst)
    return Spec(word, rate.permits, rate.window, size, parts)


def meant(check: Checker, field: str, value: Any) -> Meant | None:
    """``allow`` and ``deny``: a function of the context, or a collection of partitions."""
    if value is None:
        return None
    if callable(value):
        function: Callable[[Context], object] | None = check.function(field, value)
        return None if function is None else lambda ctx, _key: function(ctx)
    if isinstance(value, Collection) and not isinstance(value, (str, bytes)):
        try:
            members: frozenset[Hashable] = frozenset(value)
        except TypeError:
            members = frozenset()
            check.fault(field, "a collection of hashable partitions", value)
        return lambda _ctx, key: key in members
    check.fault(field, "a function of the context, a collection of partitions, or None", value)
    return None


def drains(check: Checker, value: Any) -> Drains | None:
    """``drain_on``: statuses, or a function of the outcome."""
    if value is None:
        return None
    if callable(value):
        return check.function("drain_on", value)
    statuses = value if isinstance(value, (tuple, list, set, frozenset)) else (value,)
    if statuses and all(
        isinstance(one, int) and not isinstance(one, bool) and 100 <= one <= 599 for one in statuses
    ):
        wanted = frozenset(statuses)
        return lambda outcome: _status(outcome) in wanted
    check.fault(
        "drain_on", "a status such as 429, several of them, a function of the outcome, or None", value
    )
    return None


def _status(outcome: Outcome[Any]) -> int | None:
    if isinstance(outcome, Failure):
        return status_of(outcome.error)
    status = getattr(outcome.value, "status_code", None)
    return status if isinstance(status, int) else None
