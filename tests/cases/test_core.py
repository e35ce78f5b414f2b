"""Cases that broke other libraries: back-offs, what may be decorated, budgets, Retry-After, and what a failure leaves behind."""

from __future__ import annotations

import functools
import gc
import http.server
import inspect
import math
import threading
import time
import weakref
from email.utils import formatdate

import pytest
import requests

from pyresil import (
    Bulkhead,
    CircuitBreaker,
    CircuitState,
    Constant,
    Decorrelated,
    Exponential,
    Fallback,
    Linear,
    Policy,
    Retry,
    Success,
    caused_by,
)
from pyresil.testing import InstantClock, ManualClock
from tests.core.helpers import Flaky


@pytest.mark.parametrize("attempt", [1, 10, 1024, 1025, 1026, 10000])
@pytest.mark.parametrize(
    "backoff",
    [
        *(Exponential("200ms", factor=factor, cap=60, jitter=jitter) for factor in (1, 2, 10, 1e300) for jitter in ("full", "equal", "none", 5)),
        *(Linear(1, step, cap=60, jitter=jitter) for step in (0, 1, 1e6) for jitter in ("full", "equal", "none", 5)),
        *(Constant(delay, jitter=jitter, cap=60) for delay in (0, 0.1, 60, 1e6) for jitter in ("full", "equal", "none", 100)),
        Decorrelated("200ms", cap=60),
        Decorrelated(100, cap=60),
    ],
    ids=repr,
)  # fmt: skip
def test_P8_delays_are_finite_and_within_the_cap(backoff, attempt):
    for draw in (0.0, 0.5, 1 - 2**-53):
        for previous in (None, 0.0, 60.0):
            delay = backoff.seconds_after(attempt, lambda draw=draw: draw, previous)
            assert math.isfinite(delay)
            assert 0 <= delay <= 60


def test_P8_a_jitter_wider_than_the_delay_is_never_negative():
    backoff = Constant(0.1, jitter=0.2)
    assert backoff.seconds_after(1, lambda: 0.0) == 0
    assert all(backoff(1) >= 0 for _ in range(1000))


def test_P9_generator_and_async_functions_are_refused_when_decorated():
    def generator():
        yield

    async def coroutine():
        pass

    async def async_generator():
        yield

    for decorate in (Policy(Retry()), Policy(Retry()).options(key=1)):
        with pytest.raises(TypeError, match=r"generator function.*; return a list, or put the policy around"):
            decorate(generator)
        for fn in (coroutine, async_generator):
            with pytest.raises(TypeError, match=r"is async.*; decorate a plain function"):
                decorate(fn)


def test_P10_a_matcher_that_walks_causes_survives_a_cycle():
    one, two, three = ValueError("one"), KeyError("two"), OSError("three")
    one.__cause__, two.__cause__, three.__cause__ = two, three, one
    work = Flaky(one)
    with pytest.raises(ValueError) as caught:
        Policy(Retry(3, handle=caused_by(ConnectionError, TimeoutError)), clock=InstantClock()).call(work)
    assert caught.value is one
    assert work.calls == 1
    work = Flaky(one, one, one)
    assert Policy(Retry(4, handle=caused_by(OSError)), clock=InstantClock()).call(work) == "ok"


def test_P19_partials_methods_and_callables_without_a_name():
    policy = Policy(Retry(2), clock=InstantClock())

    class Callable:
        """Called."""

        def __call__(self, value):
            return value + 1

    class Service:
        def __init__(self):
            self.calls = 0

        def method(self, value):
            self.calls += 1
            if self.calls == 1:
                raise ValueError
            return value * 2

    def add(a, b, *, c=0):
        return a + b + c

    partial = policy(functools.partial(add, 1, c=5))
    assert partial(2) == 8
    assert partial.__name__ == "add"
    assert list(inspect.signature(partial).parameters) == ["b", "c"]
    nested = policy(functools.partial(functools.partial(add, 1), 2))
    assert nested() == 3
    service = Service()
    assert policy(service.method)(4) == 8
    assert service.calls == 2
    decorated = policy(Callable())
    assert decorated(1) == 2
    assert (decorated.__name__, decorated.__doc__) == ("Callable", "Called.")
    assert policy(functools.partial(Callable()))(1) == 2
    assert policy(len)([1, 2]) == 2
    assert policy(dict)(a=1) == {"a": 1}
    assert policy("{}!".format)("x") == "x!"
    assert policy(lambda: 5)() == 5
    assert Policy(Retry()).call(functools.partial(add, 1), 2) == 3


def test_P20_a_delay_beyond_the_budget_gives_up_at_once():
    for policy, options in (
        (Policy(Retry(5, Constant("30s"))), {"deadline": "10s"}),
        (Policy(Retry(5, Constant("30s"), max_elapsed="10s")), {}),
    ):
        work = Flaky(*[ValueError] * 5)
        begun = time.monotonic()
        with pytest.raises(ValueError):
            policy.options(**options).call(work)
        assert time.monotonic() - begun < 5
        assert work.calls == 1
        work = Flaky(*[ValueError] * 5)
        begun = time.monotonic()
        with pytest.raises(ValueError):
            for attempt in policy.execute(**options):
                with attempt:
                    work()
        assert time.monotonic() - begun < 5
        assert work.calls == 1


class Server(http.server.ThreadingHTTPServer):
    """Answers with 503 and a Retry-After so many times, then with 200."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.headers = []
        self.asked = 0
        self.url = f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.asked += 1
        header = self.server.headers.pop(0) if self.server.headers else None
        self.send_response(200 if header is None else 503)
        if header is not None:
            self.send_header("Retry-After", header)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    running = Server()
    thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


class Noting(InstantClock):
    def __init__(self):
        super().__init__()
        self.waits = []

    def park(self, parker, timeout):
        self.waits.append(timeout)
        return super().park(parker, timeout)


FORMS = ["call", "decorator", "loop", "raise_for_status"]


def ask(policy, url, form, **options):
    """One request under the policy, in one of its forms; the response, or what the policy raised."""
    with requests.Session() as session:
        get = functools.partial(session.get, url, timeout=5)
        if form == "call":
            return policy.options(**options).call(get)
        if form == "decorator":
            return policy.options(**options)(get)()
        if form == "raise_for_status":

            def strict():
                answer = get()
                answer.raise_for_status()
                return answer

            try:
                return policy.options(**options).call(strict)
            except requests.HTTPError as error:
                return error.response
        answer = None
        for attempt in policy.execute(**options):
            with attempt as ctx:
                answer = get()
                ctx.report(answer)
        return answer


@pytest.mark.parametrize("form", FORMS)
def test_P21_retry_after_as_seconds_as_a_date_and_as_garbage(server, form):
    clock = Noting()
    policy = Policy(Retry(4, Constant("10ms")), clock=clock)
    server.headers = ["7", formatdate(clock.wall() + 90, usegmt=True), "in a while"]
    answer = ask(policy, server.url, form)
    assert answer.status_code == 200
    assert server.asked == 4
    seconds, date, garbage = clock.waits
    assert seconds == pytest.approx(7, abs=0.01)
    assert 70 <= date <= 91, "90 s after a moment of which 7 s were waited already"
    assert garbage == pytest.approx(0.01, abs=0.001)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("limit", ["deadline", "max_elapsed"])
def test_P21_a_retry_after_beyond_the_budget_gives_up_at_once(server, form, limit):
    clock = ManualClock()
    if limit == "deadline":
        policy, options = Policy(Retry(4, Constant(0)), clock=clock), {"deadline": "1m"}
    else:
        policy, options = Policy(Retry(4, Constant(0), max_elapsed="1m"), clock=clock), {}
    server.headers = ["1000000000"]
    answer = ask(policy, server.url, form, **options)
    assert answer.status_code == 503
    assert server.asked == 1


def test_P22_locals_of_failed_attempts_are_freed_without_the_collector():
    class Local:
        pass

    watched, alive = [], []

    def count():
        return sum(ref() is not None for ref in watched)

    def work():
        alive.append(count())
        local = Local()
        watched.append(weakref.ref(local))
        raise ValueError(len(watched))

    policy = Policy(Retry(3), clock=InstantClock())
    decorated = policy(work)
    gc.collect()
    gc.disable()
    try:
        for run in (lambda: policy.call(work), decorated, lambda: policy.settle(work)):
            try:
                run()
            except ValueError:
                pass
            assert count() == 0
        try:
            for attempt in policy.execute():
                with attempt:
                    work()
        except ValueError:
            pass
        assert count() == 0
    finally:
        gc.enable()
    assert alive == [0] * 12


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("form", ["call", "decorator", "settle"])
def test_P7_base_exceptions_pass_everything_and_count_nowhere(form, error):
    breaker, bulkhead = CircuitBreaker(minimum_calls=1), Bulkhead(1)
    policy = Policy(Fallback("spare"), Retry(3), breaker, bulkhead, clock=InstantClock())
    raised = error("stop")
    work = Flaky(raised)
    run = {
        "call": lambda: policy.call(work),
        "decorator": policy(work),
        "settle": lambda: policy.settle(work),
    }[form]
    with pytest.raises(error) as caught:
        run()
    assert caught.value is raised
    assert work.calls == 1
    assert breaker.state is CircuitState.CLOSED
    assert breaker.stats().failures == 0
    assert bulkhead.stats().active == 0
    assert run() in ("ok", Success("ok"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_P7_in_a_loop_and_in_a_block(error):
    breaker, bulkhead = CircuitBreaker(minimum_calls=1), Bulkhead(1)
    raised = error("stop")
    entered = 0
    with pytest.raises(error) as caught:
        for attempt in Policy(Retry(3), breaker, bulkhead).execute():
            with attempt:
                entered += 1
                raise raised
    assert caught.value is raised
    with pytest.raises(error) as caught, Policy(breaker, bulkhead).execute():
        entered += 1
        raise raised
    assert caught.value is raised
    assert entered == 2
    assert breaker.stats().failures == 0
    assert bulkhead.stats().active == 0
