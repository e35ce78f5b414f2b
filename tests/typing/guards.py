"""What type checkers infer for bulkheads, timeouts and hedges. Checked by mypy and pyright, never run."""

from __future__ import annotations

from typing import assert_type

from pyresil import (
    AdaptiveBulkhead,
    AdaptiveBulkheadStats,
    Bulkhead,
    BulkheadStats,
    Context,
    Fallback,
    Hedge,
    Policy,
    RetryBudget,
    Timeout,
    bulkhead,
    hedge,
    timeout,
)
from pyresil.testing import InjectFault, InjectLatency, InjectResult


def work(number: int, *, word: str = "") -> str:
    return word * number


def none_of_them_changes_the_result() -> None:
    assert_type(Policy(Bulkhead(1)).call(work, 1), str)
    assert_type(Policy(AdaptiveBulkhead(initial=2)).call(work, 1), str)
    assert_type(Policy(Timeout("1s")).call(work, 1, word="x"), str)
    assert_type(Policy(Timeout(1, mode="abandon", strict=True)).call(work, 1), str)
    assert_type(Policy(Hedge("p95", budget=RetryBudget())).call(work, 1), str)
    assert_type(Policy(Fallback(None), Hedge(), Bulkhead(), Timeout(1)).call(work, 1), str | None)


def a_block_has_a_context() -> None:
    with Policy(Bulkhead(), Timeout(1)).execute() as ctx:
        assert_type(ctx, Context)
        assert_type(ctx.timeout(), float | None)


def what_they_tell() -> None:
    assert_type(Bulkhead(1).stats(), BulkheadStats)
    assert_type(Bulkhead(1).stats().active, int)
    assert_type(AdaptiveBulkhead(1).stats(), AdaptiveBulkheadStats)
    assert_type(AdaptiveBulkhead(1).limit, int)
    assert_type(Timeout(1).abandoned, int)


@bulkhead(max_concurrent=1)
def exported() -> int:
    return 1


@hedge("200ms")
@timeout("2s")
def priced(item: str) -> float:
    return 1.0


def decorators_keep_the_signature() -> None:
    assert_type(exported(), int)
    assert_type(priced(item="book"), float)


def what_is_injected_joins_the_result() -> None:
    assert_type(Policy(InjectFault(OSError), InjectLatency("1s")).call(work, 1), str)
    assert_type(Policy(InjectResult(None, 0.1)).call(work, 1), str | None)
    assert_type(Policy(InjectResult(using=lambda ctx: 3)).call(work, 1), str | int)


def what_is_wrong_is_told() -> None:
    Bulkhead("exports")  # type: ignore[arg-type]  # a name is a keyword
    Timeout()  # type: ignore[call-arg]  # the limit is required
    Policy(Bulkhead()).call(work, "1")  # type: ignore[arg-type]  # an int
