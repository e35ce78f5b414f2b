"""A shared budget under thread switching at every step: not one retry too many, not one lost."""

from __future__ import annotations

import pytest

from pyresil import RetryBudget
from tests.support.threads import together


def test_exactly_as_many_retries_as_there_are():
    for _ in range(20):
        budget = RetryBudget(ratio=0, min_per_second=10)
        won = [0] * 8

        def work(number, budget=budget, won=won):
            for _ in range(50):
                won[number] += budget.try_spend(1000.0)

        together(8, work)
        assert sum(won) == 100


def test_no_call_is_lost():
    for _ in range(20):
        budget = RetryBudget(ratio=1, min_per_second=0)
        together(8, lambda number, budget=budget: [budget.record(1000.0) for _ in range(100)])
        assert budget.available(1000.0) == 800


def test_calls_and_retries_of_several_seconds_at_once():
    for _ in range(10):
        budget = RetryBudget(ratio=0.5, min_per_second=0)
        won = [0] * 8

        def work(number, budget=budget, won=won):
            for step in range(200):
                now = 1000.0 + step % 5
                budget.record(now)
                won[number] += budget.try_spend(now)

        together(8, work)
        spent = sum(budget._spent)
        assert spent == sum(won)
        assert sum(budget._calls) == 1600
        assert budget.available(1004.0) == pytest.approx(800 - spent)
        assert spent <= 800
