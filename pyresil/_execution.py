"""One execution as a block or as a retry loop: ``with policy.execute() as ctx`` and ``for attempt in policy.execute()``.

What was entered is always left, also where a signal handler raises between two steps: whoever enters guards is kept by an
object that leaves what is still entered when it goes away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pyresil._guards import Guards, left_early, raise_other, unjudged
from pyresil._observe import tell
from pyresil.context import UNSET, _current, cell_in_current, leave_cell
from pyresil.errors import PolicyUsageError
from pyresil.outcome import Failure, Success
from pyresil.strategy import Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from pyresil.context import Context
    from pyresil.outcome import Outcome
    from pyresil.strategy import Stepper, Strategy

__all__ = ["Attempt", "Execution"]


class _Composed(Protocol):
    name: str | None

    def _flat(self) -> list[Strategy[Any]]: ...


def _outcome_of(ctx: Context, error: BaseException | None) -> Outcome[Any]:
    """How a block ended: an error beats what was reported."""
    if error is not None:
        return Failure(error)
    return Success(None if ctx._reported is UNSET else ctx._reported)


class Attempt:
    """One attempt of a retry loop: ``with attempt as ctx:`` runs it."""

    __slots__ = ("_cell", "_guards", "_loop", "_state", "ctx")

    def __init__(self, loop: _Loop, ctx: Context, guards: Guards) -> None:
        self.ctx = ctx
        self._loop = loop
        self._guards = guards
        self._cell: list[Any] | None = None
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
        self._cell = cell_in_current(self.ctx)
        self._state = "entered"
        _current.set(self._cell)
        return self.ctx

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> bool:
        loop = self._loop
        try:
            again = loop.ended(self._guards.leave(_outcome_of(self.ctx, error)))
            self._state = "done"
            if not again:
                raise_other(loop.outcome, error)
            return again
        finally:
            if self._cell is not None:
                self._cell[0] = None  # no call: nothing comes before it
            leave_cell(self._cell)
            loop.outcome = None
            self.ctx._close_token()


class _Loop:
    """What the attempts of one loop share. The iterator refers to it, and nothing here to the iterator."""

    def __init__(
        self, policy: _Composed, ctx: Context, outer: list[Guard[Any]], retry: Stepper | None
    ) -> None:
        self.policy = policy
        self.ctx = ctx
        self.stepper = retry
        self.around = Guards(outer)
        self.finished = False
        self.delay = 0.0
        #: The outcome of the execution, for as long as it takes to raise it.
        self.outcome: Outcome[Any] | None = None
        self._begun = ctx.clock.monotonic()

    def begin(self) -> None:
        """Enter the outer guards, and start the retry."""
        try:
            self.around.enter(self.ctx)
            if self.stepper is not None:
                self.stepper.start(self.ctx)
        except BaseException as error:
            self._end_with(error)
            raise

    def pause(self, number: int) -> Context:
        """Wait as the stepper said after attempt ``number``; a cancel meanwhile ends the execution.

        Returns:
            The context of the next attempt.
        """
        try:
            self.ctx.sleep(self.delay)
        except BaseException as error:
            self._end_with(error)
            raise
        return self.ctx._next(number + 1)

    def ended(self, outcome: Outcome[Any]) -> bool:
        """An attempt ended. True where another one follows; else the execution is over, with ``self.outcome``."""
        if self.finished:  # closed while the attempt was still running
            return False
        delay = None
        if self.stepper is not None and not unjudged(outcome):
            try:
                delay = self.stepper.after(outcome)
            except BaseException as error:  # of the caller's back-off, or of a predicate
                self._end_with(error)
                raise
        if delay is None:
            self.finish(outcome)
            return False
        self.delay = delay
        return True

    def finish(self, outcome: Outcome[Any]) -> None:
        """Leave the outer guards."""
        if not self.finished:
            self.outcome = self.around.leave(outcome)
            self.finished = True
            self.ctx._close()
            if not unjudged(outcome):
                tell(self.ctx, self._begun, self.outcome)

    def _end_with(self, error: BaseException) -> None:
        try:
            self.finish(Failure(error))
            raise_other(self.outcome, error)
        finally:
            self.outcome = None


class _Attempts:
    """The iterator of a retry loop. When it goes away early (``break``, an exception), the execution is closed unjudged."""

    _last: Attempt | None = None
    _started = False

    def __init__(self, loop: _Loop, inner: list[Guard[Any]]) -> None:
        self._loop = loop
        self._inner = inner

    def __iter__(self) -> Iterator[Attempt]:
        return self

    def __next__(self) -> Attempt:
        loop, last = self._loop, self._last
        if loop.finished:
            raise StopIteration
        if last is not None and last._state != "done":
            how = "was not entered" if last._state == "new" else "is still running"
            self.close()
            raise PolicyUsageError(
                f"attempt {last.number} {how}: write `with attempt as ctx:` in the loop", loop.policy.name
            )
        cell = cell_in_current(loop.ctx, ())
        try:
            _current.set(cell)
            if last is None:
                self._started = True
                loop.begin()
                ctx = loop.ctx
            else:
                ctx = loop.pause(last.number)
            return self._admit(ctx, cell)
        finally:
            cell[0] = None
            _current.set(cell[3])
            loop.outcome = None

    def _admit(self, ctx: Context, cell: list[Any]) -> Attempt:
        """Enter the inner guards; a rejection there is judged like any error."""
        loop = self._loop
        while True:
            self._last = attempt = Attempt(loop, ctx, Guards(self._inner))
            try:
                cell[0] = ctx
                attempt._guards.enter(ctx)
                return attempt
            except BaseException as error:
                attempt._state = "done"
                if not loop.ended(Failure(error)):
                    raise_other(loop.outcome, error)
                    raise
            ctx = loop.pause(ctx.attempt)

    def close(self) -> None:
        """End the execution unjudged, unless it has ended."""
        last, self._last = self._last, None
        if last is not None:
            if last._state == "entered":
                leave_cell(last._cell)
            last._state = "done"
            last._guards.leave(left_early())  # no effect on those that were left
        if self._started:
            self._loop.finish(left_early())
            self._loop.outcome = None

    def __del__(self) -> None:
        if self._started and not self._loop.finished:
            self.close()


class Execution:
    """One execution of a policy, as a context manager (guards only) or as an iterable of attempts; used once."""

    _used = False
    _ctx: Context
    _cell: list[Any] | None = None
    #: While the block runs.
    _guards: Guards | None = None
    _begun = 0.0

    def __init__(self, policy: _Composed, make: Callable[[], Context]) -> None:
        self._policy = policy
        self._make = make

    def _begin(self) -> Context:
        if self._used:
            raise PolicyUsageError(
                "an execution is used once: call policy.execute() again", self._policy.name
            )
        self._used = True
        return self._make()

    def __enter__(self) -> Context:
        guards: list[Guard[Any]] = []
        for strategy in self._policy._flat():
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
        self._ctx = ctx = self._begin()
        self._begun = ctx.clock.monotonic()
        self._cell = cell_in_current(ctx)
        try:
            _current.set(self._cell)
            self._guards = Guards(guards)
            self._guards.enter(ctx)
            return ctx
        except BaseException as error:
            self._cell[0] = None
            leave_cell(self._cell)
            self._close()
            if isinstance(error, Exception):
                tell(ctx, self._begun, Failure(error))
            raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        guards, ctx = self._guards, self._ctx
        if guards is None:
            return
        before: Outcome[Any] | None = None
        after: Outcome[Any] | None = None
        try:
            before = _outcome_of(ctx, error)
            after = guards.leave(before)
            self._guards = None
            if not unjudged(before):
                tell(ctx, self._begun, after)
            raise_other(after, error)
        finally:
            if self._cell is not None:
                self._cell[0] = None  # no call: nothing comes before it
            leave_cell(self._cell)
            self._close()
            before = after = None

    def _close(self) -> None:
        """Leave what is still entered, unjudged."""
        self._ctx._close()
        if self._guards is not None:
            self._guards.leave(left_early())
            self._guards = None

    def __iter__(self) -> Iterator[Attempt]:
        before: list[Guard[Any]] = []
        after: list[Guard[Any]] = []
        repeats: Strategy[Any] | None = None
        stepper: Stepper | None = None
        for strategy in self._policy._flat():
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
        return _Attempts(_Loop(self._policy, self._begin(), before, stepper), after)

    def __del__(self) -> None:
        # A signal handler raised before the block's end could be told: nobody else holds this object.
        if self._guards is not None:
            leave_cell(self._cell)
            self._close()
