"""`with policy.execute() as ctx`."""

from __future__ import annotations

import contextlib
import gc

import pytest

from pyresil import (
    CancelledError,
    CancelToken,
    Failure,
    Fallback,
    Policy,
    PolicyUsageError,
    RejectedError,
    Retry,
    Success,
    TimeoutExceededError,
    current_context,
)
from pyresil.events import Executed
from pyresil.testing import InstantClock, record_events
from tests.core.helpers import Again, Noted


def test_guards_enter_and_leave_around_the_block():
    notes = []
    with Policy(Noted(notes, "a"), Noted(notes, "b"), name="carrier").execute() as ctx:
        notes.append("work")
        assert current_context() is ctx
        assert (ctx.policy, ctx.attempt) == ("carrier", 1)
    assert notes == [("a", "enter"), ("b", "enter"), "work", ("b", None), ("a", None)]
    assert current_context() is None


def test_report_is_what_the_block_returned():
    notes = []
    with Policy(Noted(notes)).execute() as ctx:
        ctx.report(1)
        ctx.report(2)
    assert notes[-1] == ("guard", 2)


def test_an_error_beats_a_report():
    notes = []
    boom = ValueError()
    with pytest.raises(ValueError) as caught, Policy(Noted(notes)).execute() as ctx:
        ctx.report(1)
        raise boom
    assert caught.value is boom
    assert notes[-1] == ("guard", "ValueError")


def test_a_rejection_is_raised_on_entry():
    notes = []
    policy = Policy(Noted(notes, "a"), Noted(notes, "b", reject=lambda: True))
    with pytest.raises(RejectedError), policy.execute():
        notes.append("work")
    assert notes == [("a", "enter"), ("b", "reject"), ("a", "RejectedError")]
    assert current_context() is None


def test_an_outer_guard_may_replace_a_rejection():
    policy = Policy(Noted(replace=lambda outcome: Failure(KeyError("other"))), Noted(reject=lambda: True))
    with pytest.raises(KeyError) as caught, policy.execute():
        raise AssertionError
    assert isinstance(caught.value.__cause__, RejectedError)


def test_a_guard_may_replace_either_outcome():
    other = KeyError()
    policy = Policy(Noted(replace=lambda outcome: Failure(other)))
    with pytest.raises(KeyError) as caught, policy.execute():
        pass
    assert caught.value is other
    boom = ValueError()
    with pytest.raises(KeyError) as caught, policy.execute():
        raise boom
    assert caught.value is other
    assert caught.value.__cause__ is boom


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_base_exceptions_come_out_unchanged(error):
    notes = []
    raised = error()
    policy = Policy(
        Noted(notes, "a", replace=lambda outcome: Failure(KeyError())),
        Noted(notes, "b", fail=RuntimeError("broken")),
    )
    with pytest.raises(error) as caught, policy.execute():
        raise raised
    assert caught.value is raised
    assert [note[1] for note in notes] == ["enter", "enter", error.__name__, error.__name__]


@pytest.mark.parametrize(
    ("strategy", "form"),
    [
        (Retry(), "for attempt in policy.execute"),
        (Fallback(None), "policy.call"),
        (Again(2), "for attempt in policy.execute"),
    ],
)
def test_a_runner_cannot_surround_a_block(strategy, form):
    guard = Noted()
    for policy in (Policy(guard, strategy, name="carrier"), Policy(Policy(strategy), name="carrier")):
        match = f"{strategy.kind} .*{form}"
        with pytest.raises(PolicyUsageError, match=match) as caught, policy.execute():
            raise AssertionError
        assert caught.value.policy == "carrier"
    assert guard.notes == []


def test_used_once():
    execution = Policy().execute()
    with execution:
        pass
    with pytest.raises(PolicyUsageError, match="used once"):
        execution.__enter__()
    with pytest.raises(PolicyUsageError, match="used once"):
        iter(execution)


def test_options_of_execute():
    with Policy().execute(key="k", source="s", properties={"a": 1}) as ctx:
        assert (ctx.key, ctx.source, ctx.properties) == ("k", "s", {"a": 1})
    with Policy().options(key="k", source="s").execute(source="t") as ctx:
        assert (ctx.key, ctx.source) == ("k", "t")


def test_no_time_left_or_cancelled_before_entry():
    guard = Noted()
    with pytest.raises(TimeoutExceededError), Policy(guard).execute(deadline=0):
        raise AssertionError
    token = CancelToken()
    token.cancel("closing")
    with pytest.raises(CancelledError, match="closing"), Policy(guard).execute(cancel=token):
        raise AssertionError
    assert guard.notes == []


def test_guards_of_a_policy_inside():
    notes = []
    policy = Policy(Noted(notes, "a"), Policy(Noted(notes, "b"), Policy(Noted(notes, "c"))))
    with policy.execute():
        pass
    assert [note[0] for note in notes] == ["a", "b", "c", "c", "b", "a"]


def test_a_policy_with_options_inside_is_refused_in_a_block():
    policy = Policy(Policy(Noted()).options(deadline="1s"))
    with pytest.raises(PolicyUsageError, match="options"), policy.execute():
        raise AssertionError


def test_a_users_strategy_with_such_attributes_is_not_taken_apart():
    class Sly(Noted):
        def __init__(self):
            super().__init__()
            self.policy = Policy()
            self.strategies = ()

    guard = Sly()
    with Policy(guard).execute():
        pass
    assert len(guard.notes) == 2


def test_execution_event():
    clock = InstantClock()
    with record_events(Executed) as recorded:
        with Policy(Noted(), name="carrier", clock=clock).execute(source="s") as ctx:
            ctx.report(7)
            ctx.sleep("2s")
        with contextlib.suppress(ValueError), Policy().execute():
            raise ValueError
        with contextlib.suppress(RejectedError), Policy(Noted(reject=lambda: True)).execute():
            pass
    assert recorded[0].outcome == Success(7)
    assert (recorded[0].policy, recorded[0].source) == ("carrier", "s")
    assert recorded[0].duration >= 2.0
    assert isinstance(recorded[1].outcome.error, ValueError)
    assert isinstance(recorded[2].outcome.error, RejectedError)


def test_a_block_that_is_dropped_is_left_at_once():
    gc.disable()
    try:
        guard = Noted()
        execution = Policy(guard).execute()
        execution.__enter__()
        assert guard.inside == 1
        del execution
        assert guard.inside == 0
    finally:
        gc.enable()
    assert guard.notes[-1] == ("guard", "GeneratorExit")


def test_a_generator_that_is_closed_inside_the_block():
    guard = Noted()

    def generator():
        with Policy(guard).execute():
            yield 1

    running = generator()
    next(running)
    running.close()
    assert guard.inside == 0
    assert guard.notes[-1] == ("guard", "GeneratorExit")
    assert current_context() is None


def test_exit_stack():
    notes = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(Policy(Noted(notes, "a")).execute())
        stack.enter_context(Policy(Noted(notes, "b")).execute())
    assert [note[0] for note in notes] == ["a", "b", "b", "a"]
