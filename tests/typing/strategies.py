"""What type checkers say of the options of Retry and Fallback, and of strategies of a user's own. Never run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Never, TypeVar, assert_type

from pyresil import (
    Backoff,
    Call,
    Constant,
    Context,
    Decorrelated,
    Exponential,
    Failure,
    Fallback,
    Guard,
    Linear,
    Policy,
    Retry,
    RetryBudget,
    Stepper,
    Strategy,
    Success,
    caused_by,
    subscribe,
)
from pyresil.events import Event, Retried

T = TypeVar("T")

# -- options -----------------------------------------------------------------------------------------------------------------

Retry(5, Exponential("200ms", factor=2, cap="2s", jitter="equal"))
Retry(None, backoff=Constant(timedelta(seconds=1)), max_elapsed="1m", budget=RetryBudget(ratio=0.1))
Retry(backoff=Linear(1, step="2s", cap=10), handle=ValueError, handle_result=lambda value: value is None)
Retry(backoff=Decorrelated(), handle=(ValueError, OSError), discard=lambda value: value.close())
Retry(backoff=lambda attempt, outcome: attempt * 0.1, handle=lambda error: "again" in str(error))
Retry(handle=caused_by(ConnectionError))
Retry(respect_retry_after=False, name="again")

formula: Backoff = Exponential()
assert_type(formula(1, None), float)
assert_type(caused_by(ValueError), Callable[[BaseException], bool])

assert_type(Fallback(None), Fallback[None])
assert_type(Fallback([1, 2]), Fallback[list[int]])
assert_type(Fallback(using=lambda error, ctx: ctx.attempt), Fallback[int])
assert_type(Fallback(using=lambda error, ctx: None, handle=OSError), Fallback[None])


def heard(event: Retried) -> None:
    assert_type(event.attempt, int)
    assert_type(event.delay, float)
    assert_type(event.error, BaseException | None)
    assert_type(event.policy, str | None)
    assert_type(event.at, float)


assert_type(subscribe(heard, "retry"), Callable[[], None])
subscribe(heard, [Retried])
subscribe(print)


def of_any_type(event: Event) -> str:
    return event.type


# -- strategies of one's own -------------------------------------------------------------------------------------------------


class Twice(Strategy[Never]):
    def run(self, call: Call[T], ctx: Context) -> T:
        try:
            return call()
        except ValueError:
            return call()


class OrText(Strategy[str]):
    def run(self, call: Call[T], ctx: Context) -> T | str:
        try:
            return call()
        except ValueError as error:
            return str(error)


class Counting(Guard[Never]):
    def __init__(self) -> None:
        self.inside = 0

    def enter(self, ctx: Context) -> int:
        self.inside += 1
        return self.inside

    def exit(self, ctx: Context, token: int, outcome: Success[Any] | Failure) -> Success[Any] | Failure:
        self.inside -= 1
        return outcome


class Steps(Stepper):
    def start(self, ctx: Context) -> None: ...

    def after(self, outcome: Success[Any] | Failure) -> float | None:
        return 0.5 if isinstance(outcome, Failure) else None


class Looping(Twice):
    def stepper(self) -> Stepper:
        return Steps()


def work() -> int:
    return 1


assert_type(Policy(Twice(), Counting(), Looping()).call(work), int)
assert_type(Policy(Counting(), OrText(), Retry()).call(work), int | str)
assert_type(Policy(Fallback(None), OrText())(work)(), int | str | None)

# -- wrong uses --------------------------------------------------------------------------------------------------------------

Retry("3")  # type: ignore[arg-type]
Retry(3, 5)  # type: ignore[arg-type]
Retry(attempt=3)  # type: ignore[call-arg]
Retry(handle=5)  # type: ignore[arg-type]
Retry(budget=0.5)  # type: ignore[arg-type]
Retry(max_elapsed=[])  # type: ignore[arg-type]
Exponential(delay=None)  # type: ignore[arg-type]
Constant()  # type: ignore[call-arg]
Fallback()  # type: ignore[call-overload]
Fallback(1, using=lambda error, ctx: 2)  # type: ignore[call-overload]
Fallback(using=lambda error: 2)  # type: ignore[arg-type, misc]
Strategy()  # type: ignore[abstract]
Guard()  # type: ignore[abstract]


class NoRun(Strategy[None]): ...


NoRun()  # type: ignore[abstract]
