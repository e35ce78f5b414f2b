"""Outcomes and default verdicts."""

from __future__ import annotations

import gc
import http
import pickle
import urllib.error
import weakref
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
import requests

from pyresil import (
    AdaptiveBulkhead,
    CancelledError,
    CircuitBreaker,
    CircuitOpenError,
    Constant,
    Failure,
    Fallback,
    Hedge,
    Policy,
    RejectedError,
    Retry,
    Success,
    caused_by,
)
from pyresil._validate import Checker
from pyresil.durations import LONGEST
from pyresil.outcome import Judge, error_verdict, retry_after_of, status_of, value_is_failure
from tests.core.helpers import Flaky


class Bag:
    def __init__(self, **values):
        vars(self).update(values)


def error(**values):
    made = ValueError("boom")
    vars(made).update(values)
    return made


class Hostile(Exception):
    """Every attribute that a judge may look at raises."""

    @property
    def response(self):
        raise RuntimeError("no response")

    status_code = code = status = retry_after = headers = response


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (error(), None),
        (error(response=Bag(status_code=503)), 503),
        (error(response=Bag(status_code=None), status=404), 404),
        (error(status_code=404, code=500), 404),
        (error(status_code="404", code=500), 500),
        (error(status_code=True, status=400), 400),
        (error(status_code=99, code=600, status=599), 599),
        (error(response=None, code=418), 418),
        (error(status=http.HTTPStatus.NOT_FOUND), 404),
        (urllib.error.HTTPError("http://x", 429, "no", None, None), 429),
        (Hostile(), None),
    ],
)
def test_status_of(given, status):
    assert status_of(given) == status


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (ValueError(), True),
        (error(status=400), False),
        (error(status=499), False),
        (error(status=404), False),
        (error(status=408), True),
        (error(status=425), True),
        (error(status=429), True),
        (error(status=399), True),
        (error(status=500), True),
        (RejectedError(), None),
        (CircuitOpenError(), None),
        (CancelledError(), None),
        (KeyboardInterrupt(), None),
        (SystemExit(503), None),
        (GeneratorExit(), None),
        (TimeoutError(), True),
        (Hostile(), True),
    ],
)
def test_verdict_of_errors(given, verdict):
    assert error_verdict(given) is verdict


class HostileValue:
    @property
    def status_code(self):
        raise RuntimeError("not bound")


@pytest.mark.parametrize(
    ("value", "failure"),
    [(None, False), (503, False), (False, False), ("503", False), (Bag(status_code=503), True), (Bag(status_code=200), False),
     (Bag(status_code=404), False), (Bag(status_code=408), True), (Bag(status_code=425), True), (Bag(status_code=429), True),
     (Bag(status_code=True), False), (Bag(status_code="503"), False), (Bag(status_code=999), True), (Bag(status=503), False),
     (Bag(status_code=http.HTTPStatus.BAD_GATEWAY), True), (HostileValue(), False)],
)  # fmt: skip
def test_verdict_of_values(value, failure):
    assert value_is_failure(value) is failure


def judge(handle=None, handle_result=None):
    check = Checker("test")
    made = Judge(handle, handle_result, check)
    check.done()
    return made


def test_handle_replaces_the_default_verdicts():
    only = judge(ValueError)
    assert only.error(ValueError()) is True
    assert only.error(error(status=404)) is True, "a type that was named is a failure, client error or not"
    assert only.error(KeyError()) is None, "what it does not cover is unjudged"
    several = judge((KeyError, OSError))
    assert several.error(ConnectionError()) is True
    assert several.error(ValueError()) is None
    predicate = judge(lambda given: "again" in str(given))
    assert predicate.error(ValueError("try again")) is True
    assert predicate.error(ValueError("no")) is None


@pytest.mark.parametrize(
    "handle", [BaseException, KeyboardInterrupt, (SystemExit, Exception), lambda given: True]
)
def test_no_handle_reaches_base_exceptions(handle):
    for given in (KeyboardInterrupt(), SystemExit(), GeneratorExit()):
        assert judge(handle).error(given) is None


def test_handle_result():
    assert judge(handle_result=lambda value: value is None).value(None) is True
    assert judge(handle_result=lambda value: value is None).value(Bag(status_code=503)) is False
    assert judge(handle_result=lambda value: [1]).value(0) is True


def test_match():
    match Success(5):
        case Success(value):
            assert value == 5
    boom = ValueError()
    match Failure(boom):
        case Failure(KeyError()):
            raise AssertionError
        case Failure(ValueError() as caught):
            assert caught is boom


def test_equality_hash_repr_pickle():
    assert Success(1) == Success(1.0)
    assert Success(1) != Success(2)
    assert Success(1) != 1
    assert len({Success(1), Success(1), Success(2)}) == 2
    boom = ValueError("x")
    assert Failure(boom) == Failure(boom)
    assert Failure(boom) != Failure(ValueError("x"))
    assert repr(Success(1)) == "Success(1)"
    assert repr(Failure(boom)) == "Failure(ValueError('x'))"
    assert pickle.loads(pickle.dumps(Success([1]))) == Success([1])
    assert str(pickle.loads(pickle.dumps(Failure(boom))).error) == "x"


def test_unwrap():
    assert Success(5).unwrap() == 5
    boom = ValueError()
    with pytest.raises(ValueError) as caught:
        Failure(boom).unwrap()
    assert caught.value is boom


def test_unwrap_leaves_no_cycle():
    class Local:
        pass

    def raising():
        here = Local()
        nonlocal watched
        watched = weakref.ref(here)
        raise ValueError

    watched = None
    gc.disable()
    try:
        try:
            try:
                raising()
            except ValueError as caught:
                failure = Failure(caught)
            failure.unwrap()
        except ValueError:
            pass
        del failure
        assert watched() is None
    finally:
        gc.enable()


WALL = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def date(after):
    return format_datetime(datetime.fromtimestamp(WALL + after, UTC), usegmt=True)


def response(header):
    made = requests.Response()
    made.status_code = 503
    made.headers["Retry-After"] = header
    return made


@pytest.mark.parametrize(
    ("header", "expected"),
    [("3", 3.0), (" 120 ", 120.0), ("0", 0.0), ("1000000000", 1e9), ("9" * 500, LONGEST), ("-1", None), ("1.5", None), ("soon", None),
     ("", None), ("٣", None), (date(90), 90.0), (date(-90), 0.0), ("Fri, 99 Foo 2026 00:00:00 GMT", None),
     ("Thu, 01 Jan 2026 00:01:00 -0000", 60.0), ("Thu, 01 Jan 99999 00:01:00 GMT", None)],
)  # fmt: skip
def test_retry_after(header, expected):
    for outcome in (
        Success(response(header)),
        Failure(requests.HTTPError(response=response(header))),
        Failure(urllib.error.HTTPError("http://x", 503, "no", {"Retry-After": header}, None)),
        Failure(error(headers={"retry-after": header})),
    ):
        assert retry_after_of(outcome, lambda: WALL) == expected


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [(Failure(CircuitOpenError(2.5)), 2.5), (Failure(error(retry_after=True)), None), (Failure(error(retry_after="3"))
     , None), (Failure(error(retry_after=float("nan"))), None), (Failure(error(retry_after=float("inf"))), None),
     (Failure(error(retry_after=-1)), None), (Success(None), None), (Success({"headers": 1}), None), (Failure(Hostile()), None),
     (Success(Bag(headers=5)), None), (Success(Bag(headers={})), None), (Success(Bag(headers={"Retry-After": b"3"})), None),
     (Success(Bag(headers={"Retry-After": 3})), 3.0)],
)  # fmt: skip
def test_retry_after_elsewhere(outcome, expected):
    assert retry_after_of(outcome, lambda: WALL) == expected


def test_caused_by_walks_causes_and_contexts():
    root = ConnectionResetError()
    middle = ValueError()
    middle.__cause__ = root
    top = RuntimeError()
    top.__context__ = middle
    assert caused_by(ConnectionError)(top)
    assert caused_by(KeyError, RuntimeError)(top)
    assert not caused_by(KeyError)(top)
    top.__suppress_context__ = True
    assert not caused_by(ConnectionError)(top)


def test_caused_by_is_not_fooled_by_falsy_errors():
    class Empty(Exception):
        def __len__(self):
            return 0

    inner = Empty()
    inner.__cause__ = KeyError()
    outer = ValueError()
    outer.__cause__ = inner
    assert caused_by(KeyError)(outer)


def test_describe():
    assert judge().describe() == {"handle": "default", "handle_result": "default"}
    assert judge((KeyError, ValueError)).describe()["handle"] == ["builtins.KeyError", "builtins.ValueError"]


class Secretive:
    """A result or attribute that raises whatever is asked of it, such as a lazy object that cannot be evaluated."""

    def __getattribute__(self, name):
        raise RuntimeError(f"nothing is to be read here, not {name}")


def every_judge():
    return (
        Retry(2, Constant(0)),
        Fallback("instead"),
        CircuitBreaker(),
        CircuitBreaker(window="10s"),
        CircuitBreaker(window="10s", slow_call="1s"),
        CircuitBreaker(slow_call="1s"),
        Hedge("1s"),
        AdaptiveBulkhead(),
    )


def test_judging_reads_nothing_that_can_change_a_result():
    class Status:
        status_code = Secretive()

    for strategy in every_judge():
        for kind in (Secretive, Status):
            result = kind()
            assert Policy(strategy).call(lambda result=result: result) is result, strategy


def test_judging_reads_nothing_that_can_change_an_error():
    class Evasive(Exception):
        code = status = retry_after = Secretive()

        @property
        def response(self):
            raise KeyError("response")

    for strategy in every_judge():
        if strategy.kind == "fallback":
            continue
        error = Evasive()
        with pytest.raises(Evasive) as caught:
            Policy(strategy).call(Flaky(error, error))
        assert caught.value is error


@pytest.mark.parametrize("asked", [10**400, 10**12, 1e300], ids=["beyond floats", "1e12", "1e300"])
def test_a_retry_after_beyond_every_duration_counts_as_the_longest(asked):
    error = ValueError()
    error.retry_after = asked
    assert retry_after_of(Failure(error), lambda: 0.0) == LONGEST

    class Answer:
        headers = {"Retry-After": int(asked)}
        status_code = 503

    assert retry_after_of(Success(Answer()), lambda: 0.0) == LONGEST
    Answer.headers = {"Retry-After": "9" * 5000}
    assert retry_after_of(Success(Answer()), lambda: 0.0) == LONGEST
    answer = Answer()
    assert Policy(Retry(2, Constant(0), max_elapsed="1s")).call(lambda: answer) is answer
    with pytest.raises(ValueError) as caught:
        Policy(Retry(2, Constant(0))).options(deadline="1s").call(Flaky(error))
    assert caught.value is error
