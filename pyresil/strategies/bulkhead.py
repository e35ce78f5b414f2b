"""`Bulkhead`: how many executions may run at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Never

from pyresil._engine.slots import PERMIT, Slots, Waiter
from pyresil._validate import Checker
from pyresil.clock import Clock, Parker
from pyresil.errors import BulkheadFullError
from pyresil.events import BulkheadRejected, emit
from pyresil.strategy import Forkable, Guard

if TYPE_CHECKING:
    from pyresil.context import Context
    from pyresil.durations import Duration
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


class Bulkhead(Guard[Never], Forkable):
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
        # Not at the top, since it loads logging, and not when it is needed: an import is nothing for a signal handler.
        from pyresil._logs import logger

        check = Checker("bulkhead", name)
        self.name = check.name(name)
        self.max_concurrent = check.integer("max_concurrent", max_concurrent)
        self.max_queue = check.integer("max_queue", max_queue, 0)
        self.queue_timeout = check.optional_duration("queue_timeout", queue_timeout, positive=False)
        if lock_store is not None:
            check.fault("lock_store", "None: slots across processes are not available yet", lock_store)
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        check.done()
        self._logger = logger()
        self._slots = Slots(self.max_concurrent)
        self._watch_forks()

    def _after_fork(self) -> None:
        # Whoever is inside gives its slot back to the object it took it from.
        self._slots = Slots(self.max_concurrent)

    def compile(self, inner: Run, clock: Clock) -> Run:
        """Taking and giving back inline: a call in between is a gap in which a signal handler could raise."""

        def run(ctx: Context) -> Any:
            slots = self._slots
            permits = slots.permits
            taken = False
            try:
                try:
                    if permits:
                        del permits[-1]
                        taken = True
                except IndexError:
                    pass  # a build without a GIL: another thread was faster
                if not taken:
                    self._queue(ctx, slots)
                    taken = True
                return inner(ctx)
            finally:
                if taken:
                    queue = slots.queue
                    if queue:
                        waiter = queue[0]
                        del queue[0]
                        waiter.granted = True
                        try:
                            waiter.wake()
                        except (RuntimeError, ValueError):
                            pass  # awake already: its time was up, or it was cancelled
                    else:
                        permits += PERMIT

        return run

    def enter(self, ctx: Context) -> Slots:
        """Take a slot.

        Raises:
            BulkheadFullError: None is free, and none came free in time.
        """
        slots = self._slots
        permits = slots.permits
        try:
            if permits:
                del permits[-1]
                return slots
        except IndexError:
            pass  # a build without a GIL: another thread was faster
        return self._queue(ctx, slots)

    def exit(self, ctx: Context, token: Slots, outcome: Outcome[Any]) -> Outcome[Any]:
        """Give the slot back, to where it was taken from."""
        queue, permits = token.queue, token.permits
        if queue:
            waiter = queue[0]
            del queue[0]
            waiter.granted = True
            try:
                waiter.wake()
            except (RuntimeError, ValueError):
                pass  # awake already: its time was up, or it was cancelled
        else:
            permits += PERMIT
        return outcome

    def _queue(self, ctx: Context, slots: Slots) -> Slots:
        """No slot was free: wait for one, or raise. On return a slot is taken."""
        reason = "full"
        if self.max_queue:
            parker = Parker()
            waiter = Waiter(ctx.clock.waker(parker))
            kept = False
            try:
                if slots.join(waiter, self.max_queue):
                    reason = "queue-timeout"
                    self._wait(ctx, waiter, parker)
                if waiter.granted:
                    kept = True
                    return slots
            finally:
                # `Slots.leave`, inline: its start would be a gap too.
                if not kept:
                    queue, permits = slots.queue, slots.permits
                    if waiter.granted and queue:
                        after = queue[0]
                        del queue[0]
                        after.granted = True
                        try:
                            after.wake()
                        except (RuntimeError, ValueError):
                            pass  # awake already
                    elif waiter.granted:
                        permits += PERMIT
                    elif waiter.queued:
                        queue.remove(waiter)
        raise self._rejection(ctx, slots, reason)

    def _wait(self, ctx: Context, waiter: Waiter, parker: Parker) -> None:
        """Until the waiter is granted a slot or its time is up. A cancel wins over a slot that comes with it."""
        clock, token = ctx.clock, ctx.cancel
        until = None if self.queue_timeout is None else clock.monotonic() + self.queue_timeout
        while True:
            token.raise_if_cancelled()
            left = None if until is None else until - clock.monotonic()
            if waiter.granted or (left is not None and left <= 0.0):
                return
            token.park(parker, left)

    def _rejection(self, ctx: Context, slots: Slots, reason: str) -> BulkheadFullError:
        active, queued = slots.active, len(slots.queue)
        self._logger.warning(
            "bulkhead %r of policy %r rejected a call: %s (%d active, %d queued)",
            self.name, ctx.policy, reason, active, queued,
        )  # fmt: skip
        if BulkheadRejected.listeners:
            emit(
                BulkheadRejected(
                    policy=ctx.policy,
                    source=self.name or ctx.source,
                    at=ctx.clock.wall(),
                    reason=reason,
                    active=active,
                    queued=queued,
                )
            )
        return BulkheadFullError(reason, self.name, ctx.policy)

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
