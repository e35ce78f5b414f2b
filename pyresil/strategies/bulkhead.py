"""`Bulkhead`: how many executions may run at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyresil._admission import Admission
from pyresil._engine.slots import Slots
from pyresil._validate import Checker
from pyresil.clock import Clock

if TYPE_CHECKING:
    from pyresil.durations import Duration

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
        max_concurrent: How many executions may run at once, 1 or more.
        max_queue: How many may wait, 0 or more.
        queue_timeout: The longest wait (a duration); None for no limit but the deadline.
        name: Shown in errors, events and logs.
        lock_store: Slots that hold across processes.
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
        lock_store: object = None,
        clock: Clock | None = None,
    ) -> None:
        check = Checker("bulkhead", name)
        self.name = check.name(name)
        self.max_concurrent = check.integer("max_concurrent", max_concurrent)
        self._options(check, max_queue, queue_timeout)
        if lock_store is not None:
            check.fault("lock_store", "None: slots across processes are not available yet", lock_store)
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        check.done()
        self._slots = Slots(self.max_concurrent)
        self._watch_forks()

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
            "lock_store": None,
        }

    def __repr__(self) -> str:
        stats = self.stats()
        return (
            f"Bulkhead(name={self.name!r}, max_concurrent={self.max_concurrent}, "
            f"active={stats.active}, queued={stats.queued})"
        )
