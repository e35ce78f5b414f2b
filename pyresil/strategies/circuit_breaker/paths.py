"""The compiled form of a circuit breaker: the closed circuit inline, one function for each kind of window.

Everything that is not plainly good goes to the breaker's methods. The circuit object stays the same for the life of the
breaker, also in a forked child, and its state is read anew with every call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil._flat import Inline
from pyresil.outcome import PLAIN

if TYPE_CHECKING:
    from pyresil.context import Context
    from pyresil.strategies.circuit_breaker.breaker import CircuitBreaker
    from pyresil.strategies.circuit_breaker.shared import Share
    from pyresil.strategy import Run

_NONE: frozenset[type] = frozenset()


def compiled(breaker: CircuitBreaker, inner: Run) -> Run:
    """The breaker around ``inner``."""
    if breaker._share is not None:
        return _shared(breaker, breaker._share, inner)
    # Values of these types need not be judged.
    plain: frozenset[type] = PLAIN if breaker._judge.default_values else _NONE
    if breaker._circuit.rules.span is not None:
        return _by_time(breaker, inner, plain)
    if breaker._slow_call is not None:
        return _by_count_timed(breaker, inner, plain, breaker._slow_call)
    circuit = breaker._circuit

    def run(ctx: Context) -> Any:
        window: Any = circuit.window  # the kind of window that this function is for
        if window is None:
            return breaker._guarded(inner, ctx)
        try:
            value = inner(ctx)
        except Exception as error:
            breaker._raised(ctx, window, error, 0.0)
            raise
        # One more success in a window that is full of them is the same window, so it is not recorded.
        if type(value) in plain and window.calm:
            return value
        breaker._returned(ctx, window, value, 0.0)
        return value

    return run


def _shared(breaker: CircuitBreaker, share: Share, inner: Run) -> Run:
    def run(ctx: Context) -> Any:
        share.refresh(breaker, (ctx.policy, ctx.source))
        return breaker._guarded(inner, ctx)

    return run


def _by_count_timed(breaker: CircuitBreaker, inner: Run, plain: frozenset[type], limit: float) -> Run:
    circuit = breaker._circuit

    def run(ctx: Context) -> Any:
        window: Any = circuit.window  # the kind of window that this function is for
        if window is None:
            return breaker._guarded(inner, ctx)
        now = breaker._now
        begun = now()
        try:
            value = inner(ctx)
        except Exception as error:
            breaker._raised(ctx, window, error, begun)
            raise
        if now() - begun <= limit and type(value) in plain and window.calm:
            return value
        breaker._returned(ctx, window, value, begun)
        return value

    return run


def _by_time(breaker: CircuitBreaker, inner: Run, plain: frozenset[type]) -> Run:
    circuit = breaker._circuit
    timed = breaker._slow_call is not None
    limit = float("inf") if breaker._slow_call is None else breaker._slow_call

    def run(ctx: Context) -> Any:
        window: Any = circuit.window  # the kind of window that this function is for
        if window is None:
            return breaker._guarded(inner, ctx)
        now = breaker._now
        begun = now() if timed else 0.0
        try:
            value = inner(ctx)
        except Exception as error:
            breaker._raised(ctx, window, error, begun)
            raise
        ended = now()
        if type(value) in plain and ended < window.end and window.calm and ended - begun <= limit:
            # `TimeWindow.record` of a good call among good ones, which opens nothing; nothing is called here.
            window.calls += 1
            window.own += 1
            return value
        breaker._returned(ctx, window, value, begun)
        return value

    return run


def inlined(breaker: CircuitBreaker, inner: Run) -> Inline:
    """The same paths as source (see `pyresil._flat`)."""
    names = {
        "circuit": breaker._circuit,
        "plain": PLAIN if breaker._judge.default_values else _NONE,
        "guarded": breaker._guarded,
        "raised": breaker._raised,
        "returned": breaker._returned,
        "inner": inner,
    }
    limit = breaker._slow_call
    if breaker._circuit.rules.span is None and limit is None:
        return Inline(_COUNT, names)
    names |= {"breaker": breaker, "limit": limit}
    if breaker._circuit.rules.span is None:
        return Inline(_COUNT_TIMED, names)
    return Inline(_TIME if limit is None else _TIME_AND_SLOW, names)


_COUNT = """\
$window = $circuit.window
if $window is None:
    value = $guarded($inner, context(cell))
else:
    try:
        WORK
    except Exception as error:
        $raised(context(cell), $window, error, 0.0)
        raise
    if not (type(value) in $plain and $window.calm):
        $returned(context(cell), $window, value, 0.0)
"""
_COUNT_TIMED = """\
$window = $circuit.window
if $window is None:
    value = $guarded($inner, context(cell))
else:
    $now = $breaker._now
    $begun = $now()
    try:
        WORK
    except Exception as error:
        $raised(context(cell), $window, error, $begun)
        raise
    if not ($now() - $begun <= $limit and type(value) in $plain and $window.calm):
        $returned(context(cell), $window, value, $begun)
"""
_TIME = """\
$window = $circuit.window
if $window is None:
    value = $guarded($inner, context(cell))
else:
    try:
        WORK
    except Exception as error:
        $raised(context(cell), $window, error, 0.0)
        raise
    $now = $breaker._now
    $ended = $now()
    if type(value) in $plain and $ended < $window.end and $window.calm:
        $window.calls += 1
        $window.own += 1
    else:
        $returned(context(cell), $window, value, 0.0)
"""
_TIME_AND_SLOW = """\
$window = $circuit.window
if $window is None:
    value = $guarded($inner, context(cell))
else:
    $now = $breaker._now
    $begun = $now()
    try:
        WORK
    except Exception as error:
        $raised(context(cell), $window, error, $begun)
        raise
    $ended = $now()
    if type(value) in $plain and $ended < $window.end and $window.calm and $ended - $begun <= $limit:
        $window.calls += 1
        $window.own += 1
    else:
        $returned(context(cell), $window, value, $begun)
"""
