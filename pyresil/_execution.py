"""One execution as a block or as a retry loop: ``with policy.execute() as ctx`` and ``for attempt in policy.execute()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pyresil.context import UNSET, _current
from pyresil.errors import PolicyUsageError
from pyresil.events import Executed, emit
from pyresil.outcome import Failure, Success
from pyresil.strategy import Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from pyresil.clock import Clock
    from pyresil.context import Context
    from pyresil.outcome import Outcome
    from pyresil.strategy import Stepper, Strategy

__all__ = ["Attempt", "Execution"]


class _Composed(Protocol):
    name: str | None
    strategies: tuple[Strategy[Any], ...]
    _clock_used: Clock


class _Guards:
    """Some guards around one piece of work, entered in order and left in reverse."""

    __slots__ = ("_ctx", "_guards", "_tokens")

    def __init__(self, guards: list[Guard[Any]]) -> None:
        self._guards = guards
        self._tokens: list[Any] = [UNSET] * len(guards)
        self._ctx: Context | None = None

    def enter(self, ctx: Context) -> None:
        """Enter all of them; where one rejects, leave those before it with its error, and raise what comes out."""
        self._ctx = ctx
        position = 0
        try:
            for guard in self._guards:
                # Kept by the very next step: a signal handler that raises finds it noted.
                self._tokens[position] = guard.enter(ctx)
                position += 1
        except BaseException as error:
            after = self.leave(Failure(error))
            if isinstance(error, Exception) and isinstance(after, Failure) and after.error is not error:
                raise after.error from error
            raise

    def leave(self, outcome: Outcome[Any]) -> Outcome[Any]:
        """Leave those that were entered, the innermost first; each once, whatever the others raise."""
        pending: BaseException | None = None
        unjudged = isinstance(outcome, Failure) and not isinstance(outcome.error, Exception)
        for position in range(len(self._guards) - 1, -1, -1):
            token, self._tokens[position] = self._tokens[position], UNSET
            if token is UNSET or self._ctx is None:
                continue
            try:
                after = self._guards[position].exit(self._ctx, token, outcome)
                if not unjudged:
                    outcome = after
            except BaseException as error:
                pending = error
                outcome = Failure(error)
                unjudged = not isinstance(error, Exception)
        try:
            if pending is not None and unjudged:
                raise pending
            return outcome
        finally:
            pending = None


class Attempt:
    """One attempt of a retry loop: ``with attempt as ctx:`` runs it."""

    __slots__ = ("_guards", "_loop", "_outer", "_state", "ctx")

    def __init__(self, loop: _Loop, ctx: Context, guards: _Guards) -> None:
        self.ctx = ctx
        self._loop = loop
        self._guards = guards
        self._outer: Context | None = None
        self._state = "new"

    @property
    def number(self) -> int:
        """The number of the attempt, from 1."""
        return self.ctx.attempt

    def __enter__(self) -> Context:
        if self._state != "new":
            raise PolicyUsageError(
                "an attempt of a retry loop can be entered only once", self._loop.policy.name
            )
        self._state = "entered"
        self._outer = _current.get()
        _current.set(self.ctx)
        return self.ctx

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> bool:
        _current.set(self._outer)
        self._state = "done"
        ctx = self.ctx
        outcome: Outcome[Any]
        outcome = (
            Success(None if ctx._reported is UNSET else ctx._reported) if error is None else Failure(error)
        )
        try:
            outcome = self._guards.leave(outcome)
            swallow = self._loop.ended(outcome)
            if swallow or error is None:
                return swallow
            _raise_other(self._loop.outcome, error)
            return False
        finally:
            del outcome
            self._loop.outcome = None


def _raise_other(after: Outcome[Any] | None, error: BaseException | None) -> None:
    """Raise the error that guards put in the place of ``error`` (or of a success), if they did."""
    if isinstance(after, Failure) and after.error is not error:
        if error is not None and not isinstance(error, Exception):
            return
        try:
            raise after.error from error
        finally:
            after = None  # an error whose traceback holds this frame must not be held by it


class _Loop:
    """What the attempts of one loop share. The iterator refers to it, and nothing here to the iterator."""

    def __init__(
        self, policy: _Composed, ctx: Context, outer: list[Guard[Any]], retry: Stepper | None
    ) -> None:
        self.policy = policy
        self.ctx = ctx
        self.stepper = retry
        self.around = _Guards(outer)
        self.finished = False
        self.delay: float | None = None
        self.outcome: Outcome[Any] | None = None
        self._begun = policy._clock_used.monotonic()

    def ended(self, outcome: Outcome[Any]) -> bool:
        """An attempt ended. True where another one follows; else the execution is over, and ``self.outcome`` is its outcome."""
        judged = not (isinstance(outcome, Failure) and not isinstance(outcome.error, Exception))
        self.delay = self.stepper.after(outcome) if self.stepper is not None and judged else None
        if self.delay is not None:
            return True
        self.finish(outcome)
        return False

    def finish(self, outcome: Outcome[Any]) -> None:
        """Leave the outer guards."""
        if not self.finished:
            self.finished = True
            self.outcome = self.around.leave(outcome)
            self.ctx._close()
            if Executed.listeners and not (
                isinstance(outcome, Failure) and not isinstance(outcome.error, Exception)
            ):
                _tell(self.policy, self.ctx, self._begun, self.outcome)


def _tell(policy: _Composed, ctx: Context, begun: float, outcome: Outcome[Any] | None) -> None:
    clock = policy._clock_used
    emit(
        Executed(
            policy=policy.name,
            source=ctx.source,
            at=clock.wall(),
            duration=clock.monotonic() - begun,
            outcome=outcome,
        )
    )


class _Attempts:
    """The iterator of a retry loop. When it goes away early (``break``, an exception), the execution is closed unjudged."""

    __slots__ = ("_inner", "_last", "_loop", "_started")

    def __init__(self, loop: _Loop, inner: list[Guard[Any]]) -> None:
        self._loop = loop
        self._inner = inner
        self._last: Attempt | None = None
        self._started = False

    def __iter__(self) -> Iterator[Attempt]:
        return self

    def __next__(self) -> Attempt:
        loop = self._loop
        last, self._last = self._last, None
        if last is not None and last._state != "done":
            self.close()
            how = "was not entered" if last._state == "new" else "is still running"
            raise PolicyUsageError(
                f"attempt {last.number} {how}: write `with attempt as ctx:` in the loop", loop.policy.name
            )
        if loop.finished:
            raise StopIteration
        ctx = loop.ctx
        if not self._started:
            self._started = True
            loop.around.enter(ctx)
            if loop.stepper is not None:
                loop.stepper.start(ctx)
        else:
            ctx = self._pause(ctx, last.number if last is not None else 1)
        while True:
            guards = _Guards(self._inner)
            rejection: Outcome[Any] | None = None
            try:
                guards.enter(ctx)
            except BaseException as error:
                rejection = Failure(error)
                if not loop.ended(rejection):
                    _raise_other(loop.outcome, error)
                    raise
            finally:
                failed, rejection, loop.outcome = rejection is not None, None, None
            if failed:
                ctx = self._pause(loop.ctx, ctx.attempt)
                continue
            self._last = Attempt(loop, ctx, guards)
            return self._last

    def _pause(self, ctx: Context, number: int) -> Context:
        """Wait as the stepper said; returns the context of the next attempt. A cancel meanwhile ends the execution."""
        loop = self._loop
        try:
            ctx.sleep(loop.delay or 0.0)
        except BaseException as error:
            loop.finish(Failure(error))
            try:
                _raise_other(loop.outcome, error)
                raise
            finally:
                loop.outcome = None
        return ctx._next(number + 1)

    def close(self) -> None:
        """End the execution unjudged, unless it has ended."""
        loop, last = self._loop, self._last
        self._last = None
        if not loop.finished and self._started:
            left = Failure(GeneratorExit("the retry loop was left early"))
            if last is not None and last._state != "done":
                last._state = "done"
                last._guards.leave(left)
            loop.finish(left)
            loop.outcome = None

    def __del__(self) -> None:
        self.close()


class Execution:
    """One execution of a policy, as a context manager (guards only) or as an iterable of attempts; used once."""

    __slots__ = ("_begun", "_ctx", "_guards", "_make", "_outer", "_policy", "_used")

    def __init__(self, policy: _Composed, make: Callable[[], Context]) -> None:
        self._policy = policy
        self._make = make
        self._used = False
        self._ctx: Context | None = None
        self._outer: Context | None = None
        self._guards: _Guards | None = None
        self._begun = 0.0

    def _begin(self) -> Context:
        if self._used:
            raise PolicyUsageError(
                "an execution is used once: call policy.execute() again", self._policy.name
            )
        self._used = True
        ctx = self._make()
        if ctx._given is not None:
            ctx.cancel.raise_if_cancelled()
        return ctx

    def __enter__(self) -> Context:
        guards: list[Guard[Any]] = []
        for strategy in _flat(self._policy):
            if not isinstance(strategy, Guard):
                form = (
                    "for attempt in policy.execute():` with `with attempt as ctx:` inside, or `policy.call(fn)"
                    if strategy.stepper() is not None
                    else "policy.call(fn)"
                )
                raise PolicyUsageError(
                    f"{strategy.kind} decides how often or where the work runs and cannot surround a block: use `{form}`",
                    self._policy.name,
                )
            guards.append(strategy)
        ctx = self._begin()
        self._begun = self._policy._clock_used.monotonic()
        self._ctx = ctx
        self._guards = _Guards(guards)
        self._outer = _current.get()
        try:
            _current.set(ctx)
            self._guards.enter(ctx)
        except BaseException:
            _current.set(self._outer)
            ctx._close()
            raise
        return ctx

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        ctx, guards = self._ctx, self._guards
        if ctx is None or guards is None:
            return
        self._guards = None
        outcome: Outcome[Any]
        outcome = (
            Success(None if ctx._reported is UNSET else ctx._reported) if error is None else Failure(error)
        )
        try:
            outcome = guards.leave(outcome)
            if Executed.listeners and (error is None or isinstance(error, Exception)):
                _tell(self._policy, ctx, self._begun, outcome)
            _raise_other(outcome, error)
        finally:
            _current.set(self._outer)
            ctx._close()
            del outcome

    def __iter__(self) -> Iterator[Attempt]:
        before: list[Guard[Any]] = []
        after: list[Guard[Any]] = []
        repeats: Strategy[Any] | None = None
        stepper: Stepper | None = None
        for strategy in _flat(self._policy):
            if isinstance(strategy, Guard):
                (before if repeats is None else after).append(strategy)
                continue
            steps = strategy.stepper()
            if steps is None or repeats is not None:
                why = "a second retry" if steps is not None else strategy.kind
                raise PolicyUsageError(
                    f"{why} cannot stand in a retry loop (at most one retry, and guards around it): use `policy.call(fn)`",
                    self._policy.name,
                )
            repeats, stepper = strategy, steps
        ctx = self._begin()
        return _Attempts(_Loop(self._policy, ctx, before, stepper), after)


def _flat(policy: _Composed) -> list[Strategy[Any]]:
    """The strategies of a policy, those of policies inside it in their place."""
    found: list[Strategy[Any]] = []
    for strategy in policy.strategies:
        inside: Any = getattr(strategy, "policy", strategy)
        if hasattr(inside, "strategies"):
            found += _flat(inside)
        else:
            found.append(strategy)
    return found
