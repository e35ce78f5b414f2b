"""A lock that a ``with`` block takes and gives back."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from pyresil.context import current_context
from pyresil.errors import LockError, LockNotAcquiredError
from pyresil.strategy import never_began

if TYPE_CHECKING:
    from pyresil.cancel import CancelToken
    from pyresil.locks._acquire import Acquisition
    from pyresil.locks._terms import Terms
    from pyresil.locks.lease import Lease
    from pyresil.locks.locks import Locks


def not_acquired(acquisition: Acquisition, key: str, policy: str | None) -> LockNotAcquiredError:
    """The error that says so, with what is known of the holder."""
    held = acquisition.held
    retry_after = None if held is None else held.remaining_ms / 1000.0
    return LockNotAcquiredError(key, acquisition.waited, retry_after, policy)


class Hold:
    """A lock that a ``with`` block takes and gives back; made by `Locks.hold`, for one block at a time."""

    __slots__ = ("__weakref__", "_cancel", "_lease", "_locks", "_terms")

    def __init__(self, locks: Locks, terms: Terms, cancel: CancelToken | None) -> None:
        self._locks = locks
        self._terms = terms
        self._cancel = cancel
        self._lease: Lease | None = None

    def __enter__(self) -> Lease:
        if self._lease is not None:
            raise LockError(f"the block on {self._terms.key!r} is entered already: call hold() once for each")
        acquisition = self._locks._acquisition(self._terms, self._cancel)
        lease = acquisition.run()
        if lease is None:
            ctx = current_context()
            raise not_acquired(acquisition, self._terms.key, None if ctx is None else ctx.policy)
        self._lease = lease
        try:
            # A signal handler may raise at the very start of `__exit__`, which then never runs: when this object dies all the
            # same, the lease is given back, or it would be renewed for ever. (No `__del__`: what a handler raises there is lost.)
            lease._net = weakref.ref(self, lease.__exit__)
            return lease.__enter__()
        except BaseException:
            lease._net = self._lease = None
            lease.release()
            raise

    def __exit__(self, *exc_info: object) -> None:
        lease = self._lease
        if lease is not None:
            try:
                lease.__exit__()
            except BaseException as error:
                if never_began(lease.__exit__, error):
                    lease.__exit__()
                raise
            finally:
                # A signal handler may have raised in between; a second release does nothing.
                lease._net = self._lease = None
                lease.release()
