"""`Locks`: leases from one store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from pyresil._scope import Owner
from pyresil._validate import Checker, Configured
from pyresil.cancel import CancelToken
from pyresil.clock import SYSTEM, Clock
from pyresil.context import UNSET, current_context
from pyresil.errors import ConfigurationError, LockError
from pyresil.locks._acquire import Acquisition
from pyresil.locks._chores import Chores
from pyresil.locks._closing import close, register
from pyresil.locks._hold import Hold
from pyresil.locks._keys import KeyBook
from pyresil.locks._log import log
from pyresil.locks._terms import LEAST_TTL, make_terms
from pyresil.locks.election import Election
from pyresil.locks.jobs import job_of, refuse_bare
from pyresil.stores.base import LockStore
from pyresil.strategy import Forkable

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from pyresil.clock import Parker
    from pyresil.durations import Duration
    from pyresil.locks._terms import Terms
    from pyresil.locks.lease import Lease
    from pyresil.stores.base import LockInfo

__all__ = ["Locks"]

P = ParamSpec("P")
T = TypeVar("T")
_Infos: TypeAlias = "list[LockInfo]"


class Locks(Configured, Forkable):
    """Leases from one store.

    A release happens by itself at the normal end of the process for what is still held then, except where work still runs
    under it; not in a forked child, to which nothing of its parent's belongs.

    Args:
        store: A `LockStore`, a `Backend`, or a URL for `connect`. None: what the environment variable ``PYRESIL_STORE``
            names, else the file that ``pyresil-lock`` uses by default, so that cron jobs and this process exclude each other.
        ttl: How long a lease outlives its last renewal, for those that do not say so themselves (a duration); at
            least 0.5 s. Default: 30 s.
        clock: The clock of deadlines and waiting. Default: the store's own where it has one, else the system's.

    Raises:
        ConfigurationError: An option is at fault.
    """

    def __init__(
        self,
        store: LockStore | str | Any = None,
        ttl: Duration = "30s",
        clock: Clock | None = None,
    ) -> None:
        check = Checker("locks")
        # Stores count whole milliseconds.
        self.ttl = round(check.duration("ttl", ttl, minimum=LEAST_TTL) * 1000.0) / 1000.0
        check.instance("clock", clock, Clock, "a Clock or None")
        if isinstance(store, str):
            store = _connect(check, store, clock)
        elif store is not None and not isinstance(store, LockStore):
            store = getattr(store, "locks", store)
            check.instance("store", store, LockStore, "a LockStore, a Backend, a URL or None")
        check.done()
        self._store: LockStore | None = store
        self._own_store = False
        own: Any = getattr(store, "_clock", None)
        self.clock: Clock = clock or (own if isinstance(own, Clock) else SYSTEM)
        self._owner = Owner(None, self.clock)
        self._leases: dict[Lease, None] = {}
        self._keys = KeyBook()
        self._closed = False
        self._closing: dict[Parker, None] = {}
        self._registered = False
        self._chores = Chores(self.clock)
        self._watch_forks()

    def __deepcopy__(self, memo: object) -> Self:
        return self  # as its store

    def _after_fork(self) -> None:
        self._leases = {}
        self._keys.elections = {}  # their threads are the parent's
        self._closed = False
        self._closing = {}
        self._chores = Chores(self.clock)

    @property
    def store(self) -> LockStore:
        """The store; the default one is looked up at first use."""
        store = self._store
        if store is None:
            from pyresil.stores._default import default_url
            from pyresil.stores.backend import connect

            backend = connect(default_url(os.environ), clock=self.clock)
            fresh, mine = backend.locks, False
            # Test and assignments with no call in between: two threads that come first at once would have a memory: each.
            if self._store is None:
                self._store = fresh
                self._own_store = mine = True
            store = self._store
            if mine:
                log().info("locks: the store in use is %s", backend.url)
        return store

    # -- getting leases --------------------------------------------------------------------------------------------------

    def acquire(
        self,
        key: str,
        ttl: Duration = UNSET,
        wait: Duration | None = 0,
        cancel: CancelToken | None = None,
        on_lost: Callable[[Lease], object] | None = None,
        *,
        min_hold: Duration = 0,
        max_hold: Duration | None = None,
        renew: bool = True,
    ) -> Lease | None:
        """Take the lock, if it is free or gets free within ``wait``.

        Waiting ends at once when the lock is released, where the store can tell; else tries follow each other after 50 ms,
        doubling to 1 s, with jitter. It also ends with the current execution's deadline.

        Args:
            key: 1 to 500 characters of any Unicode.
            ttl: How long the lease outlives its last renewal; at least 0.5 s. Default: that of this object.
            wait: How long to wait for somebody else's lease; 0 tries once, None waits without an end.
            cancel: A token that ends the waiting. Inside a policy, the execution's token ends it as well.
            on_lost: ``on_lost(lease)`` is called once where the lease is lost, on the library's dispatch thread.
            min_hold: A released lease stays closed to others until this long after the acquisition. It covers the skew of
                hosts that fire the same tick.
            max_hold: After this long the lease is not renewed any more and counts as lost, by ``"max-hold"``.
            renew: Off: the lease ends after its ttl, which may then be as short as a millisecond.

        Returns:
            The `Lease`; None where somebody else has the lock.

        Raises:
            ConfigurationError: An option is at fault.
            StoreUnavailableError: The store is busy or cannot be reached; who has the lock is unknown.
            StoreError: The store refused, or holds what cannot be right.
            LockError: This object was closed.
            CancelledError: ``cancel`` was set (or its own reason, where that is an exception).
            TimeoutExceededError: The deadline of the execution passed.

        Emits:
            ``lock-acquired`` or ``lock-rejected``; later ``lock-released``, ``lock-renew-failed``, ``lock-lost``.
        """
        terms = make_terms(
            key, self.ttl, ttl, wait, cancel, on_lost, min_hold=min_hold, max_hold=max_hold, renew=renew
        )
        return self._acquisition(terms, cancel).run()

    def hold(
        self,
        key: str,
        ttl: Duration = UNSET,
        wait: Duration | None = 0,
        cancel: CancelToken | None = None,
        on_lost: Callable[[Lease], object] | None = None,
        *,
        min_hold: Duration = 0,
        max_hold: Duration | None = None,
        renew: bool = True,
    ) -> Hold:
        """`acquire` as a context manager: ``with locks.hold("report") as lease:``.

        Args:
            key: As for `acquire`, and so are the other arguments.
            ttl: As there.
            wait: As there.
            cancel: As there.
            on_lost: As there.
            min_hold: As there.
            max_hold: As there.
            renew: As there.

        Raises:
            LockNotAcquiredError: On entry: somebody else has the lock.
            ConfigurationError: An option is at fault.
        """
        terms = make_terms(
            key, self.ttl, ttl, wait, cancel, on_lost, min_hold=min_hold, max_hold=max_hold, renew=renew
        )
        return Hold(self, terms, cancel)

    def _acquisition(self, terms: Terms, cancel: CancelToken | None) -> Acquisition:
        if self._closed:
            raise LockError("locks: this object was closed")
        ctx = current_context()
        if ctx is None:
            return Acquisition(self, terms, cancel)
        inherited = ctx.cancel
        if cancel is not None:
            inherited = CancelToken._make(self.clock, (cancel, inherited), None)
        return Acquisition(self, terms, inherited, ctx.policy, ctx.source)

    # -- looking ---------------------------------------------------------------------------------------------------------

    def status(self, key: str) -> LockInfo | None:
        """What is known of a lock (key, owner, token, remaining_ms, meta), or None where it is free."""
        return self.store.inspect(key)

    def list(self, prefix: str = "") -> _Infos:
        """All locks that are closed at the moment and whose keys start with ``prefix``, sorted by key."""
        return self.store.scan(prefix)

    def break_lease(self, key: str) -> bool:
        """Open a lock whoever holds it; the holder finds out at its next renewal.

        Returns:
            Whether it was closed.
        """
        return self.store.force_release(key)

    # -- jobs and leaders ------------------------------------------------------------------------------------------------

    def on_one_instance(
        self, key: str | None = None, ttl: Duration = UNSET, min_hold: Duration = "1s"
    ) -> Callable[[Callable[P, T]], Callable[P, T | None]]:
        """Decorate a scheduled function that every instance has and only one of them shall run.

        The first instance that comes to a tick becomes the owner, by a lease on ``<key>:owner`` that it keeps between the
        ticks; when it ends or loses the lease, another one takes over at its next tick. In the others a call returns None.
        Losing the lease cancels the run.

        Args:
            key: Of the job. Default: the function's module and qualified name, which must be unique here.
            ttl: Of the owner's lease (a duration). Default: that of this object.
            min_hold: After the owner handed over, nobody else runs the job until this long after the last run began. It
                covers the skew of hosts that fire the same tick. Default: 1 s.

        Returns:
            A decorator. Together with `without_overlapping`, in any order, it makes one job with one key.

        Raises:
            ConfigurationError: An option is at fault, or the key is taken by something else.
            TypeError: The function is async or a generator.

        Emits:
            ``job-skipped`` with the reason ``"not-owner"``.
        """
        refuse_bare("on_one_instance", key)

        def decorate(fn: Callable[P, T]) -> Callable[P, T | None]:
            if isinstance(fn, (classmethod, staticmethod)):
                return type(fn)(decorate(fn.__func__))
            job, wrapped = job_of(self, fn)
            job.on_one_instance(key, ttl, min_hold)
            return wrapped

        return decorate

    def without_overlapping(
        self, key: str | None = None, ttl: Duration = UNSET
    ) -> Callable[[Callable[P, T]], Callable[P, T | None]]:
        """Decorate a function of which only one run at a time shall go on, in all instances together.

        A call while another run holds the lease on ``<key>`` returns None. Inside, `fencing_token` is that of the run.
        Losing the lease cancels the run.

        Args:
            key: Of the job. Default: the function's module and qualified name, which must be unique here.
            ttl: Of the run's lease (a duration). Default: that of this object.

        Returns:
            A decorator.

        Raises:
            ConfigurationError: An option is at fault, or the key is taken by something else.
            TypeError: The function is async or a generator.

        Emits:
            ``job-skipped`` with the reason ``"running"``.
        """
        refuse_bare("without_overlapping", key)

        def decorate(fn: Callable[P, T]) -> Callable[P, T | None]:
            if isinstance(fn, (classmethod, staticmethod)):
                return type(fn)(decorate(fn.__func__))
            job, wrapped = job_of(self, fn)
            job.without_overlapping(key, ttl)
            return wrapped

        return decorate

    def election(
        self,
        key: str,
        on_acquired: Callable[[Lease], object] | None = None,
        on_lost: Callable[[Lease, str], object] | None = None,
        ttl: Duration = UNSET,
    ) -> Election:
        """Stand for leader from now on, in a background thread; arguments and errors are those of `Election`."""
        return Election(self, key, on_acquired, on_lost, ttl)

    # -- the end ---------------------------------------------------------------------------------------------------------

    def close(self, timeout: Duration = "30s") -> None:
        """Hand back every lease, and give out no more: threads that wait for a lock get a `LockError` within a second.

        Waits for work that runs under leases; what is not done by then is cancelled through its lease's token. The lease of
        work that does not stop even then is left to expire.

        Args:
            timeout: How long to wait for work (a duration). Default: 30 s.

        Raises:
            ConfigurationError: ``timeout`` is not a duration.
        """
        check = Checker("locks")
        limit = check.duration("timeout", timeout, positive=False)
        check.done()
        close(self, limit)

    def _remember(self, lease: Lease) -> None:
        if not self._registered:
            register(self)
            self._registered = True
        self._leases[lease] = None

    def _forget(self, lease: Lease) -> None:
        self._leases.pop(lease, None)
        self._wake_closers()

    def _wake_closers(self) -> None:
        for parker in list(self._closing):
            parker.unpark()

    def _work_ended(self, lease: Lease) -> None:
        """Work under a lease that may be held on: who closes hands it back, and one that was lost is of no use any more."""
        if lease.detected_by is not None:
            self._forget_lost(lease)
        self._wake_closers()

    def _forget_lost(self, lease: Lease) -> None:
        if not lease._running:
            self._forget(lease)

    def _later(self, job: Callable[[], object]) -> None:
        """Tell the store something in the background: it may not answer for a while."""
        self._chores.add(job)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Locks {self._store!r} ttl={self.ttl:g} held={len(self._leases)}>"


def _connect(check: Checker, url: str, clock: Clock | None) -> LockStore | None:
    from pyresil.stores.backend import connect

    try:
        return connect(url, clock=clock).locks
    except ConfigurationError as error:
        check.faults.append(f"store: {error}")
        return None
