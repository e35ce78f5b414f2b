"""Names, addresses, helper threads, and what an error tells."""

from __future__ import annotations

import copy
import pickle
import socket
import ssl
import threading

import pytest
import requests
import urllib3

from pyresil import CancelledError, CancelToken, Policy, PyresilError, TimeoutExceededError
from pyresil.integrations._http import names
from pyresil.integrations._http.budget import Budget
from pyresil.integrations.requests import (
    RequestCancelledError,
    RequestTimeoutError,
    ResilientAdapter,
    ResilientSession,
)
from pyresil.testing import ManualClock
from tests.integrations.requests.helpers import descriptors, helpers
from tests.support.processes import wait_until


@pytest.fixture
def resolver(monkeypatch):
    """A resolver that answers nothing until `resolver.answer` is set."""

    class Resolver:
        answer = threading.Event()
        asked = []

    real = socket.getaddrinfo
    found = Resolver()
    found.answer = threading.Event()
    found.asked = []

    def getaddrinfo(host, *args, **kwargs):
        if not str(host).endswith(".test"):
            return real(host, *args, **kwargs)
        found.asked.append(host)
        found.answer.wait(20)
        return real("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield found
    found.answer.set()
    wait_until(lambda: not helpers(), 10, "the end of the helper threads")


class TestDeadResolver:
    def test_a_deadline_leaves_it_behind(self, session, resolver, watch):
        with watch() as timer, pytest.raises(requests.Timeout, match="while connecting"):
            session.get("http://dead.test/", timeout=0.2)
        assert 0.2 <= timer.took < 5
        assert len(helpers()) == 1

    def test_a_cancel_leaves_it_behind(self, session, resolver, watch):
        token = CancelToken()
        threading.Timer(0.2, token.cancel).start()
        with watch() as timer, pytest.raises(CancelledError):
            Policy().options(cancel=token).call(session.get, "https://dead.test/")
        assert timer.took < 5

    def test_callers_of_one_name_share_a_thread(self, session, resolver, upstream):
        answers = []
        url = f"http://late.test:{upstream.ports['http']}/ok"
        threads = [
            threading.Thread(target=lambda: answers.append(session.get(url, timeout=10).text))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: resolver.asked, 10)
        assert len(helpers()) == 1
        resolver.answer.set()
        for thread in threads:
            thread.join()
        assert answers == ["ok"] * 8

    def test_the_threads_are_limited(self, session, resolver, monkeypatch):
        monkeypatch.setattr(names, "MOST_HELPERS", 2)
        for host in ("a", "b"):
            with pytest.raises(requests.Timeout):
                session.get(f"http://{host}.test/", timeout=0.5)
        with pytest.raises(requests.ConnectionError, match="2 name lookups or proxy connections are stuck"):
            session.get("http://c.test/", timeout=5)


def test_all_who_wait_are_told_where_no_thread_can_be_started(session, upstream, monkeypatch):
    url, told = upstream.url("http", "/ok", "localhost"), []

    def get():
        with pytest.raises(requests.ConnectionError, match="no thread can be started") as caught:
            session.get(url, timeout=20)
        told.append(caught.value)

    second = threading.Thread(target=get)

    def spawn(self, target, name):
        # Under way already as the thread turns out to be one too many: somebody else has joined.
        second.start()
        running = next(iter(names._running.values()))
        wait_until(lambda: running._parkers, 10, "the second caller")
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(type(names.SYSTEM), "spawn", spawn)
    get()
    second.join(10)
    assert len(told) == 2
    assert not names._running


class ListedAndInterrupted(dict):
    """Into whose next `setdefault` a signal handler raises when it has taken hold."""

    error = None

    def setdefault(self, key, default):
        found = super().setdefault(key, default)
        error, self.error = self.error, None
        if error is not None:
            raise error
        return found


@pytest.mark.parametrize(("error", "told"), [(KeyboardInterrupt, KeyboardInterrupt), (RuntimeError, OSError)])
def test_a_name_may_be_asked_for_after_a_signal_handler_raised_as_the_lookup_began(monkeypatch, error, told):
    running = ListedAndInterrupted()
    running.error = error
    monkeypatch.setattr(names, "_running", running)
    with pytest.raises(told):
        names.aside("name", lambda: "found", Budget((), 20.0))
    assert not running
    assert names.aside("name", lambda: "found", Budget((), 20.0)) == "found"


def test_a_lookup_that_was_given_up_leaves_the_next_one_of_its_name_listed(monkeypatch):
    running = {}
    monkeypatch.setattr(names, "_running", running)
    given_up, later = names.Aside("name", int, None), names.Aside("name", int, None)
    given_up.cannot_run()
    running["name"] = later
    given_up.run()  # its thread had started all the same
    assert running == {"name": later}


def test_a_name_that_does_not_exist_is_an_error_of_the_connection(session):
    with pytest.raises(requests.ConnectionError, match=r"(?i)resol|name"):
        session.get("http://no-such-host.invalid/", timeout=10)
    with pytest.raises(urllib3.exceptions.LocationParseError):  # as from the stock adapter
        session.get(f"http://{'a' * 70}.test/", timeout=10)


def test_no_thread_for_what_is_no_new_connection_to_a_name(session, upstream, monkeypatch):
    started, real, caller = [], threading.Thread.start, threading.current_thread()

    def start(thread):
        if threading.current_thread() is caller:  # what other threads of the process do is not the call's
            started.append(thread.name)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    for scheme in ("http", "https"):
        session.get(upstream.url(scheme, "/ok"), timeout=5)
    assert started == []
    for _ in range(2):
        session.get(upstream.url("http", "/ok", "localhost"), timeout=5)
    assert started == ["pyresil-resolver"]


def test_all_addresses_of_a_name_share_one_budget(session, upstream, watch, monkeypatch):
    """The first one does not answer, the second one does."""
    dead, alive = upstream.ports["backlog"], upstream.ports["http"]

    def getaddrinfo(host, port, *args, **kwargs):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", to)) for to in ports]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    ports = [dead, alive]
    assert session.get("http://many.test/ok", timeout=5).text == "ok"
    ports = [dead] * 4
    session.close()
    with watch() as timer, pytest.raises(requests.Timeout):
        session.get("http://many.test/ok", timeout=1.0)
    assert 1.0 <= timer.took < 3.5, "each of the four would have had 1 s"
    ports = [1, 1]
    session.close()
    with pytest.raises(requests.ConnectionError, match="Connection refused"):
        session.get("http://many.test/ok", timeout=5)


def test_a_certificate_that_does_not_fit_is_the_stock_error(session, upstream):
    session.verify = True
    with pytest.raises(requests.exceptions.SSLError):
        session.get(upstream.url("https", "/ok"), timeout=5)


def test_a_connection_has_one_descriptor_more(session, upstream):
    before = descriptors()
    for scheme in ("http", "https"):
        session.get(upstream.url(scheme, "/ok"), timeout=5)
    assert descriptors() <= before + 4


def test_a_connection_of_an_unbounded_call_can_be_cut_later(session, upstream, watch):
    for scheme in ("http", "https"):
        assert session.get(upstream.url(scheme, "/ok")).text == "ok"
        token = CancelToken()
        threading.Timer(0.2, token.cancel).start()
        with watch() as timer, pytest.raises(CancelledError):
            Policy().options(cancel=token).call(session.get, upstream.url(scheme, "/hang"))
        assert timer.took < 5


def test_a_bounded_body_stays_bounded_when_the_policy_has_ended(session, upstream, watch):
    token = CancelToken()
    response = (
        Policy().options(cancel=token).call(session.get, upstream.url("http", "/drip-close"), stream=True)
    )
    threading.Timer(0.2, token.cancel).start()
    with watch() as timer, pytest.raises(CancelledError):
        _ = response.content
    assert timer.took < 5


def test_a_reason_that_is_an_exception_is_raised_itself(session, upstream):
    class LeaseLost(Exception):
        pass

    reason = LeaseLost("go home")
    token = CancelToken()
    threading.Timer(0.1, token.cancel, (reason,)).start()
    with pytest.raises(LeaseLost) as caught:
        Policy().options(cancel=token).call(session.get, upstream.url("http", "/drip-length"))
    assert caught.value is reason


def test_an_upload_in_pieces_is_bounded(session, upstream, watch):
    def blocks():
        while True:
            yield b"b" * 100_000

    for scheme in ("http", "https"):
        session.get(upstream.url(scheme, "/ok"), timeout=5)
        with watch() as timer, pytest.raises(requests.Timeout, match="while sending the request"):
            session.post(upstream.url(scheme, "/upload"), data=blocks(), timeout=0.3)
        assert timer.took < 3


def test_big_bodies_arrive_whole_both_ways(session, upstream):
    body = bytes(range(256)) * 20_000
    for scheme in ("http", "https"):
        assert session.post(upstream.url(scheme, "/echo"), data=body, timeout=20).content == body
        with session.get(upstream.url(scheme, "/big"), timeout=20, stream=True) as response:
            assert sum(len(block) for block in response.iter_content(65536)) == 20 * 1048576


def test_a_clock_that_is_moved_by_hand_ends_a_call(session, upstream, watch):
    clock = ManualClock()
    policy = Policy(name="manual", clock=clock).options(deadline="1h")
    mover = threading.Timer(0.2, clock.advance, ("1h",))
    mover.start()
    with watch() as timer, pytest.raises(TimeoutExceededError):
        policy.call(session.get, upstream.url("http", "/hang"))
    mover.join()
    assert timer.took < 5


class TestErrors:
    def timeout(self):
        error = RequestTimeoutError(1.5, "carrier")
        error.subject, error.phase = "GET http://x/", "while connecting"
        error.request = requests.Request("GET", "http://x/").prepare()
        return error

    def test_text(self):
        assert (
            str(self.timeout()) == "GET http://x/: timed out after 1.5 s (policy 'carrier') while connecting"
        )
        assert str(RequestCancelledError("why")) == "cancelled: why"

    def test_kinds(self):
        timeout, cancelled = RequestTimeoutError(1), RequestCancelledError()
        assert isinstance(timeout, requests.Timeout)
        assert isinstance(timeout, TimeoutExceededError)
        assert isinstance(timeout, TimeoutError)
        assert isinstance(cancelled, requests.RequestException)
        assert isinstance(cancelled, CancelledError)
        assert not isinstance(cancelled, requests.Timeout)
        assert (timeout.code, cancelled.code) == ("TIMEOUT", "CANCELLED")
        assert timeout.response is timeout.request is cancelled.response is cancelled.request is None

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_they_pickle(self, protocol):
        again = pickle.loads(pickle.dumps(self.timeout(), protocol))
        assert type(again) is RequestTimeoutError
        assert str(again) == str(self.timeout())
        assert (again.limit, again.policy) == (1.5, "carrier")
        cancelled = pickle.loads(pickle.dumps(RequestCancelledError("why", "p"), protocol))
        assert (cancelled.reason, cancelled.policy) == ("why", "p")
        assert isinstance(copy.copy(cancelled), RequestCancelledError)

    def test_the_request_is_not_pickled_with_them(self):
        request = requests.Request(
            "POST", "http://host/", {"Authorization": "secret"}, data=b"body"
        ).prepare()
        for error in (self.timeout(), RequestCancelledError()):
            error.request = request
            stored = pickle.dumps(error)
            assert b"secret" not in stored
            assert pickle.loads(stored).request is None
            assert copy.copy(error).request is request

    def test_no_cycle_keeps_the_locals_of_a_failed_call(self, session, upstream):
        import gc
        import weakref

        class Marker:
            pass

        def call():
            marker = Marker()
            refs.append(weakref.ref(marker))
            session.get(upstream.url("http", "/drip-length"), timeout=0.1)

        refs = []
        gc.disable()
        try:
            try:
                call()
            except PyresilError:
                pass
            assert refs[0]() is None
        finally:
            gc.enable()


def test_a_session_and_an_adapter_without_policy_pickle(upstream, nothing_left):
    again = pickle.loads(pickle.dumps(ResilientSession(timeout="5s")))
    again.trust_env = False
    with again:
        assert isinstance(again.get_adapter("https://"), ResilientAdapter)
        assert again.timeout == "5s"
        assert again.get(upstream.url("http", "/ok")).text == "ok"


def test_tls_through_a_context_of_the_caller(upstream, nothing_left):
    class Pinned(ResilientAdapter):
        def init_poolmanager(self, *args, **kwargs):
            super().init_poolmanager(
                *args, ssl_context=ssl.create_default_context(cafile=upstream.ca), **kwargs
            )

    with requests.Session() as session:
        session.trust_env = False
        session.verify = upstream.ca
        session.mount("https://", Pinned())
        assert session.get(upstream.url("https", "/ok"), timeout=5).text == "ok"
