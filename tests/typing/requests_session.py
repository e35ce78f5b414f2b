"""`ResilientSession` and `ResilientAdapter` as type checkers see them."""

from __future__ import annotations

from datetime import timedelta
from typing import Never, assert_type

import requests

from pyresil import CircuitBreaker, Policy, Registry, Retry, Timeout
from pyresil.integrations.requests import (
    RequestCancelledError,
    RequestTimeoutError,
    ResilientAdapter,
    ResilientSession,
)


def per_host(host: str) -> Policy[Never]:
    return Policy(Retry(), CircuitBreaker(), Timeout("1s"), name=host)


def sessions() -> None:
    ResilientSession()
    ResilientSession(per_host, timeout="2s", idempotency_key="auto")
    ResilientSession(Policy(Retry()), timeout=("1s", None))
    ResilientSession(lambda: Policy(Retry()))
    ResilientSession(Retry())
    ResilientSession(registry=Registry(), preset="carrier")
    ResilientSession(per_host, key=lambda request: request.headers["X-Tenant"], max_hosts=10)


def calls(session: ResilientSession) -> None:
    assert_type(session.get("http://x", timeout="2s"), requests.Response)
    assert_type(session.post("http://x", json={}, idempotency_key="auto"), requests.Response)
    assert_type(session.request("PATCH", "http://x", timeout=timedelta(seconds=1)), requests.Response)
    session.put("http://x", b"x", timeout=(1, "2s"))


def adapters(session: requests.Session) -> None:
    session.mount("https://", ResilientAdapter())
    session.mount("http://", ResilientAdapter(per_host, pool_block=True))


def errors(session: ResilientSession) -> None:
    try:
        session.get("http://x")
    except RequestTimeoutError as error:
        assert_type(error.limit, float | None)
        assert_type(error.phase, str | None)
    except RequestCancelledError as error:
        assert_type(error.reason, object)
