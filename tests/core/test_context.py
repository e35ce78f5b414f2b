"""`Context`, the options that fill it, and how executions inside one another share deadlines and cancellation."""

from __future__ import annotations

import contextvars
import threading
from datetime import timedelta

import pytest

from pyresil import (
    CancelledError,
    CancelToken,
    ConfigurationError,
    Constant,
    Policy,
    PolicyUsageError,
    Retry,
    TimeoutExceededError,
    current_context,
    current_lease,
    fencing_token,
)
from pyresil.context import _current
from pyresil.testing import InstantClock, ManualClock
from tests.core.helpers import Flaky, Noted
from tests.support.processes import run_python


def context_of(policy, **options):
    return policy.options(**options).call(current_context) if options else policy.call(current_context)


# -- processes ---------------------------------------------------------------------------------------------------------------


def test_a_process_that_is_started_inside_of_a_policy_begins_outside_of_it():
    """A pool's workers live on: the deadline of the call that happened to start them must not be theirs for ever."""
    done = run_python(
        """
        import multiprocessing, os
        from concurrent.futures import ProcessPoolExecutor
        from pyresil import CancelToken, Policy, Timeout, current_context, current_lease, fencing_token, locked

        def seen():
            return current_context() is None, Policy().call(lambda: current_context().remaining())

        pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))

        @locked("k")
        def started():
            with Policy(Timeout("20s")).execute():
                assert pool.submit(fencing_token).result(10) == current_lease().token
                child = os.fork()
                if not child:  # which goes on with the work
                    os._exit(0 if current_context().remaining() > 0 else 1)
                return pool.submit(seen).result(10), os.waitpid(child, 0)[1]

        print(started(), pool.submit(seen).result(10))
        """,
        flags=("-W", "ignore::DeprecationWarning"),
    )
    assert done.stdout.strip() == "((True, None), 0) (True, None)"
    assert done.stderr == ""


# -- what a context tells --------------------------------------------------------------------------------------------------


def test_defaults():
    ctx = context_of(Policy(name="carrier"))
    assert (ctx.policy, ctx.key, ctx.source, ctx.attempt, ctx.parent) == ("carrier", None, None, 1, None)
    assert (ctx.args, ctx.kwargs, ctx.properties) == ((), {}, {})
    assert (ctx.remaining(), ctx.timeout(), ctx.lease, ctx.fencing_token) == (None, None, None, None)
    assert repr(ctx) == "<Context policy='carrier' attempt=1>"


def test_outside_of_every_policy():
    assert (current_context(), current_lease(), fencing_token()) == (None, None, None)


def test_arguments():
    def work(first, second=2, *rest, third=3, **more):
        return current_context()

    ctx = Policy().call(work, 1, third=4, fifth=5)
    assert (ctx.args, ctx.kwargs) == ((1,), {"third": 4, "fifth": 5})
    assert ctx.arguments() == {"first": 1, "second": 2, "rest": (), "third": 4, "more": {"fifth": 5}}


def test_arguments_of_a_method():
    class Service:
        @Policy()
        def method(self, value):
            return current_context()

    service = Service()
    assert service.method(5).arguments() == {"self": service, "value": 5}


def test_arguments_where_there_are_none():
    with Policy(name="carrier").execute() as ctx:
        assert (ctx.args, ctx.kwargs) == ((), {})
        with pytest.raises(PolicyUsageError, match="a block has no arguments"):
            ctx.arguments()


def test_arguments_of_a_builtin_without_a_signature():
    class Look(Noted):
        def enter(self, ctx):
            with pytest.raises(PolicyUsageError, match="cannot name them"):
                ctx.arguments()
            return super().enter(ctx)

    assert Policy(Look()).call(dict, a=1) == {"a": 1}


@pytest.mark.parametrize("cap", [2, 2.0, "2s", timedelta(seconds=2)])
def test_timeout_takes_a_cap(cap):
    clock = ManualClock()
    with Policy(clock=clock).execute(deadline="5s") as ctx:
        assert ctx.timeout() == 5.0
        assert ctx.timeout(cap) == 2.0
        clock.advance(4)
        assert ctx.timeout(cap) == 1.0
    with Policy(clock=clock).execute() as ctx:
        assert ctx.timeout(cap) == 2.0


def test_timeout_is_never_below_a_millisecond():
    clock = ManualClock()
    with Policy(clock=clock).execute(deadline="5s") as ctx:
        clock.advance(4.9999)
        assert 0 < ctx.remaining() < 0.001
        assert ctx.timeout() == 0.001
        assert ctx.timeout(0) == 0.001
        clock.advance(1)
        assert ctx.remaining() == 0.0
        with pytest.raises(TimeoutExceededError, match="5 s"):
            ctx.timeout()
        with pytest.raises(TimeoutExceededError):
            ctx.timeout(cap="1s")


@pytest.mark.parametrize("cap", [True, -1, float("nan"), "x", object()])
def test_timeout_refuses_a_bad_cap(cap):
    with Policy().execute() as ctx, pytest.raises(ConfigurationError, match="cap must be a duration"):
        ctx.timeout(cap)


def test_timeout_raises_once_cancelled():
    token = CancelToken()
    with Policy().execute(cancel=token) as ctx:
        assert ctx.timeout() is None
        token.cancel("closing")
        with pytest.raises(CancelledError, match="closing"):
            ctx.timeout()
    with Policy().execute() as ctx:
        ctx.cancel.cancel()
        with pytest.raises(CancelledError):
            ctx.timeout()
    with Policy().execute() as outer, Policy().execute() as inner:
        outer.cancel.cancel("outer")
        with pytest.raises(CancelledError, match="outer"):
            inner.timeout()


def test_sleep():
    clock = InstantClock()
    with Policy(clock=clock).execute() as ctx:
        begun = clock.monotonic()
        ctx.sleep("2s")
        ctx.sleep(0)
        assert clock.monotonic() - begun >= 1.99
        for bad in (-1, float("nan"), True, "x"):
            with pytest.raises(ConfigurationError, match=r"^sleep: duration must be a duration .*, got"):
                ctx.sleep(bad)


def test_sleep_ends_at_the_deadline():
    clock = InstantClock()
    with Policy(clock=clock).execute(deadline="5s") as ctx:
        begun = clock.monotonic()
        with pytest.raises(TimeoutExceededError):
            ctx.sleep("10s")
        assert 4.99 <= clock.monotonic() - begun < 9.0


def test_sleep_ends_on_cancel():
    clock = ManualClock()
    ended = []

    def work():
        try:
            current_context().sleep("1h")
        except CancelledError as error:
            ended.append(error.reason)

    token = CancelToken()
    thread = threading.Thread(target=lambda: Policy(clock=clock).options(cancel=token).call(work))
    thread.start()
    clock.wait_until_parked()
    token.cancel("closing")
    thread.join(5)
    assert ended == ["closing"]


# -- options ---------------------------------------------------------------------------------------------------------------


def test_options():
    token = CancelToken()
    given = {"a": 1}
    bound = Policy(name="carrier").options(key=("k", 1), source="orders", cancel=token, properties=given)
    ctx = bound.call(current_context)
    assert (ctx.key, ctx.source, ctx.properties) == (("k", 1), "orders", {"a": 1})
    ctx.properties["b"] = 2
    assert given == {"a": 1}
    assert bound.call(current_context).properties == {"a": 1}, "each execution starts with what was given"


def test_options_over_options():
    token = CancelToken()
    bound = Policy().options(key="k", source="a", deadline="5s", cancel=token, properties={"a": 1})
    again = bound.options(source="b", key=None)
    ctx = again.call(current_context)
    assert (ctx.key, ctx.source, ctx.properties) == (None, "b", {"a": 1})
    assert 4 < ctx.remaining() <= 5
    assert bound.call(current_context).source == "a"
    with bound.execute(deadline="1s") as ctx:
        assert ctx.remaining() <= 1
        assert ctx.source == "a"


def test_deadline_is_for_the_execution_in_all():
    clock = InstantClock()
    policy = Policy(Retry(None, Constant("2s")), clock=clock)
    seen = []

    def work():
        seen.append(current_context().remaining())
        raise ValueError

    with pytest.raises(ValueError) as caught:
        policy.options(deadline="5s").call(work)
    assert [round(left) for left in seen] == [5, 3, 1]
    assert "does not fit in the" in caught.value.__notes__[0]


def test_deadline_zero_and_cancelled_tokens_run_nothing():
    work = Flaky()
    for bound in (Policy().options(deadline=0), Policy().options(cancel=CancelToken(timeout=0))):
        with pytest.raises(TimeoutExceededError):
            bound.call(work)
        with pytest.raises(TimeoutExceededError):
            bound(work)()
        assert isinstance(bound.settle(work).error, TimeoutExceededError)
    token = CancelToken()
    token.cancel(KeyError("mine"))
    with pytest.raises(KeyError, match="mine"):
        Policy().options(cancel=token).call(work)
    with pytest.raises(KeyError, match="mine"):
        Policy(Policy().options(cancel=token)).call(work)
    assert work.calls == 0


def test_the_deadline_of_a_given_token_counts():
    clock = ManualClock()
    token = CancelToken(timeout="3s", clock=clock)
    with Policy(clock=clock).execute(cancel=token, deadline="5s") as ctx:
        assert ctx.remaining() == 3.0
    with Policy(clock=clock).execute(cancel=token, deadline="1s") as ctx:
        assert ctx.remaining() == 1.0


def test_options_of_a_policy_inside_another():
    inner = Policy(name="inner").options(key="inner", deadline="2s", properties={"b": 2})
    outer = Policy(inner, name="outer")
    ctx = outer.options(key="outer", source="orders", deadline="5s", properties={"a": 1}).call(
        current_context
    )
    assert (ctx.policy, ctx.key, ctx.source, ctx.properties) == ("inner", "inner", "orders", {"a": 1, "b": 2})
    assert ctx.remaining() <= 2
    assert ctx.parent.properties == {"a": 1}


def test_a_policy_inside_another_knows_its_options():
    outer = Policy(Retry(2), Policy(Retry(2), name="inner"), clock=InstantClock())
    seen = []

    def work():
        ctx = current_context()
        ctx.properties["n"] = ctx.properties.get("n", 0) + 1
        seen.append((ctx.attempt, ctx.parent.attempt, ctx.key, ctx.properties["n"]))
        raise ValueError

    with pytest.raises(ValueError):
        outer.options(key="k").call(work)
    assert seen == [(1, 1, "k", 1), (2, 1, "k", 2), (1, 2, "k", 3), (2, 2, "k", 4)]


# -- one execution inside another ------------------------------------------------------------------------------------------


def test_a_deadline_is_inherited():
    clock = ManualClock()
    outer, inner = Policy(clock=clock, name="outer"), Policy(clock=clock, name="inner")

    def work():
        clock.advance(1)
        ctx = inner.call(current_context)
        assert ctx.parent is current_context()
        return ctx.remaining(), inner.options(deadline="1s").call(current_context).remaining()

    assert outer.options(deadline="5s").call(work) == (4.0, 1.0)
    assert outer.options(deadline="1.5s").call(work) == (0.5, 0.5)
    assert inner.call(current_context).remaining() is None


def test_a_deadline_is_inherited_between_clocks():
    one, two = ManualClock(), ManualClock()
    two.advance("1h")

    def work():
        one.advance(2)
        ctx = Policy(clock=two).call(current_context)
        return ctx.remaining()

    assert Policy(clock=one).options(deadline="5s").call(work) == pytest.approx(3.0)


def test_a_cancel_token_is_inherited():
    token = CancelToken()
    inner = Policy(Retry(None, Constant("1s")), clock=InstantClock())
    calls = []

    def failing():
        calls.append(1)
        if len(calls) == 2:
            token.cancel("closing")
        raise ValueError

    with pytest.raises(CancelledError, match="closing"):
        Policy().options(cancel=token).call(lambda: inner.call(failing))
    assert len(calls) == 2


def test_contexts_of_work_that_is_hundreds_of_calls_deep_are_no_recursion():
    policy = Policy()

    def walk(depth):
        if depth:
            return policy.call(walk, depth - 1)
        ctx, found = current_context(), 0
        while ctx is not None:
            ctx, found = ctx.parent, found + 1
        return found

    assert walk(300) == 300


def test_cancelling_an_inner_execution_leaves_the_outer_one():
    with Policy().execute() as outer:
        with Policy().execute() as inner:
            inner.cancel.cancel()
            assert inner.cancel.is_set()
        assert not outer.cancel.is_set()
        with Policy().execute() as inner:
            outer.cancel.cancel()
            assert inner.cancel.is_set()


def test_cancelling_an_attempt_cancels_the_execution():
    def work():
        current_context().cancel.cancel("enough")
        raise ValueError

    with pytest.raises(CancelledError, match="enough"):
        Policy(Retry(3), clock=InstantClock()).call(work)


def test_the_token_of_an_attempt_is_one_object():
    with Policy().execute(deadline="5s") as ctx:
        assert ctx.cancel is ctx.cancel


def test_properties_are_shared_along_the_attempts_and_not_further():
    policy = Policy(Retry(3), clock=InstantClock())

    def work():
        ctx = current_context()
        ctx.properties["n"] = ctx.properties.get("n", 0) + 1
        if ctx.properties["n"] < 3:
            raise ValueError
        return dict(ctx.properties)

    assert policy.call(work) == {"n": 3}
    assert policy.call(work) == {"n": 3}


# -- where the context is the current one ----------------------------------------------------------------------------------


def test_restored_after_every_end():
    def fails():
        raise ValueError

    outer = Policy(name="outer")
    with outer.execute() as ctx:
        for end in (fails, lambda: 1):
            Policy(Retry(2), clock=InstantClock()).settle(end)
            assert current_context() is ctx
    assert current_context() is None


def test_threads_start_without_and_copied_contexts_bring_it_along():
    seen = {}

    def note(name):
        seen[name] = current_context()

    with Policy().execute() as ctx:
        copied = contextvars.copy_context()
        for target in (lambda: note("plain"), lambda: copied.run(note, "copied")):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    assert seen["copied"] is ctx
    # From 3.14 on threads inherit the context on free-threaded builds.
    assert seen["plain"] is None or seen["plain"] is ctx


def test_a_change_in_a_copied_context_stays_there():
    def work():
        with Policy(name="other").execute() as ctx:
            return ctx.parent.policy

    with Policy(name="outer").execute() as ctx:
        assert contextvars.copy_context().run(work) == "outer"
        assert current_context() is ctx


def test_what_copied_the_context_finds_what_is_around_an_execution_that_has_ended():
    copies = []
    policy = Policy(Retry(1), name="inner")
    with Policy(name="outer").execute() as outer:
        with Policy().execute():
            copies.append(contextvars.copy_context())
        for attempt in policy.execute():
            with attempt:
                copies.append(contextvars.copy_context())
        for form in (policy.call, policy.options(key=1).call):
            form(lambda: copies.append(contextvars.copy_context()))
        assert [copied.run(current_context) for copied in copies] == [outer] * 4
    assert [copied.run(current_context) for copied in copies] == [None] * 4


def test_a_generator_that_is_closed_late_brings_nothing_back_that_has_ended():
    def rows():
        with Policy(name="rows").execute():
            yield current_context()

    def begun():
        generator = rows()
        assert next(generator).policy == "rows"
        return generator

    def work():
        with Policy(name="began in").execute(deadline="1h"):
            one, two = begun(), begun()
        assert current_context() is None
        one.close()
        assert current_context() is None
        with Policy(name="closed in").execute() as ctx:
            two.close()
            assert current_context() is ctx
        three = Policy().options(deadline="1h").call(begun)
        assert current_context() is None
        three.close()
        assert current_context() is None

    contextvars.copy_context().run(work)


def test_a_generator_that_is_closed_inside_a_call_leaves_that_call_its_context():
    def rows():
        with Policy(name="rows").execute():
            yield

    def close(generator):
        ctx = current_context()
        generator.close()
        return current_context() is ctx

    def work():
        flat = Policy()
        for form in (flat.call, flat.options(deadline="1h").call):
            generator = rows()
            next(generator)
            assert form(close, generator)
            assert current_context() is None

    contextvars.copy_context().run(work)


@pytest.mark.parametrize("options", [None, {"key": 1}], ids=["flat", "with options"])
def test_calls_that_each_run_in_a_context_copied_in_the_one_before_make_no_chain(options):
    policy = Policy()
    form = policy.options(**options) if options else policy
    copied = contextvars.copy_context()
    for _ in range(20):
        copied = copied.run(form.call, contextvars.copy_context)
    cell, length = copied[_current], 0
    while cell is not None:
        cell, length = cell[3], length + 1
    assert length <= 1


def test_under_gevent_each_greenlet_has_its_own():
    done = run_python(
        """
        from gevent import monkey
        monkey.patch_all()
        import gevent
        from pyresil import Policy, Retry, Constant, current_context

        seen = []

        def work(name):
            for _ in range(3):
                gevent.sleep(0.001)
                assert current_context().policy == name
                assert current_context().parent is None
            if current_context().attempt == 1:
                raise ValueError
            seen.append(name)

        jobs = [gevent.spawn(Policy(Retry(2, Constant("1ms")), name=str(n)).call, work, str(n)) for n in range(20)]
        gevent.joinall(jobs, raise_error=True)
        assert current_context() is None
        print(len(seen))
        """
    )
    assert done.stdout.strip() == "20"


def test_many_threads_ask_for_one_token_at_once():
    for _ in range(50):
        with Policy().execute(deadline="5s") as ctx:
            barrier = threading.Barrier(4)
            tokens = []

            def ask(ctx=ctx, barrier=barrier, tokens=tokens):
                barrier.wait()
                tokens.append(ctx.cancel)

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(set(map(id, tokens))) == 1


def test_calls_that_are_over_leave_no_chain_behind():
    inner, outer = Policy(Retry()), Policy(Retry())
    leaf = inner(lambda: None)
    nested = outer(lambda: leaf())

    def links():
        for _ in range(50):
            nested()
            outer.call(leaf)
        found, cell = 0, _current.get()
        while cell is not None:
            found, cell = found + 1, cell[3]
        return found

    assert contextvars.copy_context().run(links) <= 3


def test_who_waits_without_a_token_hears_of_a_cancel_that_comes_with_the_first_one():
    class Published(dict):
        """Another thread finds the token as soon as it is there, and cancels it."""

        def setdefault(self, name, value):
            found = dict.setdefault(self, name, value)
            if name == "_base":
                found.cancel()
            return found

    ctx, woken = Policy()._context(), []
    ctx._waker = lambda: woken.append(True)
    ctx.__dict__ = Published(ctx.__dict__)
    assert ctx.cancel.is_set()
    assert woken == [True]
