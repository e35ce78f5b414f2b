"""Loads that run once for everybody who asks for the same key meanwhile."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pyresil.clock import Parker
from pyresil.errors import RecursiveLoadError
from pyresil.outcome import Success

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from pyresil.context import Context
    from pyresil.outcome import Outcome

__all__ = ["AGAIN", "LOADING", "Load", "Loads"]

#: The loads that the code around this runs for, the innermost last.
LOADING: ContextVar[tuple[Mark, ...]] = ContextVar("pyresil_loading", default=())


class Mark:
    """What the context knows of a load: not the load itself, whose error may lead to a copy of that very context.

    ``waits_for`` are the loads without which this one does not end, one for each thread of its work that waits.
    """

    __slots__ = ("waits_for",)

    def __init__(self) -> None:
        self.waits_for: list[Mark] = []

    def leads_to(self, marks: tuple[Mark, ...]) -> bool:
        """Whether this load, or one that it waits for at any remove, is one of ``marks``."""
        seen = {self}
        ahead = [self]
        while ahead:
            mark = ahead.pop()
            if mark in marks:
                return True
            new = set(mark.waits_for) - seen
            seen |= new
            ahead += new
        return False


class Load:
    """One load of one key, and those who wait for it. ``outcome`` is None while it runs; `AGAIN` where nobody learnt anything.

    ``over`` is set when everybody was woken; ``refused`` where the result is not to be kept.
    """

    __slots__ = ("mark", "outcome", "over", "parkers", "refused")

    def __init__(self) -> None:
        self.parkers: list[Parker] = []
        self.outcome: Outcome[Any] | None = None
        self.over = False
        self.refused = False
        self.mark = Mark()


AGAIN: Outcome[Any] = Success(None)


class Loads:
    """The loads that run, by key; nothing is kept of those that ended."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: dict[Hashable, Load] = {}

    def __len__(self) -> int:
        return len(self._running)

    def claim(self, key: Hashable, fresh: Load) -> Load:
        """The load of ``key``: ``fresh``, which is then the caller's to run, or the one that runs already.

        Called inside the ``try`` whose ``finally`` calls `let_go`: a load that nobody ends would be waited for for ever.
        """
        return self._running.setdefault(key, fresh)

    def forget(self, key: Hashable) -> None:
        """Nobody joins the load that runs now any more."""
        self._running.pop(key, None)

    def finish(self, key: Hashable, load: Load, outcome: Outcome[Any]) -> None:
        """End a load and wake who waits for it. May be called again where a signal handler raised in its middle."""
        # Out of the way first: a load that has ended must not be found. In one stretch without a call: who invalidates meanwhile may
        # make room for another load, which has to stay.
        running = self._running
        try:
            if key in running and running[key] is load:
                del running[key]
        except KeyError:
            pass  # the key's own comparison is a call, after which it was gone
        load.outcome = outcome
        for parker in load.parkers:
            parker.unpark()
        load.over = True

    def let_go(self, key: Hashable, load: Load) -> None:
        """`finish`, where a signal handler raised before it, or in it."""
        if not load.over:
            self.finish(key, load, AGAIN if load.outcome is None else load.outcome)

    def wait(self, ctx: Context, key: Callable[[], Any], running: Load) -> Outcome[Any]:
        """Wait for somebody else's load; ``key`` gives the key as an error names it."""
        mine = LOADING.get()
        theirs = running.mark
        try:
            # All of them: whoever waits for an outer one of these waits for this one too.
            for mark in mine:
                mark.waits_for.append(theirs)
            # Listed before the look, so that of two loads that wait for each other at least one sees it.
            if mine and theirs.leads_to(mine):
                raise RecursiveLoadError(key(), ctx.policy)
            token = ctx.cancel
            while running.outcome is None:
                parker = Parker()
                running.parkers.append(parker)
                if running.outcome is None:
                    token.raise_if_cancelled()
                    token.park(parker, for_work=True)
            return running.outcome
        finally:
            for mark in mine:
                if theirs in mark.waits_for:
                    mark.waits_for.remove(theirs)
