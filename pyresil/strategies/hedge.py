"""`Hedge`: a second copy of work that is slow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Never, TypeVar

from pyresil._engine.budget import RetryBudget
from pyresil._engine.latency import Latencies
from pyresil._scope import scopes
from pyresil._validate import Checker
from pyresil._workers import Handed, submit
from pyresil.clock import Clock, Parker
from pyresil.durations import seconds
from pyresil.errors import RejectedError
from pyresil.events import Hedged, emit
from pyresil.outcome import PLAIN, Judge
from pyresil.strategy import Forkable, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.context import Context
    from pyresil.durations import Duration
    from pyresil.strategy import Call, Run

__all__ = ["Hedge"]

T = TypeVar("T")

#: So many losers that do not heed their cancel may be at work; then calls run in their caller's thread, with no copies.
MOST_STUCK = 32


class Hedge(Strategy[Never]):
    """Where the work takes longer than ``delay``, start another copy of it; the first success wins.

    All copies run in daemon worker threads, each with a copy of the caller's context variables and a `Context` of its own. A
    copy that succeeds ends the execution: the tokens of the others are cancelled, its own is not, and what the others still
    bring is dropped. A copy that fails leaves the decision to the others. When all that were started have failed, the
    outcome of the first one is the outcome. Work that fails before the delay is not started again: that is what a retry is for.

    The work must be safe to run twice at the same time. While 32 cancelled copies are stuck in work that heeds no cancel,
    calls run in their caller's thread, without further copies.

    Args:
        delay: How long to wait for a copy before the next is started: a duration, or a percentile such as ``"p95"`` of the
            latency of the work's first copies of late (the last 256; with fewer than 10 no further copy is started).
            Default: 200 ms.
        max_hedges: How many copies besides the first, 1 or more. Default: 1.
        budget: A `RetryBudget`, which may be shared with a retry; without anything left no copy is started.
        handle: Exception type, tuple of them, or predicate of the error: what is no success. Default: the default verdicts.
            Errors it does not cover are no success either.
        handle_result: Predicate of the value: what is no success. Default: a ``status_code`` of 408, 425, 429, 500 and above.
        name: Shown in events as ``source``.
        clock: Default: the policy's.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type.

    Events: `Hedged` for each further copy.
    """

    kind = "hedge"

    def __init__(
        self,
        delay: Duration = "200ms",
        max_hedges: int = 1,
        *,
        budget: RetryBudget | None = None,
        handle: type[BaseException] | tuple[type[BaseException], ...] | Callable[[Any], object] | None = None,
        handle_result: Callable[[Any], object] | None = None,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        check = Checker("hedge", name)
        self.name = check.name(name)
        self._latencies = _latencies(delay)
        self._seconds = None if self._latencies is not None else _delay(check, delay)
        self.delay = delay if self._seconds is None else self._seconds
        self.max_hedges = check.integer("max_hedges", max_hedges)
        self.budget = check.instance("budget", budget, RetryBudget, "a RetryBudget or None")
        self.judge = Judge(handle, handle_result, check)
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        check.done()
        self._losers = _Losers()

    def run(self, call: Call[T], ctx: Context) -> T:
        """See `Strategy.run`."""
        return self.compile(call, ctx.clock)(ctx)  # type: ignore[no-any-return]  # compiled closures are untyped

    def compile(self, inner: Run, clock: Clock) -> Run:
        """One race an execution."""
        budget, losers = self.budget, self._losers

        def run(ctx: Context) -> Any:
            # A retry around it that shares the budget has counted the call already.
            if budget is not None and budget not in ctx._owner.counting:
                budget.record(clock.monotonic())
            if len(losers.stuck) >= MOST_STUCK:
                return inner(ctx)
            race = _Race(self, inner, ctx, clock, losers.stuck)
            try:
                return race.run().result()
            finally:
                try:
                    race.over()
                except BaseException:
                    race.over()  # a signal handler may have raised at its start: the losers are told all the same
                    raise

        return run

    def describe(self) -> dict[str, Any]:
        """Plain data: the effective options."""
        return {
            **super().describe(),
            "delay": self.delay,
            "max_hedges": self.max_hedges,
            "budget": None if self.budget is None else self.budget.describe(),
            **self.judge.describe(),
        }

    def __repr__(self) -> str:
        return f"Hedge(delay={self.delay!r}, max_hedges={self.max_hedges})"


def _latencies(delay: Duration) -> Latencies | None:
    """What a percentile such as ``"p95"`` is read from; None for everything else."""
    if not isinstance(delay, str) or not re.fullmatch(r"p\d{1,2}(\.\d{1,3})?", delay):
        return None
    percentile = float(delay[1:])
    return Latencies(percentile) if percentile > 0.0 else None


def _delay(check: Checker, delay: Duration) -> float:
    try:
        return seconds(delay)
    except ValueError:
        check.fault("delay", "a duration of 0 or more, or a percentile such as 'p95'", delay)
        return 0.0


class _Losers(Forkable):
    """Copies that nobody waits for and that are still at work; none in the child of a fork."""

    _dropped = ("stuck",)

    def __init__(self) -> None:
        self.stuck: dict[Handed, None] = {}
        self._watch_forks()

    def _after_fork(self) -> None:
        self.stuck = {}


class _Race:
    """The copies of one execution, driven by the caller's thread."""

    __slots__ = (
        "_alone",
        "_clock",
        "_copies",
        "_ctx",
        "_hedge",
        "_inner",
        "_parker",
        "_sent",
        "_stuck",
    )

    def __init__(
        self, hedge: Hedge, inner: Run, ctx: Context, clock: Clock, stuck: dict[Handed, None]
    ) -> None:
        self._hedge = hedge
        self._inner = inner
        self._ctx = ctx
        self._clock = clock
        self._stuck = stuck
        self._parker = Parker()
        self._copies: list[Handed] = []
        #: How many of them are with a worker.
        self._sent = 0
        #: The execution, where it has no token yet: then only the time can end the wait, and making one is left out. Should
        #: somebody ask for one meanwhile, it is told to wake us.
        origin = ctx._origin or ctx
        self._alone: Context | None = None
        if (
            origin._base is None
            and origin._given is None
            and origin._waker is None
            and ctx.parent is None
            and ctx._scope is None
        ):
            self._alone = origin
            origin._waker = self._parker.unpark

    def run(self) -> Handed:
        """Until a copy succeeded or all have failed; the copy whose outcome is the outcome.

        Raises:
            RejectedError: Not even a first copy could be started.
            TimeoutExceededError: The deadline passed.
            CancelledError: The execution was cancelled.
        """
        hedge, monotonic = self._hedge, self._clock.monotonic
        latencies = hedge._latencies
        delay = hedge._seconds if latencies is None else latencies.value()
        begun = monotonic()
        try:
            self._start()
        except RuntimeError as error:
            raise RejectedError("hedge: no worker thread can be started", None, self._ctx.policy) from error
        due = None if delay is None else begun + delay
        while True:
            winner = self._look(begun)
            if winner is not None:
                return winner
            now = monotonic()
            if due is None or now < due:
                self._wait(None if due is None else due - now)
            elif delay is not None:
                due = now + delay if self._hedged(delay) else None

    def _look(self, begun: float) -> Handed | None:
        """The copy whose outcome is the outcome, where that is decided."""
        running = False
        for copy in self._copies:
            if not copy.done:
                running = True
            elif not copy.abandoned:
                if self._wins(copy):
                    latencies = self._hedge._latencies
                    if latencies is not None and not self._copies[0].abandoned:
                        # Of a first copy that lost, the time it has taken so far: a lower bound. Without these the
                        # percentile would sink with every hedge, and so bring about more of them.
                        latencies.record(self._clock.monotonic() - begun)
                    return copy
                copy.abandoned = True  # it was no success
        return None if running else self._copies[0]

    def _wins(self, copy: Handed) -> bool:
        judge, error = self._hedge.judge, copy.error
        if error is not None:
            return not isinstance(error, Exception) or judge.error(error) is False
        if judge.default_values and type(copy.value) in PLAIN:
            return True
        return not judge.value(copy.value)

    def _start(self) -> None:
        """Hand another copy to a worker."""
        waker = self._clock.waker(self._parker)
        copy = Handed(self._inner, self._ctx._copy(), waker, self._stuck)
        self._copies.append(copy)
        submit(self._clock, copy)
        self._sent += 1

    def _hedged(self, delay: float) -> bool:
        """A copy is late: start another one. False where no further one comes after it."""
        hedge, ctx, clock = self._hedge, self._ctx, self._clock
        if len(self._stuck) >= MOST_STUCK:
            return False
        if hedge.budget is not None and not hedge.budget.try_spend(clock.monotonic()):
            return False
        try:
            self._start()
        except RuntimeError:
            self._copies.pop()  # no further thread to be had: the copies that run decide
            return False
        if Hedged.listeners:
            emit(
                Hedged(
                    policy=ctx.policy,
                    source=hedge.name or ctx.source,
                    at=clock.wall(),
                    copy=self._sent - 1,
                    delay=delay,
                )
            )
        return self._sent <= hedge.max_hedges

    def _wait(self, timeout: float | None) -> None:
        """Until a copy ended, at most ``timeout`` seconds; raises where the execution is told to stop."""
        ctx, alone = self._ctx, self._alone
        if alone is None:
            token = ctx.cancel
            token.raise_if_cancelled()
            token.park(self._parker, timeout, for_work=True)
            return
        left = None if ctx._deadline is None else ctx._deadline - self._clock.monotonic()
        if (left is not None and left <= 0.0) or alone._base is not None:
            ctx.cancel.raise_if_cancelled()
        if left is not None and (timeout is None or left < timeout):
            timeout = left
        self._clock.park_for_work(self._parker, timeout)

    def over(self, first: int = 0) -> None:
        """The execution ends: whoever is still at work, from the copy ``first`` on, is told, and abandoned."""
        if self._alone is not None:
            self._alone._waker = None
        try:
            for position in range(first, len(self._copies)):
                first = position
                copy = self._copies[position]
                if copy.done:
                    copy.value = copy.error = None  # an error's traceback leads back to the copy
                    continue
                copy.abandoned = True
                if position < self._sent:
                    self._stuck[copy] = None
                for scope in scopes(copy.ctx)[:1]:
                    scope.left = True  # the copy's own, below those of leases in it
                token = copy.ctx._base_token()
                # Also one that was cancelled on its own: a signal handler may have raised before all were woken.
                if token._cancelled or not token.is_set():
                    token.cancel("another copy of the work was faster, or nobody waits any more")
        except BaseException:
            self.over(first)  # a signal handler, or somebody's callback: the others are told all the same
            raise
