"""A Flask view behind gunicorn that calls an upstream which hangs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.support.processes import wait_until

SOURCE = """
    import os
    from flask import Flask
    from pyresil import CircuitBreaker, Policy, Retry, Timeout
    from pyresil.integrations.flask import Pyresil
    from pyresil.integrations.requests import ResilientSession

    def carrier():
        return Policy(Retry(attempts=2), CircuitBreaker(minimum_calls=10), Timeout("1.5s"), name="carrier")

    app = Flask(__name__)
    Pyresil(app)
    session = ResilientSession(carrier)
    session.trust_env = False

    @app.get("/quote")
    def quote():
        return session.get(os.environ["UPSTREAM"] + "/hang/view").text

    @app.get("/fine")
    def fine():
        return session.get(os.environ["UPSTREAM"] + "/ok").text
"""


@pytest.mark.slow
def test_a_hanging_upstream_is_504_and_then_503(upstream, new_gunicorn, watch):
    server = new_gunicorn(SOURCE, env={"UPSTREAM": upstream.url("http")})

    def closed():
        return requests.get(upstream.url("http", "/seen"), timeout=5).json()["closed"].get("/hang/view", 0)

    before = closed()
    get = lambda path: requests.get(server.url + path, timeout=20)  # noqa: E731
    assert get("/fine").text == "ok"

    with watch() as timer:
        answer = get("/quote")
    assert answer.status_code == 504
    assert answer.json()["code"] == "TIMEOUT"
    assert 3 <= timer.took < 9, "two attempts of 1.5 s and a pause of at most 0.2 s"
    wait_until(lambda: closed() - before == 2, 10, "the closing of both connections")

    # With the one that was fine above, ten more attempts make the failures count.
    with ThreadPoolExecutor(4) as pool:
        assert [answer.status_code for answer in pool.map(get, ["/quote"] * 4)] == [504] * 4
    wait_until(lambda: closed() - before == 10, 10, "the closing of all ten connections")

    with watch() as timer:
        answer = get("/quote")
    assert answer.status_code == 503
    assert answer.json()["code"] == "CIRCUIT_OPEN"
    assert 1 <= int(answer.headers["Retry-After"]) <= 30
    assert timer.took < 3
    assert closed() - before == 10
