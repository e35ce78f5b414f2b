"""`call`, the decorator, `settle` and `describe`."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import threading
import unittest.mock

import pytest

from pyresil import (
    AdaptiveBulkhead,
    Bulkhead,
    Cache,
    CircuitBreaker,
    ConfigurationError,
    Constant,
    Failure,
    Fallback,
    Hedge,
    Policy,
    RateLimit,
    RejectedError,
    Retry,
    RetryBudget,
    Success,
    Timeout,
    current_context,
)
from pyresil.clock import SYSTEM
from pyresil.testing import InstantClock, ManualClock
from tests.core.helpers import Again, Flaky, Noted
from tests.support.processes import run_python


def add(first, second=2, *rest, third=3, **more):
    """Adds."""
    return (first, second, rest, third, more)


def test_call_passes_everything_through():
    policy = Policy(Retry())
    assert policy.call(add, 1, 5, 6, third=4, fourth=7) == (1, 5, (6,), 4, {"fourth": 7})
    assert Policy().call(add, 1) == (1, 2, (), 3, {})


def test_arguments_named_like_ours_go_to_the_function():
    def work(**kwargs):
        return kwargs

    given = {"self": 1, "fn": 2, "key": 3, "ctx": 4, "policy": 5, "args": 6, "cancel": 7}
    assert Policy(Retry()).call(work, **given) == given
    assert Policy(Retry())(work)(**given) == given
    assert Policy().options(key="k").call(work, **given) == given
    assert Policy().options(key="k")(work)(**given) == given
    assert Policy().settle(work, **given) == Success(given)


def test_the_same_error_object_comes_out():
    boom = ValueError("boom")
    for policy in (
        Policy(),
        Policy(Retry(2), clock=InstantClock()),
        Policy(Noted()),
        Policy(Noted()).options(),
    ):
        with pytest.raises(ValueError) as caught:
            policy.call(Flaky(boom, boom))
        assert caught.value is boom
    assert boom.__notes__ == ["pyresil retry gave up after attempt 2: 2 were allowed"]
    assert boom.__cause__ is None


def test_decorator_keeps_the_signature_and_what_functools_wraps_does():
    decorated = Policy(Retry())(add)
    assert inspect.signature(decorated) == inspect.signature(add)
    assert (decorated.__name__, decorated.__doc__, decorated.__module__) == ("add", "Adds.", __name__)
    assert decorated.__wrapped__ is add
    assert decorated(1, third=9) == (1, 2, (), 9, {})


def test_decorator_on_methods():
    policy = Policy(Retry())

    class Service:
        value = 5

        @policy
        def method(self, other):
            return self.value + other

        @classmethod
        @policy
        def of_class(cls, other):
            return cls.value * other

        @staticmethod
        @policy
        def static(other):
            return other

        @property
        @policy
        def computed(self):
            return self.value

    service = Service()
    assert service.method(1) == 6
    assert Service.method(service, 2) == 7
    assert (Service.of_class(2), service.of_class(3)) == (10, 15)
    assert (Service.static(1), service.static(2), service.computed) == (1, 2, 5)
    assert policy(service.method)(3) == 8


def test_a_policy_inside_another_adopts_its_clock_unless_it_decorated_a_function():
    clock = InstantClock()
    fresh, used = Policy(Retry(2, Constant("5s"))), Policy(Retry(2, Constant("10ms")))
    decorated = used(Flaky(ValueError))
    Policy(fresh, used, clock=clock)
    begun = clock.monotonic()
    assert fresh.call(Flaky(ValueError)) == "ok"
    assert 5.0 <= clock.monotonic() - begun < 6.0
    assert used.strategies[0].clock is not clock
    assert decorated() == "ok"


@pytest.mark.parametrize("policy", [Policy(name="carrier"), Policy(name="carrier").options(key=1)])
def test_what_cannot_be_decorated(policy):
    async def coroutine():
        pass

    async def async_generator():
        yield

    def generator():
        yield

    class AsyncCallable:
        async def __call__(self):
            pass

    class Inherits(AsyncCallable):
        pass

    class GeneratorCallable:
        def __call__(self):
            yield

        def method(self):
            yield

    for fn in (
        coroutine,
        async_generator,
        functools.partial(coroutine),
        functools.partial(functools.partial(coroutine)),
        AsyncCallable(),
        Inherits(),
        unittest.mock.AsyncMock(),
    ):
        with pytest.raises(TypeError, match=r"is async: pyresil is for sync code .policy 'carrier'."):
            policy(fn)
    for fn in (generator, functools.partial(generator), GeneratorCallable(), GeneratorCallable().method):
        with pytest.raises(TypeError, match=r"is a generator function.*return a list"):
            policy(fn)
    for fn in (5, None, "name", property(add)):
        with pytest.raises(TypeError, match="only a callable can be decorated"):
            policy(fn)


def test_settle():
    policy = Policy(Retry(2), clock=InstantClock())
    boom = ValueError()
    assert policy.settle(add, 1) == Success((1, 2, (), 3, {}))
    assert policy.settle(Flaky(boom, boom)) == Failure(boom)
    assert policy.options().settle(Flaky(boom, boom)) == Failure(boom)
    assert policy.options().settle(add, 1) == Success((1, 2, (), 3, {}))
    for error in (KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(error):
            policy.settle(Flaky(error))


def test_the_first_strategy_is_the_outermost():
    notes = []
    policy = Policy(Noted(notes, "a"), Noted(notes, "b"), Noted(notes, "c"))
    assert policy.call(lambda: notes.append("work") or 5) == 5
    assert notes == [
        ("a", "enter"),
        ("b", "enter"),
        ("c", "enter"),
        "work",
        ("c", 5),
        ("b", 5),
        ("a", 5),
    ]


def test_a_rejection_is_seen_by_the_outer_guards_only():
    notes = []
    policy = Policy(Noted(notes, "a"), Noted(notes, "b", reject=lambda: True), Noted(notes, "c"))
    with pytest.raises(RejectedError, match="b is full"):
        policy.call(lambda: notes.append("work"))
    assert notes == [("a", "enter"), ("b", "reject"), ("a", "RejectedError")]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_base_exceptions_pass_guards_and_are_never_replaced(error):
    notes = []
    raised = error("stop")
    policy = Policy(
        Fallback("spare"),
        Noted(notes, "a", replace=lambda outcome: Failure(ValueError("mine"))),
        Noted(notes, "b", fail=RuntimeError("exit is broken")),
        Retry(3),
    )
    with pytest.raises(error) as caught:
        policy.call(Flaky(raised))
    assert caught.value is raised
    assert [note[1] for note in notes] == ["enter", "enter", error.__name__, error.__name__]


def test_a_guard_may_replace_either_outcome():
    other = KeyError("other")
    policy = Policy(Noted(replace=lambda outcome: Failure(other)))
    with pytest.raises(KeyError) as caught:
        policy.call(lambda: 1)
    assert caught.value is other
    boom = ValueError()
    with pytest.raises(KeyError) as caught:
        policy.call(Flaky(boom))
    assert caught.value is other
    assert caught.value.__cause__ is boom


def test_what_exit_raises_comes_out_of_an_ordinary_end():
    for work in (lambda: 1, Flaky(ValueError)):
        guard = Noted(fail=RuntimeError("exit is broken"))
        with pytest.raises(RuntimeError, match="exit is broken"):
            Policy(guard).call(work)
        assert guard.inside == 0


def test_a_policy_inside_another_is_a_strategy():
    notes = []
    inner = Policy(Noted(notes, "inner"), name="inner")
    outer = Policy(Noted(notes, "outer"), inner, name="outer")

    def work():
        ctx = current_context()
        return ctx.policy, ctx.parent.policy

    assert outer.call(work) == ("inner", "outer")
    assert [note for note in notes if note[1] == "enter"] == [("outer", "enter"), ("inner", "enter")]


def test_an_empty_policy_runs_the_work():
    assert Policy().call(add, 1) == (1, 2, (), 3, {})
    with Policy().execute() as ctx:
        assert current_context() is ctx
    assert [attempt.number for attempt in Policy().execute() if not attempt.__exit__(None, None, None)] == [1]


def test_describe_is_plain_data():
    policy = Policy(
        Fallback(None),
        Retry(
            5,
            Constant("1s"),
            budget=RetryBudget(),
            handle=(ValueError, OSError),
            max_elapsed="1m",
            name="again",
        ),
        Policy(Again(2)),
        name="carrier",
    )
    plain = policy.describe()
    assert json.loads(json.dumps(plain)) == plain
    assert (plain["strategy"], plain["name"]) == ("policy", "carrier")
    fallback, retry, inner = plain["strategies"]
    assert fallback == {
        "strategy": "fallback",
        "name": None,
        "value": None,
        "handle": "default",
        "handle_result": "default",
    }
    assert retry == {
        "strategy": "retry",
        "name": "again",
        "attempts": 5,
        "backoff": {"backoff": "constant", "delay": 1.0, "jitter": "none", "cap": retry["backoff"]["cap"]},
        "max_elapsed": 60.0,
        "respect_retry_after": True,
        "budget": {"ratio": 0.2, "min_per_second": 1.0},
        "discard": None,
        "handle": ["builtins.ValueError", "builtins.OSError"],
        "handle_result": "default",
    }
    assert inner["strategies"] == [{"strategy": "again", "name": None}]
    assert policy.options(key=1).describe() == plain


def test_repr_names_what_is_inside():
    policy = Policy(Fallback(None), Retry(3, Constant(1)), name="carrier")
    assert repr(policy) == (
        "Policy(Fallback(None), Retry(attempts=3, backoff=Constant(delay=1.0, jitter='none', "
        f"cap={Constant(1).cap!r})), name='carrier')"
    )
    assert "carrier" in repr(policy.options(key="k"))
    assert "using=" in repr(Fallback(using=lambda error, ctx: 1))


def test_an_own_retry_gives_each_attempt_its_own_context():
    seen = []

    def work():
        seen.append(current_context())
        raise ValueError

    with pytest.raises(ValueError):
        Policy(Again(3)).call(work)
    assert [ctx.attempt for ctx in seen] == [1, 2, 3]
    assert len(set(map(id, seen))) == 3
    assert seen[0].properties is seen[2].properties


def test_an_own_strategy_must_implement_run():
    from pyresil import Guard, Stepper, Strategy

    for kind in (Strategy, Guard, Stepper):
        with pytest.raises(TypeError, match="abstract"):
            kind()


def test_refusal_tells_where_it_stands():
    with pytest.raises(ConfigurationError, match="policy 'carrier': argument 2 must be a strategy"):
        Policy(Retry(), add, name="carrier")


def test_a_function_without_parameters_is_called_as_such():
    seen = []

    @Policy(Retry(2, Constant(0)), name="carrier")
    def work():
        ctx = current_context()
        seen.append((ctx.args, ctx.kwargs, ctx.arguments(), ctx.attempt))
        if len(seen) == 1:
            raise ConnectionError
        return "done"

    assert work() == "done"
    assert seen == [((), {}, {}, 1), ((), {}, {}, 2)]
    # What does not fit is the caller's mistake: told at once, and neither retried nor counted.
    with pytest.raises(TypeError, match=r"work\(\) takes 0 positional arguments but 1 was given"):
        work(1)
    with pytest.raises(TypeError, match=r"work\(\) got an unexpected keyword argument 'x'"):
        work(x=1)
    assert len(seen) == 2


def test_functions_with_any_parameters_get_all_of_them():
    policy = Policy(Retry(2))

    def keyword_only(*, x):
        return x

    def rest(*args):
        return args

    def keywords(**kwargs):
        return kwargs

    assert policy(keyword_only)(x=1) == 1
    assert policy(rest)(1, 2) == (1, 2)
    assert policy(keywords)(x=1) == {"x": 1}
    assert policy(lambda: 7)() == 7


def test_a_deep_copy_runs_its_own_strategies():
    bulkhead = Bulkhead(1, name="slots")
    policy = Policy(Policy(bulkhead), Timeout("1s"), Timeout("2s", mode="abandon"), name="orders")
    bound = policy.options(key=1)
    for form in (copy.deepcopy(policy), copy.deepcopy(bound)):
        copied = form if isinstance(form, Policy) else form.policy
        inner = copied.strategies[0].strategies[0]
        assert inner is not bulkhead
        assert form.call(lambda: inner.stats().active) == 1  # noqa: B023 - called at once
        assert form.call(lambda: bulkhead.stats().active) == 0
        assert copied.describe() == policy.describe()


def test_a_deep_copy_of_what_is_in_use_is_not_in_use():
    policy = Policy(
        Fallback("instead"), Cache(lambda ctx: 1), Hedge(), CircuitBreaker(minimum_calls=1), RateLimit("9/s"),
        Bulkhead(1, max_queue=1), AdaptiveBulkhead(1), Timeout("5s", mode="abandon"),
    )  # fmt: skip
    policy.call(lambda: 1)
    go, inside = threading.Event(), threading.Event()
    inner = Policy(*policy.strategies[5:])

    def work():
        inside.set()
        go.wait(5)

    thread = threading.Thread(target=inner.call, args=(work,))
    thread.start()
    inside.wait(5)
    copied = copy.deepcopy(policy)
    go.set()
    thread.join(5)
    assert copied.strategies[5].stats().active == 0
    assert copied.strategies[6].stats().active == 0
    assert copied.describe() == policy.describe()


def test_a_deep_copy_drops_in_a_forked_child_what_its_original_drops():
    done = run_python(
        """
        import copy, os
        from pyresil import Bulkhead, Policy

        copied = copy.deepcopy(Policy(Bulkhead(1)))
        with copied.execute():
            pid = os.fork()
            if pid == 0:
                os._exit(copied.strategies[0].stats().active)
        assert os.waitpid(pid, 0)[1] == 0
        print("fine")
        """
    )
    assert "fine" in done.stdout


def test_a_shallow_copy_shares_the_strategies():
    bulkhead = Bulkhead(1)
    assert copy.copy(Policy(bulkhead)).call(lambda: bulkhead.stats().active) == 1


@pytest.mark.parametrize("clock", [SYSTEM, ManualClock()])
def test_a_deep_copy_lives_in_the_same_time(clock):
    copied = copy.deepcopy(Policy(Timeout("1s"), clock=clock))
    assert copied.clock is copied.strategies[0].clock is clock
    assert copied.call(lambda: current_context().clock) is clock


def test_describe_names_functions_and_keeps_plain_values():
    def growing(attempt, outcome):
        return 0

    plain = Policy(
        Fallback("nothing"),
        Fallback([1]),
        Fallback(using=lambda error, ctx: 1),
        Retry(backoff=growing, handle=growing),
    ).describe()
    first, second, third, last = plain["strategies"]
    assert (first["value"], second["value"]) == ("nothing", "[1]")
    assert third["using"].endswith("<lambda>")
    assert last["backoff"].endswith("growing")
    assert last["handle"] == last["backoff"]
    assert " at 0x" not in json.dumps(plain)
