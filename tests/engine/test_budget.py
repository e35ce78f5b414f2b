"""`RetryBudget` against a model that keeps everything."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pyresil import RetryBudget
from tests.support.depth import times


class Model:
    """Every call and every retry by its second; never forgets."""

    def __init__(self, ratio, least):
        self.ratio, self.least = ratio, least
        self.calls, self.spent = [], []

    def left(self, now):
        def recent(seconds):
            return sum(int(now) - 10 < second <= int(now) for second in seconds)

        return self.ratio * recent(self.calls) + self.least * 10 - recent(self.spent)

    def try_spend(self, now):
        if self.left(now) < 1 - 1e-9:
            return False
        self.spent.append(int(now))
        return True


@settings(max_examples=times(100))
@given(
    st.sampled_from([0, 0.1, 0.2, 0.29, 0.5, 1, 3]),
    st.sampled_from([0, 0.1, 1, 5]),
    st.lists(
        st.tuples(
            st.sampled_from(["call", "call", "spend"]), st.sampled_from([0, 0.1, 0.7, 1, 3, 9, 10, 30])
        ),
        max_size=120,
    ),
)
def test_behaves_as_the_model(ratio, least, steps):
    budget, model = RetryBudget(ratio, least), Model(ratio, least)
    now = 1000.0
    for kind, pause in steps:
        now += pause
        if kind == "call":
            budget.record(now)
            model.calls.append(int(now))
        else:
            assert budget.try_spend(now) == model.try_spend(now)
        assert abs(budget.available(now) - model.left(now)) < 1e-6


def test_a_quiet_service_can_still_retry():
    budget = RetryBudget()
    assert [budget.try_spend(100.0) for _ in range(11)] == [True] * 10 + [False]
    assert not budget.try_spend(109.9)
    assert budget.try_spend(110.0)


def test_fractions_add_up():
    budget = RetryBudget(ratio=0.29, min_per_second=0)
    for _ in range(100):
        budget.record(5.0)
    assert sum(budget.try_spend(5.0) for _ in range(50)) == 29


def test_clocks_that_start_at_zero():
    budget = RetryBudget(ratio=1, min_per_second=0)
    assert not budget.try_spend(0.0)
    budget.record(0.0)
    assert budget.available(0.0) == 1.0
    assert budget.try_spend(0.5)
    assert not budget.try_spend(0.9)


def test_zero_allows_nothing():
    budget = RetryBudget(0, 0)
    budget.record(1.0)
    assert not budget.try_spend(1.0)
    assert budget.describe() == {"ratio": 0.0, "min_per_second": 0.0}
    assert repr(budget) == "RetryBudget(ratio=0.0, min_per_second=0.0)"
