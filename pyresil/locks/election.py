"""`Election`: one leader among several processes."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pyresil._validate import Checker
from pyresil.cancel import CancelToken
from pyresil.clock import Parker
from pyresil.context import UNSET
from pyresil.errors import CancelledError, ConfigurationError, LockError, report_exception
from pyresil.events import LeadershipAcquired, LeadershipLost, emit
from pyresil.locks._acquire import Acquisition
from pyresil.locks._log import log
from pyresil.locks._terms import make_terms

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from pyresil.clock import Clock
    from pyresil.durations import Duration
    from pyresil.locks.lease import Lease
    from pyresil.locks.locks import Locks

__all__ = ["Election"]

P = ParamSpec("P")
T = TypeVar("T")

#: Work of a leader that was told to stop is reported when it still runs after this many seconds.
_PATIENCE = 10.0
#: Who led stands again after this many seconds: others look at least once a second.
_TURN = 2.0


class Election:
    """Stands for leader in a background thread until it is stopped; made by `Locks.election`.

    A candidate tries every third of the ttl, and at once when the leader steps down, where the store can tell. The leader
    holds a lease; ``on_acquired(lease)`` is its work, in a thread of its own, and may return at once or go on for as long as
    it leads. It is told to stop through ``lease.cancel`` (also through the context's ``cancel``). Work that does not stop is
    reported in the log and not killed; this instance stands again only when it has ended.

    It steps down on `stop`, when its `Locks` are closed, at the normal end of the process, when ``on_acquired`` raises, and when
    the lease is released.

    Args:
        locks: Where the lease comes from.
        key: What is led.
        on_acquired: ``on_acquired(lease)``, the leader's work; None where ``is_leader`` is asked instead.
        on_lost: ``on_lost(lease, reason)``, called once for each time it led, after the cancel: ``"lost"`` or ``"released"``.
        ttl: Of the leader's lease; default that of ``locks``.

    Raises:
        ConfigurationError: An option is at fault, or the key is a job's or another election's.
        LockError: ``locks`` was closed.

    Emits:
        ``leadership-acquired``, ``leadership-lost``, and those of leases.
    """

    def __init__(
        self,
        locks: Locks,
        key: str,
        on_acquired: Callable[[Lease], object] | None = None,
        on_lost: Callable[[Lease, str], object] | None = None,
        ttl: Duration = UNSET,
    ) -> None:
        check = Checker("election", key)
        try:
            self._terms = make_terms(key, locks.ttl, ttl)
        except ConfigurationError as error:
            check.faults.append(str(error))
        self._on_acquired = check.function("on_acquired", on_acquired)
        self._on_lost = check.function("on_lost", on_lost)
        check.done()
        self._terms.wait = self._terms.ttl / 3.0
        self.key = key
        self._locks = locks
        self._clock = locks.clock
        self._stop = CancelToken(clock=locks.clock)
        self._lease: Lease | None = None
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._worker: threading.Thread | None = None
        self._working = False
        self._failed = False
        #: Whether somebody who stopped it waits no more: work that has not begun by then does not begin.
        self._given_up = False
        self._ended = False
        self._parker: Parker | None = None
        self._waiting: dict[Parker, None] = {}
        locks._keys.claim_election(key, self)
        try:
            # Looked at once closing can find it, which would else go on for ever.
            if locks._closed:
                raise LockError("locks: this object was closed")
            self._thread = self._clock.spawn(self._run, f"pyresil-election-{key[:40]}")
        except BaseException:
            self._stop.cancel()  # a signal handler may have raised in the start, and the thread lives
            self._end()
            raise

    # -- what others read and do -----------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Whether this instance leads right now; compares the clock, as `Lease.held` does."""
        lease = self._lease
        return lease is not None and lease.held

    @property
    def lease(self) -> Lease | None:
        """The leader's lease, or None."""
        return self._lease

    def stop(self, timeout: Duration = "10s") -> bool:
        """Step down and stand no more.

        Args:
            timeout: How long to wait for the leader's work to stop, a duration. Called from that work it does not wait.

        Returns:
            Whether everything has ended and the lease was handed back. Where the work goes on, its lease is left to expire.

        Raises:
            ConfigurationError: ``timeout`` is not a duration.
        """
        check = Checker("election", self.key)
        limit = check.duration("timeout", timeout, positive=False)
        check.done()
        self._step_down()
        return self._wait(limit, self._clock)

    def _step_down(self) -> None:
        self._stop.cancel(CancelledError(f"the election on {self.key!r} was stopped"))
        lease = self._lease
        if lease is not None:
            self._tell_to_stop(lease)
        self._wake()

    def _tell_to_stop(self, lease: Lease) -> None:
        lease.cancel.cancel(CancelledError(f"stepping down from {self.key!r}"))

    def _wait(self, timeout: float, clock: Clock) -> bool:
        """Wait until all has ended; where it does not, leave the lease to expire."""
        inside = threading.current_thread() in {self._worker, self._thread}
        if self._pid != os.getpid():
            return False  # the parent's
        until = clock.monotonic() + timeout
        while not self._ended and not inside:
            parker = Parker()
            self._waiting[parker] = None
            try:
                left = until - clock.monotonic()
                if left <= 0.0:
                    break
                if not self._ended:
                    clock.park_for_work(parker, left)
            finally:
                self._waiting.pop(parker, None)
        lease = self._lease  # also one that was granted as the waiting began
        if not self._ended and not inside:
            self._given_up = True
            # Without work it is on its way back, however long the store takes.
            if lease is not None and self._working:
                log().warning(
                    "election %r: the leader's work did not stop, its lease is left to expire within %g s",
                    self.key,
                    lease.ttl,
                )
                lease._abandon()
                self._wake()
                return False  # whatever has ended by now
        return self._ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    # -- the candidate's thread ------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._locks._keys.release_election(self.key, self)
        self._ended = True
        for parker in list(self._waiting):
            parker.unpark()

    def _run(self) -> None:
        self._thread = threading.current_thread()
        try:
            # Also where closing was broken off before it came to this one: nothing is to be had any more.
            while not (self._stop.is_set() or self._locks._closed):
                lease = self._campaign()
                if lease is not None:
                    self._lead(lease)
                    # Others shall have their turn, before this one fails again above all.
                    third = self._terms.ttl / 3.0
                    self._pause(third if self._failed else min(third, _TURN))
        except Exception:
            report_exception(f"the election on {self.key!r} ended by an error of its own")
        finally:
            self._end()

    def _campaign(self) -> Lease | None:
        """One round: wait for the lease for a third of its ttl."""
        try:
            return Acquisition(self._locks, self._terms, self._stop).run()
        except (CancelledError, LockError):
            return None
        except Exception as error:  # whatever a store raises, the next round may succeed
            log().warning("election %r: the store cannot be asked, trying again: %s", self.key, error)
        except BaseException:  # sys.exit() in somebody's listener: this instance shall stand again
            report_exception(f"election {self.key!r}: a listener raised")
        self._pause(self._terms.ttl / 3.0)
        return None

    def _pause(self, duration: float) -> None:
        self._stop.park(Parker(), duration * (0.75 + self._clock.random() / 4.0))

    def _lead(self, lease: Lease) -> None:
        lease._watch = lambda: self._tell_to_stop(lease)
        self._lease = lease
        self._failed = False
        log().info("election %r: this instance leads (token %d)", self.key, lease.token)
        if LeadershipAcquired.listeners:
            at = self._clock.wall()
            event = LeadershipAcquired(policy=None, source=None, at=at, key=self.key, token=lease.token)
            self._safely("a listener", emit, event)
        self._start_work(lease)
        self._wait_while(lambda: not (lease.cancel.is_set() or self._stop.is_set() or self._failed), lease)
        lost = lease.detected_by is not None
        if not lost and not lease.cancel.is_set():
            self._safely("a callback of the lease's token", self._tell_to_stop, lease)
        if not lost:
            self._wait_for_work(lease)
            lost = not self._safely("a listener", lease.release) and lease.detected_by is not None
        self._tell_lost(lease, "lost" if lost else "released")
        if lost:
            # Not to stand again beside one's own work that still believes it leads.
            self._wait_for_work(lease)
            self._safely("a listener", lease.release)
        self._lease = lease._watch = None

    def _start_work(self, lease: Lease) -> None:
        if self._on_acquired is None:
            return
        self._working = True
        if self._given_up:
            self._working = False
            return
        try:
            self._worker = self._clock.spawn(lambda: self._work(lease), f"pyresil-leader-{self.key[:40]}")
        except RuntimeError:
            self._working = False
            self._failed = True
            report_exception(f"election {self.key!r}: no thread for the leader's work")

    def _work(self, lease: Lease) -> None:
        """In a thread of its own."""
        self._worker = threading.current_thread()
        try:
            if self._on_acquired is not None:
                lease.run(self._on_acquired, lease)
        except BaseException as error:
            # Whatever it raised because it was told to stop says nothing new.
            told = isinstance(error, (LockError, CancelledError))
            if not (told and lease.cancel.is_set()):
                self._failed = True
                report_exception(f"election {self.key!r}: on_acquired raised")
        finally:
            self._working = False
            self._wake()

    def _wait_for_work(self, lease: Lease) -> None:
        """Until the leader's work ended; it was told to."""
        self._wait_while(lambda: self._working and not lease._left, lease, _PATIENCE)
        if self._working and not lease._left:
            log().warning(
                "election %r: the leader's work still runs %g s after it was told to stop",
                self.key,
                _PATIENCE,
            )
            self._wait_while(lambda: self._working and not lease._left, lease)

    def _wait_while(self, going: Callable[[], bool], lease: Lease, longest: float | None = None) -> None:
        until = None if longest is None else self._clock.monotonic() + longest
        while True:
            # Looked at once we can be woken.
            self._parker = parker = Parker()
            left = None if until is None else until - self._clock.monotonic()
            if not going() or (left is not None and left <= 0.0):
                return
            # On the token itself: a callback would come after those of others that are slow.
            park = self._clock.park_for_work if lease.cancel.is_set() else lease.cancel.park
            park(parker, left)

    def _wake(self) -> None:
        parker = self._parker
        if parker is not None:
            parker.unpark()

    def _tell_lost(self, lease: Lease, reason: str) -> None:
        log().info("election %r: this instance leads no more: %s", self.key, reason)
        if LeadershipLost.listeners:
            at = self._clock.wall()
            self._safely(
                "a listener",
                emit,
                LeadershipLost(
                    policy=None, source=None, at=at, key=self.key, token=lease.token, reason=reason
                ),
            )
        if self._on_lost is not None:
            self._safely("on_lost", self._on_lost, lease, reason)

    def _safely(self, what: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Somebody's callback may also call sys.exit(): the lease is handed over all the same, and this instance stands again."""
        try:
            return call(*args, **kwargs)
        except BaseException:
            report_exception(f"election {self.key!r}: {what} raised")
            return None

    def __repr__(self) -> str:
        state = "over" if self._ended else "leads" if self.is_leader else "stands"
        return f"<Election {self.key!r} {state}>"
