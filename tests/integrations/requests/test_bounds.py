"""Every way in which a server can keep a client waiting, and both ways to stop."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
import urllib3

from pyresil import CancelledError, CancelToken, Policy, TimeoutExceededError

LIMIT = 0.2
LATE = 5.0  # far above what is measured (milliseconds), so that a busy machine does not fail a test

READERS = {
    "content": lambda response: response.content,
    "iter_content": lambda response: list(response.iter_content(100)),
    "iter_lines": lambda response: list(response.iter_lines()),
    "read": lambda response: response.raw.read(),
    "read-10": lambda response: list(iter(lambda: response.raw.read(10), b"")),
    "stream": lambda response: list(response.raw.stream(100)),
    "readinto": lambda response: list(iter(lambda: response.raw.readinto(bytearray(64)), 0)),
    "read1": lambda response: list(iter(lambda: response.raw.read1(64), b"")),
}

if not hasattr(urllib3.HTTPResponse, "read1"):  # before urllib3 2.1
    del READERS["read1"]

DRIPS = ("drip-length", "drip-chunked", "drip-close")

# What is asked for, and how the body is read; None: by requests itself.
BEHAVIOURS = [
    ("hang", None),
    ("drip-headers", None),
    *((path, None) for path in DRIPS),
    *((path, "iter_content") for path in DRIPS),
    ("endless", None),
    ("endless", "stream"),
    ("upload", None),
]


def fetch(session, url, path, reader):
    if path == "upload":
        return session.post(url, data=b"u" * 20_000_000)
    if reader is None:
        return session.get(url)
    with session.get(url, stream=True) as response:
        return READERS[reader](response)


def expect_deadline(watch, work):
    with watch() as timer, pytest.raises(TimeoutExceededError) as caught:
        Policy(name="outer").options(deadline=LIMIT).call(work)
    assert isinstance(caught.value, requests.Timeout)
    assert caught.value.limit == LIMIT
    assert LIMIT - 0.01 <= timer.took < LIMIT + LATE
    return str(caught.value)


def expect_cancel(watch, work):
    token = CancelToken()
    canceller = threading.Timer(LIMIT, token.cancel, ("no longer wanted",))

    def work_that_is_cancelled():
        canceller.start()
        return work()

    try:
        with watch() as timer, pytest.raises(CancelledError) as caught:
            Policy(name="outer").options(cancel=token).call(work_that_is_cancelled)
    finally:
        canceller.cancel()
        canceller.join()
    assert isinstance(caught.value, requests.RequestException)
    assert caught.value.reason == "no longer wanted"
    assert timer.took < LIMIT + LATE
    return str(caught.value)


STOPS = {"deadline": expect_deadline, "cancel": expect_cancel}


@pytest.mark.parametrize(
    ("scheme", "connection", "stop", "behaviour"),
    [
        pytest.param(*case, id="-".join((*case[:3], case[3][0], case[3][1] or "whole")))
        for case in itertools.product(("http", "https"), ("new", "reused"), STOPS, BEHAVIOURS)
    ],
)
def test_a_call_ends_in_time_and_the_next_one_works(
    session, upstream, watch, scheme, connection, stop, behaviour
):
    path, reader = behaviour
    if connection == "reused":
        assert session.get(upstream.url(scheme, "/ok"), timeout=5).text == "ok"
    url = upstream.url(scheme, f"/{path}")
    error = STOPS[stop](watch, lambda: fetch(session, url, path, reader))
    assert f"/{path}" in error
    assert session.get(upstream.url(scheme, "/ok"), timeout=5).text == "ok"


@pytest.mark.parametrize("path", DRIPS)
def test_every_way_to_read_a_body_is_bounded_and_cuts_nothing_silently(session, upstream, watch, path):
    limit = 3.0  # enough for the headers, with all readers at once on a machine that pauses

    def read(reader):
        response = session.get(upstream.url("http", f"/{path}"), timeout=limit, stream=True)
        with watch() as timer, pytest.raises(TimeoutExceededError):
            READERS[reader](response)
        assert timer.took < limit + LATE
        # The stock response would now say that the body has ended.
        with pytest.raises(TimeoutExceededError):
            READERS[reader](response)
        response.close()
        return reader

    with ThreadPoolExecutor(len(READERS)) as pool:
        assert list(pool.map(read, READERS)) == list(READERS)


@pytest.mark.parametrize("stop", STOPS)
def test_a_slow_tls_handshake_is_bounded(session, upstream, watch, stop):
    url = f"https://127.0.0.1:{upstream.ports['silent']}/"
    error = STOPS[stop](watch, lambda: session.get(url))
    assert "while connecting" in error


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_full_listen_backlog_is_bounded(session, upstream, watch, stop, scheme):
    url = f"{scheme}://127.0.0.1:{upstream.ports['backlog']}/"
    error = STOPS[stop](watch, lambda: session.get(url))
    assert "while connecting" in error


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(
    ("scheme", "how", "path"),
    [
        ("http", "hang", "/ok"),
        ("http", "good", "/hang"),
        ("http", "good", "/drip-close"),
        ("https", "hang", "/ok"),
        ("https", "drip", "/ok"),
        ("https", "good", "/hang"),
        ("https", "good", "/drip-length"),
    ],
)
def test_calls_through_a_proxy_are_bounded(session, upstream, watch, stop, scheme, how, path):
    session.proxies = {scheme: f"http://127.0.0.1:{upstream.ports[f'proxy-{how}']}"}
    STOPS[stop](watch, lambda: session.get(upstream.url(scheme, path)))
    session.proxies = {scheme: f"http://127.0.0.1:{upstream.ports['proxy-good']}"}
    assert session.get(upstream.url(scheme, "/ok"), timeout=5).text == "ok"


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("path", ["hang", "drip-length", "endless"])
def test_tls_within_the_tls_of_a_proxy_is_bounded(session, upstream, watch, stop, path):
    session.proxies = {"https": f"https://127.0.0.1:{upstream.ports['proxy-tls']}"}
    assert session.get(upstream.url("https", "/ok"), timeout=5).text == "ok"
    STOPS[stop](watch, lambda: session.get(upstream.url("https", f"/{path}")))
    assert session.get(upstream.url("https", "/ok"), timeout=5).text == "ok"
    STOPS[stop](watch, lambda: session.get(f"https://127.0.0.1:{upstream.ports['silent']}/"))


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:{proxy-good}", "https://127.0.0.1:{proxy-tls}"])
def test_a_connection_of_an_unbounded_call_serves_a_bounded_one(session, upstream, proxy):
    session.proxies = {"https": proxy.format(**upstream.ports)}
    for timeout in (None, 5, None):
        assert session.get(upstream.url("https", "/ok"), timeout=timeout).text == "ok"


def test_a_tls_handshake_behind_a_connect_proxy_is_bounded(session, upstream, watch):
    session.proxies = {"https": f"http://127.0.0.1:{upstream.ports['proxy-good']}"}
    expect_deadline(watch, lambda: session.get(f"https://127.0.0.1:{upstream.ports['silent']}/"))


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("timeout", ["30d", ("30d", None), None])
def test_a_limit_of_months_is_one_too(session, upstream, scheme, timeout):
    answer = Policy().options(deadline="60d").call(session.get, upstream.url(scheme, "/ok"), timeout=timeout)
    assert answer.text == "ok"
