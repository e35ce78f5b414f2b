"""`AdaptiveBulkhead`: how many executions may run at once, found out from their latency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyresil._admission import Admission
from pyresil._engine.adaptive import AdaptiveLimit
from pyresil._engine.slots import Slots
from pyresil._flat import nested
from pyresil._validate import Checker
from pyresil.clock import Clock
from pyresil.outcome import PLAIN, Success, value_is_failure

if TYPE_CHECKING:
    from pyresil._admission import Ticket
    from pyresil.context import Context
    from pyresil.durations import Duration
    from pyresil.outcome import Outcome
    from pyresil.strategy import Run

__all__ = ["AdaptiveBulkhead", "AdaptiveBulkheadStats"]


class AdaptiveBulkheadStats(NamedTuple):
    """An adaptive bulkhead at one moment.

    Attributes:
        active: Executions inside.
        queued: Executions that wait for a slot.
        limit: How many may be inside now.
        max_queue: How many may wait.
        latency: The median of the last window in seconds, or None before the first.
        baseline: The lowest median of late in seconds, or None before the first window.
    """

    active: int
    queued: int
    limit: int
    max_queue: int
    latency: float | None
    baseline: float | None


class AdaptiveBulkhead(Admission):
    """A `Bulkhead` whose limit follows the latency of the work.

    Latencies are looked at in windows of as many results as the limit admits (at least 20). Where their median exceeds
    ``tolerance`` times the baseline, the lowest median of the last 60 windows, the limit falls in proportion, at most by
    half; if the next window is no faster, the cause is elsewhere, and the limit goes back. Where the median is not slower
    than the baseline (by more than 5 %, or than the spread explains) and all slots were in use, the limit is raised by a
    tenth; if that makes the next window slower, the raise is taken back and none is tried for a while. So a limit that
    raises latency is never raised further.

    Only results teach it: not timeouts, not errors (a dependency that refuses quickly is not a fast one), and not results
    that count as failures by their status. Lowering the limit interrupts nobody; it takes effect as slots come back.

    Args:
        initial: The limit at the start. Default: 10.
        minimum: It never falls below this; 1 or more. Default: 1.
        maximum: It never rises above this. Default: 200.
        max_queue: How many may wait, 0 or more. Default: 0.
        queue_timeout: The longest wait (a duration); None, the default, for no limit but the deadline.
        tolerance: A median of up to this many baselines does not lower the limit; above 1. Default: 1.5.
        name: Shown in errors, events and logs.
        clock: Default: the policy's.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type, or ``minimum <= initial <= maximum`` does not hold.

    A refused execution raises `BulkheadFullError`, whose ``reason`` is ``"full"`` or ``"queue-timeout"``.

    Events: `BulkheadRejected`; the same is logged as a warning.
    """

    kind = "adaptive bulkhead"
    _timed = True
    _dropped = ("_limit", "_slots")

    def __init__(
        self,
        initial: int = 10,
        *,
        minimum: int = 1,
        maximum: int = 200,
        max_queue: int = 0,
        queue_timeout: Duration | None = None,
        tolerance: float = 1.5,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        check = Checker("adaptive bulkhead", name)
        self.name = check.name(name)
        self.minimum = check.integer("minimum", minimum)
        self.maximum = check.integer("maximum", maximum)
        self.initial = check.integer("initial", initial)
        if not check.faults and self.maximum < self.minimum:
            check.fault("maximum", f"an integer of {self.minimum} (minimum) or more", maximum)
        elif not check.faults and not self.minimum <= self.initial <= self.maximum:
            check.fault("initial", f"from {self.minimum} (minimum) to {self.maximum} (maximum)", initial)
        self._options(check, max_queue, queue_timeout)
        self.tolerance = check.number("tolerance", tolerance, 1.0, 1000.0, open_low=True)
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        check.done()
        self._after_fork()
        self._watch_forks()

    def _after_fork(self) -> None:
        # In a child all slots are free. What was learned is of the dependency, but may be half written: it learns anew.
        self._limit = AdaptiveLimit(self.initial, self.minimum, self.maximum, self.tolerance)
        self._slots = Slots(self.initial)

    def compile(self, inner: Run, clock: Clock) -> Run:
        """Taking the time of what runs with a slot."""
        monotonic = clock.monotonic

        def timed(ctx: Context) -> Any:
            begun = monotonic()
            value = inner(ctx)
            if type(value) in PLAIN or not value_is_failure(value):
                self._learn(monotonic() - begun, 0)
            return value

        return nested(self.inline(timed, clock), timed)

    def exit(self, ctx: Context, token: Ticket, outcome: Outcome[Any]) -> Outcome[Any]:
        """Give the slot back, and learn."""
        try:
            after = super().exit(ctx, token, outcome)
        except BaseException:
            super().exit(ctx, token, outcome)  # a signal handler raised before the first one took hold
            raise
        if isinstance(outcome, Success) and not value_is_failure(outcome.value):
            self._learn(ctx.clock.monotonic() - token.begun, 1)
        return after

    def _learn(self, latency: float, left: int) -> None:
        """One more latency; ``left`` is 1 where its slot has been given back already."""
        slots = self._slots
        self._limit.record(latency, slots.active + left, slots.resize)

    @property
    def limit(self) -> int:
        """How many executions may run at once now."""
        return self._limit.limit

    def stats(self) -> AdaptiveBulkheadStats:
        """How many are inside and how many wait, the limit, and what it rests on, at this moment."""
        slots, limit = self._slots, self._limit
        return AdaptiveBulkheadStats(
            slots.active, len(slots.queue), limit.limit, self.max_queue, limit.latency, limit.baseline
        )

    def describe(self) -> dict[str, Any]:
        """Plain data: the effective options."""
        return {
            **super().describe(),
            "initial": self.initial,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "max_queue": self.max_queue,
            "queue_timeout": self.queue_timeout,
            "tolerance": self.tolerance,
        }

    def __repr__(self) -> str:
        stats = self.stats()
        return (
            f"AdaptiveBulkhead(name={self.name!r}, limit={stats.limit}, "
            f"active={stats.active}, queued={stats.queued})"
        )
