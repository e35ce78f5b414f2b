"""Scheduled functions that every instance has and one instance runs: `Locks.on_one_instance`, `Locks.without_overlapping`."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyresil._functions import describe_function, require_plain_function, wrap_like
from pyresil.context import current_context
from pyresil.errors import ConfigurationError, LockError, shown
from pyresil.events import JobSkipped, emit
from pyresil.locks._acquire import Acquisition, new_owner
from pyresil.locks._keys import OWNER
from pyresil.locks._log import log
from pyresil.locks._terms import make_terms

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.durations import Duration
    from pyresil.locks._terms import Terms
    from pyresil.locks.lease import Lease
    from pyresil.locks.locks import Locks

P = ParamSpec("P")
T = TypeVar("T")

#: The attribute by which a wrapper is found to be a job. It names the wrapper, so that copies of it fool nobody.
_MARK = "_pyresil_job"


class Ownership:
    """The lease on ``<key>:owner`` that one process keeps between the ticks of a job."""

    def __init__(self, locks: Locks, key: str, ttl: Duration, min_hold: Duration) -> None:
        self._locks = locks
        self.key = key
        self._ttl = ttl
        self._min_hold = min_hold
        terms = self._make_terms()  # checks them
        #: Seconds, to the millisecond, as stores count: jobs that share the owner have the same.
        self.options = (terms.ttl, round(terms.min_hold, 3))
        self._pid = 0
        self._id = ""
        self._spent: Lease | None = None
        self._lease: Lease | None = None
        #: When the lease was asked for, and the first request without an answer since the last one that had one, by the clock
        #: that counts suspend, as that of the stores does.
        self._since = 0.0
        self._asked: float | None = None

    def _make_terms(self) -> Terms:
        return make_terms(self.key, self._locks.ttl, self._ttl, min_hold=self._min_hold)

    def take(self) -> Lease | None:
        """The lease, where this process has it or gets it now.

        One id for all tries of a process: threads that try at once are granted the same acquisition.
        """
        lease = self._lease
        if lease is not None and lease.held:
            return self._note_run(lease)
        fresh_id, pid = new_owner(), os.getpid()
        # Not the id of a lease that has ended: its late release would hit this one. And not the parent's after a fork. No call
        # between the test and the assignments, so that threads use one id.
        if self._pid != pid or (lease is not None and self._spent is not lease):
            self._spent = lease
            self._id = fresh_id
            self._pid = pid
            self._asked = None
        terms, now = self._make_terms(), self._locks.clock.boottime()
        asked = self._asked
        if asked is None:
            asked = self._asked = now
        fresh = Acquisition(self._locks, terms, None, owner=self._id).run()
        self._asked = None
        if fresh is None:
            return None
        try:
            # It may have been granted by a request whose answer was lost, unless that is over by now.
            since = max(asked, now - terms.ttl)
            lease = self._lease
            taken = lease is not None and lease.held
            mine = False
            # No call between the test and the assignment: one of two threads keeps its lease.
            if not taken and self._lease is lease:
                self._lease = fresh
                fresh._running -= 1  # from here on who closes may hand it back
                self._since = since
                mine = True
            if not mine and self._lease is not None:
                fresh._abandon()  # the same acquisition: the other one renews it
                return self._note_run(self._lease)
            self._locks._wake_closers()  # who began to close meanwhile
        except BaseException:  # of a signal handler: what nobody knows would be renewed for ever
            if self._lease is not fresh:
                fresh._abandon()
            raise
        log().info("this process owns %r (token %d)", self.key, fresh.token)
        return self._note_run(fresh)

    def _note_run(self, lease: Lease) -> Lease:
        """A run begins: where we hand over later, nobody repeats its tick within the minimum hold."""
        terms = lease._terms
        held = max(0.0, self._locks.clock.boottime() - self._since) if lease is self._lease else 0.0
        terms.min_hold = held + self._make_terms().min_hold
        return lease


class Job:
    """One scheduled function, with what decides whether a call of it runs."""

    def __init__(self, locks: Locks, fn: Callable[..., Any]) -> None:
        self._locks = locks
        self._fn = fn
        self.name = describe_function(fn)
        self.key: str | None = None
        self._given = False
        self.owner: Ownership | None = None
        self._owner_options: tuple[Duration, Duration] | None = None
        self.run_terms: dict[str, Any] | None = None
        self.wrapper: weakref.ref[Any] | None = None

    # -- putting it together ---------------------------------------------------------------------------------------------

    def _check(self, key: str | None, ttl: Duration, min_hold: Duration) -> None:
        """Refuse bad options before anything is noted."""
        make_terms("its default" if key is None else key, self._locks.ttl, ttl, min_hold=min_hold)

    def _set_key(self, key: str | None) -> None:
        """Both decorators of a function share the key that one of them was given."""
        subject = f"job {self.name}"
        if key is None and self.key is not None:
            return
        if key is not None and self._given and key != self.key:
            raise ConfigurationError(
                f"{subject}: it has the key {self.key!r} already, got another one, {key!r}"
            )
        wanted = self._default_key() if key is None else key
        if wanted != self.key:
            self._locks._keys.claim_job(wanted, subject, default=key is None)
            if self.key is not None:
                self._locks._keys.release_job(self.key)
            self.key = wanted
            self._locks._keys.discard_owner(self.owner)
            self.owner = None
        self._given = self._given or key is not None

    def _default_key(self) -> str:
        module = getattr(self._fn, "__module__", None)
        qualname = getattr(self._fn, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(qualname, str):
            raise ConfigurationError(f"job {self.name}: it has no name of its own: give it key=")
        if module == "__main__":
            raise ConfigurationError(
                f"job {self.name}: give it key=; the default would be '__main__.{qualname}', which is the same in every script"
            )
        return f"{module}.{qualname}"

    def on_one_instance(self, key: str | None, ttl: Duration, min_hold: Duration) -> None:
        """Add the stage."""
        if self._owner_options is not None:
            raise ConfigurationError(f"job {self.name}: on_one_instance is given twice")
        self._check(key, ttl, min_hold)
        self._set_key(key)
        self._owner_options = (ttl, min_hold)
        self._claim_owner()

    def without_overlapping(self, key: str | None, ttl: Duration) -> None:
        """Add the stage."""
        if self.run_terms is not None:
            raise ConfigurationError(f"job {self.name}: without_overlapping is given twice")
        self._check(key, ttl, 0)
        self._set_key(key)
        self.run_terms = {"ttl": ttl}
        self._claim_owner()

    def _claim_owner(self) -> None:
        options, key = self._owner_options, self.key
        if options is not None and key is not None and self.owner is None:
            self.owner = self._locks._keys.claim_owner(
                key, f"job {self.name}", lambda owner_key: Ownership(self._locks, owner_key, *options)
            )

    # -- a tick ----------------------------------------------------------------------------------------------------------

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function, or skip it and return None."""
        begun = False

        def work() -> Any:
            nonlocal begun
            begun = True
            return self._fn(*args, **kwargs)

        try:
            return self._tick(work)
        except LockError:
            # A lease was refused, or handed back before the work began.
            if begun or not self._locks._closed:
                raise
            return self._skip("closed", "")

    def _tick(self, work: Callable[[], Any]) -> Any:
        key = self.key or ""
        if self._locks._closed:
            return self._skip("closed", "")
        owner: Lease | None = None
        if self.owner is not None:
            owner = self.owner.take()
            if owner is None:
                return self._skip("not-owner", f"another instance holds {key + OWNER!r}")
        if self.run_terms is None:
            assert owner is not None
            return owner.run(work)
        terms = make_terms(key, self._locks.ttl, **self.run_terms)
        run = self._locks._acquisition(terms, None).run()
        if run is None:
            return self._skip("running", f"a run holds {key!r}")
        try:
            if owner is None:
                return run.run(work)
            # What the work asks first is the lease that it sees, the run's: it is told there as well.
            untie = owner.cancel.on_cancel(lambda: run.cancel.cancel(owner.cancel.reason))
            try:
                return owner.run(run.run, work)
            finally:
                untie()
        finally:
            try:
                run.release()
            except BaseException:
                run.release()  # a signal handler raised before the first one took hold: it would be renewed for ever
                raise

    def _skip(self, reason: str, why: str) -> None:
        if self._locks._closed:
            reason, why = "closed", "its Locks are closed"
        log().debug("job %s skipped: %s", self.name, why)
        if JobSkipped.listeners:
            ctx = current_context()
            emit(
                JobSkipped(
                    policy=None if ctx is None else ctx.policy,
                    source=self.name,
                    at=self._locks.clock.wall(),
                    key=self.key or "",
                    reason=reason,
                )
            )


def refuse_bare(name: str, key: object) -> None:
    """Refuse ``@locks.on_one_instance`` without parentheses.

    Raises:
        ConfigurationError: The key is a function: the one that was to be decorated.
    """
    if callable(key) or hasattr(type(key), "__get__"):
        raise ConfigurationError(
            f"{name}: key must be a string, got {shown(key)}; the decorator has parentheses: @locks.{name}(key=...)"
        )


def job_of(locks: Locks, fn: Callable[P, T]) -> tuple[Job, Callable[P, T | None]]:
    """The job that ``fn`` is, with its wrapper; a new one where it is none of these locks yet."""
    require_plain_function(fn)
    found = getattr(fn, _MARK, None)
    if (
        isinstance(found, Job)
        and found.wrapper is not None
        and found.wrapper() is fn
        and found._locks is locks
    ):
        return found, fn
    job = Job(locks, fn)

    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T | None:
        return job.call(args, kwargs)  # type: ignore[no-any-return]  # what the function returns

    wrapped = wrap_like(wrapper, fn)
    setattr(wrapped, _MARK, job)
    job.wrapper = weakref.ref(wrapped)
    return job, wrapped
