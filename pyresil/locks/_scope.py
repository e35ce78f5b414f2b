"""A stretch of work under a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil.context import Context, _lease, current_context, set_current

if TYPE_CHECKING:
    from pyresil.locks.lease import Lease


class Scope:
    """A stretch of work under a lease: what `current_lease` and the current context are in it."""

    __slots__ = ("_ctx", "_lease", "_outer", "_outer_lease", "_state")

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._ctx = Context()
        self._outer: Context | None = None
        self._outer_lease: Any = None
        self._state = 0

    def enter(self) -> None:
        """The work begins."""
        lease, ctx = self._lease, self._ctx
        outer = self._outer = current_context()
        self._outer_lease = _lease.get()
        # Policies inside inherit the token, so that their waits end with the lease.
        ctx._owner = lease._locks._owner if outer is None else outer._owner
        ctx._given = lease.cancel
        if outer is not None:
            ctx._inherit(outer)
        ctx._lease = lease
        lease._running += 1
        self._state = 1
        set_current(ctx)
        _lease.set(lease)

    def leave(self) -> None:
        """The work is over; also after an `enter` that a signal handler broke off."""
        if self._state == 1:
            self._state = 2
            self._lease._running -= 1
            # Only what is ours: the block may end in another thread than it began in.
            if _lease.get() is self._lease:
                _lease.set(self._outer_lease)
            if current_context() is self._ctx:
                set_current(self._outer)
            self._ctx._close()
            self._outer = None
