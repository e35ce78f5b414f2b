"""Loads that run once for everybody who asks for the same key meanwhile."""

from __future__ import annotations

from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any

from pyresil._scope import scopes
from pyresil.clock import Parker
from pyresil.errors import RecursiveLoadError, report_exception
from pyresil.outcome import Success

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from pyresil.clock import Clock
    from pyresil.context import Context
    from pyresil.outcome import Outcome
    from pyresil.stores.cache import CacheStore

__all__ = ["AGAIN", "LOADING", "Load", "Loads", "start_refresh"]

#: A load that its caller left behind is taken for one that hangs after so many seconds. Not at once: one that is only slow still
#: brings its value, and where all of them hang, each that is started beside it is one more.
PATIENCE = 30.0
#: Who waits for a load whose caller may leave it behind looks again after so many seconds.
LOOK = 10.0
#: How many refreshes may run in the background at once, for one cache.
MAX_REFRESHES = 8

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

    ``ctx`` is the context it runs under; ``alone`` says that its caller does not wait for it; ``over`` is set when everybody was
    woken; ``refused`` where the result is not to be kept.
    """

    __slots__ = ("alone", "begun", "ctx", "mark", "outcome", "over", "parkers", "refused")

    def __init__(self, ctx: Context | None = None) -> None:
        self.ctx = ctx
        self.alone = False
        self.begun = 0.0 if ctx is None else ctx.clock.monotonic()
        self.parkers: dict[Parker, None] = {}
        self.outcome: Outcome[Any] | None = None
        self.over = False
        self.refused = False
        self.mark = Mark()

    def hangs(self) -> bool:
        """Whether no caller waits for it any more, and it began long ago: it may last for ever."""
        ctx = self.ctx
        if ctx is None or not (self.alone or any(scope.left for scope in scopes(ctx))):
            return False
        return ctx.clock.monotonic() - self.begun >= PATIENCE

    def look_in(self) -> float | None:
        """Seconds until it may hang, or so many that it is looked at again; None where its caller cannot leave it behind."""
        ctx = self.ctx
        if ctx is None or not (self.alone or scopes(ctx)):
            return None
        left = self.begun + PATIENCE - ctx.clock.monotonic()
        return left if left > 0.0 else LOOK


AGAIN: Outcome[Any] = Success(None)


class Loads:
    """The loads that run, by key; nothing is kept of those that ended."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: dict[Hashable, Load] = {}

    def __len__(self) -> int:
        return len(self._running)

    def claim(self, key: Hashable, fresh: Load, *, served: bool = False) -> Load:
        """The load of ``key``: ``fresh``, which is then the caller's to run, or the one that runs already.

        One that hangs is taken over, but not a refresh in the background for as long as its stale value is ``served``.
        Called inside the ``try`` whose ``finally`` calls `let_go`: a load that nobody ends would be waited for for ever.
        """
        found = self._running.setdefault(key, fresh)
        if found is not fresh and found.hangs() and not (served and found.alone):
            self._drop(key, found)
            for parker in list(found.parkers):
                parker.unpark()
            found = self._running.setdefault(key, fresh)
        return found

    def keeps(self, key: Hashable, load: Load, store: CacheStore, now: float | None = None) -> bool:
        """Whether what a load brings is kept: not where another one took its place and has brought something newer.

        An error, for which no ``now`` is given, does not take the place of what is stale either.
        """
        if self._running.get(key) is load:
            return True
        newer = store.get(key)[0]
        return newer is None or (now is not None and now >= newer.fresh_until)

    def forget(self, key: Hashable) -> None:
        """Nobody joins the load that runs now any more."""
        self._running.pop(key, None)

    def finish(self, key: Hashable, load: Load, outcome: Outcome[Any]) -> None:
        """End a load and wake who waits for it. May be called again where a signal handler raised in its middle."""
        # Out of the way first: a load that has ended must not be found.
        self._drop(key, load)
        load.outcome = outcome
        for parker in list(load.parkers):
            parker.unpark()
        load.over = True

    def _drop(self, key: Hashable, load: Load) -> None:
        # In one stretch without a call: who invalidates meanwhile may make room for another load, which has to stay.
        running = self._running
        try:
            if key in running and running[key] is load:
                del running[key]
        except KeyError:
            pass  # the key's own comparison is a call, after which it was gone

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
                try:
                    running.parkers[parker] = None
                    if running.outcome is None:
                        token.raise_if_cancelled()
                        if running.hangs():
                            return AGAIN
                        token.park(parker, running.look_in(), for_work=True)
                finally:
                    running.parkers.pop(parker, None)
            return running.outcome
        finally:
            for mark in mine:
                if theirs in mark.waits_for:
                    mark.waits_for.remove(theirs)


def start_refresh(
    clock: Clock, work: Callable[[], object], running: set[Mark], mark: Mark, subject: str
) -> bool:
    """Run ``work``, whose load has the ``mark`` and which takes it out of ``running`` at its end, in a thread of the library.

    Returns whether it runs: not where too many do so already, nor where no thread can be started.
    """
    if len(running) >= MAX_REFRESHES:
        return False
    context, started = copy_context(), False
    try:
        running.add(mark)
        clock.spawn(lambda: context.run(work), "pyresil-cache-refresh")
        started = True
    except RuntimeError:  # the interpreter is ending, or the process has no more threads
        report_exception(f"{subject}: a refresh could not be started")
    finally:
        if not started:
            running.discard(mark)
    return started
