"""`Lease`: a lock that is ours for a while, and tells the work when it is not ours any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyresil._dispatch import post
from pyresil._renewal import Renewal
from pyresil.cancel import CancelToken
from pyresil.clock import SignalSafeEvent
from pyresil.errors import LockError, LockLostError, report_exception
from pyresil.events import LockLost, LockReleased, LockRenewFailed, emit
from pyresil.locks._log import log
from pyresil.locks._scope import Scope, ending, time_to_release

if TYPE_CHECKING:
    import threading
    import weakref
    from collections.abc import Callable
    from typing import Self

    from pyresil.clock import Clock
    from pyresil.locks._terms import Terms
    from pyresil.locks.locks import Locks

__all__ = ["Lease"]

P = ParamSpec("P")
T = TypeVar("T")


class Lease:
    """A lock that expires ``ttl`` after its last renewal, and is renewed every third of that by itself.

    Made by `Locks.acquire`. It may be released in another thread than the one that acquired it. As a context manager it is
    `current_lease` inside the block, its cancellation reaches library waits there, and it is released at the end.

    A lease that is lost stays lost. Then, in this order: ``held`` is False, ``lost`` is set, ``cancel`` is cancelled with a
    `LockLostError`, and ``on_lost(lease)`` runs on the library's dispatch thread.

    Attributes:
        key: What is locked.
        owner: The id of this acquisition, random per process.
        token: The fencing token; larger than that of every earlier acquisition of the key.
        ttl: Seconds that the lease is good for after a renewal.
    """

    __slots__ = (
        "__weakref__",
        "_cancel",
        "_event",
        "_failing",
        "_left",
        "_locks",
        "_lost_by",
        "_net",
        "_released",
        "_renewal",
        "_running",
        "_scopes",
        "_stuck",
        "_terms",
        "_told",
        "_watch",
        "key",
        "owner",
        "token",
        "ttl",
    )

    def __init__(self, locks: Locks, terms: Terms, owner: str, token: int, sent: float) -> None:
        self.key = terms.key
        self.owner = owner
        self.token = token
        self.ttl = terms.ttl
        self._locks = locks
        self._terms = terms
        self._cancel: CancelToken | None = None
        self._event: SignalSafeEvent | None = None
        self._lost_by: str | None = None
        self._net: weakref.ref[Any] | None = None
        self._released = False
        self._failing = False
        self._left = False
        self._stuck = False
        self._told = False
        self._running = 0
        self._watch: Callable[[], object] | None = None
        self._scopes: dict[Scope, None] = {}
        self._renewal = Renewal(
            locks.clock,
            terms.ttl,
            sent,
            self._ask,
            self._is_lost,
            failed=self._renewal_failed,
            late=self._confirmed_late,
            max_hold=terms.max_hold,
            every=None if terms.renew else 0.0,
            name=f"pyresil-lease-{terms.key[:40]}",
        )

    # -- what the holder reads -------------------------------------------------------------------------------------------

    @property
    def held(self) -> bool:
        """Whether it is ours right now. Compares the clock, so it is right even before any thread ran after a pause."""
        return self._renewal.alive()

    def remaining(self) -> float:
        """Seconds until it ends unless it is renewed; 0 where it is not ours."""
        return self._renewal.remaining()

    @property
    def lost(self) -> threading.Event:
        """A `threading.Event` that is set when the lease is lost; not by `release`."""
        event = self._event
        if event is None:
            fresh = SignalSafeEvent()
            if self._event is None:
                self._event = fresh
            event = self._event
        # Looked at once the event can be found, so that no loss falls in between; each time, as a signal handler may raise here.
        if self._lost_by is not None:
            self._tell_waiting()
        return event

    @property
    def detected_by(self) -> str | None:
        """How the loss was found: ``"refused"``, ``"deadline"`` or ``"max-hold"``; None where it is not lost."""
        return self._lost_by

    @property
    def cancel(self) -> CancelToken:
        """The token that tells the work to stop; its reason is a `LockLostError` where the lease was lost."""
        token = self._cancel
        if token is None:
            fresh = CancelToken._make(self.clock, (), None)
            if self._cancel is None:
                self._cancel = fresh
            token = self._cancel
        if self._lost_by is not None:  # as above
            self._tell_waiting()
        return token

    @property
    def clock(self) -> Clock:
        """The clock of its deadline."""
        return self._locks.clock

    def raise_if_lost(self) -> None:
        """Raise where the lease is not ours any more.

        Raises:
            LockLostError: It was lost, or its time is up although nobody noticed yet.
            LockError: It was released, or belongs to the parent of this forked process.
        """
        if self._renewal.foreign():
            raise LockError(f"the lease on {self.key!r} belongs to the process that forked this one")
        self._renewal.expire()
        if self._lost_by is not None:
            raise self._error()
        if self._renewal.over or self._running < 0:
            raise LockError(f"the lease on {self.key!r} was released")

    def _error(self) -> LockLostError:
        return LockLostError(self.key, self.token, self._lost_by or "deadline")

    # -- giving it back --------------------------------------------------------------------------------------------------

    def release(self) -> bool:
        """Hand the lease back; the work under it is over.

        Never raises for what the store says: a release that fails is logged, and the lease expires by itself. With a
        minimum hold it stays closed to others for the rest of that; this call returns at once all the same.

        Returns:
            Whether it was ours and is handed back. False where it was lost or released before, and in a forked child; also where
            a server's first answer got lost on the way, and the second one is that the lease is not ours any more.
        """
        return self._hand_back(None)

    def _hand_back(self, timeout: float | None) -> bool:
        if self._renewal.foreign():
            return False
        self._renewal.expire()
        first = mine = done = False
        try:
            # Test and assignment with no call in between: one caller hands it back.
            if not self._released:
                self._released = first = True
            if not first:
                return False
            mine = self._renewal.stop()
            # A lease whose time ran out may still be ours at the store: others need not wait for the rest of its ttl.
            done = self._lost_by != "refused" and self._give_back(timeout)
        except BaseException:  # of a signal handler
            if first:
                self._renewal.stop()
                self._locks._later(self._try_to_release)
            raise
        finally:
            if first:
                try:
                    self._tell_released()
                except BaseException:
                    self._tell_released()  # the same: nobody else tells it
                    raise
        if done and mine and LockReleased.listeners:
            at = self.clock.wall()
            emit(LockReleased(policy=None, source=None, at=at, key=self.key, token=self.token))
        return done and mine

    def _tell_released(self) -> None:
        """Wake who waits for the lease to be handed back; twice is once."""
        self._locks._forget(self)
        watch = self._watch
        if watch is not None:
            watch()
        token = self._cancel
        if token is not None and not token.is_set():
            token._close()

    def _give_back(self, timeout: float | None = None) -> bool:
        try:
            return self._ask_to_release(timeout or time_to_release(self._locks.store))
        except Exception as error:
            self._stuck = True
            log().warning(
                "lease on %r (token %d) could not be released, it expires within %g s: %s",
                self.key,
                self.token,
                self.ttl,
                error,
            )
            # The store may have recovered in a moment; and if a signal handler raised this, it was not even asked.
            self._locks._later(self._try_to_release)
            return False

    def _ask_to_release(self, timeout: float | None = None) -> bool:
        hold = round(self._terms.min_hold * 1000.0)
        return self._locks.store.release(self.key, self.owner, hold, timeout=timeout)

    def _try_to_release(self) -> None:
        try:
            self._ask_to_release()
        except Exception as error:
            log().debug("lease on %r is left to expire: %s", self.key, error)

    def _abandon(self) -> None:
        """Renew no more and do not release: the work did not stop, so nobody may have the key before the ttl is over."""
        self._left = True  # first: a renewal that is on its way must not give back what it confirms
        self._renewal.stop()
        self._released = True
        self._locks._forget(self)

    # -- working under it ------------------------------------------------------------------------------------------------

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn(*args, **kwargs)`` under the lease, which stays held afterwards.

        `current_lease` is this one, and the current context's ``cancel`` follows the lease's.

        Returns:
            What ``fn`` returns, also where the lease was lost meanwhile.

        Raises:
            LockLostError: The lease was lost and ``fn`` raised an ``Exception``, which is its cause; or it was lost before.
        """
        scope = Scope(self)
        try:
            scope.enter()
            self.raise_if_lost()  # now that who closes sees that it is in use
            return fn(*args, **kwargs)
        except LockLostError:
            raise
        except Exception as error:
            self._renewal.expire()
            if self._lost_by is not None:
                raise self._error() from error
            raise
        finally:
            try:
                scope.leave()
            except BaseException:
                scope.leave()  # a signal handler raised before it was through
                raise
            finally:
                self._locks._work_ended(self)

    def __enter__(self) -> Self:
        scope: Scope | None = None
        try:
            scope = Scope(self)
            self._scopes[scope] = None
            scope.enter()
            self.raise_if_lost()  # as above
            return self
        except BaseException:  # of a signal handler: the block does not begin, so its end gives nothing back
            if scope is not None:
                self._scopes.pop(scope, None)
                scope.leave()
            if not self._scopes:
                self.release()
            raise

    def __exit__(self, *exc_info: object) -> None:
        scope: Scope | None = None
        try:
            while scope is None and self._scopes:
                last = ending(self._scopes)
                # No call in between: neither a signal handler nor another thread must come between taking it out and knowing it.
                if last in self._scopes:
                    del self._scopes[last]
                    scope = last
            if scope is not None:
                scope.leave()
        except BaseException:  # it was not through
            if scope is None:
                scope = ending(self._scopes)
            if scope is not None:
                self._scopes.pop(scope, None)
                scope.leave()
            raise
        finally:
            if not self._scopes:
                try:
                    self.release()
                except BaseException:
                    self.release()  # a signal handler raised before the first one took hold
                    raise

    # -- what the renewal calls ------------------------------------------------------------------------------------------

    def _ask(self, timeout: float) -> bool:
        confirmed = self._locks.store.renew(self.key, self.owner, round(self.ttl * 1000.0), timeout=timeout)
        self._failing = False
        return confirmed

    def _confirmed_late(self) -> None:
        # Nor where its holder hands it back: he would be told that it was not his any more.
        if not self._left and (self._stuck or not self._released):
            self._give_back()

    def _renewal_failed(self, error: Exception) -> None:
        # Elsewhere: a slow listener must not delay the next try.
        post(lambda: self._tell_failed(error))

    def _tell_failed(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            log().warning(
                "lease on %r (token %d) could not be renewed, trying again: %s", self.key, self.token, error
            )
        if LockRenewFailed.listeners:
            at = self.clock.wall()
            emit(LockRenewFailed(policy=None, source=None, at=at, key=self.key, token=self.token))

    def _is_lost(self, detected_by: str) -> None:
        """On the watchdog, or on whatever thread found out: quick, and no user code."""
        self._lost_by = detected_by
        self._tell_waiting()
        post(self._tell_lost)

    def _tell_waiting(self) -> None:
        """Set what was asked for of `lost` and `cancel`, in this order; twice is once."""
        event = self._event
        if event is not None:
            event.set()
        token = self._cancel
        if token is not None:
            token._cancel_soon(self._error())

    def _tell_lost(self) -> None:
        if self._told:
            return
        self._told = True
        key, by = self.key, self._lost_by or ""
        log().warning("lease on %r (token %d) was lost, detected by %s", key, self.token, by)
        try:
            if LockLost.listeners:
                at = self.clock.wall()
                emit(LockLost(policy=None, source=None, at=at, key=key, token=self.token, detected_by=by))
        finally:  # also where a listener calls sys.exit()
            if self._terms.on_lost is not None:
                try:
                    self._terms.on_lost(self)
                except BaseException:  # the same
                    report_exception(f"on_lost of the lease on {key!r} raised")
            self._locks._forget_lost(self)

    def __repr__(self) -> str:
        if self._lost_by is not None:
            state = f"lost by {self._lost_by}"
        elif self._renewal.foreign():
            state = "of another process"
        else:
            state = f"held for {self.remaining():.3g} s" if self.held else "not held"
        return f"<Lease {self.key!r} token={self.token} {state}>"
