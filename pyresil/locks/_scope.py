"""A stretch of work under a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil.cancel import CancelToken
from pyresil.context import UNSET, Context, _current, _lease, cell_in_current, current_context, leave_cell
from pyresil.context import Scope as ContextScope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyresil.locks.lease import Lease
    from pyresil.stores.base import LockStore

#: Where the deadline is near or has passed, a release may take so many seconds all the same.
_LEAST = 0.5


def time_to_release(store: LockStore) -> float | None:
    """Seconds that a release may take, so that a store which hangs keeps nobody long beyond the deadline; None for its own."""
    ctx = current_context()
    left = None if ctx is None else ctx.remaining()
    return None if left is None or left >= store._own_timeout else max(left, _LEAST)


class Scope:
    """A stretch of work under a lease: what `current_lease` and the current context are in it."""

    __slots__ = ("_cell", "_ctx", "_lease", "_outer", "_outer_lease", "_state", "_token")

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._ctx: Context | None = None
        self._cell: list[Any] | None = None
        self._outer: Context | None = None
        self._outer_lease: Any = None
        self._token: CancelToken | None = None
        self._state = 0

    def enter(self) -> None:
        """The work begins. In an execution it keeps its context's attempt, key and properties."""
        lease = self._lease
        outer = self._outer = current_context()
        self._outer_lease = _lease.get()
        # Policies inside inherit the token, so that their waits end with the lease.
        if outer is None:
            ctx = Context()
            ctx._owner = lease._locks._owner
            ctx._given = lease.cancel
        else:
            ctx = outer._next(outer.attempt)
            above = outer.cancel
            token = self._token = CancelToken._make(outer.clock, (above, lease.cancel), outer.policy)
            token._target = above  # cancelling it cancels the execution, as ever
            ctx._scope = ContextScope(outer)
            ctx._scope._token = token
        ctx._lease = lease
        self._ctx = ctx
        self._cell = cell = cell_in_current(ctx)
        lease._running += 1
        self._state = 1
        _current.set(cell)
        _lease.set(lease)

    def leave(self) -> None:
        """The work is over; also after an `enter` that a signal handler broke off.

        What may be done twice comes first, and that it is done is noted in the end: where a signal handler raises in between,
        this is called again.
        """
        if self._state == 1:
            ctx, outer = self._ctx, self._outer
            # Only what is ours: the block may end in another thread than it began in.
            if _lease.get() is self._lease:
                _lease.set(self._outer_lease)
            leave_cell(self._cell)
            if ctx is not None:
                if outer is None:
                    ctx._close()
                else:
                    ctx._close_token()
                    if ctx._reported is not UNSET:
                        outer.report(ctx._reported)
            if self._token is not None:
                self._token._close()
            self._lease._running -= 1
            self._state = 2
            self._ctx = self._outer = self._token = self._cell = None


def ending(begun: Iterable[Scope]) -> Scope | None:
    """Which block of a lease ends: the innermost of this thread, where there are several; else the last that began."""
    scopes = list(begun)
    if len(scopes) > 1:
        here = current_context()
        for scope in scopes:
            if here is not None and scope._ctx is here:
                return scope
    return scopes[-1] if scopes else None
