"""The three lines that people write, on real input: requests under a policy in all forms, and Flask under gunicorn."""

from __future__ import annotations

import http.server
import threading

import pytest
import requests

from pyresil import (
    Bulkhead,
    CircuitBreaker,
    CircuitOpenError,
    CircuitState,
    Constant,
    Fallback,
    Policy,
    Retry,
    Timeout,
)
from pyresil.testing import ManualClock
from tests.support.processes import wait_until

NOW = Constant("0s")


class Upstream:
    """A real HTTP server whose next statuses are set by the test; 200 once they are used up."""

    def __init__(self):
        self.statuses = []
        self.requests = 0
        upstream = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                upstream.requests += 1
                status = upstream.statuses.pop(0) if upstream.statuses else 200
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(5)


@pytest.fixture
def upstream():
    server = Upstream()
    yield server
    server.close()


def get(url):
    return requests.get(url, timeout=5)


def call(policy, url):
    return policy.call(get, url)


def decorated(policy, url):
    return policy(get)(url)


def block(policy, url):
    with policy.execute() as ctx:
        response = requests.get(url, timeout=ctx.timeout("5s"))
        ctx.report(response)
    return response


def loop(policy, url):
    response = None
    for attempt in policy.execute():
        with attempt as ctx:
            response = requests.get(url, timeout=ctx.timeout("5s"))
            ctx.report(response)
    return response


@pytest.mark.parametrize("form", [call, decorated, loop])
def test_it_retries(form, upstream):
    upstream.statuses = [503, 429]
    response = form(Policy(Retry(attempts=3, backoff=NOW)), upstream.url)
    assert (response.status_code, upstream.requests) == (200, 3)


@pytest.mark.parametrize("form", [call, decorated, loop])
def test_the_last_result_is_returned(form, upstream):
    upstream.statuses = [503, 503, 503]
    response = form(Policy(Retry(attempts=3, backoff=NOW)), upstream.url)
    assert (response.status_code, upstream.requests) == (503, 3)


@pytest.mark.parametrize("form", [call, decorated, block, loop])
def test_it_opens_and_recovers(form, upstream):
    clock = ManualClock()
    breaker = CircuitBreaker(name="upstream", minimum_calls=4, open_for="30s", clock=clock)
    policy = Policy(breaker, Bulkhead(max_concurrent=10), Timeout("5s"))
    upstream.statuses = [503] * 4
    for _ in range(4):
        assert form(policy, upstream.url).status_code == 503
    assert breaker.state is CircuitState.OPEN
    with pytest.raises(CircuitOpenError) as caught:
        form(policy, upstream.url)
    assert caught.value.retry_after == pytest.approx(30.0)
    assert upstream.requests == 4
    clock.advance("31s")
    assert form(policy, upstream.url).status_code == 200
    assert breaker.state is CircuitState.CLOSED


@pytest.mark.parametrize("form", [call, decorated])
def test_it_falls_back(form, upstream):
    upstream.statuses = [503, 503]
    policy = Policy(Fallback(using=lambda error, ctx: "cached"), Retry(attempts=2, backoff=NOW))
    assert form(policy, upstream.url) == "cached"
    assert upstream.requests == 2


@pytest.mark.parametrize("form", [call, decorated, block, loop])
def test_a_refused_connection_is_the_callers_own_exception(form, upstream):
    upstream.close()
    with pytest.raises(requests.ConnectionError):
        form(Policy(CircuitBreaker(name="gone")), upstream.url)


APP = """
import pathlib, time
from flask import Flask
from pyresil import bulkhead
from pyresil.integrations.flask import Pyresil

app = Flask(__name__)
Pyresil(app)
folder = pathlib.Path(__file__).resolve().parent

@app.get("/export")
@bulkhead(max_concurrent=1)
def export():
    (folder / "inside").touch()
    for _ in range(1000):
        if (folder / "leave").exists():
            break
        time.sleep(0.01)
    return {"exported": True}
"""


def two_at_once(server, meanwhile=25.0):
    """Two requests, the second while the first is being served; their answers in order of arrival.

    The first goes on until the second is answered, or for `meanwhile` seconds.
    """
    answers = [None, None]

    def send(position):
        answers[position] = requests.get(f"{server.url}/export", timeout=20)

    first, second = (threading.Thread(target=send, args=(position,)) for position in range(2))
    first.start()
    wait_until((server.folder / "inside").exists, what="the first request")
    second.start()
    second.join(meanwhile)
    (server.folder / "leave").touch()
    for thread in (first, second):
        thread.join(25)
    return answers


@pytest.mark.parametrize("worker_class", ["gthread", "gevent"])
def test_a_bulkhead_on_a_view_under_gunicorn(new_gunicorn, worker_class):
    server = new_gunicorn(APP, worker_class=worker_class)
    first, second = two_at_once(server)
    assert (first.status_code, first.json()) == (200, {"exported": True})
    assert second.status_code == 503
    assert second.headers["Content-Type"] == "application/problem+json"
    assert "Retry-After" not in second.headers
    assert second.json()["code"] == "BULKHEAD_FULL"
    assert requests.get(f"{server.url}/export", timeout=20).status_code == 200


def test_a_sync_worker_serves_one_at_a_time(new_gunicorn):
    server = new_gunicorn(APP, worker_class="sync")
    first, second = two_at_once(server, meanwhile=0.5)
    assert (first.status_code, second.status_code) == (200, 200)


def test_a_bulkhead_made_before_the_fork_of_a_preloading_gunicorn(new_gunicorn):
    server = new_gunicorn(APP, worker_class="gevent", options=["--preload"])
    first, second = two_at_once(server)
    assert (first.status_code, second.status_code) == (200, 503)
