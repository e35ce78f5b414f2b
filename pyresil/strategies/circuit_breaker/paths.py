"""The hot paths of a circuit breaker (see `pyresil._flat`): the closed circuit, a path for each kind of window.

Everything that is not plainly good goes to the breaker's methods. The circuit object stays the same for the life of the
breaker, also in a forked child, and its state is read anew with every call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyresil._flat import Inline
from pyresil.outcome import PLAIN

if TYPE_CHECKING:
    from pyresil.strategies.circuit_breaker.breaker import CircuitBreaker
    from pyresil.strategy import Run

_NONE: frozenset[type] = frozenset()


def inlined(breaker: CircuitBreaker, inner: Run) -> Inline:
    """The path of a breaker with these options."""
    share = breaker._share
    if share is not None:
        known = {"refresh": share.refresh, "breaker": breaker, "guarded": breaker._guarded, "inner": inner}
        return Inline(_SHARED, known)
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


_SHARED = """\
$ctx = context(cell)
$refresh($breaker, ($ctx.policy, $ctx.source))
value = $guarded($inner, $ctx)
"""
#: The closed circuit: ``after`` follows on a work that raised nothing.
_PATH = """\
$window = $circuit.window
if $window is None:
    value = $guarded($inner, context(cell))
else:
{before}\
    try:
        WORK
    except Exception as error:
        $raised(context(cell), $window, error, {begun})
        raise
{after}\
"""


def _untimed(after: str) -> str:
    return _PATH.format(before="", begun="0.0", after=after)


def _timed(after: str) -> str:
    before = "    $now = $breaker._now\n    $begun = $now()\n"
    return _PATH.format(before=before, begun="$begun", after=after)


#: One more success in a window that is full of them is the same window, so it is not recorded.
_COUNT = _untimed("""\
    if not (type(value) in $plain and $window.calm):
        $returned(context(cell), $window, value, 0.0)
""")
_COUNT_TIMED = _timed("""\
    if not ($now() - $begun <= $limit and type(value) in $plain and $window.calm):
        $returned(context(cell), $window, value, $begun)
""")
#: A good call among good ones opens nothing: `TimeWindow.record` inline; nothing is called between the look and the stores.
_TIME = _untimed("""\
    $now = $breaker._now
    $ended = $now()
    if type(value) in $plain and $ended < $window.end and $window.calm:
        $window.calls += 1
        $window.own += 1
    else:
        $returned(context(cell), $window, value, 0.0)
""")
_TIME_AND_SLOW = _timed("""\
    $ended = $now()
    if type(value) in $plain and $ended < $window.end and $window.calm and $ended - $begun <= $limit:
        $window.calls += 1
        $window.own += 1
    else:
        $returned(context(cell), $window, value, $begun)
""")
