"""`Lock`: the work runs only while a lease is held."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Never

from pyresil._functions import describe_function, described
from pyresil._scope import Scope
from pyresil._validate import Checker
from pyresil.cancel import CancelToken
from pyresil.clock import Clock
from pyresil.context import UNSET, _lease
from pyresil.errors import ConfigurationError, LockLostError
from pyresil.locks import Locks
from pyresil.locks._acquire import Acquisition
from pyresil.locks._hold import not_acquired
from pyresil.locks._terms import LEAST_TTL, make_terms
from pyresil.outcome import Failure
from pyresil.stores.base import check_key
from pyresil.stores.memory import MemoryLockStore
from pyresil.strategy import Guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.context import Context
    from pyresil.durations import Duration
    from pyresil.locks import Lease
    from pyresil.locks._terms import Terms
    from pyresil.outcome import Outcome
    from pyresil.stores.base import LockStore
    from pyresil.strategy import Run

__all__ = ["Lock"]

#: The store of locks that name none, one for each clock: locks on one clock exclude each other, in this process.
_in_memory: weakref.WeakKeyDictionary[Clock, Locks] = weakref.WeakKeyDictionary()


def _fresh_state() -> None:
    _in_memory.clear()


def _shared(clock: Clock) -> Locks:
    found = _in_memory.get(clock)
    if found is None:
        found = _in_memory.setdefault(clock, Locks(MemoryLockStore(clock), clock=clock))
    return found


class Lock(Guard[Never]):
    """The work runs only while a lease on ``key`` is held, for all processes that share the store.

    The lease is renewed by itself, and given back when the work ends. When it is lost, the context's ``cancel`` is set with a
    `LockLostError`, so that the work stops; an ``Exception`` that leaves the work after that becomes a `LockLostError` from
    it, a success is returned all the same. What must not be done twice belongs under the fencing token as well
    (``ctx.fencing_token``, or `fencing_token` anywhere below).

    Args:
        key: What is locked: a string of 1 to 500 characters, or a function of the context that returns one.
        ttl: How long the lease outlives its last renewal (a duration); at least 0.5 s. Default: 30 s.
        wait: How long to wait for somebody else's lease; 0, the default, tries once, None waits without an end but
            the deadline's.
        store: A `LockStore`, a `Backend`, a URL, or `Locks`. None: this process's memory, shared by all locks on one clock.
        min_hold: The lock stays closed to others until this long after the acquisition, even when it is released.
            Default: 0.
        max_hold: The lease is lost this long after the acquisition. Default: None, never.
        on_lost: ``on_lost(lease)``, called once on the library's dispatch thread when the lease is lost.
        name: Shown in messages and `describe`.
        clock: Default: the policy's.

    Raises:
        ConfigurationError: An option is at fault.

    An execution that does not get the lock raises `LockNotAcquiredError` (``key``, ``waited``, ``retry_after``); a store that
    cannot be asked raises `StoreUnavailableError`.

    Events: those of leases: ``lock-acquired``, ``lock-rejected``, ``lock-renew-failed``, ``lock-lost``, ``lock-released``.
    """

    kind = "lock"

    def __init__(
        self,
        key: str | Callable[[Context], str],
        *,
        ttl: Duration = "30s",
        wait: Duration | None = 0,
        store: LockStore | Locks | str | Any = None,
        min_hold: Duration = 0,
        max_hold: Duration | None = None,
        on_lost: Callable[[Lease], object] | None = None,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        check = Checker("lock", name)
        self.name = check.name(name)
        self.key = key
        given: object = key
        if isinstance(given, str):
            try:
                check_key(given)
            except ConfigurationError as error:
                check.faults.append(str(error).removeprefix("lock: "))
        elif callable(given):
            check.function("key", given)
        else:
            check.fault("key", "a string of 1 to 500 characters, or a function of the context", key)
        self.ttl = check.duration("ttl", ttl, minimum=LEAST_TTL)
        self.wait = check.optional_duration("wait", wait, positive=False)
        self.min_hold = check.duration("min_hold", min_hold, positive=False)
        self.max_hold = check.optional_duration("max_hold", max_hold)
        self.on_lost = check.function("on_lost", on_lost)
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        self._given = store
        self._locks: Locks | None = store if isinstance(store, Locks) else None
        if store is not None and self._locks is None:
            try:
                checked = Locks(store)  # the one that is used is made when the policy's clock is known
                if isinstance(store, str) and store.strip().lower().startswith("sqlite:"):
                    self._given = checked.store  # a relative path is below the folder of now
            except ConfigurationError as error:
                check.faults.append(str(error).removeprefix("locks: "))
        check.done()
        self._terms = self._make_terms(key) if isinstance(key, str) else None

    def _make_terms(self, key: str) -> Terms:
        return make_terms(
            key,
            self.ttl,
            UNSET,
            self.wait,
            None,
            self.on_lost,
            min_hold=self.min_hold,
            max_hold=self.max_hold,
        )

    @property
    def locks(self) -> Locks:
        """Where the leases come from."""
        locks = self._locks
        if locks is None:
            fresh = _shared(self.clock) if self._given is None else Locks(self._given, clock=self._clock)
            # Test and assignment with no call in between: two threads that come first at once would have a memory: each.
            if self._locks is None:
                self._locks = fresh
            locks = self._locks
        return locks

    # -- around the work -------------------------------------------------------------------------------------------------

    def compile(self, inner: Run, clock: Clock) -> Run:
        """The lease around ``inner``."""

        def run(ctx: Context) -> Any:
            held: _Held | None = None
            try:
                held = self.enter(ctx)
                return inner(ctx)
            except Exception as error:
                if held is not None and held.explains(error):
                    raise held.error(ctx) from error
                raise
            finally:
                if held is not None:
                    try:
                        held.leave()
                    except BaseException:
                        held.leave()  # a signal handler raised before the first one took hold
                        raise

        return run

    def enter(self, ctx: Context) -> _Held:
        """Take the lease.

        Raises:
            LockNotAcquiredError: Somebody else has it, and kept it for as long as this one waits.
            StoreUnavailableError: The store cannot be asked.
        """
        terms = self._terms
        if terms is None:
            terms = self._make_terms(self.key(ctx))  # type: ignore[operator]  # a function, or there were terms
        acquisition = Acquisition(self.locks, terms, ctx.cancel, ctx.policy, self.name or ctx.source)
        lease: Lease | None = None
        held: _Held | None = None
        try:
            lease = acquisition.run()
            if lease is None:
                raise not_acquired(acquisition, terms.key, ctx.policy)
            held = _Held(ctx, lease)
            held.begin()
            lease.raise_if_lost()  # or taken back meanwhile, by who closes
            return held
        except BaseException:  # of a signal handler, where there is a lease: it would be renewed for ever
            if held is not None:
                held.leave()
            elif lease is not None:
                lease.release()
            raise

    def exit(self, ctx: Context, token: _Held, outcome: Outcome[Any]) -> Outcome[Any]:
        """Give the lease back."""
        try:
            if isinstance(outcome, Failure) and token.explains(outcome.error):
                error = token.error(ctx)
                error.__cause__ = outcome.error
                return Failure(error)
            return outcome
        finally:
            try:
                token.leave()
            except BaseException:
                token.leave()  # as above
                raise

    def describe(self) -> dict[str, Any]:
        """Plain data: the effective options."""
        return {
            **super().describe(),
            "key": described(self.key),
            "ttl": self.ttl,
            "wait": self.wait,
            "store": self._described_store(),
            "min_hold": self.min_hold,
            "max_hold": self.max_hold,
            "on_lost": described(self.on_lost),
        }

    def _described_store(self) -> str:
        given = self._given
        if isinstance(given, str):
            from pyresil.stores.backend import connect

            given = connect(given)  # connects to nothing, and shows neither user nor password
        return "memory" if given is None else repr(given)

    def __repr__(self) -> str:
        key = repr(self.key) if isinstance(self.key, str) else describe_function(self.key)
        return f"Lock({key}, ttl={self.ttl!r}, wait={self.wait!r})"


class _Held:
    """One execution under its lease."""

    __slots__ = ("_begun", "_ctx", "_lease", "_outer", "_saved", "_scope")

    def __init__(self, ctx: Context, lease: Lease) -> None:
        self._ctx = ctx
        self._lease = lease
        self._begun = False
        self._outer: Any = None
        self._saved: tuple[Scope | None, CancelToken | None, Any] = (None, None, None)
        self._scope: Scope | None = None

    def begin(self) -> None:
        """From here on the context and all made from it know the lease, and their token follows it."""
        ctx, lease = self._ctx, self._lease
        outer = ctx.cancel
        token = CancelToken._make(ctx.clock, (outer, lease.cancel), ctx.policy)
        token._target = outer  # cancelling it cancels the execution, as ever
        scope = Scope(ctx, under=ctx._scope)
        scope._token = token
        self._scope = scope
        self._outer = _lease.get()
        values = ctx.__dict__
        self._saved = (ctx._scope, values.get("_token"), ctx._lease)
        lease._running += 1
        self._begun = True
        values.pop("_token", None)
        ctx._scope = scope
        ctx._lease = lease
        _lease.set(lease)

    def explains(self, error: BaseException) -> bool:
        """Whether the lease was lost, so that an error that left the work is put down to that."""
        lease = self._lease
        if not isinstance(error, Exception):
            return False
        lease._renewal.expire()
        mine = isinstance(error, LockLostError) and (error.key, error.token) == (lease.key, lease.token)
        return lease.detected_by is not None and not mine

    def error(self, ctx: Context) -> LockLostError:
        """The error that says so."""
        lease = self._lease
        return LockLostError(lease.key, lease.token, lease.detected_by or "deadline", ctx.policy)

    def leave(self) -> None:
        """The work is over: the context is what it was, and the lease goes back. A second time it does nothing."""
        lease, ctx = self._lease, self._ctx
        try:
            if self._begun:
                # What may be done twice comes first: a signal handler may raise at any call, and this begins again then.
                if _lease.get() is lease:
                    _lease.set(self._outer)
                ctx._close_token()
                if self._scope is not None:
                    self._scope.close()
                scope, token, outer = self._saved
                ctx._scope = scope
                ctx._lease = outer
                if token is not None:
                    ctx._token = token
                lease._running -= 1
                self._begun = False
        finally:
            lease.release()
