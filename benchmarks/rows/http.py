"""HTTP with requests against a server in another process: what deadlines, cancellation and a policy add to the stock session."""

from __future__ import annotations

from benchmarks.model import Contender, Limit, NotInstalledError, Row, Target, need
from benchmarks.rows.process import served


def server():
    """A server of the tests' own; stopped at the end."""
    need("trustme")
    from tests.support.misbehaving import MisbehavingServer

    return served("http", MisbehavingServer)


def integration():
    need("requests")
    try:
        from pyresil.integrations import requests
    except ImportError as error:
        raise NotInstalledError(f"pyresil has no integrations.requests: {error}") from error
    return requests


def ready(session):
    session.trust_env = False
    session.verify = server().ca
    return session


def stock_session():
    return ready(need("requests").Session())


def adapted_session():
    session = stock_session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, integration().ResilientAdapter())
    return session


def policy_session():
    import pyresil

    def policy():
        return pyresil.Policy(
            pyresil.Retry(),
            pyresil.CircuitBreaker(),
            pyresil.Bulkhead(max_concurrent=100),
            pyresil.Timeout("10s"),
        )

    return ready(integration().ResilientSession(policy))


def small(make, scheme="http", **options):
    def contender():
        session = make()
        url = server().url(scheme, "/ok")
        return lambda: session.get(url, **options)

    return contender


def in_a_policy():
    import pyresil

    session = adapted_session()
    url = server().url("http", "/ok")
    call = pyresil.Policy(pyresil.Timeout("10s")).call
    return lambda: call(session.get, url)


def large(make, scheme):
    def contender():
        session = make()
        url = server().url(scheme, "/big")

        def operation():
            response = session.get(url, timeout=60)
            assert len(response.content) == 20 * 1048576

        return operation

    return contender


KEEP_ALIVE = Row(
    "requests to a server, keep-alive",
    "GET a small body on a connection that is there, with a timeout.",
    (
        Contender("pyresil (adapter)", small(adapted_session, timeout=10)),
        Contender("pyresil (adapter in a Timeout)", in_a_policy),
        Contender("pyresil (session: retry, breaker, bulkhead, timeout)", small(policy_session)),
        Contender("requests", small(stock_session, timeout=10), "the timeout is for each wait only"),
    ),
    (
        Limit("pyresil (adapter)", 60_000, "requests"),
        Limit("pyresil (adapter in a Timeout)", 60_000, "requests"),
    ),
    threads=(1,),
    rounds=21,
)


def download(scheme: str, factor: float) -> Row:
    return Row(
        f"requests to a server, 20 MiB by {scheme}",
        f"GET a body of 20 MiB by {scheme}.",
        (
            Contender("pyresil (adapter)", large(adapted_session, scheme)),
            Contender("requests", large(stock_session, scheme)),
        ),
        (Target("pyresil (adapter)", factor, "requests"),),
        threads=(1,),
        rounds=11,
    )


# At least 0.6 of the stock throughput by http, and the same by https but for what is noise.
ROWS = (KEEP_ALIVE, download("http", 1 / 0.6), download("https", 1.1))
