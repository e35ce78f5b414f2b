"""What constructors refuse: every fault of one object in one message."""

from __future__ import annotations

import functools
import inspect
import pickle
import unittest.mock
from typing import Never

import pytest

from pyresil import (
    Cache,
    CancelToken,
    CircuitBreaker,
    ConfigurationError,
    Constant,
    Decorrelated,
    Exponential,
    Fallback,
    Linear,
    Lock,
    Locks,
    MemoryLockStore,
    Policy,
    RateLimit,
    Registry,
    Retry,
    RetryBudget,
    Strategy,
    Timeout,
    caused_by,
    retry,
    subscribe,
)
from pyresil.testing import InjectFault, ManualClock

BAD_NUMBERS = [True, False, float("nan"), float("inf"), -1, "x", [1], 10**5000, -(10**5000), 1j]
BAD_DURATIONS = [True, float("nan"), float("inf"), -1, "x", "5", [1], object(), 10**5000]


class Loud:
    def __repr__(self):
        raise RuntimeError("no repr")


def refused(build, *words):
    with pytest.raises(ConfigurationError) as caught:
        build()
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


def ids(value):
    try:
        return repr(value)[:20]
    except ValueError:
        return "huge"


@pytest.mark.parametrize("value", [*BAD_NUMBERS, 0, 2.0, 1.5], ids=ids)
def test_attempts(value):
    if value == 10**5000:
        assert Retry(attempts=value).attempts == value  # whole and positive
        return
    refused(lambda: Retry(attempts=value), "retry", "attempts must be a positive integer, got ")


@pytest.mark.parametrize("value", BAD_DURATIONS, ids=ids)
@pytest.mark.parametrize(
    "build",
    [
        lambda value: Retry(max_elapsed=value),
        lambda value: Exponential(value),
        lambda value: Exponential(cap=value),
        lambda value: Constant(value),
        lambda value: Constant(1, cap=value),
        lambda value: Linear(value),
        lambda value: Linear(1, step=value),
        lambda value: Linear(1, cap=value),
        lambda value: Decorrelated(value),
        lambda value: Decorrelated(1, cap=value),
        lambda value: CancelToken(timeout=value),
        lambda value: Policy().options(deadline=value),
    ],
)
def test_durations(build, value):
    refused(lambda: build(value), "must be a duration of 0 or more", ", got ")


@pytest.mark.parametrize("value", [*BAD_NUMBERS, 0.5, None], ids=ids)
def test_factor(value):
    refused(lambda: Exponential(factor=value), "factor must be a finite number of 1 or more, got ")


@pytest.mark.parametrize("value", ["FULL", "ful", "", None, True, float("nan"), -1, ["full"], "5"])
@pytest.mark.parametrize("kind", [Exponential, Constant, Linear])
def test_jitter(kind, value):
    text = refused(lambda: kind(1, jitter=value), "jitter")
    assert ("'full', 'equal', 'none'" in text) or ("duration" in text)


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=ids)
def test_budget(value):
    refused(lambda: RetryBudget(ratio=value), "retry budget", "ratio")
    refused(lambda: RetryBudget(min_per_second=value), "min_per_second")


@pytest.mark.parametrize("value", [1, "x", ValueError("an instance"), [ValueError], (), (ValueError, 1), int])
@pytest.mark.parametrize("kind", [Retry, lambda **options: Fallback(None, **options)])
def test_handle(kind, value):
    refused(lambda: kind(handle=value), "handle must be an exception type, a tuple of them, or a function")


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda: Retry(backoff=5), 'backoff must be a back-off such as Exponential("200ms"), or a function'),
        (lambda: Retry(backoff="1s"), "backoff must be a back-off"),
        (lambda: Retry(backoff=Exponential), "backoff must be a back-off"),
        (lambda: Retry(discard=5), "discard must be callable"),
        (lambda: Retry(handle_result=True), "handle_result must be callable"),
        (lambda: Retry(budget=0.2), "budget must be a RetryBudget"),
        (lambda: Retry(budget=RetryBudget), "budget must be a RetryBudget"),
        (lambda: Retry(clock=1), "clock must be a Clock"),
        (lambda: Retry(name=""), "name must be a non-empty string"),
        (lambda: Retry(name=5), "name must be"),
        (lambda: Retry(respect_retry_after=1), "respect_retry_after must be True or False"),
        (lambda: Fallback(), "exactly one of a value and using="),
        (lambda: Fallback(1, using=lambda error, ctx: 2), "exactly one of a value and using="),
        (lambda: Fallback(using=5), "using must be callable"),
        (
            lambda: Policy(Retry),
            "argument 1 must be a strategy, got <class 'pyresil.strategies.retry.Retry'>; write Retry(…)",
        ),
        (lambda: Policy([Retry(), Timeout(1)]), "; give the strategies one by one"),
        (
            lambda: Policy(retry),
            "; a decorator goes above a function, a policy takes strategies such as Retry(…)",
        ),
        (lambda: Policy(retry(3)), "; a decorator goes above a function"),
        (lambda: Policy(print), "argument 1 must be a strategy, got <built-in function print>"),
        (lambda: Policy(Retry(), "x", None), "argument 2 must be a strategy"),
        (lambda: Policy(Loud()), "argument 1 must be a strategy, got <Loud>"),
        (lambda: Policy(name=""), "name must be"),
        (lambda: Policy(name=5), "name must be"),
        (lambda: Policy(clock=5), "clock must be a Clock"),
        (lambda: Policy().options(cancel=5), "cancel must be a CancelToken"),
        (lambda: Policy().options(source=5), "source must be"),
        (lambda: Policy().options(properties=5), "properties must be a mapping"),
        (lambda: subscribe(5), "listener must be callable"),
        (lambda: CancelToken().on_cancel(5), "cancel token: callback must be callable, got 5"),
        (lambda: subscribe(None), "listener must be callable, got None"),
        (lambda: CancelToken().on_cancel(None), "cancel token: callback must be callable, got None"),
        (lambda: subscribe(print, "no-such-event"), "types must be event types or words of"),
        (lambda: subscribe(print, 5), "types must be event types or words of"),
        (lambda: subscribe(print, [int]), "types must be event types or words of"),
        (lambda: caused_by(), "caused_by"),
        (lambda: caused_by(5), "caused_by"),
        (lambda: caused_by(int), "caused_by"),
    ],
)
def test_wrong_types_and_unknown_words(build, word):
    refused(build, word)


async def async_function(*args):
    return False


class AsyncObject:
    async def __call__(self, *args):
        return False


@pytest.mark.parametrize("function", [async_function, functools.partial(async_function, 1), AsyncObject()])
@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda fn: Retry(backoff=fn), "backoff"),
        (lambda fn: Retry(handle=fn), "handle"),
        (lambda fn: Retry(handle_result=fn), "handle_result"),
        (lambda fn: Retry(discard=fn), "discard"),
        (lambda fn: Fallback(using=fn), "using"),
        (lambda fn: CircuitBreaker(health_check=fn), "health_check"),
        (lambda fn: CircuitBreaker(open_for=fn), "open_for"),
        (lambda fn: RateLimit("5/s", weight=fn), "weight"),
        (lambda fn: RateLimit("5/s", per=fn), "per"),
        (lambda fn: RateLimit("5/s", allow=fn), "allow"),
        (lambda fn: RateLimit("5/s", deny=fn), "deny"),
        (lambda fn: RateLimit("5/s", drain_on=fn), "drain_on"),
        (lambda fn: Cache(key=fn), "key"),
        (lambda fn: Lock(fn), "key"),
        (lambda fn: Lock("a", on_lost=fn), "on_lost"),
        (lambda fn: Locks("memory:").acquire("a", on_lost=fn), "on_lost"),
        (lambda fn: Locks("memory:").election("a", on_acquired=fn), "on_acquired"),
        (lambda fn: InjectFault(OSError, enabled=fn), "enabled"),
        (lambda fn: subscribe(fn), "listener"),
        (lambda fn: CancelToken().on_cancel(fn), "callback"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_async_function_is_no_option(build, field, function):
    refused(lambda: build(function), f"{field} must be a plain function (an async one would not be awaited)")


class Proxy:
    """As werkzeug's, outside of a request."""

    def __getattr__(self, name):
        raise RuntimeError("outside of a request")

    def __call__(self, *args):
        return True


class Anything:
    def __getattr__(self, name):
        return self

    def __call__(self, *args):
        return True


@pytest.mark.parametrize("kind", [Proxy, Anything])
def test_a_proxy_is_an_option(kind):
    proxy = kind()
    assert Retry(discard=proxy).discard is proxy


def test_a_function_that_only_looks_odd_is_an_option():
    mock = unittest.mock.MagicMock()
    assert Retry(discard=mock).discard is mock
    assert Fallback(using=lambda error, ctx: iter(())).describe()["using"]


def test_one_instance_twice():
    retry = Retry()
    refused(lambda: Policy(retry, retry, name="carrier"), "policy 'carrier'", "argument 2 is the same retry")


def test_all_faults_of_one_object_come_in_one_message():
    text = refused(
        lambda: Retry(attempts=True, max_elapsed=-1, respect_retry_after=0, budget=1, handle=5, name="orders")
    )
    assert text.startswith("retry 'orders': ")
    for field in ("attempts", "max_elapsed", "respect_retry_after", "budget", "handle"):
        assert field in text
    text = refused(lambda: Policy(1, 2, name=3, clock=4))
    assert "clock" in text
    assert "argument 1" in text
    assert "argument 2" in text
    assert "name" in text
    text = refused(lambda: Exponential("x", factor=0, cap=-1, jitter="y"))
    assert all(field in text for field in ("delay", "factor", "cap", "jitter"))


@pytest.mark.parametrize(
    ("build", "subject"),
    [
        (lambda: Retry(attempt=3, name="orders"), "retry 'orders': no option 'attempt' (given 3); known are attempts, "),
        (lambda: Exponential(attempt=3), "exponential: no option 'attempt' (given 3)"),
        (lambda: RetryBudget(attempt=3), "retry budget: no option 'attempt' (given 3); known are ratio, min_per_second"),
        (lambda: Timeout("1s", attempt=3), "timeout: no option 'attempt' (given 3)"),
        (lambda: Timeout(attempt=3), "timeout: no option 'attempt' (given 3)"),
        (lambda: Policy(Retry(), attempt=3), "policy: no option 'attempt' (given 3); known are name, clock"),
        (lambda: Registry(attempt=3), "registry: no option 'attempt' (given 3); known are defaults, presets, clock"),
        (lambda: CancelToken(attempt=3), "cancel token: no option 'attempt' (given 3)"),
        (lambda: Locks(attempt=3), "locks: no option 'attempt' (given 3)"),
        (lambda: MemoryLockStore(attempt=3), "memory lock store: no option 'attempt' (given 3)"),
        (lambda: ManualClock(attempt=3), "manual clock: no option 'attempt' (given 3)"),
    ],
)  # fmt: skip
def test_an_unknown_option_is_refused_by_the_constructor(build, subject):
    text = refused(build, subject)
    with pytest.raises(TypeError) as caught:  # Python's own word for it
        build()
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_an_unknown_option_comes_with_all_other_faults():
    text = refused(lambda: Retry(attempts=-1, attempt=3, backof=4, max_elapsed="soon"))
    for word in ("attempts must be", "max_elapsed must be", "'attempt' (given 3)", "'backof' (given 4)"):
        assert word in text


def test_constructors_of_users_are_left_alone():
    class Plain(Strategy[Never]):
        def run(self, call, ctx):
            return call()

    class Taking(Plain):
        def __init__(self, first, /, *more, word=None, **rest):
            self.taken = (first, more, word, rest)

    assert Taking(1, 2, word=3, other=4).taken == (1, (2,), 3, {"other": 4})
    assert Plain()
    with pytest.raises(TypeError, match="takes no arguments"):
        Plain(1)
    refused(lambda: Plain(a=1), "strategy: no option 'a' (given 1); known are none")


def test_signatures_are_those_of_the_constructors():
    assert list(inspect.signature(Timeout).parameters) == [
        "limit",
        "mode",
        "strict",
        "max_abandoned",
        "name",
        "clock",
    ]
    assert list(inspect.signature(RetryBudget).parameters) == ["ratio", "min_per_second"]


def test_the_clock_of_tests_is_checked_as_well():
    text = refused(lambda: ManualClock(wall="now", seed=[]), "manual clock: ")
    assert "wall" in text
    assert "seed" in text


def test_unknown_options_of_an_execution_are_a_type_error():
    with pytest.raises(TypeError, match="kee"):
        Policy().execute(kee=3)
    with pytest.raises(TypeError, match="kee"):
        Policy().options(key=1).options(kee=3)


def test_a_refused_object_shows_its_value_briefly():
    text = refused(lambda: Policy().options(source="x" * 10**6 and ["x" * 10**6]))
    assert len(text) < 400
