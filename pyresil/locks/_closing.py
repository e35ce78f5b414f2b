"""Handing leases back: when `Locks` are closed, and at the end of the process."""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING

from pyresil.clock import SYSTEM, Parker
from pyresil.errors import CancelledError
from pyresil.locks._log import log

if TYPE_CHECKING:
    from pyresil.clock import Clock
    from pyresil.locks.locks import Locks

#: How long closing lets work run on after it was cancelled, in seconds.
_GRACE = 1.0
#: What the count of work under a lease is once it was taken back: below 0 whatever begins or ends after that.
_TAKEN_BACK = -1_000_000
#: How long all releases of idle leases together may take, at least, in seconds.
_RELEASES = 5.0
#: At the end of the process: for work in daemon threads, and for one call of a store.
_GRACE_AT_EXIT, _CALL_AT_EXIT = 0.1, 2.0


def close(
    locks: Locks,
    timeout: float,
    grace: float = _GRACE,
    clock: Clock | None = None,
    release_timeout: float | None = None,
) -> None:
    """Release what is idle, wait for work, cancel it, wait a little more, and leave the rest to expire.

    Args:
        locks: Whose leases.
        timeout: How long to wait for work, all of it together, in seconds.
        grace: How long to wait for work that was cancelled.
        clock: For the waiting, where it is not that of the locks.
        release_timeout: For each call of the store; None for its own.
    """
    clock = clock or locks.clock
    locks._closed = True
    by = clock.monotonic() + timeout  # for all work together
    for election in list(locks._keys.elections.values()):
        election._step_down()
    for election in list(locks._keys.elections.values()):
        election._wait(max(0.0, by + grace - clock.monotonic()), clock)
    _release_idle(locks, clock, clock.monotonic() + max(timeout, _RELEASES), release_timeout)
    _wait_for_work(locks, by - clock.monotonic(), clock, release_timeout)
    for lease in list(locks._leases):
        lease.cancel.cancel(CancelledError("the locks are being closed"))
    _wait_for_work(locks, grace, clock, release_timeout)
    for lease in list(locks._leases):
        log().warning(
            "lease on %r (token %d): its work did not stop, so it is left to expire within %g s",
            lease.key,
            lease.token,
            lease.ttl,
        )
        lease._abandon()
    if locks._own_store and locks._store is not None:
        store, locks._store = locks._store, None
        store.close()


def _release_idle(locks: Locks, clock: Clock, until: float, release_timeout: float | None) -> None:
    sick = False
    for lease in list(locks._leases):
        idle = False
        # No call in between: work that begins is seen here, or sees that the lease is taken back. Below 0 is one that was taken back
        # before and is still here: a signal handler broke that off.
        if lease._running <= 0:
            lease._running = _TAKEN_BACK
            idle = True
        if not idle:
            continue
        if sick or clock.monotonic() > until:
            lease._abandon()  # one call after another to a store that does not answer would take for ever
        else:
            lease._hand_back(release_timeout)
            sick = lease._stuck


def _wait_for_work(locks: Locks, timeout: float, clock: Clock, release_timeout: float | None) -> None:
    until = clock.monotonic() + timeout
    while locks._leases:
        parker = Parker()
        try:
            # Looked at again once we can be woken. Work may have ended under a lease that nobody else hands back, as a job's owner
            # keeps it for the next tick.
            locks._closing[parker] = None
            _release_idle(locks, clock, clock.monotonic() + _RELEASES, release_timeout)
            left = until - clock.monotonic()
            if left <= 0.0:
                return
            if locks._leases:
                clock.park_for_work(parker, left)
        finally:
            locks._closing.pop(parker, None)


_live: weakref.WeakSet[Locks] = weakref.WeakSet()
_hooked = False


def register(locks: Locks) -> None:
    """From now on the end of the process hands these leases back."""
    global _hooked
    _live.add(locks)
    if not _hooked:
        _hooked = True
        atexit.register(_at_exit)


def _at_exit() -> None:
    # In a forked child the objects are there and hold nothing, whatever the parent holds.
    until = SYSTEM.monotonic() + _RELEASES
    for locks in list(_live):
        if SYSTEM.monotonic() > until:
            return
        try:
            close(locks, 0.0, _GRACE_AT_EXIT, SYSTEM, _CALL_AT_EXIT)
        except (Exception, SystemExit) as error:  # sys.exit() in somebody's callback, too
            log().warning("leases could not be handed back at the end of the process: %s", error)
