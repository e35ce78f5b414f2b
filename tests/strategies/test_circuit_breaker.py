"""`CircuitBreaker`: when it opens, what it rejects, how it comes back, what it tells and what it refuses."""

from __future__ import annotations

import gc
import io
import logging
import threading
import tracemalloc
import weakref
from datetime import timedelta

import pytest
import requests

from pyresil import (
    CancelledError,
    CircuitBreaker,
    CircuitOpenError,
    CircuitState,
    ConfigurationError,
    Policy,
    RejectedError,
    subscribe,
)
from pyresil.testing import record_events
from tests.support.misbehaving import MisbehavingServer
from tests.support.processes import free_port, wait_until


class Response:
    def __init__(self, status_code, headers=None):
        self.status_code = status_code
        self.headers = headers or {}


class ClientError(Exception):
    status_code = 404


@pytest.fixture
def make(clock):
    """`make(**options)`: a breaker that opens with its second failure of two, and the call of a policy around it."""

    def build(**options):
        options.setdefault("minimum_calls", 2)
        breaker = CircuitBreaker(clock=clock, **options)
        return breaker, Policy(breaker, name="carrier").call

    return build


def ok():
    return "ok"


def fail(error=OSError):
    raise error("down")


def failing(call, times=2, error=OSError):
    for _ in range(times):
        with pytest.raises(error):
            call(fail, error)


def rejected(call):
    with pytest.raises(CircuitOpenError) as caught:
        call(ok)
    return caught.value


# -- opening -----------------------------------------------------------------------------------------------------------


def test_it_opens_with_the_call_that_reaches_the_rate(make):
    breaker, call = make(minimum_calls=4)
    failing(call, 1)
    call(ok)
    failing(call, 1)
    assert breaker.state is CircuitState.CLOSED  # 2 of 3, and four calls are the minimum
    call(ok)
    assert breaker.state is CircuitState.OPEN  # 2 of 4: a rate is reached by any recorded call
    error = rejected(call)
    assert error.retry_after == 30.0
    assert error.policy == "carrier"
    assert error.code == "CIRCUIT_OPEN"


def test_a_result_may_be_the_failure(make):
    breaker, call = make()
    for _ in range(2):
        assert call(Response, 503).status_code == 503
    assert breaker.state is CircuitState.OPEN
    assert rejected(call).last_failure is None


def test_client_errors_are_successes_and_cancellations_and_rejections_count_nothing(make):
    breaker, call = make()
    failing(call, 1, CancelledError)
    failing(call, 1, RejectedError)
    assert breaker.stats().calls == 0
    failing(call, 3, ClientError)
    assert breaker.stats()[:3] == (CircuitState.CLOSED, 3, 0)


@pytest.mark.parametrize(
    "handle", [KeyError, (KeyError, ValueError), lambda error: isinstance(error, KeyError)]
)
def test_handle_says_what_counts(make, handle):
    breaker, call = make(handle=handle)
    failing(call, 5, OSError)
    assert breaker.stats().calls == 0
    failing(call, 2, KeyError)
    assert breaker.state is CircuitState.OPEN


def test_handle_result_says_what_counts_also_in_a_full_window_of_successes(make):
    breaker, call = make(window=4, handle_result=lambda value: value == "bad")
    for _ in range(6):
        call(ok)
    for _ in range(2):
        call(str, "bad")
    assert breaker.state is CircuitState.OPEN


def test_a_count_window_forgets_old_calls(make):
    breaker, call = make(window=4, minimum_calls=4, failure_rate=0.75)
    failing(call, 2)
    for _ in range(4):
        call(ok)
    assert breaker.stats()[1:4] == (4, 0, 0)
    failing(call, 2)
    assert breaker.state is CircuitState.CLOSED


@pytest.mark.parametrize("window", ["10s", timedelta(seconds=10)])
def test_a_time_window_forgets_calls_that_are_older(make, clock, window):
    breaker, call = make(window=window, minimum_calls=3)
    failing(call, 2)
    clock.advance(10)
    failing(call, 2)
    assert breaker.state is CircuitState.CLOSED
    assert breaker.stats().calls == 2
    clock.advance(8)
    failing(call, 1)
    assert breaker.state is CircuitState.OPEN


def test_good_calls_of_a_time_window_are_all_counted(make, clock):
    breaker, call = make(window="10s")
    for second in range(25):
        call(ok)
        clock.advance(1)
        assert 9 <= breaker.stats().calls <= 10 or second < 10
    failing(call, 1)
    assert breaker.state is CircuitState.CLOSED


@pytest.mark.parametrize("window", [20, "10s"])
def test_slow_calls_open_it_too(make, clock, window):
    breaker, call = make(window=window, slow_call="1s", slow_call_rate=0.5, minimum_calls=4)
    for duration in (0.5, 1.0, 1.25):
        call(clock.advance, duration)
    assert breaker.stats().slow_calls == 1
    call(clock.advance, 2)
    assert breaker.state is CircuitState.OPEN
    assert breaker.stats().failure_rate == 0.0
    assert breaker.stats().slow_call_rate == 0.5


def test_slow_calls_count_in_a_full_window_of_fast_ones(make, clock):
    breaker, call = make(window=4, slow_call="1s", slow_call_rate=0.5, minimum_calls=4)
    for _ in range(6):
        call(ok)
    for _ in range(2):
        call(clock.advance, 2)
    assert breaker.state is CircuitState.OPEN


# -- the break, and coming back ----------------------------------------------------------------------------------------


def test_it_closes_with_an_empty_window_after_a_good_probe(make, clock):
    breaker, call = make(open_for="5s")
    failing(call)
    clock.advance(4.5)
    assert rejected(call).retry_after == 0.5
    clock.advance(0.5)
    assert breaker.state is CircuitState.OPEN  # no timer: the next call finds out
    assert call(ok) == "ok"
    assert breaker.stats()[:3] == (CircuitState.CLOSED, 0, 0)


def test_it_opens_again_after_a_bad_probe(make, clock):
    breaker, call = make(open_for="5s")
    failing(call)
    clock.advance(5)
    failing(call, 1)
    assert breaker.state is CircuitState.OPEN
    assert breaker.stats().opened == 2
    assert rejected(call).retry_after == 5.0


def test_a_round_of_probes_closes_once_enough_succeeded(make, clock):
    breaker, call = make(half_open_calls=3, half_open_successes=2)
    failing(call)
    clock.advance(30)
    call(ok)
    failing(call, 1)
    assert breaker.state is CircuitState.HALF_OPEN
    call(ok)
    assert breaker.state is CircuitState.CLOSED


def test_a_round_of_probes_opens_as_soon_as_enough_cannot_be_reached(make, clock):
    breaker, call = make(half_open_calls=3, half_open_successes=2)
    failing(call)
    clock.advance(30)
    failing(call, 2)
    assert breaker.state is CircuitState.OPEN


def test_while_a_permit_is_free_the_next_call_may_come_at_once(make, clock):
    breaker, call = make(half_open_calls=2)
    failing(call)
    clock.advance(30)
    assert call(breaker.stats).retry_after == 0.0


def test_by_default_all_probes_must_succeed(make, clock):
    breaker, call = make(half_open_calls=2)
    failing(call)
    clock.advance(30)
    call(ok)
    failing(call, 1)
    assert breaker.state is CircuitState.OPEN


def test_a_slow_probe_has_failed(make, clock):
    breaker, call = make(slow_call="1s")
    failing(call)
    clock.advance(30)
    call(clock.advance, 1.5)
    assert breaker.state is CircuitState.OPEN


def test_a_probe_that_takes_too_long_loses_its_permit_and_counts_no_more(make, clock):
    breaker, call = make(probe_timeout="2s")
    failing(call)
    clock.advance(30)

    def hangs():
        assert rejected(call).retry_after == 2.0
        clock.advance(2)
        failing(call, 1)  # another probe
        assert breaker.state is CircuitState.OPEN

    call(hangs)
    assert breaker.state is CircuitState.OPEN
    assert breaker.stats().opened == 2


def test_a_late_result_of_a_probe_whose_permit_nobody_took_counts_nothing(make, clock):
    breaker, call = make(probe_timeout="2s")
    failing(call)
    clock.advance(30)
    call(clock.advance, 2)
    assert breaker.state is CircuitState.HALF_OPEN
    call(ok)
    assert breaker.state is CircuitState.CLOSED


def test_open_for_may_grow_with_every_opening_in_a_row(make, clock):
    asked = []

    def growing(opened):
        asked.append(opened)
        return 2.0**opened

    breaker, call = make(open_for=growing)
    failing(call)
    for length in (2.0, 4.0, 8.0):
        assert rejected(call).retry_after == length
        clock.advance(length)
        failing(call, 1)
    clock.advance(16)
    call(ok)
    failing(call)
    assert rejected(call).retry_after == 2.0
    assert asked == [1, 2, 3, 4, 1]
    assert breaker.describe()["open_for"].endswith("growing")


@pytest.mark.parametrize("wrong", [None, "soon", -1, 0, True, float("nan"), float("inf")])
def test_an_open_for_that_returns_no_duration_is_logged_and_the_length_before_is_used(
    make, clock, caplog, wrong
):
    answers = [wrong, "4s", wrong]
    _breaker, call = make(open_for=lambda opened: answers[opened - 1])
    with caplog.at_level(logging.ERROR, "pyresil"):
        failing(call)
        assert rejected(call).retry_after == 30.0
        clock.advance(30)
        failing(call, 1)
        assert rejected(call).retry_after == 4.0
        clock.advance(4)
        failing(call, 1)
        assert rejected(call).retry_after == 4.0
    assert sum("open_for" in record.getMessage() for record in caplog.records) == 2


def test_an_open_for_that_raises_is_logged_and_the_caller_gets_its_own_error(make, caplog):
    _breaker, call = make(open_for=lambda opened: 1 // 0)
    with caplog.at_level(logging.ERROR, "pyresil"):
        failing(call)
    assert rejected(call).retry_after == 30.0
    assert "open_for" in caplog.text


@pytest.mark.parametrize(
    ("header", "expected"), [("120", 120.0), ("5", 30.0), ("86400", 3600.0), ("soon", 30.0)]
)
def test_a_retry_after_of_what_opens_it_lengthens_the_break_to_an_hour_at_most(make, header, expected):
    _breaker, call = make()
    for _ in range(2):
        call(Response, 503, {"Retry-After": header})
    assert rejected(call).retry_after == expected


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_trip_and_reset(make, clock):
    breaker, call = make()
    breaker.trip()
    assert rejected(call).retry_after == 30.0
    clock.advance(20)
    breaker.trip()
    assert rejected(call).retry_after == 30.0
    breaker.reset()
    assert call(ok) == "ok"
    assert breaker.stats()[:4] == (CircuitState.CLOSED, 1, 0, 0)


def test_isolated_rejects_until_reset(make, clock):
    breaker, call = make()
    failing(call, 1)
    breaker.isolate()
    clock.advance("7d")
    error = rejected(call)
    assert error.retry_after is None
    assert str(error.last_failure) == "down"
    breaker.reset()
    assert call(ok) == "ok"


def test_disabled_counts_nothing_and_metrics_only_counts_and_never_opens(make):
    breaker, call = make()
    breaker.disable()
    failing(call, 5)
    breaker.metrics_only()
    assert breaker.state is CircuitState.METRICS_ONLY
    failing(call, 5)
    assert breaker.stats()[:3] == (CircuitState.METRICS_ONLY, 5, 5)
    breaker.reset()
    assert breaker.stats()[:3] == (CircuitState.CLOSED, 0, 0)


def test_a_call_that_runs_during_a_reset_counts_no_more(make):
    breaker, call = make()

    def resets():
        breaker.reset()
        raise OSError

    for _ in range(3):
        with pytest.raises(OSError):
            call(resets)
    assert breaker.stats().calls == 0


# -- the health check --------------------------------------------------------------------------------------------------


def checking(answers):
    done = threading.Event()

    def check():
        try:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            done.set()

    return check, done


@pytest.mark.parametrize("answer", [True, 1, object()])
def test_a_health_check_closes_it_and_callers_are_rejected_until_then(make, clock, answer):
    check, done = checking([answer])
    breaker, call = make(health_check=check)
    failing(call)
    assert not done.is_set()
    clock.advance(30)
    assert not done.is_set()  # no timer
    assert rejected(call).retry_after == 30.0
    wait_for_state(breaker, CircuitState.CLOSED)
    assert call(ok) == "ok"


@pytest.mark.parametrize("answer", [False, None, 0, ValueError("still down")])
def test_a_health_check_that_fails_opens_it_again(make, clock, answer):
    check, _ = checking([answer, True])
    breaker, call = make(health_check=check)
    failing(call)
    clock.advance(30)
    rejected(call)
    wait_for_state(breaker, CircuitState.OPEN)
    assert breaker.stats().opened == 2
    clock.advance(30)
    rejected(call)
    wait_for_state(breaker, CircuitState.CLOSED)


@pytest.fixture
def hanging(make, clock):
    """A call of a breaker that opened; the threads of its health checks, which hang; and what ends them."""
    started, go = [], threading.Event()

    def check():
        started.append(threading.current_thread())
        with clock.blocked():
            go.wait(10)
        return True

    def end():
        go.set()
        for thread in started:
            thread.join(10)

    breaker, call = make(health_check=check, probe_timeout="5s")
    failing(call)
    return breaker, call, started, end


def test_one_health_check_at_a_time_and_another_after_the_probe_timeout(hanging, clock):
    breaker, call, started, end = hanging
    clock.advance(30)
    for _ in range(3):
        rejected(call)
    clock.advance(5)
    rejected(call)
    rejected(call)
    wait_until(lambda: len(started) == 2)
    end()
    assert len(started) == 2
    wait_for_state(breaker, CircuitState.CLOSED)


def test_health_checks_that_hang_do_not_pile_up(hanging, clock, monkeypatch, caplog):
    monkeypatch.setattr("pyresil.strategies.circuit_breaker.breaker.MOST_CHECKS", 2)
    breaker, call, started, end = hanging
    clock.advance(30)
    for _ in range(4):
        rejected(call)
        clock.advance(5)
    assert caplog.text.count("2 health checks hang") == 2
    end()
    assert len(started) == 2
    assert breaker.state is CircuitState.HALF_OPEN  # theirs came too late
    rejected(call)
    wait_for_state(breaker, CircuitState.CLOSED)


def wait_for_state(breaker, state):
    wait_until(lambda: breaker.state is state, 10, state.value)
    for thread in threading.enumerate():
        if thread.name == "pyresil-health-check":
            thread.join(10)  # it tells of the change, which is no event of the next test


# -- forms -------------------------------------------------------------------------------------------------------------


def test_as_a_block_that_reports_a_result(make):
    breaker, _ = make()
    policy = Policy(breaker)
    for _ in range(2):
        with policy.execute() as ctx:
            ctx.report(Response(503))
    assert breaker.state is CircuitState.OPEN
    with pytest.raises(CircuitOpenError), policy.execute():
        raise AssertionError("entered")


def test_as_a_block_a_probe_gives_its_permit_back_when_it_ends_unjudged(make, clock):
    breaker, call = make()
    policy = Policy(breaker)
    failing(call)
    clock.advance(30)
    with pytest.raises(KeyboardInterrupt), policy.execute():
        raise KeyboardInterrupt
    assert breaker.state is CircuitState.HALF_OPEN
    with policy.execute():
        pass
    assert breaker.state is CircuitState.CLOSED


def test_an_empty_loop_attempt_that_is_left_early_gives_its_permit_back(make, clock):
    breaker, call = make()
    policy = Policy(breaker)
    failing(call)
    clock.advance(30)
    for attempt in policy.execute():
        with attempt:
            break
    assert breaker.state is CircuitState.CLOSED  # the block ended without an error
    failing(call)
    clock.advance(30)
    for _attempt in policy.execute():
        break
    assert breaker.state is CircuitState.HALF_OPEN
    assert call(ok) == "ok"


# -- what it tells -----------------------------------------------------------------------------------------------------


def test_events_say_what_happened_in_order(make, clock):
    breaker, call = make(name="api")
    with record_events() as events:
        failing(call)
        rejected(call)
        clock.advance(30)
        call(ok)
        breaker.isolate()
        breaker.disable()
    kinds = [event.type for event in events if event.type != "execution"]
    assert kinds == [
        "circuit-opened", "circuit-rejected", "circuit-half-opened", "circuit-closed", "circuit-isolated", "circuit-closed",
    ]  # fmt: skip
    moves = [event for event in events if hasattr(event, "to_state")]
    assert [(event.from_state, event.to_state) for event in moves] == [
        (CircuitState.CLOSED, CircuitState.OPEN),
        (CircuitState.OPEN, CircuitState.HALF_OPEN),
        (CircuitState.HALF_OPEN, CircuitState.CLOSED),
        (CircuitState.CLOSED, CircuitState.ISOLATED),
        (CircuitState.ISOLATED, CircuitState.DISABLED),
    ]
    assert [event.policy for event in moves] == ["carrier"] * 3 + [None] * 2
    assert {event.source for event in moves} == {"api"}
    assert events.of("circuit-rejected")[0].retry_after == 30.0


def test_the_source_of_an_unnamed_breaker_is_the_callers(clock):
    policy = Policy(CircuitBreaker(minimum_calls=1, clock=clock))
    with record_events(["circuit-opened", "circuit-rejected"]) as events:
        for _ in range(2):
            with pytest.raises((OSError, CircuitOpenError)):
                policy.options(source="GET /quote").call(fail)
    assert [event.source for event in events] == ["GET /quote"] * 2


def test_transitions_are_logged_as_warnings(make, caplog):
    _breaker, call = make(name="api")
    with caplog.at_level(logging.DEBUG, "pyresil"):
        failing(call)
    # Breakers of other tests may have a probe out still.
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [line for line in logged if "'api'" in line[1]] == [
        ("WARNING", "circuit breaker 'api': closed -> open")
    ]


def test_a_listener_that_changes_the_state_is_told_afterwards(make):
    breaker, call = make()
    seen = []

    def listener(event):
        seen.append((event.from_state.value, event.to_state.value))
        if event.to_state is CircuitState.OPEN:
            breaker.reset()

    unsubscribe = subscribe(listener, ["circuit-opened", "circuit-closed"])
    try:
        failing(call)
    finally:
        unsubscribe()
    assert seen == [("closed", "open"), ("open", "closed")]
    assert call(ok) == "ok"


def test_repr_and_describe_say_what_is_in_force(make):
    breaker, call = make(name="api", window="1m", slow_call="2s", half_open_calls=3, probe_timeout="9s")
    assert repr(breaker) == "CircuitBreaker(name='api', state='closed')"
    assert breaker.describe() == {
        "strategy": "circuit breaker", "name": "api", "failure_rate": 0.5, "minimum_calls": 2, "window": "60s",
        "slow_call": 2.0, "slow_call_rate": 1.0, "open_for": 30.0, "half_open_calls": 3, "half_open_successes": 3,
        "probe_timeout": 9.0, "share": None, "health_check": None, "handle": "default", "handle_result": "default",
    }  # fmt: skip
    failing(call)
    assert repr(breaker) == "CircuitBreaker(name='api', state='open')"


def test_stats_are_frozen(make):
    stats = make()[0].stats()
    with pytest.raises(AttributeError):
        stats.calls = 5


# -- what it keeps -----------------------------------------------------------------------------------------------------


class Held:
    """Something that can be watched."""


@pytest.mark.parametrize("error", [OSError, ClientError, type("Down", (Exception,), {})])
def test_nothing_of_a_failed_call_is_kept_alive(make, error):
    _breaker, call = make(handle=Exception)
    watched = []

    def work():
        local = Held()
        watched.append(weakref.ref(local))
        raise error("down")

    gc.disable()
    try:
        for _ in range(2):
            try:
                call(work)
            except error:
                pass
            assert watched[-1]() is None
        last = rejected(call).last_failure
        assert type(last) is error
        assert str(last) == "down"
        assert last.__traceback__ is None
    finally:
        gc.enable()


def test_the_last_failure_is_the_very_object_while_somebody_keeps_it(make):
    class Down(Exception):
        pass

    _breaker, call = make()
    kept = Down("down")
    kept.detail = "disk"

    def work():
        raise kept

    for _ in range(2):
        with pytest.raises(Down):
            call(work)
    assert rejected(call).last_failure is kept
    kept = None
    last = rejected(call).last_failure
    assert last.detail == "disk"


def test_copies_of_errors_that_are_hard_to_copy(make):
    class Wants(Exception):
        def __init__(self, *, code):
            super().__init__(code)
            self.code_given = code

    class Refuses(Exception):
        def __new__(cls, *, code):
            return super().__new__(cls)

        def __init__(self, *, code):
            super().__init__(code)

    breaker, call = make(minimum_calls=1)
    for make_error in (lambda: Wants(code=7), lambda: OSError(2, "gone", "a.txt"), lambda: Refuses(code=1)):

        def work(make_error=make_error):
            raise make_error()

        with pytest.raises((Wants, OSError, Refuses)):
            call(work)
        last = rejected(call).last_failure
        if make_error().__class__ is Refuses:
            assert last is None
        else:
            assert str(last) == str(make_error())
            assert vars(last) == vars(make_error())
        breaker.reset()


def errors_in(value):
    """All errors that can be reached from one through arguments and attributes."""
    if isinstance(value, BaseException):
        yield value
        for inner in (*value.args, *vars(value).values()):
            yield from errors_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from errors_in(inner)


def test_errors_inside_the_last_failure_lead_to_no_frame_either(make):
    _, call = make(minimum_calls=1)
    with pytest.raises(requests.ConnectionError):
        call(requests.get, f"http://127.0.0.1:{free_port()}/")
    gc.collect()
    last = rejected(call).last_failure
    assert type(last) is requests.ConnectionError
    found = list(errors_in(last))
    assert len(found) >= 3  # the pool's error in it, and its reason
    for error in found:
        assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)


def test_what_a_failed_request_sent_is_not_kept_alive(make):
    """A body may be of any size, and the next failure of the host may be far off."""
    _, call = make(minimum_calls=1)
    url = f"http://127.0.0.1:{free_port()}/"

    def upload():
        body = io.BytesIO(b"x" * 1000)
        sent.append(weakref.ref(body))
        requests.put(url, data=body, timeout=5)

    sent = []
    with pytest.raises(requests.ConnectionError):
        call(upload)
    gc.collect()
    last = rejected(call).last_failure
    assert last.request is None
    assert last.args[0].pool is None
    assert sent[0]() is None


@pytest.fixture
def misbehaving(_session_servers):
    return _session_servers.get("misbehaving", MisbehavingServer)


def test_what_an_error_status_answers_is_kept_without_what_was_sent(make, misbehaving):
    """`raise_for_status()` gives an error whose response leads to the request, and to the connection."""
    url = misbehaving.url("http", "/status/503")
    _, call = make(minimum_calls=1)

    def upload():
        body = io.BytesIO(b"x" * 1000)
        sent.append(weakref.ref(body))
        response = requests.put(url, data=body, timeout=5)
        answered.append(response.text)
        response.raise_for_status()

    sent, answered = [], []
    with pytest.raises(requests.HTTPError):
        call(upload)
    gc.collect()
    last = rejected(call).last_failure
    assert type(last) is requests.HTTPError
    assert (last.response.status_code, last.response.url) == (503, url)
    assert last.response.text == answered[0]
    assert (last.request, last.response.request, last.response.raw) == (None, None, None)
    assert sent[0]() is None


def test_an_error_of_ones_own_keeps_its_attributes(make):
    class Empty(Exception):
        def __init__(self, pool):
            super().__init__(pool)
            self.pool = pool

        def __str__(self):
            return f"{self.pool['name']} is empty"

    def work():
        raise Empty({"name": "workers"})

    _, call = make(minimum_calls=1)
    with pytest.raises(Empty):
        call(work)
    gc.collect()
    assert str(rejected(call).last_failure) == "workers is empty"


def test_a_group_of_errors_is_remembered_without_their_frames(make):
    breaker, call = make(minimum_calls=1)

    def work():
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ExceptionGroup("several", [inner, ValueError("other")]) from None

    try:
        call(work)
    except ExceptionGroup:
        pass
    last = breaker._last.get()
    assert [str(error) for error in last.exceptions] == ["'inner'", "other"]
    assert all(error.__traceback__ is None for error in last.exceptions)


def test_a_breaker_is_freed_without_the_collector(make):
    breaker, call = make()
    failing(call)
    watched = weakref.ref(breaker)
    gc.disable()
    try:
        del breaker, call
        assert watched() is None
    finally:
        gc.enable()


def test_ten_thousand_breakers_take_ten_megabytes():
    CircuitBreaker()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        breakers = [CircuitBreaker(str(number)) for number in range(1_000)]
        for breaker in breakers:
            breaker._circuit.counted.record(0, 0.0)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used < 1_000_000


# -- what it refuses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "name"),
        ({"failure_rate": 0}, "failure_rate"),
        ({"failure_rate": 1.1}, "failure_rate"),
        ({"failure_rate": True}, "failure_rate"),
        ({"failure_rate": float("nan")}, "failure_rate"),
        ({"failure_rate": "0.5"}, "failure_rate"),
        ({"minimum_calls": 0}, "minimum_calls"),
        ({"minimum_calls": True}, "minimum_calls"),
        ({"minimum_calls": 2.0}, "minimum_calls"),
        ({"minimum_calls": 21}, "minimum_calls"),
        ({"window": 0}, "window"),
        ({"window": True}, "window"),
        ({"window": 10.0}, 'window must be a number of calls .an int. or a duration such as "30s", got 10.0'),
        ({"window": "0s"}, "window"),
        ({"window": "20"}, "window"),
        ({"window": None}, "window must be a number of calls .an int. or a duration"),
        ({"window": 10**9}, "window"),
        ({"slow_call": 0}, "slow_call"),
        ({"slow_call": float("inf")}, "slow_call"),
        ({"slow_call_rate": 0.0}, "slow_call_rate"),
        ({"open_for": 0}, "open_for"),
        ({"open_for": -1}, "open_for"),
        ({"open_for": None}, "open_for"),
        ({"open_for": float("nan")}, "open_for"),
        ({"half_open_calls": 0}, "half_open_calls"),
        (
            {"half_open_calls": 2, "half_open_successes": 3},
            r"half_open_successes must be at most half_open_calls \(2\), got 3",
        ),
        ({"half_open_successes": 0}, "half_open_successes"),
        ({"probe_timeout": 0}, "probe_timeout"),
        ({"share": object()}, "share"),
        ({"health_check": 5}, "health_check"),
        ({"handle": 5}, "handle"),
        ({"handle_result": 5}, "handle_result"),
        ({"clock": 5}, "clock"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ConfigurationError, match=rf"circuit breaker.*{words}"):
        CircuitBreaker(**options)


def test_all_faults_come_in_one_message():
    with pytest.raises(ConfigurationError) as caught:
        CircuitBreaker("api", failure_rate=2, window=0, open_for="soon", half_open_calls=-1)
    for word in ("'api'", "failure_rate", "window", "open_for", "half_open_calls"):
        assert word in str(caught.value)


def test_a_window_smaller_than_the_default_minimum_lowers_it_and_a_given_minimum_is_not_changed():
    assert CircuitBreaker(window=5).describe()["minimum_calls"] == 5
    assert CircuitBreaker().describe()["minimum_calls"] == 10
    with pytest.raises(ConfigurationError, match="minimum_calls"):
        CircuitBreaker(window=5, minimum_calls=10)
