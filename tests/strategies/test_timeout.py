"""`Timeout` in cooperative mode: what shrinks, what is translated, what is left alone."""

from __future__ import annotations

import gc
import pickle
import weakref

import pytest

from pyresil import (
    BulkheadFullError,
    CancelledError,
    CancelToken,
    ConfigurationError,
    Guard,
    Policy,
    PolicyUsageError,
    Retry,
    Timeout,
    TimeoutExceededError,
    current_context,
)
from pyresil.testing import record_events


def call(policy, work):
    return policy.call(work)


def block(policy, work):
    with policy.execute():
        return work()


def bound(policy, work):
    """Through the nested closures, where a plain call takes the flat function."""
    return policy.options(key="k").call(work)


form = pytest.mark.parametrize("form", [call, block, bound])


class StatusError(Exception):
    def __init__(self, status):
        super().__init__(status)
        self.status = status


@form
def test_the_context_of_the_work_has_the_deadline(clock, form):
    policy = Policy(Timeout("2s"), clock=clock)

    def work():
        ctx = current_context()
        assert ctx.remaining() == 2.0
        clock.advance("0.5s")
        assert ctx.remaining() == 1.5
        assert ctx.timeout() == 1.5
        assert ctx.timeout("1s") == 1.0
        assert not ctx.cancel.is_set()
        return ctx

    ctx = form(policy, work)
    assert ctx.remaining() is None, "the deadline ends with its scope"


@form
def test_what_ends_in_time_is_left_alone(clock, form):
    policy = Policy(Timeout("2s"), clock=clock)
    own = TimeoutError("the work's own")

    def work():
        clock.advance("1.9s")
        raise own

    with pytest.raises(TimeoutError) as raised:
        form(policy, work)
    assert raised.value is own
    assert form(policy, lambda: 3) in (3, None)


@form
def test_an_error_after_the_deadline_becomes_a_timeout(clock, form):
    policy = Policy(Timeout("2s", name="t"), name="p", clock=clock)
    cause = OSError("connection reset")

    def work():
        clock.advance("2s")
        assert current_context().cancel.is_set()
        raise cause

    with record_events("timeout") as events, pytest.raises(TimeoutExceededError) as raised:
        form(policy, work)
    error = raised.value
    assert error.__cause__ is cause
    assert (error.limit, error.policy, error.code) == (2.0, "p", "TIMEOUT")
    assert isinstance(error, TimeoutError)
    assert [(e.policy, e.source, e.limit, e.late) for e in events] == [("p", "t", 2.0, False)]
    again = pickle.loads(pickle.dumps(error))
    assert (again.limit, again.policy) == (2.0, "p")


@form
def test_a_late_result_is_returned_or_refused(clock, form):
    def work():
        clock.advance("3s")
        return "late"

    policy = Policy(Timeout("2s"), clock=clock)
    with record_events("timeout") as events:
        assert form(policy, work) in ("late", None)
    assert [event.late for event in events] == [True]

    strict = Policy(Timeout("2s", strict=True), clock=clock)
    with record_events("timeout") as events, pytest.raises(TimeoutExceededError):
        form(strict, work)
    assert [event.late for event in events] == [True]


@form
@pytest.mark.parametrize(
    "error",
    [
        StatusError(402),
        StatusError(404),
        BulkheadFullError("full"),
        CancelledError("stop"),
        KeyboardInterrupt(),
        SystemExit(3),
        GeneratorExit(),
    ],
    ids=repr,
)
def test_what_leaves_unchanged_after_the_deadline(clock, form, error):
    policy = Policy(Timeout("2s", strict=True), clock=clock)

    def work():
        clock.advance("3s")
        raise error

    with pytest.raises(type(error)) as raised:
        form(policy, work)
    assert raised.value is error
    assert raised.value.__cause__ is None


@form
@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_an_answer_to_come_back_later_is_translated(clock, form, status):
    policy = Policy(Timeout("2s"), clock=clock)

    def work():
        clock.advance("3s")
        raise StatusError(status)

    with pytest.raises(TimeoutExceededError):
        form(policy, work)


def test_a_late_client_error_is_not_retried(clock):
    """Translated into a timeout it would be: three charges of one card."""
    policy = Policy(Retry(3, backoff=lambda *_: 0), Timeout("2s"), clock=clock)
    calls = []

    def work():
        calls.append(1)
        clock.advance("3s")
        raise StatusError(402)

    with pytest.raises(StatusError):
        policy.call(work)
    assert len(calls) == 1


@form
def test_a_wait_of_the_library_ends_at_the_deadline_with_its_error(form):
    policy = Policy(Timeout("30ms", name="t"), name="p")
    kept = []

    def work():
        try:
            current_context().sleep(10)
        except TimeoutExceededError as error:
            kept.append(error)
            raise

    with record_events("timeout") as events, pytest.raises(TimeoutExceededError) as raised:
        form(policy, work)
    assert raised.value is kept[0]
    assert (raised.value.limit, raised.value.policy) == (0.03, "p")
    assert [(event.source, event.late) for event in events] == [("t", False)]


@form
def test_an_enclosing_deadline_s_error_leaves_unchanged(clock, form):
    policy = Policy(Timeout("1s", name="outer"), Timeout("2s", name="inner"), clock=clock)
    kept = []

    def work():
        clock.advance("3s")
        try:
            current_context().cancel.raise_if_cancelled()
        except TimeoutExceededError as error:
            kept.append(error)
            raise

    with record_events("timeout") as events, pytest.raises(TimeoutExceededError) as raised:
        form(policy, work)
    assert raised.value is kept[0]
    assert raised.value.limit == 1.0
    assert [event.source for event in events] == ["outer"]


@form
def test_the_earlier_deadline_is_in_force(clock, form):
    policy = Policy(Timeout("1s"), Timeout("5s"), clock=clock)

    def work():
        return current_context().remaining()

    kept = []
    form(policy, lambda: kept.append(work()))
    policy = Policy(Timeout("5s"), Timeout("1s"), clock=clock)
    form(policy, lambda: kept.append(work()))
    assert kept == [1.0, 1.0]


def test_an_inner_timeout_s_error_that_leaves_late_is_the_outer_s(clock):
    policy = Policy(Timeout("2s"), Timeout("1s"), clock=clock)

    def work():
        clock.advance("3s")
        raise OSError

    with pytest.raises(TimeoutExceededError) as raised:
        policy.call(work)
    assert raised.value.limit == 2.0
    assert raised.value.__cause__.limit == 1.0


def test_nested_policies_share_the_deadline(clock):
    outer = Policy(Timeout("1s"), clock=clock)
    inner = Policy(Timeout("5s"), clock=clock)

    def work():
        clock.advance("2s")
        current_context().cancel.raise_if_cancelled()

    with pytest.raises(TimeoutExceededError) as raised:
        outer.call(lambda: inner.call(work))
    assert raised.value.limit == 1.0
    assert raised.value.__cause__ is None


def test_a_cancel_with_an_exception_as_its_reason_leaves_unchanged(clock):
    token, reason = CancelToken(), LookupError("my reason")
    policy = Policy(Timeout("2s"), clock=clock).options(cancel=token)

    def work():
        clock.advance("3s")
        token.cancel(reason)
        current_context().cancel.raise_if_cancelled()

    with pytest.raises(LookupError) as raised:
        policy.call(work)
    assert raised.value is reason


@form
def test_callbacks_fire_at_the_deadline_and_not_after_the_scope(clock, form):
    import threading

    policy = Policy(Timeout("2s"), clock=clock)
    fired = threading.Event()

    def work():
        current_context().cancel.on_cancel(fired.set)
        clock.advance("2s")
        return fired.wait(5)

    form(policy, work)
    assert fired.is_set()

    late = []

    def quick():
        current_context().cancel.on_cancel(lambda: late.append(1))

    form(policy, quick)
    clock.advance("10s")
    assert not late


def test_each_attempt_of_a_retry_has_its_own_time(clock):
    policy = Policy(Retry(3, backoff=lambda *_: 0), Timeout("2s"), clock=clock)
    seen = []

    def work():
        seen.append(current_context().remaining())
        clock.advance("3s")
        raise OSError

    with pytest.raises(TimeoutExceededError):
        policy.call(work)
    assert seen == [2.0, 2.0, 2.0]


def test_a_token_made_outside_of_the_scope_survives_it(clock):
    from pyresil import Strategy

    class Looks(Strategy):
        def run(self, call, ctx):
            before = ctx.cancel
            call()
            assert ctx.cancel is before
            assert before.remaining() is None
            return before

    policy = Policy(Looks(), Timeout("1s"), clock=clock)
    policy.call(lambda: current_context().cancel.remaining())


@form
def test_locals_of_late_work_die_without_the_collector(clock, form):
    policy = Policy(Timeout("2s"), clock=clock)

    class Thing:
        pass

    kept = []

    def work():
        thing = Thing()
        kept.append(weakref.ref(thing))
        clock.advance("3s")
        raise OSError

    gc.collect()
    gc.disable()
    try:
        try:
            form(policy, work)
        except TimeoutExceededError:
            pass
        assert kept[0]() is None
    finally:
        gc.enable()


def test_the_mode_decides_whether_it_is_a_guard():
    assert isinstance(Timeout("1s"), Timeout)
    assert isinstance(Timeout("1s"), Guard)
    abandon = Timeout("1s", mode="abandon")
    assert isinstance(abandon, Timeout)
    assert not isinstance(abandon, Guard)
    with pytest.raises(PolicyUsageError, match="timeout"), Policy(abandon).execute():
        pass
    assert isinstance(Timeout("1s", "abandon"), type(abandon))
    assert Timeout("1s").abandoned == 0


def test_describe_and_repr():
    assert Timeout("2s").describe() == {
        "strategy": "timeout",
        "name": None,
        "limit": 2.0,
        "mode": "cooperative",
        "strict": False,
        "max_abandoned": 32,
    }
    assert Timeout(1, mode="abandon", name="t").describe()["mode"] == "abandon"
    assert repr(Timeout(2)) == "Timeout(limit=2.0, mode='cooperative', strict=False)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "timeout: limit must be a duration above 0, got 0"),
        ({"limit": -1}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": float("nan")}, "limit"),
        ({"limit": float("inf")}, "limit"),
        ({"limit": None}, "limit"),
        ({"limit": "2 parsecs"}, "limit"),
        ({"limit": 1, "mode": "kill"}, "mode must be one of 'cooperative', 'abandon', got 'kill'"),
        ({"limit": 1, "strict": 1}, "strict must be True or False, got 1"),
        ({"limit": 1, "max_abandoned": 0}, "max_abandoned must be a positive integer, got 0"),
        ({"limit": 1, "mode": "abandon", "max_abandoned": True}, "max_abandoned"),
        ({"limit": 0, "strict": None, "name": 3}, "name.*; limit.*; strict"),
    ],
)
def test_bad_options_are_refused_all_at_once(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Timeout(**options)


def test_missing_and_unknown_options_are_refused():
    with pytest.raises(TypeError, match="limit"):
        Timeout()
    with pytest.raises(TypeError, match="limt"):
        Timeout(limt=3)
    with pytest.raises(TypeError, match="stict"):
        Timeout(1, mode="abandon", stict=True)
