"""`Fallback`."""

from __future__ import annotations

import logging

import pytest

from pyresil import (
    BulkheadFullError,
    CancelledError,
    Fallback,
    Policy,
    Retry,
    TimeoutExceededError,
    cached,
    fallback,
)
from pyresil.testing import InstantClock, record_events
from tests.core.helpers import Flaky, Noted, Response


def client_error():
    error = ValueError("not found")
    error.status = 404
    return error


@pytest.mark.parametrize("value", [None, 0, "", False, [], "spare"])
def test_any_value_takes_the_place_of_a_failure(value):
    assert Policy(Fallback(value)).call(Flaky(ValueError)) is value
    assert Policy(Fallback(value)).call(Flaky()) == "ok"


def test_a_function_gets_the_error_and_the_context():
    seen = []

    def using(error, ctx):
        seen.append((error, ctx.policy, ctx.args, ctx.key))
        return "spare"

    boom = ValueError()
    assert Policy(Fallback(using=using), name="carrier").options(key="k").call(Flaky(boom), 1) == "spare"
    assert seen == [(boom, "carrier", (1,), "k")]


def test_rejections_are_seen():
    assert Policy(Fallback(0), Noted(reject=lambda: True)).call(Flaky()) == 0
    assert Policy(Fallback(0)).call(Flaky(BulkheadFullError())) == 0
    assert Policy(Fallback(0)).call(Flaky(TimeoutExceededError())) == 0


def test_client_errors_and_cancellations_pass():
    for error in (client_error(), CancelledError()):
        with pytest.raises(type(error)) as caught:
            Policy(Fallback(0)).call(Flaky(error))
        assert caught.value is error


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_base_exceptions_pass(error):
    with pytest.raises(error):
        Policy(Fallback(0, handle=BaseException)).call(Flaky(error))


def test_handle_replaces_the_default():
    policy = Policy(Fallback(0, handle=KeyError))
    assert policy.call(Flaky(KeyError)) == 0
    for error in (ValueError, BulkheadFullError):
        with pytest.raises(error):
            policy.call(Flaky(error))


def test_results():
    assert Policy(Fallback(0)).call(lambda: Response(503)) == 0
    assert Policy(Fallback(0)).call(lambda: Response(404)).status_code == 404
    assert Policy(Fallback("none", handle_result=lambda value: value is None)).call(lambda: None) == "none"


def test_an_error_in_the_fallback_has_the_first_one_as_its_context():
    boom = ValueError()

    def using(error, ctx):
        raise KeyError("spare is broken")

    with pytest.raises(KeyError) as caught:
        Policy(Fallback(using=using)).call(Flaky(boom))
    assert caught.value.__context__ is boom


def test_reraising_the_error_itself():
    boom = ValueError()

    def using(error, ctx):
        raise error

    with pytest.raises(ValueError) as caught:
        Policy(Fallback(using=using)).call(Flaky(boom))
    assert caught.value is boom


def test_several_fallbacks():
    policy = Policy(
        Fallback("last"), Fallback(using=lambda error, ctx: 1 / 0), Fallback("first", handle=KeyError)
    )
    assert policy.call(Flaky(KeyError)) == "first"
    assert policy.call(Flaky(ValueError)) == "last"


def test_inside_a_retry_it_ends_the_attempts():
    work = Flaky(ValueError, ValueError)
    assert Policy(Retry(3), Fallback("spare"), clock=InstantClock()).call(work) == "spare"
    assert work.calls == 1
    work = Flaky(ValueError, ValueError)
    assert Policy(Fallback("spare"), Retry(3), clock=InstantClock()).call(work) == "ok"
    assert work.calls == 3


def test_the_log_says_what_it_replaced(caplog):
    with caplog.at_level(logging.INFO, "pyresil"):
        Policy(Fallback(0, name="spare"), name="carrier").call(Flaky(ValueError("secret")))
        Policy(Fallback(0), name="carrier").call(lambda: Response(503))
    assert caplog.messages == [
        "fallback spare of policy carrier took the place of ValueError",
        "fallback of policy carrier took the place of a result judged a failure",
    ]
    assert "secret" not in caplog.text


def test_event():
    boom = ValueError()
    with record_events("fallback") as recorded:
        Policy(Fallback(0, name="spare"), name="carrier").call(Flaky(boom))
        Policy(Fallback(0)).options(source="orders").call(Flaky(boom))
    assert [(event.policy, event.source, event.error) for event in recorded] == [
        ("carrier", "spare", boom),
        (None, "orders", boom),
    ]


def test_it_looks_at_cached_values_too():
    @fallback("spare", handle_result=lambda value: value is None)
    @cached("1h")
    def work(number):
        return None

    assert [work(1), work(1), work(1)] == ["spare"] * 3
