"""The compiled forms of a rate limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil._flat import Inline
from pyresil.outcome import Failure, Success

if TYPE_CHECKING:
    from pyresil.context import Context
    from pyresil.strategies.rate_limit.limiter import RateLimit
    from pyresil.strategy import Run


def compiled(limit: RateLimit, inner: Run) -> Run:
    """The limit around ``inner``, with partitions or other conditions."""
    return _admitted(limit, inner) if limit._drains is None else _draining(limit, inner)


def _admitted(limit: RateLimit, inner: Run) -> Run:
    def run(ctx: Context) -> Any:
        limit._admit(ctx)
        return inner(ctx)

    return run


def _draining(limit: RateLimit, inner: Run) -> Run:
    def run(ctx: Context) -> Any:
        key = limit._admit(ctx)
        try:
            value = inner(ctx)
        except Exception as error:
            limit.exit(ctx, key, Failure(error))
            raise
        limit.exit(ctx, key, Success(value))
        return value

    return run


def inlined(limit: RateLimit) -> Inline:
    """The same paths as source (see `pyresil._flat`), for one weight, no partitions and no other conditions."""
    names = {
        "limit": limit,
        "acquire": limit._acquire,
        "weight": limit._weight,
        "permits": limit._spec.permits,
    }
    return Inline(_SLIDING if limit._spec.algorithm == "sliding-window" else _PLAIN, names)


_SLIDING = """\
$admitted = False
$state = $limit._whole
if $state is not None:
    $now = $limit._now
    $at = $now()
    if $at < $state.turn:
        $total = $state.total + $weight
        if $total <= $permits:
            $state.total = $total
            if $at > $state.last:
                $state.last = $at
            $admitted = True
if not $admitted:
    $acquire(context(cell), None, $weight)
WORK
"""
_PLAIN = """\
$state = $limit._whole
$now = $limit._now
if $state is None or not $state.take($weight, $now()):
    $acquire(context(cell), None, $weight)
WORK
"""
