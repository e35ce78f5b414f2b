"""`Retry` in the call form; the loop form is in tests/core/test_loop.py."""

from __future__ import annotations

import dataclasses
import logging
import threading
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from pyresil import (
    Backoff,
    CancelledError,
    CancelToken,
    CircuitOpenError,
    ConfigurationError,
    Constant,
    Exponential,
    Linear,
    Policy,
    RejectedError,
    Retry,
    RetryBudget,
    current_context,
)
from pyresil.testing import InstantClock, ManualClock, record_events
from tests.core.helpers import Flaky, Response


class Recording(InstantClock):
    """Notes every wait; its random numbers are given."""

    def __init__(self, draw=0.5):
        super().__init__()
        self.waits = []
        self.draw = draw
        self.readings = 0

    def monotonic(self):
        self.readings += 1  # a pause of the process is no part of what is noted
        return 1000.0 + self._skipped + self.readings * 1e-6

    def random(self):
        return self.draw

    def park(self, parker, timeout):
        self.waits.append(timeout)
        return super().park(parker, timeout)


def run(retry, *outcomes, clock=None, **options):
    """The result or the error, and the waits."""
    clock = clock or Recording()
    work = Flaky(*outcomes)
    outcome = Policy(retry, clock=clock).options(**options).settle(work)
    return outcome, [round(wait, 2) for wait in clock.waits], work


def test_three_attempts_by_default():
    outcome, waits, work = run(Retry(), ValueError, ValueError, ValueError)
    assert isinstance(outcome.error, ValueError)
    assert work.calls == 3
    assert waits == [0.1, 0.2], "half of 200 and 400 ms: full jitter with a draw of one half"


def test_succeeds_as_soon_as_it_can():
    outcome, waits, work = run(Retry(), ValueError, "fine")
    assert (outcome.value, work.calls, len(waits)) == ("fine", 2, 1)


@pytest.mark.parametrize("attempts", [1, 2, 7])
def test_attempts(attempts):
    boom = ValueError()
    outcome, _waits, work = run(Retry(attempts), *[boom] * 10)
    assert outcome.error is boom
    assert work.calls == attempts
    assert boom.__notes__ == [f"pyresil retry gave up after attempt {attempts}: {attempts} were allowed"]


def test_no_limit_of_attempts():
    _outcome, _waits, work = run(Retry(None, Constant(0)), *[ValueError] * 500)
    assert work.calls == 501


def test_what_is_not_a_failure_is_not_retried():
    client = ValueError()
    client.status = 404
    for error in (client, RejectedError(), CircuitOpenError(1.0), CancelledError()):
        outcome, waits, work = run(Retry(), error)
        assert outcome.error is error
        assert (work.calls, waits) == (1, [])
        assert not hasattr(error, "__notes__")


def test_handle():
    _outcome, _waits, work = run(Retry(handle=KeyError), ValueError)
    assert work.calls == 1
    _outcome, _waits, work = run(Retry(handle=(KeyError, ValueError)), ValueError, KeyError)
    assert work.calls == 3
    _outcome, _waits, work = run(
        Retry(handle=lambda error: "again" in str(error)), ValueError("again"), ValueError("no")
    )
    assert work.calls == 2


def test_results():
    down, up = Response(503), Response(200)
    outcome, _waits, work = run(Retry(), down, up)
    assert (outcome.value, work.calls) == (up, 2)
    outcome, _waits, work = run(Retry(), Response(404))
    assert work.calls == 1
    last = Response(503)
    outcome, _waits, work = run(Retry(), down, down, last)
    assert outcome.value is last, "the last result is returned"
    outcome, _waits, work = run(Retry(handle_result=lambda value: value is None), None, None, 5)
    assert (outcome.value, work.calls) == (5, 3)


def test_discard_closes_what_is_given_up_and_nothing_else():
    answers = [Response(503), Response(503), Response(503)]
    outcome, _waits, _work = run(Retry(3, discard=Response.close), *answers)
    assert [answer.closed for answer in answers] == [True, True, False]
    assert outcome.value is answers[2]


def test_what_discard_raises_is_logged(caplog):
    def broken(value):
        raise KeyError("close failed")

    with caplog.at_level(logging.ERROR, "pyresil"):
        outcome, _waits, _work = run(Retry(3, discard=broken), Response(503))
    assert outcome.value == "ok"
    assert "close failed" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_base_exceptions_are_never_retried(error):
    work = Flaky(error)
    with pytest.raises(error):
        Policy(Retry(handle=BaseException), clock=InstantClock()).call(work)
    assert work.calls == 1
    work = Flaky(ValueError, error)
    with pytest.raises(error):
        Policy(Retry(), clock=InstantClock()).call(work)
    assert work.calls == 2


def test_never_sleeps_past_the_deadline():
    outcome, waits, work = run(Retry(5, Constant("2s")), *[ValueError] * 5, deadline="5s")
    assert (work.calls, waits) == (3, [2.0, 2.0])
    assert "the next delay of 2 s does not fit in the" in outcome.error.__notes__[0]
    _outcome, waits, work = run(Retry(5, Constant("5s")), *[ValueError] * 5, deadline="5s")
    assert (work.calls, waits) == (1, [])


def test_never_sleeps_past_max_elapsed():
    outcome, waits, work = run(Retry(None, Constant("2s"), max_elapsed="5s"), *[ValueError] * 9)
    assert (work.calls, waits) == (3, [2.0, 2.0])
    assert "does not fit in max_elapsed of 5 s" in outcome.error.__notes__[0]


def test_max_elapsed_counts_the_work_too():
    clock = ManualClock()

    def work():
        clock.advance("3s")
        raise ValueError

    with pytest.raises(ValueError) as caught:
        Policy(Retry(None, Constant(0), max_elapsed="7s"), clock=clock).call(work)
    assert "gave up after attempt 3" in caught.value.__notes__[0]


def test_a_result_that_cannot_be_retried_in_time_is_returned():
    down = Response(503)
    outcome, _waits, work = run(Retry(5, Constant("2s")), down, deadline="1s")
    assert (outcome.value, work.calls) == (down, 1)
    assert not down.closed


def test_cancel_ends_the_sleep_at_once():
    token = CancelToken()
    clock = ManualClock()
    policy = Policy(Retry(5, Constant("1h")), clock=clock).options(cancel=token)
    ended = []
    thread = threading.Thread(target=lambda: ended.append(policy.settle(Flaky(ValueError))))
    thread.start()
    clock.wait_until_parked()
    token.cancel("closing")
    thread.join(5)
    assert isinstance(ended[0].error, CancelledError)
    assert ended[0].error.reason == "closing"


def test_a_cancel_without_a_delay_is_seen_too():
    def work():
        current_context().cancel.cancel()
        raise ValueError

    with pytest.raises(CancelledError):
        Policy(Retry(5, Constant(0)), clock=InstantClock()).call(work)


def test_retry_after_is_a_lower_bound():
    clock = Recording()
    asked = Response(503, {"Retry-After": "7"})
    _outcome, waits, _work = run(
        Retry(5, Constant("1s")), asked, Response(503, {"Retry-After": "0"}), clock=clock
    )
    assert waits == [7.0, 1.0]
    error = ValueError()
    error.response = Response(
        503, {"Retry-After": format_datetime(datetime.fromtimestamp(clock.wall() + 60, UTC), True)}
    )
    _outcome, waits, _work = run(Retry(5, Constant("1s")), error, clock=clock)
    waits = waits[2:]
    assert 58 <= waits[0] <= 61
    _outcome, waits, _work = run(Retry(5, Constant("1s"), respect_retry_after=False), error, asked)
    assert waits == [1.0, 1.0]
    _outcome, waits, _work = run(Retry(5, Constant("1s"), handle=RejectedError), CircuitOpenError(3.0))
    assert waits == [3.0]


def test_a_backoff_function_sees_attempt_and_outcome():
    seen = []

    def backoff(attempt, outcome):
        seen.append((attempt, type(outcome).__name__))
        return attempt

    _outcome, waits, _work = run(Retry(5, backoff), ValueError, Response(503))
    assert seen == [(1, "Failure"), (2, "Success")]
    assert waits == [1.0, 2.0]


@pytest.mark.parametrize("value", [float("nan"), -1, None, "x", True, float("inf")])
def test_a_backoff_function_that_returns_nonsense(value):
    boom = ValueError()
    outcome, _waits, work = run(Retry(5, lambda attempt, outcome: value), boom)
    assert isinstance(outcome.error, ConfigurationError)
    assert "what backoff returned must be a duration" in str(outcome.error)
    assert outcome.error.__context__ is boom
    assert work.calls == 1


@pytest.mark.parametrize("value", [float("nan"), -1, None])
def test_a_backoff_of_ones_own_that_returns_nonsense(value):
    class Odd(Backoff):
        def seconds_after(self, attempt, draw, previous=None):
            return value

    outcome, _waits, _work = run(Retry(5, Odd()), ValueError())
    assert isinstance(outcome.error, ConfigurationError)
    assert "what backoff returned must be a duration" in str(outcome.error)


def test_a_backoff_function_may_return_any_duration():
    _outcome, waits, _work = run(Retry(5, lambda attempt, outcome: "250ms"), ValueError)
    assert waits == [0.25]


def test_a_shared_budget_limits_the_retries():
    budget = RetryBudget(ratio=0.1, min_per_second=0)
    clock = Recording()
    policy = Policy(Retry(3, Constant(0), budget=budget), clock=clock)
    other = Policy(Retry(3, Constant(0), budget=budget), clock=clock)
    for _ in range(15):
        policy.call(Flaky())
    for _ in range(5):
        other.call(Flaky())
    first, second = Flaky(*[ValueError] * 5), Flaky(*[ValueError] * 5)
    error = policy.settle(first).error
    assert first.calls == 3
    assert "3 were allowed" in error.__notes__[0]
    error = other.settle(second).error
    assert second.calls == 1
    assert "the retry budget is used up" in error.__notes__[0]


def test_errors_that_cannot_be_written_to_come_out_as_they_are():
    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):
        number: int

    error = Frozen(5)
    outcome, _waits, work = run(Retry(2), error, error)
    assert outcome.error is error
    assert work.calls == 2

    class Odd(Exception):
        __notes__ = None

    error = Odd()
    outcome, _waits, work = run(Retry(2), error, error)
    assert outcome.error is error


def test_one_error_object_gets_one_note():
    boom = ValueError()
    policy = Policy(Retry(2), clock=InstantClock())
    for _ in range(3):
        policy.settle(Flaky(boom, boom))
    assert len(boom.__notes__) == 1


def test_attempts_are_numbered():
    numbers = []

    def work():
        numbers.append(current_context().attempt)
        raise ValueError

    Policy(Retry(3), clock=InstantClock()).settle(work)
    assert numbers == [1, 2, 3]


def test_events_come_before_each_delay():
    boom = ValueError()
    with record_events("retry") as recorded:
        run(Retry(3, Linear("1s"), name="again"), boom, boom, boom)
    assert [(event.source, event.attempt, event.delay, event.error) for event in recorded] == [
        ("again", 1, 1.0, boom),
        ("again", 2, 2.0, boom),
    ]


def test_one_retry_serves_many_threads():
    policy = Policy(Retry(3, Constant(0)))
    results = []

    def work():
        results.extend([policy.call(Flaky(ValueError, ValueError)) for _ in range(200)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["ok"] * 1600


def test_one_retry_in_two_policies_waits_on_the_clock_of_each():
    retry = Retry(2, Constant("5s"))
    one, two = Recording(), Recording()
    Policy(retry, clock=one).call(Flaky(ValueError))
    assert one.waits == pytest.approx([5.0], abs=1e-3)
    Policy(retry, clock=two).call(Flaky(ValueError))
    assert two.waits == pytest.approx([5.0], abs=1e-3)
    assert len(one.waits) == 1


def test_the_default_backoff_is_documented():
    assert Retry().backoff == Exponential("200ms", factor=2, cap="30s", jitter="full")
    assert Retry().attempts == 3
