"""Decorators: merged stage by stage in canonical order, foreign decorators kept in place, names shared."""

from __future__ import annotations

import functools

import pytest

from pyresil import (
    CircuitOpenError,
    ConfigurationError,
    Constant,
    Fallback,
    Policy,
    Retry,
    bulkhead,
    cached,
    circuit_breaker,
    current_lease,
    fallback,
    fencing_token,
    hedge,
    locked,
    policy_of,
    rate_limit,
    retry,
    timeout,
)
from pyresil._merging import DEFAULT_NAMES
from pyresil.testing import ManualClock, record_events

NOW = Constant("0s")


@pytest.fixture(autouse=True)
def _fresh_names():
    DEFAULT_NAMES.clear()
    yield
    DEFAULT_NAMES.clear()


def kinds(fn):
    return [strategy.kind for strategy in policy_of(fn).strategies]


def fails():
    raise ConnectionError("down")


def test_stacked_decorators_make_one_policy_in_canonical_order():
    @timeout("2s")
    @fallback(None)
    @bulkhead(max_concurrent=3)
    @retry(attempts=2)
    @circuit_breaker
    def fn():
        return 7

    assert fn() == 7
    assert kinds(fn) == ["fallback", "retry", "circuit breaker", "bulkhead", "timeout"]


def test_the_order_of_writing_does_not_matter():
    calls = []

    def work():
        calls.append(1)
        raise ConnectionError

    inside_out = retry(attempts=3, backoff=NOW)(fallback("value")(work))
    outside_in = fallback("value")(retry(attempts=3, backoff=NOW)(work))
    assert inside_out() == "value" == outside_in()
    assert len(calls) == 6


def test_a_foreign_decorator_ends_the_merging_and_keeps_its_place():
    checks = []

    def login_required(fn):
        @functools.wraps(fn)
        def wrapper():
            checks.append(1)
            return fn()

        return wrapper

    calls = []

    @retry(attempts=3, backoff=NOW)
    @login_required
    @bulkhead(max_concurrent=1)
    def view():
        calls.append(1)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        view()
    # Merged around the bare view, the retries would have skipped the check.
    assert (len(checks), len(calls)) == (3, 3)
    assert kinds(view) == ["retry"]


def test_a_stage_stands_on_both_sides_of_a_foreign_decorator():
    def foreign(fn):
        @functools.wraps(fn)
        def wrapper():
            return fn()

        return wrapper

    calls = []

    @retry(attempts=2, backoff=NOW)
    @foreign
    @retry(attempts=3, backoff=NOW)
    def fn():
        calls.append(1)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        fn()
    assert len(calls) == 6


def test_a_stage_given_twice_is_refused():
    with pytest.raises(ConfigurationError, match="fails: the stage retry is given twice"):
        retry(attempts=2)(retry(attempts=3)(fails))


def test_false_turns_a_stage_off():
    calls = []

    @retry(False)
    def fn():
        calls.append(1)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        fn()
    assert len(calls) == 1
    with pytest.raises(ConfigurationError, match="given twice"):
        retry(attempts=2)(fn)


def test_an_instance_belongs_to_its_function():
    @bulkhead(max_concurrent=1)
    def one():
        return two()

    @bulkhead(max_concurrent=1)
    def two():
        return "ran"

    assert one() == "ran"


def test_it_stays_the_same_instance_when_more_is_merged_in():
    first = bulkhead(max_concurrent=1)(fails)
    second = retry(attempts=2)(first)
    assert policy_of(second).strategies[1] is policy_of(first).strategies[0]


def test_a_name_is_shared():
    @bulkhead("exports", max_concurrent=1)
    def one():
        return two()

    @bulkhead("exports")
    def two():
        return "ran"

    from pyresil import BulkheadFullError

    with pytest.raises(BulkheadFullError):
        one()
    assert two() == "ran"


def test_other_options_under_a_used_name_are_refused():
    bulkhead("exports", max_concurrent=1)(fails)
    with pytest.raises(
        ConfigurationError, match=r"bulkhead 'exports' is in use .*max_concurrent=1.*max_concurrent=2"
    ):
        bulkhead("exports", max_concurrent=2)(fails)
    bulkhead("exports", max_concurrent=1)(fails)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: retry(attemps=3), "retry: no option 'attemps'; known are attempts, backoff"),
        (
            lambda: retry(attemps=3, max_elapsed=-1),
            "retry: no option 'attemps'; known are .*; max_elapsed must be a duration",
        ),
        (
            lambda: timeout("1s", strct=1, max_abandoned=0),
            "timeout: no option 'strct'; known are limit, .*; max_abandoned must be",
        ),
        (lambda: retry(False, attempts=3), "retry: options cannot be given together with False"),
        (lambda: retry(3, attempts=3), "retry: attempts is given twice, as 3 and 3"),
        (lambda: retry(attempts=True)(fails), "retry: attempts must be a positive integer, got True"),
        (lambda: fallback()(fails), "fallback: exactly one of a value and using= must be given, got neither"),
        (lambda: fallback(1, 2), "fallback: one value can be given, got 2"),
        (lambda: timeout()(fails), "timeout: limit must be given"),
        (
            lambda: bulkhead(max_concurrent=0)(fails),
            "bulkhead .*max_concurrent must be a positive integer, got 0",
        ),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize("decorator", [fallback, locked])
@pytest.mark.parametrize("args", [(), (3,), (1, 2)])
def test_an_argument_that_was_forgotten_is_missed_at_the_first_call(decorator, args):
    @decorator
    def work(*values):
        return values

    with pytest.raises(
        TypeError, match=rf"@{decorator.__name__} needs its argument: @{decorator.__name__}\("
    ):
        work(*args)


def test_a_function_may_be_the_value_of_a_fallback():
    assert fallback(len)(fails)() is len


def test_false_is_a_value_of_a_fallback():
    assert fallback(False)(fails)() is False


def test_a_ready_strategy_is_taken_as_it_is():
    from pyresil import CircuitBreaker

    breaker = CircuitBreaker("carrier")
    assert policy_of(circuit_breaker(breaker)(fails)).strategies == (breaker,)


def test_methods_partials_and_callables_without_a_name():
    class Client:
        def __init__(self):
            self.calls = 0

        @retry(attempts=3, backoff=NOW)
        def get(self, what):
            self.calls += 1
            if self.calls < 3:
                raise ConnectionError
            return what

        def __call__(self):
            return "called"

    client = Client()
    assert client.get("it") == "it"
    assert retry(attempts=2)(functools.partial(divmod, 7))(3) == (2, 1)
    assert retry(attempts=2)(client.get)("again") == "again"
    assert retry(attempts=2)(client)() == "called"


async def _async():
    return 1


def _generator():
    yield 1


@pytest.mark.parametrize("fn", [_async, _generator, functools.partial(_async)])
@pytest.mark.parametrize("decorator", [retry, fallback(None), timeout("1s"), bulkhead, circuit_breaker])
def test_what_cannot_run_under_a_policy_is_refused_when_decorated(decorator, fn):
    with pytest.raises(TypeError, match=r"_async is async|_generator is a generator function"):
        decorator(fn)


def test_policy_of_a_plain_function_is_none():
    assert policy_of(fails) is None
    assert policy_of(Policy(Retry(), Fallback(1))(fails)) is None


def test_every_stage_has_its_decorator_and_its_place():
    clock = ManualClock()

    @timeout("2s")
    @locked("nightly", clock=clock)
    @rate_limit("100/s")
    @hedge("5s")
    @cached("1m")
    @bulkhead(5)
    @circuit_breaker(0.5)
    @retry(2)
    @fallback("spare")
    def fn(x):
        return x

    assert [type(strategy).__name__.lstrip("_") for strategy in policy_of(fn).strategies] == [
        "Fallback", "Cache", "Lock", "Retry", "Hedge", "CircuitBreaker", "RateLimit", "Bulkhead", "Cooperative",
    ]  # fmt: skip
    assert fn("value") == "value"


def test_a_cached_function_keeps_results_by_its_arguments():
    calls = []

    @cached
    def fn(x, y=2):
        calls.append((x, y))
        return x + y

    assert [fn(1), fn(x=1), fn(1, 2), fn(y=2, x=1), fn(2)] == [3, 3, 3, 3, 4]
    assert calls == [(1, 2), (2, 2)]


def test_a_hit_is_told_to_those_who_listen():
    fn = cached("1h")(lambda x: x)
    fn(1)
    with record_events() as events:
        assert fn(1) == 1
    assert "cache-hit" in [event.type for event in events]


def test_a_cached_hit_passes_an_open_breaker_and_is_no_execution_of_the_work():
    @cached("1h")
    @circuit_breaker("upstream")
    def fn(x):
        return x

    fn(1)
    strategies = {type(strategy).__name__: strategy for strategy in policy_of(fn).strategies}
    strategies["CircuitBreaker"].isolate()
    assert fn(1) == 1
    with pytest.raises(CircuitOpenError):
        fn(2)


def test_a_locked_function_knows_its_fencing_token():
    @locked(lambda ctx: f"order:{ctx.args[0]}")
    def fn(order):
        return current_lease().key, fencing_token()

    key, token = fn(7)
    assert key == "order:7"
    assert fn(7)[1] > token


def test_None_attempts_are_no_limit():
    calls = []

    @retry(None, backoff=NOW)
    def fn():
        calls.append(1)
        if len(calls) < 10:
            fails()
        return len(calls)

    assert fn() == 10
    for decorator in (timeout, hedge, cached, rate_limit, locked):
        with pytest.raises(ConfigurationError, match="None"):
            decorator(None)(lambda: 1)


def test_classmethod_and_staticmethod_objects():
    policy = Policy(Retry())

    class Service:
        @retry
        @staticmethod
        def doubled(number):
            return 2 * number

        @retry(2)
        @classmethod
        def called(cls, number):
            return cls.__name__, number

        @policy
        @staticmethod
        def tripled(number):
            return 3 * number

        @policy.options(key="k")
        @classmethod
        def named(cls):
            return cls.__name__

        @bulkhead
        @staticmethod
        @retry
        def merged():
            return 1

    for service in (Service, Service()):
        assert (service.doubled(2), service.tripled(2), service.merged()) == (4, 6, 1)
        assert (service.called(1), service.named()) == (("Service", 1), "Service")
    assert kinds(Service.doubled) == ["retry"]
    assert kinds(Service.merged) == ["retry", "bulkhead"]
