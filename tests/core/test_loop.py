"""`for attempt in policy.execute()`."""

from __future__ import annotations

import gc

import pytest

from pyresil import (
    CancelledError,
    CancelToken,
    Constant,
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
from tests.core.helpers import Again, Noted, Response


@pytest.fixture(autouse=True)
def no_collector():
    """What a loop leaves open must be closed without the garbage collector."""
    gc.disable()
    yield
    gc.enable()


def policy_of(*strategies, **options):
    return Policy(*strategies, clock=InstantClock(), **options)


def run(policy, work, **options):
    """The loop as users write it; returns the last value."""
    value = None
    for attempt in policy.execute(**options):
        with attempt as ctx:
            value = work()
            ctx.report(value)
    return value


def failing(times, then="ok", error=ValueError):
    left = [times]

    def work():
        if left[0]:
            left[0] -= 1
            raise error(f"{left[0]} left")
        return then

    return work


def test_guards_outside_enter_once_and_guards_inside_for_each_attempt():
    notes = []
    policy = policy_of(Noted(notes, "out"), Retry(3), Noted(notes, "in"))
    assert run(policy, failing(2)) == "ok"
    assert notes == [
        ("out", "enter"),
        ("in", "enter"),
        ("in", "ValueError"),
        ("in", "enter"),
        ("in", "ValueError"),
        ("in", "enter"),
        ("in", "ok"),
        ("out", "ok"),
    ]


def test_the_last_error_itself_comes_out():
    boom = ValueError("boom")

    def work():
        raise boom

    guard = Noted()
    with pytest.raises(ValueError) as caught:
        run(policy_of(guard, Retry(2)), work)
    assert caught.value is boom
    assert boom.__notes__ == ["pyresil retry gave up after attempt 2: 2 were allowed"]
    assert guard.notes == [("guard", "enter"), ("guard", "ValueError")]


def test_a_reported_failure_is_retried_and_the_last_one_accepted():
    answers = [Response(503), Response(503), Response(503)]
    guard = Noted()
    discarded = []
    policy = policy_of(guard, Retry(3, discard=discarded.append))
    given = iter(answers)
    numbers = []
    for attempt in policy.execute():
        with attempt as ctx:
            numbers.append((attempt.number, ctx.attempt))
            ctx.report(next(given))
    assert numbers == [(1, 1), (2, 2), (3, 3)]
    assert discarded == answers[:2]
    assert guard.notes[-1] == ("guard", answers[2])


def test_without_a_retry_there_is_one_attempt():
    guard = Noted()
    with pytest.raises(ValueError):
        run(policy_of(guard), failing(1))
    assert run(policy_of(guard), failing(0)) == "ok"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_base_exceptions_end_the_loop_unjudged(error):
    notes = []
    policy = policy_of(
        Noted(notes, "out", replace=lambda outcome: Failure(KeyError())), Retry(3), Noted(notes, "in")
    )
    raised = error()

    def work():
        raise raised

    with pytest.raises(error) as caught:
        run(policy, work)
    assert caught.value is raised
    assert [note[1] for note in notes] == ["enter", "enter", error.__name__, error.__name__]


def test_a_rejection_inside_is_judged_like_any_error():
    answers = iter([True, True, False])
    notes = []
    inner = Noted(notes, "in", reject=lambda: next(answers))
    policy = policy_of(Noted(notes, "out"), Retry(5, handle=RejectedError), inner)
    numbers = []
    for attempt in policy.execute():
        with attempt:
            numbers.append(attempt.number)
    assert numbers == [3]
    assert notes == [
        ("out", "enter"),
        ("in", "reject"),
        ("in", "reject"),
        ("in", "enter"),
        ("in", None),
        ("out", None),
    ]


def test_a_rejection_inside_is_final_by_default():
    notes = []
    policy = policy_of(
        Noted(notes, "out"), Retry(5), Noted(notes, "a"), Noted(notes, "b", reject=lambda: True)
    )
    with pytest.raises(RejectedError, match="b is full"):
        for _attempt in policy.execute():
            raise AssertionError
    assert notes == [
        ("out", "enter"),
        ("a", "enter"),
        ("b", "reject"),
        ("a", "RejectedError"),
        ("out", "RejectedError"),
    ]
    assert current_context() is None


def test_a_rejection_outside_is_raised_by_the_first_step():
    notes = []
    policy = policy_of(Noted(notes, "a"), Noted(notes, "b", reject=lambda: True), Retry(3))
    with record_events(Executed) as recorded, pytest.raises(RejectedError):
        for _attempt in policy.execute():
            raise AssertionError
    assert notes == [("a", "enter"), ("b", "reject"), ("a", "RejectedError")]
    assert [type(event.outcome.error) for event in recorded] == [RejectedError]


def test_break_between_attempts_closes_at_once_and_unjudged():
    guard, inner = Noted(), Noted()
    with record_events(Executed) as recorded:
        for attempt in policy_of(guard, Retry(3), inner).execute():
            with attempt:
                raise ValueError
            break
        assert (guard.inside, inner.inside) == (0, 0)
    assert guard.notes[-1] == ("guard", "GeneratorExit")
    assert inner.notes[-1] == ("guard", "ValueError")
    assert recorded == []
    assert attempt.number == 1, "the attempt is still held here, and holds nothing open"


def test_break_inside_an_attempt_is_its_success():
    guard, inner = Noted(), Noted()
    for attempt in policy_of(guard, Retry(3), inner).execute():
        with attempt as ctx:
            ctx.report(5)
            break
    assert guard.notes[-1] == inner.notes[-1] == ("guard", 5)


def test_return_from_inside_an_attempt():
    guard = Noted()

    def work():
        for attempt in policy_of(guard, Retry(3)).execute():
            with attempt as ctx:
                ctx.report(7)
                return 7
        return None

    assert work() == 7
    assert guard.notes[-1] == ("guard", 7)


def test_an_exception_between_attempts_closes_at_once_and_unjudged():
    guard, inner = Noted(), Noted()
    with pytest.raises(ZeroDivisionError):
        for attempt in policy_of(guard, Retry(3), inner).execute():
            with attempt:
                raise ValueError
            raise ZeroDivisionError
    assert (guard.inside, inner.inside) == (0, 0)
    assert guard.notes[-1] == ("guard", "GeneratorExit")


def test_an_exception_before_the_attempt_is_entered():
    guard, inner = Noted(), Noted()
    with pytest.raises(ZeroDivisionError):
        for _attempt in policy_of(guard, Retry(3), inner).execute():
            raise ZeroDivisionError
    assert guard.notes[-1] == inner.notes[-1] == ("guard", "GeneratorExit")


def test_an_attempt_that_was_not_entered():
    guard, inner = Noted(), Noted()
    with pytest.raises(
        PolicyUsageError, match="attempt 1 was not entered: write `with attempt as ctx:`"
    ) as caught:
        for _attempt in policy_of(guard, Retry(3), inner, name="carrier").execute():
            pass
    assert caught.value.policy == "carrier"
    assert guard.notes[-1] == inner.notes[-1] == ("guard", "GeneratorExit")


def test_an_attempt_that_is_entered_twice():
    guard = Noted()
    with pytest.raises(PolicyUsageError, match="entered only once"):
        for attempt in policy_of(guard, Retry(3)).execute():
            with attempt:
                raise ValueError
            with attempt:
                raise AssertionError
    assert guard.inside == 0


def test_an_attempt_that_is_still_running():
    guard, inner = Noted(), Noted()
    steps = iter(policy_of(guard, Retry(3), inner).execute())
    with pytest.raises(PolicyUsageError, match="attempt 1 is still running"), next(steps):
        next(steps)
    assert (guard.inside, inner.inside) == (0, 0)
    assert [note[1] for note in inner.notes] == ["enter", "GeneratorExit"]
    with pytest.raises(StopIteration):
        next(steps)


def test_an_error_of_an_attempt_whose_loop_was_closed_is_not_swallowed():
    steps = iter(policy_of(Retry(3)).execute())
    with pytest.raises(ValueError), next(steps):
        steps.close()
        raise ValueError


def test_no_step_after_the_end():
    steps = iter(policy_of(Retry(3)).execute())
    with next(steps):
        pass
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(steps)


def test_a_loop_that_never_began_enters_nothing():
    guard = Noted()
    steps = iter(policy_of(guard, Retry(3)).execute())
    del steps
    assert guard.notes == []


def test_an_outer_guard_may_replace_the_outcome():
    other = KeyError("other")
    policy = policy_of(Noted(replace=lambda outcome: Failure(other)), Retry(2))
    with pytest.raises(KeyError) as caught:
        run(policy, failing(5))
    assert caught.value is other
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(KeyError) as caught:
        run(policy, failing(0))
    assert caught.value is other, "also of a success, as a strict timeout does"


def test_an_inner_guard_may_replace_the_outcome():
    policy = policy_of(Retry(2), Noted(replace=lambda outcome: Failure(KeyError("other"))))
    numbers = []
    with pytest.raises(KeyError):
        for attempt in policy.execute():
            with attempt:
                numbers.append(attempt.number)
    assert numbers == [1, 2], "what the guard made of it is retried"


def test_a_guard_that_replaced_an_error_with_a_client_error_ends_the_loop():
    refused = ValueError()
    refused.status = 404
    policy = policy_of(Retry(2), Noted(replace=lambda outcome: Failure(refused)))
    with pytest.raises(ValueError) as caught:
        run(policy, failing(1, error=KeyError))
    assert caught.value is refused


def test_at_most_one_retry_and_no_other_runner():
    guard = Noted()
    for strategies, word in (
        ((guard, Retry(), Retry()), "a second retry"),
        ((guard, Fallback(None), Retry()), "fallback"),
        ((guard, Retry(), Policy(Again(2))), "a second retry"),
    ):
        with pytest.raises(PolicyUsageError, match=f"{word} cannot stand in a retry loop"):
            for _attempt in policy_of(*strategies).execute():
                raise AssertionError
    assert guard.notes == []


def test_an_own_retry_drives_the_loop():
    guard = Noted()
    numbers = []
    for attempt in policy_of(guard, Again(3)).execute():
        with attempt:
            numbers.append(attempt.number)
            if attempt.number < 3:
                raise ValueError
    assert numbers == [1, 2, 3]
    assert guard.notes == [("guard", "enter"), ("guard", None)]


def test_each_attempt_has_its_own_current_context():
    seen = []
    policy = policy_of(Retry(3))
    for attempt in policy.execute(key="k", properties={"a": 1}):
        assert current_context() is None
        with attempt as ctx:
            assert current_context() is ctx is attempt.ctx
            ctx.properties["n"] = attempt.number
            seen.append(ctx)
            if attempt.number < 3:
                raise ValueError
    assert [ctx.attempt for ctx in seen] == [1, 2, 3]
    assert {ctx.key for ctx in seen} == {"k"}
    assert seen[0].properties is seen[1].properties is seen[2].properties
    assert seen[0].properties == {"a": 1, "n": 3}


def test_guards_see_the_context_as_the_current_one():
    class Looks(Noted):
        def enter(self, ctx):
            assert current_context() is ctx
            return super().enter(ctx)

        def exit(self, ctx, token, outcome):
            seen.append(current_context() is not None)
            return super().exit(ctx, token, outcome)

    seen = []
    assert run(policy_of(Looks(), Retry(2), Looks()), failing(1)) == "ok"
    assert seen == [True, True, True]
    assert current_context() is None


def test_the_wait_ends_at_the_deadline():
    guard = Noted()
    policy = policy_of(guard, Retry(5, Constant("10s")))
    with pytest.raises(ValueError, match="left") as caught:
        run(policy, failing(5), deadline="15s")
    assert "does not fit in the" in caught.value.__notes__[0]
    assert guard.notes[-1] == ("guard", "ValueError")


def test_a_cancel_before_the_next_attempt_ends_the_execution():
    token = CancelToken()
    guard = Noted()
    policy = policy_of(guard, Retry(5))
    with record_events(Executed) as recorded, pytest.raises(CancelledError, match="closing"):
        for attempt in policy.execute(cancel=token):
            with attempt:
                token.cancel("closing")
                raise ValueError
    assert guard.notes[-1] == ("guard", "CancelledError")
    assert len(recorded) == 1


def test_no_time_left_or_cancelled_before_the_first_attempt():
    guard = Noted()
    with pytest.raises(TimeoutExceededError):
        run(policy_of(guard, Retry()), failing(0), deadline=0)
    assert guard.notes == []


def test_execution_event_tells_the_outcome():
    with record_events(Executed) as recorded:
        assert run(policy_of(Retry(3), name="carrier"), failing(2)) == "ok"
        with pytest.raises(ValueError):
            run(policy_of(Retry(2)), failing(2))
    assert [event.outcome for event in recorded] == [Success("ok"), recorded[1].outcome]
    assert isinstance(recorded[1].outcome.error, ValueError)


def test_a_judge_that_raises_ends_the_loop_and_leaves_the_guards():
    def broken(error):
        raise ZeroDivisionError

    guard, inner = Noted(), Noted()
    with pytest.raises(ZeroDivisionError):
        run(policy_of(guard, Retry(3, handle=broken), inner), failing(1))
    assert (guard.inside, inner.inside) == (0, 0)


def test_a_back_off_that_raises_is_how_the_execution_ends_as_in_a_call():
    def refuses(attempt, outcome):
        raise KeyError("no idea")

    def work():
        raise ValueError

    for form in (run, Policy.call):
        guard = Noted()
        with record_events(Executed) as events, pytest.raises(KeyError, match="no idea"):
            form(policy_of(guard, Retry(3, refuses)), work)
        assert guard.notes == [("guard", "enter"), ("guard", "KeyError")]
        assert [type(event.outcome.error) for event in events] == [KeyError]
        assert current_context() is None


def test_a_loop_that_goes_on_after_its_back_off_raised_is_over():
    def refuses(attempt, outcome):
        raise KeyError("no idea")

    numbers = []
    for attempt in policy_of(Retry(3, refuses)).execute():
        with pytest.raises(KeyError), attempt:
            numbers.append(attempt.number)
            raise ValueError
    assert numbers == [1]


def test_two_loops_of_one_policy_do_not_meet():
    policy = policy_of(Retry(2))
    numbers = []
    for one in policy.execute():
        with one:
            for two in policy.execute():
                with two:
                    numbers.append((one.number, two.number))
                    if two.number == 1:
                        raise ValueError
            if one.number == 1:
                raise ValueError
    assert numbers == [(1, 1), (1, 2), (2, 1), (2, 2)]
