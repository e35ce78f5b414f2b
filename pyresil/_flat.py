"""One flat function for a whole policy: what a successful call pays.

Through nested closures every strategy costs a call, and an eager Context costs more than most strategies. So strategies offer
their hot path as source (`Inline`), which is used in two ways. `nested` makes a closure of one of them. Where all strategies of
a policy have one, `flatten` composes them as text, one inside the other around the call of the work, and everything off the hot
path goes to the closures. A code object is compiled once for all policies of the same shape.

The context variable holds a *cell*, a list ``[owner, args, kwargs, outer]`` (and the function, where the owner has none);
`pyresil.context.current_context` makes the `Context` from it when somebody asks, and puts it in the owner's place. When the call
ends the cell is emptied and not taken out, which would cost as much as putting it in: an empty cell stands for its ``outer``, and
the next call steps over all empty ones, so that no chain of them grows. All of that is stores into a list, so a signal handler
that raises cannot leave a context behind.
"""

from __future__ import annotations

import os
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from pyresil._observe import observed_call
from pyresil._scope import Owner
from pyresil.context import _current, context_of
from pyresil.events import Executed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType

    from pyresil.strategy import Run

__all__ = ["Inline", "Maker", "flatten", "nested"]


class Inline(NamedTuple):
    """The hot path of a strategy as source.

    Attributes:
        source: Statements with a line ``WORK``, which leaves the result of what is inside in ``value``; they leave their own
            there too, or raise. ``$name`` is a name of this strategy, bound in ``names`` or a local variable.
            ``context(cell)`` is the `Context`. ``DONE`` means that nothing follows here; it returns where nothing follows
            outside either.
        names: What the source needs.
        shortcut: Gives, for a decorated function, source that may return a result before anything else happens, and its
            names; or None. Used where everything outside is ``transparent``.
        transparent: Does nothing with a result that is there at once.
    """

    source: str
    names: Mapping[str, Any]
    shortcut: Callable[[Callable[..., Any]], tuple[str, Mapping[str, Any]] | None] | None = None
    transparent: bool = False


CO_VARARGS, CO_VARKEYWORDS = 0x04, 0x08  # inspect's, without importing it

_TEMPLATE = """\
def make(fn, owner, get, put, context, heard, observed, run{names}):
    def call({parameters}):
        if heard:
            return observed(owner, run, fn, {given})
{shortcut}\
        outer = get()
        while outer is not None and outer[0] is None:
            outer = outer[3]
        cell = [owner, {kept}, outer{extra}]
        try:
            put(cell)
{body}
            return value
        finally:
            head = cell[0]
            cell[0] = cell[1] = cell[2] = {gone}None
            if head is not owner:
                head._close()
    return call
"""

#: The call of the work; with keywords only where there are some, since they cost a dict.
_CALL = "value = fn(*args, **kwargs) if kwargs else fn(*args)"

_NESTED = """\
def make(inner{names}):
    def run(ctx):
{body}
        return value
    return run
"""

_codes: dict[str, CodeType] = {}


def _made(source: str) -> Callable[..., Any]:
    """The ``make`` of a source; its code is compiled once for all that have the same."""
    code = _codes.get(source)
    if code is None:
        code = _codes.setdefault(source, compile(source, "<pyresil policy>", "exec"))
    space: dict[str, Any] = {}
    exec(code, space)  # noqa: S102 - source from the library's own constants
    make: Callable[..., Any] = space.pop("make")
    return make


def _filled(inline: Inline, level: int, work: Sequence[str]) -> list[str]:
    """The lines of a hot path, with its names marked by ``level`` and ``work`` in its place."""
    lines: list[str] = []
    for line in inline.source.replace("$", f"_{level}_").splitlines():
        word = line.strip()
        indent = line[: len(line) - len(line.lstrip())]
        if word == "DONE":
            lines.append(indent + ("pass" if level else "return value"))
        elif word == "WORK":
            lines += [indent + inner for inner in work]
        else:
            lines.append(line)
    return lines


def nested(inline: Inline, inner: Run) -> Run:
    """One hot path as a function of the context, around ``inner``."""
    names = {f"_0_{name}": value for name, value in inline.names.items()}
    body = "\n".join(" " * 8 + line for line in _filled(inline, 0, ["value = inner(ctx)"]))
    source = _NESTED.format(
        names="".join(f", {name}" for name in names), body=body.replace("context(cell)", "ctx")
    )
    run: Run = _made(source)(inner, *names.values())
    return run


class Maker:
    """Makes flat functions of one policy.

    Args:
        owner: What contexts know of the policy.
        inlines: The hot paths of its strategies, the outermost first.
        run: The same as nested closures, for a call that somebody listens to.
    """

    __slots__ = ("_body", "_names", "_owner", "_run", "_shortcut")

    def __init__(self, owner: Owner, inlines: Sequence[Inline], run: Run) -> None:
        self._owner = owner
        self._run = run
        self._shortcut = next((inline.shortcut for inline in inlines if not inline.transparent), None)
        body = [_CALL]
        self._names: dict[str, Any] = {}
        for level in range(len(inlines) - 1, -1, -1):
            self._names.update({f"_{level}_{name}": value for name, value in inlines[level].names.items()})
            body = _filled(inlines[level], level, body)
        self._body = "\n".join(" " * 12 + line for line in body)

    def make(self, fn: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """The flat function around ``fn``; without one it takes the function as its first argument."""
        names = self._names
        shortcut = ""
        found = None if fn is None or self._shortcut is None else self._shortcut(fn)
        if found is not None:
            shortcut = "".join(f"        {line}\n" for line in found[0].replace("$", "_s_").splitlines())
            names = {**names, **{f"_s_{name}": value for name, value in found[1].items()}}
        bare = fn is not None and found is None and _takes_nothing(fn)
        source = _TEMPLATE.format(
            names="".join(f", {name}" for name in names),
            shortcut=shortcut,
            parameters="" if bare else "*args, **kwargs" if fn is not None else "fn, /, *args, **kwargs",
            given="(), {}" if bare else "args, kwargs",
            kept="(), None" if bare else "args, kwargs",
            extra=", fn" if fn is None else "",
            gone="cell[4] = " if fn is None else "",
            body=self._body.replace(_CALL, "value = fn()") if bare else self._body,
        )
        made: Callable[..., Any] = _made(source)(
            fn,
            self._owner if fn is None else Owner(self._owner.name, self._owner.clock, fn),
            _current.get,
            _current.set,
            context_of,
            Executed.heard,
            observed_call,
            self._run,
            *names.values(),
        )
        return made


def _takes_nothing(fn: Callable[..., Any]) -> bool:
    """Whether it is a plain function without parameters: it is called as such, without packing what it does not get."""
    if type(fn) is not FunctionType:
        return False
    code = fn.__code__
    return not (code.co_argcount or code.co_kwonlyargcount or code.co_flags & (CO_VARARGS | CO_VARKEYWORDS))


#: multiprocessing, and what is made like it: they call what is registered there in the processes that they fork.
_UTILITIES = ("multiprocessing.util", "billiard.util", "multiprocess.util")


def _watch_processes() -> None:
    for name in _UTILITIES:
        util = sys.modules.get(name)
        if util is not None:
            util.register_after_fork(_begin_process, _begin_process)


def _begin_process(_: object) -> None:
    # What runs there is a function of its own. It never comes back to the call that happened to start the process, whose cell
    # would stay as it is, and its deadline would be that of a pool's worker for as long as it lives. Who forks by himself
    # goes on with his work.
    _current.set(None)


# In the child, where this comes before what multiprocessing does: it costs nothing where it is not used, nor an import.
os.register_at_fork(after_in_child=_watch_processes)


def flatten(owner: Owner, inlines: Sequence[Inline | None], run: Run) -> Maker | None:
    """A `Maker`, where every strategy offers its hot path."""
    found = [inline for inline in inlines if inline is not None]
    return Maker(owner, found, run) if len(found) == len(inlines) else None
