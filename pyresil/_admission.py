"""What bulkheads share: a guard over slots and their queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never
from weakref import ref

from pyresil._engine.slots import PERMIT, Waiter
from pyresil._flat import Inline
from pyresil.clock import Parker
from pyresil.errors import BulkheadFullError
from pyresil.events import BulkheadRejected, emit
from pyresil.strategy import Forkable, Guard

if TYPE_CHECKING:
    from pyresil._engine.slots import Slots
    from pyresil._validate import Checker
    from pyresil.clock import Clock
    from pyresil.context import Context
    from pyresil.durations import Duration
    from pyresil.outcome import Outcome
    from pyresil.strategy import Run

__all__ = ["Admission"]

#: Taking and giving back stand here whole: a call in between is a gap in which a signal handler could raise. An IndexError:
#: on a build without a GIL another thread was faster. A waiter that cannot be woken is awake: its time was up.
_INLINE = """\
$slots = $self._slots
$permits = $slots.permits
$taken = False
try:
    try:
        if $permits:
            del $permits[-1]
            $taken = True
    except IndexError:
        pass
    if not $taken:
        $queue(context(cell), $slots)
        $taken = True
    WORK
finally:
    if $taken:
        $waiters = $slots.queue
        if $slots.debt:
            $slots.debt -= 1
        elif $waiters:
            $waiter = $waiters[0]
            del $waiters[0]
            $waiter.granted = True
            try:
                $waiter.wake()
            except (RuntimeError, ValueError):
                pass
        else:
            $permits += $permit
"""

#: `logging.WARNING`, without loading logging.
WARNING = 30


class Ticket:
    """A slot that was taken by `Admission.enter`, for `Admission.exit`.

    A signal handler that raises just before the one has noted it, or just as the other begins, would leave the slot taken for
    ever. So the ticket is watched by ``back``, whose callback is a method in C and gives the slot back when the ticket dies
    unused; giving it back in order drops ``back`` first.
    """

    __slots__ = ("__weakref__", "back", "begun", "slots")

    # No constructor: it would cost as much as all the rest.
    slots: Slots
    begun: float
    back: Any


class Admission(Guard[Never], Forkable):
    """As many executions at once as there are slots; who comes next is refused, or waits its turn in a bounded queue."""

    max_queue: int
    queue_timeout: float | None
    _slots: Slots
    _dropped: tuple[str, ...] = ("_slots",)
    #: Whether tickets note when the slot was taken.
    _timed = False

    def _options(self, check: Checker, max_queue: int, queue_timeout: Duration | None) -> None:
        """The options of the queue."""
        # Not at the top, since it loads logging, and not when it is needed: an import is nothing for a signal handler.
        from pyresil._logs import heard, logger

        self._logger = logger()
        self._heard = heard
        self.max_queue = check.integer("max_queue", max_queue, 0)
        self.queue_timeout = check.optional_duration("queue_timeout", queue_timeout, positive=False)

    def inline(self, inner: Run, clock: Clock) -> Inline:
        """See `Strategy.inline`."""
        return Inline(_INLINE, {"self": self, "queue": self._queue, "permit": PERMIT})

    def enter(self, ctx: Context) -> Ticket:
        """Take a slot.

        Raises:
            BulkheadFullError: None is free, and none came free in time.
        """
        slots = self._slots
        permits = slots.permits
        # In this order: where we do not get as far as `ticket.back`, it has to go before the ticket.
        back: Any = None
        ticket = Ticket()
        ticket.slots = slots
        if self._timed:
            ticket.begun = ctx.clock.monotonic()
        back = ref(ticket, permits.append)
        try:
            if permits:
                del permits[-1]
                ticket.back = back
                return ticket
        except IndexError:
            pass  # a build without a GIL: another thread was faster
        self._queue(ctx, slots, ticket)
        ticket.back = back
        return ticket

    def exit(self, ctx: Context, token: Ticket, outcome: Outcome[Any]) -> Outcome[Any]:
        """Give the slot back, to where it was taken from."""
        slots = token.slots
        queue, permits = slots.queue, slots.permits
        if token.back is not None:
            token.back = None
            if slots.debt:
                slots.debt -= 1
            elif queue:
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

    def _queue(self, ctx: Context, slots: Slots, ticket: Ticket | None = None) -> None:
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
                    if ticket is not None and self._timed:
                        ticket.begun = ctx.clock.monotonic()
                    kept = True
                    return
            finally:
                # `Slots.leave`, inline: its start would be a gap too.
                if not kept:
                    queue, permits = slots.queue, slots.permits
                    if waiter.granted and slots.debt:
                        slots.debt -= 1
                    elif waiter.granted and queue:
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
            if not token.park(parker, left) and left is not None and not token.is_set():
                return  # the time was up, also on a clock that skips waits

    def _rejection(self, ctx: Context, slots: Slots, reason: str) -> BulkheadFullError:
        active, queued = slots.active, len(slots.queue)
        if self._heard(WARNING):
            self._logger.warning(
                "%s %r of policy %r rejected a call: %s (%d active, %d queued)",
                self.kind, self.name, ctx.policy, reason, active, queued,
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
