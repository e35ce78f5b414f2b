"""`Bulkhead`: how many executions may run at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyresil._admission import Admission
from pyresil._engine.slots import Slots
from pyresil._flat import Inline
from pyresil._validate import Checker
from pyresil.clock import Clock
from pyresil.errors import ConfigurationError
from pyresil.outcome import Failure

if TYPE_CHECKING:
    from pyresil._admission import Ticket
    from pyresil.context import Context
    from pyresil.durations import Duration
    from pyresil.locks import Lease
    from pyresil.locks._slots import LeaseSlots
    from pyresil.outcome import Outcome
    from pyresil.strategy import Run

__all__ = ["Bulkhead", "BulkheadStats"]


class BulkheadStats(NamedTuple):
    """A bulkhead at one moment.

    Attributes:
        active: Executions inside.
        queued: Executions that wait for a slot.
        max_concurrent: How many may be inside.
        max_queue: How many may wait.
    """

    active: int
    queued: int
    max_concurrent: int
    max_queue: int


class Bulkhead(Admission):
    """At most ``max_concurrent`` executions at once; who comes next is refused, or waits its turn in a bounded queue.

    First in, first out: a slot that comes free goes to the first who waits, and newcomers stand behind. Waiting ends with
    the slot, with ``queue_timeout``, with the deadline of the context, or with a cancel, and leaves nothing behind. An
    abandoned attempt (``Timeout(mode="abandon")`` inside, or a retry that goes on) frees its slot although its thread may
    still be at work. In a forked child all slots are free.

    Args:
        max_concurrent: How many executions may run at once, 1 or more. Default: 10.
        max_queue: How many may wait, 0 or more. Default: 0.
        queue_timeout: The longest wait (a duration); None, the default, for no limit but the deadline.
        name: Shown in errors, events and logs.
        lock_store: A `LockStore`, `Backend`, URL or `Locks`: the slots are leases there, so that the cap holds across all
            processes that use the same name, which is then needed. A process that dies frees its slots after 30 s.
        clock: Default: the policy's.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type.

    A refused execution raises `BulkheadFullError`, whose ``reason`` is ``"full"`` or ``"queue-timeout"``.

    Events: `BulkheadRejected`; the same is logged as a warning.
    """

    kind = "bulkhead"

    def __init__(
        self,
        max_concurrent: int = 10,
        *,
        max_queue: int = 0,
        queue_timeout: Duration | None = None,
        name: str | None = None,
        lock_store: Any = None,
        clock: Clock | None = None,
    ) -> None:
        check = Checker("bulkhead", name)
        self.name = check.name(name)
        self.max_concurrent = check.integer("max_concurrent", max_concurrent)
        self._options(check, max_queue, queue_timeout)
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        self._leases = self._lease_slots(check, lock_store)
        check.done()
        self._slots = Slots(self.max_concurrent)
        self._watch_forks()

    def _lease_slots(self, check: Checker, store: Any) -> LeaseSlots | None:
        if store is None:
            return None
        from pyresil.locks._slots import LeaseSlots

        if self.name is None:
            check.fault("name", "given with lock_store: processes share the slots of one name", None)
        try:
            return LeaseSlots(store, self.name or "unnamed", self.max_concurrent, self)
        except ConfigurationError as error:
            check.faults.append(f"lock_store: {error}")
            return None

    @property
    def _longest(self) -> float | None:
        """How long to wait for a lease."""
        return self.queue_timeout if self.max_queue else 0.0

    def _refuse(self, ctx: Context, reason: str) -> Exception:
        return self._rejection(ctx, self._slots, reason)

    def inline(self, inner: Run, clock: Clock) -> Inline:
        """See `Strategy.inline`: a slot of this process first, in order of arrival, then one of all processes."""
        local = super().inline(inner, clock)
        if self._leases is None:
            return local
        leased = self._leases.around(inner, self._longest, self._refuse)
        source = local.source.replace("WORK", "value = $leased(context(cell))")
        return Inline(source, {**local.names, "leased": leased})

    def enter(self, ctx: Context) -> Any:
        """Take a slot.

        Raises:
            BulkheadFullError: None is free, and none came free in time.
        """
        ticket = super().enter(ctx)
        leases = self._leases
        if leases is None:
            return ticket
        lease = None
        try:
            lease = leases.take(ctx, self._longest, lambda reason: self._refuse(ctx, reason))
            leases.begin(lease)
        except BaseException as error:
            try:
                self._leave(ctx, ticket, lease, Failure(error))
            except BaseException:
                self._leave(ctx, ticket, lease, Failure(error))  # as in `exit`
                raise
            raise
        return ticket, lease

    def exit(self, ctx: Context, token: Any, outcome: Outcome[Any]) -> Outcome[Any]:
        """Give it back."""
        ticket, lease = token, None
        if self._leases is not None:
            ticket, lease = token
        try:
            return self._leave(ctx, ticket, lease, outcome)
        except BaseException:
            self._leave(ctx, ticket, lease, outcome)  # a signal handler raised before the first one took hold
            raise

    def _leave(
        self, ctx: Context, ticket: Ticket, lease: Lease | None, outcome: Outcome[Any]
    ) -> Outcome[Any]:
        """Give back whatever was taken; twice is once."""
        try:
            if self._leases is not None and lease is not None:
                self._leases.end(lease)
        finally:
            outcome = super().exit(ctx, ticket, outcome)
        return outcome

    def _after_fork(self) -> None:
        # Whoever is inside gives its slot back to the object it took it from.
        self._slots = Slots(self.max_concurrent)

    def stats(self) -> BulkheadStats:
        """How many are inside and how many wait, at this moment."""
        slots = self._slots
        return BulkheadStats(slots.active, len(slots.queue), self.max_concurrent, self.max_queue)

    def describe(self) -> dict[str, Any]:
        """Plain data: the effective options."""
        return {
            **super().describe(),
            "max_concurrent": self.max_concurrent,
            "max_queue": self.max_queue,
            "queue_timeout": self.queue_timeout,
            "lock_store": None if self._leases is None else repr(self._leases._store),
        }

    def __repr__(self) -> str:
        stats = self.stats()
        return (
            f"Bulkhead(name={self.name!r}, max_concurrent={self.max_concurrent}, "
            f"active={stats.active}, queued={stats.queued})"
        )
