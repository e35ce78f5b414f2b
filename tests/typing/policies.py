"""What type checkers infer of policies and of their forms. Checked by mypy --strict and pyright, never run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Never, assert_type

from pyresil import (
    Attempt,
    BoundPolicy,
    Bulkhead,
    CancelToken,
    Context,
    Execution,
    Failure,
    Fallback,
    Policy,
    Retry,
    Strategy,
    Success,
    Timeout,
    current_context,
    fencing_token,
)


class A: ...


class B: ...


def fetch(url: str, *, tries: int = 3) -> int:
    return len(url) * tries


def spare(error: Exception | None, ctx: Context) -> list[int]:
    return [ctx.attempt]


# -- what a policy may yield in the place of the work's result ---------------------------------------------------------------

assert_type(Policy(), Policy[Never])
assert_type(Policy(Retry()), Policy[Never])
assert_type(Policy(Retry(), Bulkhead(5), Timeout("1s")), Policy[Never])
assert_type(Policy(Fallback(None)), Policy[None])
assert_type(Policy(Retry(), Fallback(None)), Policy[None])
assert_type(Policy(Fallback(None), Retry(), name="carrier"), Policy[None])
assert_type(Policy(Retry(), Fallback(None), Bulkhead(), Timeout(1), Bulkhead()), Policy[None])

assert_type(Policy().call(fetch, "u"), int)
assert_type(Policy(Retry()).call(fetch, "u", tries=2), int)
assert_type(Policy(Retry(), Fallback(None)).call(fetch, "u"), int | None)
assert_type(Policy(Fallback("s"), Retry(), Fallback(None)).call(fetch, "u"), int | str | None)
assert_type(Policy(Fallback(A()), Fallback(B())).call(fetch, "u"), int | A | B)
assert_type(
    Policy(Fallback(A()), Retry(), Fallback(B()), Timeout(1), Bulkhead()).call(fetch, "u"), int | A | B
)
assert_type(
    Policy(Retry(), Fallback(A()), Bulkhead(), Timeout(1), Bulkhead(), Timeout(2), Fallback(None)).call(
        fetch, "u"
    ),
    int | A | None,
)
assert_type(Policy(Fallback(using=lambda error, ctx: 1.5)).call(str), str | float)
assert_type(Policy(Fallback(using=spare)).call(fetch, "u"), int | list[int])
assert_type(Policy(Policy(Fallback(A())), Fallback(B())).call(fetch, "u"), int | A | B)
assert_type(Policy(Policy(Fallback(A())).options(key=1)).call(fetch, "u"), int | A)

# -- forms -------------------------------------------------------------------------------------------------------------------

plain = Policy(Retry())
yields = Policy(Retry(), Fallback(None))


@plain
def decorated(url: str, *, tries: int = 3) -> int:
    return fetch(url, tries=tries)


@yields
def decorated_too(url: str) -> int:
    return fetch(url)


@yields.options(key="k")
def bound(url: str) -> int:
    return fetch(url)


assert_type(decorated("u", tries=3), int)
assert_type(decorated_too("u"), int | None)
assert_type(bound("u"), int | None)
kept: Callable[[str], int | None] = decorated_too


class Service:
    @plain
    def method(self, number: int) -> str:
        return str(number)

    @staticmethod
    @yields
    def static(number: int) -> str:
        return str(number)

    @classmethod
    @plain
    def of_class(cls, number: int) -> Service:
        return cls()


assert_type(Service().method(1), str)
assert_type(Service.static(1), str | None)
assert_type(Service.of_class(1), Service)


def settles() -> int:
    # No path is left over: the match is exhaustive.
    match yields.settle(fetch, "u", tries=1):
        case Success(value):
            assert_type(value, int | None)
            return value or 0
        case Failure(error):
            assert_type(error, BaseException)
            raise error


def blocks() -> None:
    with plain.execute() as ctx:
        assert_type(ctx, Context)
        ctx.report(5)
    with plain.execute(key=1, source="s", cancel=CancelToken(), deadline="1s", properties={"a": 1}) as ctx:
        assert_type(ctx.timeout(cap="2s"), float | None)
        assert_type(ctx.remaining(), float | None)
        assert_type(ctx.attempt, int)
        assert_type(ctx.policy, str | None)
        assert_type(ctx.cancel, CancelToken)
        assert_type(ctx.properties, dict[str, Any])
        assert_type(ctx.arguments(), dict[str, Any])
        assert_type(ctx.parent, Context | None)
        assert_type(ctx.fencing_token, int | None)
    manager: AbstractContextManager[Context, None] = plain.execute()
    with manager:
        pass


def after_a_block() -> int:
    # A block never swallows what is raised in it, so this returns on every path.
    with plain.execute():
        return 1


def loops() -> None:
    assert_type(plain.execute(), Execution)
    assert_type(iter(plain.execute()), Iterator[Attempt])
    for attempt in plain.execute(deadline=timedelta(seconds=1)):
        assert_type(attempt, Attempt)
        assert_type(attempt.number, int)
        with attempt as ctx:
            assert_type(ctx, Context)


assert_type(yields.options(source="s"), BoundPolicy[None])
assert_type(yields.options(source="s").options(key=1), BoundPolicy[None])
assert_type(yields.options(deadline=1.5).call(fetch, "u"), int | None)
assert_type(yields.options().settle(fetch, "u"), Success[int | None] | Failure)
assert_type(yields.options().execute(cancel=None), Execution)
assert_type(yields.describe(), dict[str, Any])
assert_type(current_context(), Context | None)
assert_type(fencing_token(), int | None)
assert_type(Success(1).unwrap(), int)

narrow: Strategy[None] = yields
wide: Strategy[str | None] = yields
base: Strategy[object] = Policy(Fallback("x"))

# -- wrong uses --------------------------------------------------------------------------------------------------------------

Policy(fetch)  # type: ignore[call-overload]
Policy(Retry)  # type: ignore[call-overload]
Policy(Retry(), name=5)  # type: ignore[call-overload]
Policy(Retry(), nam="x")  # type: ignore[call-overload]
plain.call(fetch)  # type: ignore[call-arg]
plain.call(fetch, 5)  # type: ignore[arg-type]
plain.call(fetch, "u", tires=5)  # type: ignore[call-arg]
decorated(5)  # type: ignore[arg-type]
decorated("u", 3)  # type: ignore[call-arg]
plain.options(keys=1)  # type: ignore[call-arg]
plain.options(cancel="no")  # type: ignore[arg-type]
plain.options(deadline=[])  # type: ignore[arg-type]
plain.execute(keys=1)  # type: ignore[call-arg]
plain.execute(source=5)  # type: ignore[arg-type]
plain.options().execute(deadline=[])  # type: ignore[arg-type]
number: int = yields.call(fetch, "u")  # type: ignore[assignment]
too_narrow: Strategy[Never] = yields  # type: ignore[assignment]
