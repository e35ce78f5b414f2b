"""`Retry`: run the work again while its outcome is a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never, TypeVar

from pyresil._engine.backoff import Backoff, Exponential
from pyresil._engine.budget import RetryBudget
from pyresil._flat import Inline, nested
from pyresil._functions import described
from pyresil._validate import Checker
from pyresil.clock import SYSTEM, Clock
from pyresil.context import is_cancellation
from pyresil.durations import seconds
from pyresil.errors import ConfigurationError, report_exception
from pyresil.events import Retried, emit
from pyresil.outcome import PLAIN, Failure, Judge, Success, retry_after_of
from pyresil.strategy import Stepper, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil._engine.backoff import BackoffFunction
    from pyresil.context import Context
    from pyresil.durations import Duration
    from pyresil.outcome import Outcome
    from pyresil.strategy import Call, Run

__all__ = ["Retry"]

#: The first attempt. Those after it run outside the handler, so that the error of a failed one and its locals are gone.
_INLINE = """\
try:
    WORK
except Exception as error:
    $steps, $delay = $failed(context(cell), $started, $failure(error))
    if $delay is None:
        raise
else:
    if type(value) in $plain or not $refuses(value):
        DONE
        $delay = None
    else:
        $steps, $delay = $failed(context(cell), $started, $success(value))
if $delay is not None:
    value = None
    value = $again($inner, context(cell), $steps, $delay)
"""

T = TypeVar("T")


class Retry(Strategy[Never]):
    """Run the work again while its outcome is a failure, with a delay before each further attempt.

    Each attempt has its own `Context`. When no further attempt follows, the last error itself is raised again, with a note
    that says why, or the last result is returned. It never sleeps past the deadline or ``max_elapsed``: where the next delay
    does not fit it gives up at once. A cancel ends the sleep at once.

    Args:
        attempts: The most attempts, the first included; None for no limit. Default: 3.
        backoff: `Exponential`, `Constant`, `Linear`, `Decorrelated`, or a function of (attempt, outcome) that gives
            seconds. Default: ``Exponential("200ms", factor=2, cap="30s", jitter="full")``.
        max_elapsed: No further attempt begins later than this after the first (a duration). Default: None, no limit.
        respect_retry_after: Take the ``Retry-After`` of an error, its response or a result as a lower bound of the delay.
            Default: True.
        budget: A `RetryBudget`, which may be shared.
        discard: Called with every result that is given up, to close it; what it raises is logged.
        handle: Exception type, tuple of them, or predicate of the error: what is retried. Default: the default verdicts.
        handle_result: Predicate of the value: what is retried. Default: a ``status_code`` of 408, 425, 429, 500 and above.
        name: Shown in events as ``source``.
        clock: Default: the policy's.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type.

    Events: `Retried` before each delay.
    """

    kind = "retry"
    #: Where an integration sets it: asked before each further attempt whether the work may run again.
    may_repeat: Callable[[Context], bool] | None = None

    def __init__(
        self,
        attempts: int | None = 3,
        backoff: Backoff | BackoffFunction | None = None,
        *,
        max_elapsed: Duration | None = None,
        respect_retry_after: bool = True,
        budget: RetryBudget | None = None,
        discard: Callable[[Any], object] | None = None,
        handle: type[BaseException] | tuple[type[BaseException], ...] | Callable[[Any], object] | None = None,
        handle_result: Callable[[Any], object] | None = None,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        check = Checker("retry", name)
        self.name = check.name(name)
        self.attempts = None if attempts is None else check.integer("attempts", attempts)
        if backoff is not None and (isinstance(backoff, type) or not callable(backoff)):
            words = 'a back-off such as Exponential("200ms"), or a function of the attempt and its outcome'
            check.fault("backoff", words, backoff)
        else:
            check.function("backoff", backoff)
        self.backoff = Exponential() if backoff is None else backoff
        self.max_elapsed = check.optional_duration("max_elapsed", max_elapsed, positive=False)
        self.respect_retry_after = check.boolean("respect_retry_after", respect_retry_after)
        self.budget = check.instance("budget", budget, RetryBudget, "a RetryBudget or None")
        self.discard = check.function("discard", discard)
        self.judge = Judge(handle, handle_result, check)
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        check.done()
        # The first number loads the generator: not in the middle of a call, where a fork would leave it half loaded.
        SYSTEM.random()

    def run(self, call: Call[T], ctx: Context) -> T:
        """See `Strategy.run`."""
        return nested(self.inline(call, ctx.clock), call)(ctx)  # type: ignore[no-any-return]  # compiled closures are untyped

    def inline(self, inner: Run, clock: Clock) -> Inline:
        """See `Strategy.inline`."""
        timed = self.max_elapsed is not None or self.budget is not None
        begin = "$started = $begin()\n" if timed else ""
        source = begin + _INLINE.replace("$started", "$started" if timed else "0.0")
        monotonic, budget = clock.monotonic, self.budget

        def begun() -> float:
            now = monotonic()
            if budget is not None:
                budget.record(now)
            return now

        names = {"plain": PLAIN if self.judge.default_values else frozenset(), "refuses": self.judge.value}
        names |= {
            "failed": self._failed,
            "again": self._again,
            "inner": inner,
            "failure": Failure,
            "success": Success,
        }
        return Inline(source, {**names, "begin": begun} if timed else names)

    def _failed(self, ctx: Context, started: float, outcome: Outcome[Any]) -> tuple[_Steps, float | None]:
        """The first attempt failed: the steps of this execution, and the delay before the next attempt or None."""
        steps = _Steps(self, ctx, started)
        return steps, steps.after(outcome)

    def _again(self, inner: Run, first: Context, steps: _Steps, delay: float | None) -> Any:
        while True:
            first.sleep(delay or 0.0)
            ctx = first._next(steps.attempt)
            try:
                value = ctx._enter(inner)
            except Exception as error:
                delay = steps.after(Failure(error))
                if delay is None:
                    raise
            else:
                if not self.judge.value(value):
                    return value
                delay = steps.after(Success(value))
                if delay is None:
                    return value
                value = None
            finally:
                ctx._close()

    def stepper(self) -> Stepper:
        """See `Strategy.stepper`."""
        return _LoopSteps(self)

    def describe(self) -> dict[str, Any]:
        """Plain data: the effective options."""
        backoff = self.backoff.describe() if isinstance(self.backoff, Backoff) else described(self.backoff)
        return {
            **super().describe(),
            "attempts": self.attempts,
            "backoff": backoff,
            "max_elapsed": self.max_elapsed,
            "respect_retry_after": self.respect_retry_after,
            "budget": None if self.budget is None else self.budget.describe(),
            "discard": described(self.discard),
            **self.judge.describe(),
        }

    def __repr__(self) -> str:
        return f"Retry(attempts={self.attempts!r}, backoff={self.backoff!r})"


class _Steps(Stepper):
    """One execution: how many attempts it had, and what comes after each. Keeps no error."""

    def __init__(self, retry: Retry, ctx: Context | None, started: float) -> None:
        self._retry = retry
        self._ctx = ctx
        self._started = started
        self._previous: float | None = None
        #: The number of the attempt that runs, or comes next.
        self.attempt = 1

    def start(self, ctx: Context) -> None:
        """The loop form begins."""
        self._ctx = ctx
        self._started = ctx.clock.monotonic()
        if self._retry.budget is not None:
            self._retry.budget.record(self._started)

    def after(self, outcome: Outcome[Any]) -> float | None:
        """Judge an attempt; the delay before the next one, or None."""
        retry, ctx = self._retry, self._ctx
        if ctx is None or not self._retry.judge.outcome(outcome):
            return None
        if (
            isinstance(outcome, Failure)
            and retry.judge.default_errors
            and is_cancellation(ctx, outcome.error)
        ):
            return None
        if retry.may_repeat is not None and not retry.may_repeat(ctx):
            return None
        delay, why = self._next_delay(outcome, ctx)
        if why is not None:
            if isinstance(outcome, Failure):
                _note(outcome.error, f"gave up after attempt {self.attempt}: {why}")
            return None
        if Retried.listeners:
            error = outcome.error if isinstance(outcome, Failure) else None
            emit(
                Retried(
                    policy=ctx.policy,
                    source=retry.name or ctx.source,
                    at=ctx.clock.wall(),
                    attempt=self.attempt,
                    delay=delay,
                    error=error,
                )
            )
        if isinstance(outcome, Success) and retry.discard is not None:
            try:
                retry.discard(outcome.value)
            except Exception:
                report_exception("discard= of a retry raised")
        self.attempt += 1
        self._previous = delay
        return delay

    def _next_delay(self, outcome: Outcome[Any], ctx: Context) -> tuple[float, str | None]:
        """The delay before the next attempt, and why there is none."""
        retry = self._retry
        if retry.attempts is not None and self.attempt >= retry.attempts:
            return 0.0, f"{retry.attempts} were allowed"
        clock = ctx.clock
        if isinstance(retry.backoff, Backoff):
            given = retry.backoff.seconds_after(self.attempt, clock.random, self._previous)
        else:
            given = retry.backoff(self.attempt, outcome)
        delay = _checked(given)
        if retry.respect_retry_after:
            asked = retry_after_of(outcome, clock.wall)
            if asked is not None and asked > delay:
                delay = asked
        left = ctx.remaining()
        if left is not None and delay >= left:
            return delay, f"the next delay of {delay:.3g} s does not fit in the {left:.3g} s that are left"
        now = clock.monotonic()
        if retry.max_elapsed is not None and now - self._started + delay > retry.max_elapsed:
            return (
                delay,
                f"the next delay of {delay:.3g} s does not fit in max_elapsed of {retry.max_elapsed:g} s",
            )
        if retry.budget is not None and not retry.budget.try_spend(now):
            return delay, "the retry budget is used up"
        return delay, None


class _LoopSteps(_Steps):
    """The steps of a loop, which `start` gives its context."""

    def __init__(self, retry: Retry) -> None:
        super().__init__(retry, None, 0.0)


def _checked(delay: Any) -> float:
    try:
        return seconds(delay)
    except ValueError as error:
        text = f"retry: what backoff returned {error}"
    raise ConfigurationError(text)  # out here its context is the error of the attempt


def _note(error: BaseException, text: str) -> None:
    """Add a note, unless the same object was given up with it before."""
    note = f"pyresil retry {text}"
    try:
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    except Exception:
        return  # an error that cannot be written to (a frozen dataclass) comes out without the note
