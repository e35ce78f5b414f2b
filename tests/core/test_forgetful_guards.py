"""A guard of a user's own whose ``exit`` returns nothing: it changes no outcome, in no form."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Never

import pytest

from pyresil import CircuitBreaker, Constant, Guard, Policy, Retry


class Forgetful(Guard[Never]):
    kind = "forgetful"

    def enter(self, ctx):
        return None

    def exit(self, ctx, token, outcome):
        """Does not return it."""


@pytest.fixture
def breaker():
    return CircuitBreaker(minimum_calls=10)


@pytest.fixture
def policy(breaker):
    return Policy(Retry(3, backoff=Constant(0)), breaker, Forgetful())


def test_work_that_succeeds_is_not_repeated(policy, breaker):
    runs = []
    assert policy.call(lambda: runs.append(1) or len(runs)) == 1
    assert breaker.stats()[:3] == (breaker.state, 1, 0)


def test_the_error_of_the_work_comes_out(policy, breaker):
    error = ConnectionError("down")

    def fail():
        raise error

    with pytest.raises(ConnectionError) as caught:
        policy.call(fail)
    assert caught.value is error
    assert breaker.stats()[:3] == (breaker.state, 3, 3)


@pytest.mark.parametrize("fails", [0, 2, 3])
def test_loop(policy, breaker, fails):
    seen = 0
    with pytest.raises(ConnectionError) if fails == 3 else nullcontext():
        for attempt in policy.execute():
            with attempt as ctx:
                seen += 1
                if seen <= fails:
                    raise ConnectionError("down")
                ctx.report(seen)
    assert seen == min(fails + 1, 3)
    assert breaker.stats()[1:3] == (seen, fails)


def test_block(breaker):
    guarded = Policy(breaker, Forgetful())
    with guarded.execute() as ctx:
        ctx.report(1)
    error = ConnectionError("down")
    with pytest.raises(ConnectionError) as caught, guarded.execute():
        raise error
    assert caught.value is error
    assert breaker.stats()[1:3] == (2, 1)
