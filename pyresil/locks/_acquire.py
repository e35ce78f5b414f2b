"""Getting a lock, and waiting for it."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING, Any

from pyresil.clock import Parker
from pyresil.errors import LockError, StoreError, StoreUnavailableError, shown
from pyresil.events import LockAcquired, LockRejected, emit
from pyresil.locks._log import log
from pyresil.locks.lease import Lease
from pyresil.stores._checks import check_token
from pyresil.stores.base import Granted, Held

if TYPE_CHECKING:
    from pyresil.cancel import CancelToken
    from pyresil.locks._terms import Terms
    from pyresil.locks.locks import Locks

#: A waiter tries again after 50 ms, doubling to 1 s, each shortened at random; in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: Where a store's own waiting cannot be interrupted, it waits in slices of this many seconds, so that a cancel is seen.
_SLICE = 0.1


class _Process:
    """What one process says of itself, and its part of owner ids; read once, since both cost system calls."""

    __slots__ = ("_count", "_prefix", "pid", "who")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        host = os.uname().nodename.encode("ascii", "replace").decode()
        self.who = f"host={host} pid={pid}"
        self._prefix = os.urandom(12).hex()
        self._count = count(1)

    def new_owner(self) -> str:
        return f"{self._prefix}{next(self._count):08x}"


_process: _Process | None = None


def _this() -> _Process:
    global _process
    found, pid = _process, os.getpid()
    if found is None or found.pid != pid:
        found = _process = _Process(pid)
    return found


def who() -> str:
    """What this process says of itself to those that find the key held: host and process id, in ASCII."""
    return _this().who


def new_owner() -> str:
    """An id for an acquisition: 96 random bits of the process, and a number."""
    return _this().new_owner()


class Acquisition:
    """One try to get a lock, with its waiting. The owner id stays the same, so that a repeated request is no second one.

    Attributes:
        waited: Seconds spent so far.
        held: What the store said of the holder last, or None.
    """

    def __init__(
        self,
        locks: Locks,
        terms: Terms,
        cancel: CancelToken | None,
        policy: str | None = None,
        source: str | None = None,
        owner: str | None = None,
    ) -> None:
        #: Given ids are asked for again by their giver, so that what may have been granted is not taken back.
        self._keeps_id = owner is not None
        self._policy = policy
        self._source = source
        self._locks = locks
        self._terms = terms
        self._cancel = cancel
        self._clock = locks.clock
        self._owner = owner or new_owner()
        self._unknown = False
        self._lease: Lease | None = None
        self._begun = self._clock.monotonic()
        self._until = None if terms.wait is None else self._begun + terms.wait
        self._pause = _FIRST_PAUSE
        self.held: Held | None = None

    @property
    def waited(self) -> float:
        """Seconds since the first try."""
        return self._clock.monotonic() - self._begun

    def run(self) -> Lease | None:
        """Try until the lock is ours or the time to wait is over.

        Returns:
            The lease; None where somebody else has the lock (see ``held``).

        Raises:
            BaseException: The reason of the token that was set meanwhile.
            StoreUnavailableError: The store could not be asked until the end.
            StoreError: It refused.
        """
        granted = False
        try:
            while True:
                lease = self._try()
                if lease is not None:
                    granted = True
                    return lease
                if not self._wait():
                    self._tell_rejected()
                    return None
        finally:
            if not granted and self._lease is not None:
                # A signal handler raised in between, or the locks were closed.
                if self._keeps_id:
                    self._lease._abandon()  # another thread may run under the same acquisition
                else:
                    self._lease.release()
            elif not granted and self._unknown:
                # A request whose answer never came may have been granted: nobody should have to wait for its ttl.
                self._clean_up()

    def _try(self) -> Lease | None:
        """One request. None: somebody else has it, or the store could not tell and there is time to ask again."""
        self._raise_if_cancelled()
        if self._locks._closed:  # while this one waited
            raise LockError("locks: this object was closed")
        terms = self._terms
        sent = self._clock.boottime()
        before, self._unknown = self._unknown, True
        answer: Any  # of somebody's store, perhaps
        try:
            answer = self._locks.store.acquire(
                terms.key, self._owner, round(terms.ttl * 1000.0), who(), timeout=self._call_timeout()
            )
        except StoreUnavailableError as error:
            left = self._left()
            if left is not None and left <= 0.0:
                raise
            log().debug("lock %r: the store cannot be asked, trying again: %s", terms.key, error)
            return None
        except StoreError:
            self._unknown = before  # this request was refused; one before it may have been granted
            raise
        if isinstance(answer, Held):
            self._unknown = False
            remaining: Any = answer.remaining_ms
            if not isinstance(remaining, int) or remaining < 0:
                raise self._nonsense(answer)
            self.held = answer
            return None
        if not isinstance(answer, Granted):
            raise self._nonsense(answer)
        check_token(answer.token, terms.key, type(self._locks.store).__name__)
        return self._granted(answer, sent)

    def _nonsense(self, answer: object) -> StoreError:
        store = type(self._locks.store).__name__
        return StoreError(
            f"{store}: acquire of lock {self._terms.key!r} must be Granted or Held, got {shown(answer)}"
        )

    def _granted(self, answer: Granted, sent: float) -> Lease | None:
        self._raise_if_cancelled()  # a grant that comes too late is released by `run`
        terms = self._terms
        lease = Lease(self._locks, terms, self._owner, answer.token, sent)
        if lease.remaining() <= 0.0:
            self._clean_up()
            return None
        self._lease = lease
        if self._keeps_id:
            # Until its giver has taken it: who closes must not hand it back, as another thread may run under the same acquisition.
            lease._running = 1
        lease._renewal.start()
        self._locks._remember(lease)
        self._unknown = False
        if self._locks._closed:  # meanwhile, by somebody who did not see this lease; `run` releases it
            raise LockError("locks: this object was closed")
        if LockAcquired.listeners:
            at = self._clock.wall()
            emit(
                LockAcquired(
                    policy=self._policy, source=self._source, at=at, key=terms.key, token=answer.token
                )
            )
        return lease

    def _call_timeout(self) -> float | None:
        """Not longer than the ttl, after which a grant is worth nothing, nor than the caller has; None: the store's own."""
        limit = self._terms.ttl
        if self._cancel is not None:
            left = self._cancel.remaining()
            limit = limit if left is None else min(limit, left)
        return None if limit >= self._locks.store._own_timeout else max(limit, 0.01)

    def _left(self) -> float | None:
        """Seconds that may still be waited; None for ever."""
        left = None if self._until is None else self._until - self._clock.monotonic()
        if self._cancel is not None:
            deadline = self._cancel.remaining()
            if deadline is not None:
                left = deadline if left is None else min(left, deadline)
        return left

    def _raise_if_cancelled(self) -> None:
        if self._cancel is not None:
            self._cancel.raise_if_cancelled()

    # -- waiting ---------------------------------------------------------------------------------------------------------

    def _wait(self) -> bool:
        """Wait until another try is worth it; False where there is no time left."""
        left = self._left()
        if left is not None and left <= 0.0:
            self._raise_if_cancelled()
            return False
        pause = self._pause * (0.5 + self._clock.random() / 2.0)
        self._pause = min(self._pause * 2.0, _LONGEST_PAUSE)
        if self.held is not None:
            pause = min(pause, self.held.remaining_ms / 1000.0)
        store = self._locks.store
        if store.can_wait and not self._unknown:
            try:
                self._wait_at_store(_LONGEST_PAUSE if left is None else min(left, _LONGEST_PAUSE))
                return True
            except StoreError as error:
                log().debug("lock %r: waiting at the store failed: %s", self._terms.key, error)
        self._park(pause if left is None else min(pause, left))
        return True

    def _wait_at_store(self, longest: float) -> None:
        store, key = self._locks.store, self._terms.key
        wake = getattr(store, "_wake", None)
        if self._cancel is None or wake is not None:
            # Others that wait for the key wake as well, look, and wait on.
            remove = None
            if self._cancel is not None and wake is not None:
                remove = self._cancel.on_cancel(lambda: wake(key))
            try:
                self._raise_if_cancelled()
                store.wait_for_release(key, timeout=longest)
            finally:
                if remove is not None:
                    remove()
            return
        until = self._clock.monotonic() + longest
        while not self._cancel.is_set():
            left = until - self._clock.monotonic()
            if left <= 0.0 or store.wait_for_release(key, timeout=min(left, _SLICE)):
                return

    def _park(self, pause: float) -> None:
        if self._cancel is None:
            self._clock.park(Parker(), pause)
        else:
            self._cancel.park(Parker(), pause)

    # -- the end ---------------------------------------------------------------------------------------------------------

    def _tell_rejected(self) -> None:
        if LockRejected.listeners:
            token = None if self.held is None else self.held.token
            at = self._clock.wall()
            emit(
                LockRejected(
                    policy=self._policy, source=self._source, at=at, key=self._terms.key, token=token
                )
            )

    def _clean_up(self) -> None:
        """Release what may have been granted, in the background: the store may not answer for a while."""
        store, key, owner = self._locks.store, self._terms.key, self._owner
        self._unknown = False
        if self._keeps_id:
            return
        # This release may arrive at any time: it must not hit what a later request is granted.
        self._owner = new_owner()

        def release() -> None:
            try:
                store.release(key, owner)
            except Exception as error:
                log().debug("lock %r: what may have been granted is left to expire: %s", key, error)

        self._locks._later(release)
