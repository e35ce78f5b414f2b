"""Every public error: text, pickling, copying."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest

import pyresil
from pyresil import (
    BulkheadFullError,
    Cache,
    CancelledError,
    CircuitOpenError,
    ConfigurationError,
    LockError,
    LockLostError,
    LockNotAcquiredError,
    Policy,
    PolicyUsageError,
    PyresilError,
    RateLimitedError,
    RecursiveLoadError,
    RejectedError,
    Retry,
    StoreError,
    StoreUnavailableError,
    TimeoutExceededError,
    TimeoutSaturatedError,
)

EXAMPLES = [
    PyresilError("text", "carrier"),
    ConfigurationError("retry: attempts must be a positive integer, got 0"),
    PolicyUsageError("not like that", "carrier"),
    TimeoutExceededError(1.5, "carrier"),
    TimeoutExceededError(),
    CancelledError("shutting down", "carrier"),
    CancelledError(),
    RecursiveLoadError("k", "carrier"),
    StoreError("bad"),
    StoreUnavailableError("busy"),
    LockError("lock"),
    LockLostError("export", 7, "deadline", "carrier"),
    RejectedError("no", 2.0, "carrier"),
    CircuitOpenError(3.25, ValueError("boom"), "db", "carrier"),
    CircuitOpenError(),
    BulkheadFullError("queue-timeout", "exports", "carrier"),
    RateLimitedError(0.5, "api", "carrier"),
    TimeoutSaturatedError(32, "carrier"),
    LockNotAcquiredError("export", 1.5, 10.0, "carrier"),
]
each_example = pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: f"{type(error).__name__}-{error}")


def fields(error):
    return {
        name: (type(value), value.args) if isinstance(value, BaseException) else value
        for name, value in vars(error).items()
    }


def test_every_public_error_has_an_example():
    public = {
        value
        for value in (getattr(pyresil, name) for name in pyresil.__all__ if name != "__version__")
        if isinstance(value, type) and issubclass(value, PyresilError)
    }
    missing = {
        kind for kind in public if kind.__module__ == "pyresil.errors" and kind not in map(type, EXAMPLES)
    }
    assert not missing


def test_codes_are_distinct_upper_case_words():
    codes = [type(error).code for error in {type(error): error for error in EXAMPLES}.values()]
    assert len(codes) == len(set(codes))
    assert all(code.isupper() for code in codes)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@each_example
def test_pickles_with_fields_text_and_notes(error, protocol):
    error = copy.copy(error)
    error.add_note("seen by the worker")
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.code == error.code
    assert fields(again) == fields(error)
    assert again.__notes__ == ["seen by the worker"]


@each_example
@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
def test_copies(error, copier):
    again = copier(error)
    assert type(again) is type(error)
    assert again is not error
    assert str(again) == str(error)
    assert fields(again) == fields(error)


class Unpicklable(Exception):
    def __init__(self, one, two):
        super().__init__("text")
        self.handle = threading.Lock()


def test_unpicklable_last_failure_is_dropped():
    error = CircuitOpenError(2.0, Unpicklable(1, 2), "db")
    again = pickle.loads(pickle.dumps(error))
    assert again.last_failure is None
    assert (again.retry_after, again.name) == (2.0, "db")
    assert error.last_failure is not None, "the error itself keeps it"


def test_what_others_hung_on_it_does_not_make_it_unpicklable():
    error = RejectedError("no")
    error.connection = threading.Lock()
    error.__notes__ = [threading.Lock(), "note"]
    error.__cause__ = Unpicklable(1, 2)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == "no"
    assert isinstance(again.connection, str)


def test_unpicklable_reason_becomes_its_text():
    again = pickle.loads(pickle.dumps(CancelledError(threading.Lock())))
    assert "lock" in again.reason
    again = pickle.loads(pickle.dumps(CancelledError(Unpicklable(1, 2))))
    assert again.reason is None


def test_copy_keeps_unpicklable_parts_and_the_chain():
    cause = ValueError("cause")
    error = CircuitOpenError(2.0, Unpicklable(1, 2))
    error.__cause__ = cause
    again = copy.copy(error)
    assert again.last_failure is error.last_failure
    assert again.__cause__ is cause


def test_deadline_of_a_timeout_stays_in_its_process():
    error = TimeoutExceededError(1.0)
    error.deadline = 123.0
    assert pickle.loads(pickle.dumps(error)).deadline is None
    assert copy.copy(error).deadline == 123.0


class Own(RejectedError):
    """A subclass whose constructor takes something else."""

    def __init__(self, *, tenant):
        super().__init__(f"tenant {tenant} is over its quota", 5.0)
        self.tenant = tenant


def test_subclass_with_another_constructor_pickles():
    again = pickle.loads(pickle.dumps(Own(tenant="a")))
    assert (str(again), again.retry_after, again.tenant) == ("tenant a is over its quota", 5.0, "a")


def test_bases_are_what_callers_catch():
    assert issubclass(ConfigurationError, ValueError)
    assert issubclass(PolicyUsageError, TypeError)
    assert issubclass(TimeoutExceededError, TimeoutError)
    assert issubclass(StoreUnavailableError, StoreError)
    assert issubclass(LockNotAcquiredError, (LockError, RejectedError))
    assert LockNotAcquiredError.__mro__.index(LockError) < LockNotAcquiredError.__mro__.index(RejectedError)
    for kind in (CircuitOpenError, BulkheadFullError, RateLimitedError, TimeoutSaturatedError):
        assert issubclass(kind, RejectedError)


def test_texts_name_the_object():
    assert str(TimeoutExceededError(1.5, "carrier")) == "timed out after 1.5 s (policy 'carrier')"
    assert "'db'" in str(CircuitOpenError(3.25, None, "db"))
    assert "3.25" in str(CircuitOpenError(3.25, None, "db"))
    assert (
        str(CircuitOpenError(3.25, policy="carrier"))
        == "circuit is open (policy 'carrier'); retry after 3.25 s"
    )
    assert (
        str(RateLimitedError(1.0, policy="carrier"))
        == "rate limit is used up (policy 'carrier'); retry after 1 s"
    )
    assert str(BulkheadFullError("full", policy="carrier")) == "bulkhead has no free slot (policy 'carrier')"
    assert "'exports'" in str(BulkheadFullError("full", "exports"))
    assert "queue timeout" in str(BulkheadFullError("queue-timeout"))
    assert "export" in str(LockLostError("export", 7, "deadline"))
    assert repr(StoreError("bad")) == "StoreError('bad')"


def test_texts_of_errors_survive_what_they_name():
    class Hostile:
        __hash__ = None

        def __repr__(self):
            raise RuntimeError("no repr")

        def __call__(self, argument):
            return argument

    assert str(CancelledError(Hostile())) == "cancelled: <Hostile>"
    assert str(RecursiveLoadError(Hostile())) == "the load of cache key <Hostile> asks for the same key"
    assert Policy(Retry())(Hostile())(7) == 7
    with pytest.raises(ConfigurationError, match="an argument of <Hostile> cannot be part of a cache key"):
        Policy(Cache()).call(Hostile(), [Hostile()])


@pytest.mark.parametrize(("waited", "told"), [(4.28e-05, "0 s"), (1.23456, "1.235 s"), (90.0, "90 s")])
def test_a_wait_is_told_to_the_millisecond(waited, told):
    assert str(LockNotAcquiredError("a", waited)) == f"the lock 'a' is held by someone else (waited {told})"
