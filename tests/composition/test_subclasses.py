"""Subclasses of built-in strategies: what they override is what runs, in every form."""

from __future__ import annotations

import pytest

from pyresil import (
    AdaptiveBulkhead,
    Bulkhead,
    Cache,
    CircuitBreaker,
    ConfigurationError,
    Fallback,
    Hedge,
    Lock,
    Policy,
    RateLimit,
    Retry,
    Timeout,
    TimeoutExceededError,
    current_context,
)

GUARDS = [
    (Bulkhead, {}),
    (AdaptiveBulkhead, {}),
    (CircuitBreaker, {}),
    (RateLimit, {"limit": "100/s"}),
    (Lock, {"key": "subclasses"}),
    (Timeout, {"limit": "5s"}),
]
OTHERS = [
    (Retry, {}),
    (Fallback, {"value": 1}),
    (Hedge, {}),
    (Cache, {"key": lambda ctx: 1}),
    (Timeout, {"limit": "5s", "mode": "abandon"}),
]


@pytest.mark.parametrize(("base", "options"), GUARDS)
def test_enter_and_exit_of_a_guard(base, options):
    seen = []

    class Mine(base):
        def enter(self, ctx):
            seen.append("enter")
            return super().enter(ctx)

        def exit(self, ctx, token, outcome):
            seen.append("exit")
            return super().exit(ctx, token, outcome)

    policy = Policy(Mine(**options))
    assert policy.call(lambda: 7) == policy(lambda: 7)() == 7
    with policy.execute():
        pass
    assert seen == ["enter", "exit"] * 3


@pytest.mark.parametrize(("base", "options"), GUARDS + OTHERS)
def test_run(base, options):
    seen = []

    class Mine(base):
        def run(self, call, ctx):
            seen.append("run")
            return super().run(call, ctx)

    assert Policy(Mine(**options)).call(lambda: 7) == 7
    assert Policy(Policy(Mine(**options)), Retry())(lambda: 7)() == 7
    assert seen == ["run", "run"]


@pytest.mark.parametrize("mode", ["cooperative", "abandon"])
def test_a_subclass_of_timeout_is_one(mode):
    class Mine(Timeout):
        pass

    made = Mine("20ms", mode)
    assert isinstance(made, Mine)
    assert type(made).__qualname__ == Mine.__qualname__
    with pytest.raises(TimeoutExceededError):
        Policy(made).call(lambda: current_context().sleep("5s"))


def test_the_mode_of_a_subclass_is_given_to_the_class():
    class Mine(Timeout):
        def __init__(self, limit):
            super().__init__(limit, mode="abandon")

    with pytest.raises(ConfigurationError, match="mode must be given to the class itself"):
        Mine("1s")
