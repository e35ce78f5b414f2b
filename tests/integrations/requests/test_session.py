"""What a `ResilientSession` sends again, and how."""

from __future__ import annotations

import contextvars
import io
import threading
import time
import uuid

import pytest
import requests
import urllib3

from pyresil import (
    Bulkhead,
    CancelToken,
    CircuitBreaker,
    CircuitState,
    ConfigurationError,
    Constant,
    Fallback,
    Hedge,
    Policy,
    Retry,
    Timeout,
    TimeoutExceededError,
)
from pyresil.integrations.requests import RequestCancelledError, ResilientAdapter, ResilientSession
from tests.integrations.requests.helpers import Flaky
from tests.support.processes import run_python, wait_until

FAST = Constant("10ms")


@pytest.fixture
def make(make_session):
    """`make(*strategies, **options)`: a session with a policy of them."""

    def make(*strategies, **options):
        return make_session(Policy(*strategies, name="upstream") if strategies else None, **options)

    return make


@pytest.fixture
def flaky(upstream):
    return Flaky(upstream)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_failing_status_is_tried_again(make, flaky, status):
    url, key = flaky(fail=2, status=status)
    assert make(Retry(attempts=3, backoff=FAST)).get(url).status_code == 200
    assert len(flaky.seen(key)) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 301])
def test_another_status_is_an_answer(make, flaky, status):
    url, key = flaky(fail=2, status=status)
    answer = make(Retry(attempts=3, backoff=FAST)).get(url, allow_redirects=False)
    assert answer.status_code == status
    assert len(flaky.seen(key)) == 1


def test_the_last_response_is_returned_although_it_is_a_failure(make, flaky):
    url, key = flaky(fail=9, status=503)
    answer = make(Retry(attempts=3, backoff=FAST)).get(url)
    assert (answer.status_code, answer.text) == (503, "try again")
    assert len(flaky.seen(key)) == 3


def test_a_body_that_breaks_off_is_a_failure_of_the_attempt(make, flaky):
    url, key = flaky(fail=2, status="cut")
    assert make(Retry(attempts=3, backoff=FAST)).get(url).text == "ok"
    assert len(flaky.seen(key)) == 3


def test_a_refused_connection_is_tried_again(make):
    with pytest.raises(requests.ConnectionError) as caught:
        make(Retry(attempts=3, backoff=FAST)).get("http://127.0.0.1:1/")
    assert any("gave up after attempt 3" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "PATCH"])
def test_only_methods_that_are_safe_to_repeat_are_sent_again(make, flaky, method):
    url, key = flaky(fail=1)
    answer = make(Retry(attempts=3, backoff=FAST)).request(method, url)
    repeated = method not in ("POST", "PATCH")
    assert answer.status_code == (200 if repeated else 503)
    assert len(flaky.seen(key)) == (2 if repeated else 1)


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_an_idempotency_key_lets_them_be_sent_again_with_one_key(make, flaky, method):
    session = make(Retry(attempts=3, backoff=FAST), idempotency_key="auto")
    keys = set()
    for _ in range(2):
        url, key = flaky(fail=2)
        assert session.request(method, url, data=b"x").status_code == 200
        sent = flaky.seen(key)
        assert len(sent) == 3
        assert len(set(sent)) == 1
        keys.add(sent[0])
    assert len(keys) == 2, "each call has its own"


def test_a_given_key_is_sent_as_it_is(make, flaky):
    session = make(Retry(attempts=3, backoff=FAST))
    for send in (
        lambda url: session.post(url, data=b"x", idempotency_key="order-17"),
        lambda url: session.post(url, data=b"x", headers={"Idempotency-Key": "order-17"}),
        lambda url: session.request("POST", url, idempotency_key="order-17"),
    ):
        url, key = flaky(fail=1)
        assert send(url).status_code == 200
        assert flaky.seen(key) == ["order-17", "order-17"]


def test_auto_can_be_asked_for_a_single_call_and_leaves_other_methods_alone(make, flaky):
    session = make(Retry(attempts=3, backoff=FAST), idempotency_key="auto")
    url, key = flaky(fail=0)
    session.get(url)
    assert flaky.seen(key) == [None]
    url, key = flaky(fail=1)
    assert make(Retry(attempts=2, backoff=FAST)).patch(url, b"x", idempotency_key="auto").status_code == 200
    assert len(set(flaky.seen(key))) == 1


def test_a_key_in_use_is_tried_again_after_what_the_server_says(make, flaky, watch):
    session = make(Retry(attempts=3, backoff=FAST), idempotency_key="auto")
    url, key = flaky(fail=1, status=409, code="IDEMPOTENCY_KEY_IN_USE", after=1)
    with watch() as timer:
        assert session.post(url, data=b"x").status_code == 200
    assert timer.took >= 1
    assert len(flaky.seen(key)) == 2


@pytest.mark.parametrize("strategies", [[Hedge("20ms")], [Retry(attempts=2, backoff=FAST), Hedge("20ms")]])
def test_a_hedged_copy_that_finds_its_key_in_use_leaves_the_answer_to_the_first(
    make, upstream, flaky, strategies
):
    key = uuid.uuid4().hex
    answer = make(*strategies, idempotency_key="auto").post(upstream.url("http", f"/keyed?key={key}"))
    assert (answer.status_code, answer.text) == (200, "done")
    assert len(set(flaky.seen(key))) == 1
    assert len(flaky.seen(key)) == 2


def test_a_key_in_use_by_somebody_else_is_the_answer_of_a_hedge(make, flaky):
    url, _ = flaky(fail=9, status=409, code="IDEMPOTENCY_KEY_IN_USE")
    answer = make(Hedge("1ms"), idempotency_key="auto").post(url)
    assert answer.json() == {"code": "IDEMPOTENCY_KEY_IN_USE"}


def test_a_key_in_use_to_the_end_is_the_answer(make, flaky):
    session = make(Retry(attempts=2, backoff=FAST), idempotency_key="auto")
    url, key = flaky(fail=9, status=409, code="IDEMPOTENCY_KEY_IN_USE")
    answer = session.post(url, data=b"x")
    assert answer.status_code == 409
    assert answer.json() == {"code": "IDEMPOTENCY_KEY_IN_USE"}
    assert len(flaky.seen(key)) == 2


def test_a_key_in_use_to_the_end_is_no_failure_to_what_is_around_the_retry(make, flaky):
    breaker = CircuitBreaker(minimum_calls=1)
    url, key = flaky(fail=9, status=409, code="IDEMPOTENCY_KEY_IN_USE")
    session = make(Fallback("instead"), breaker, Retry(attempts=2, backoff=FAST), idempotency_key="auto")
    assert session.post(url).status_code == 409
    assert len(flaky.seen(key)) == 2
    assert breaker.state is CircuitState.CLOSED
    assert breaker.stats().failures == 0


@pytest.mark.parametrize(
    ("status", "code"), [(409, "IDEMPOTENCY_KEY_OTHER"), (422, "IDEMPOTENCY_KEY_REUSED")]
)
def test_any_other_conflict_is_final(make, flaky, status, code):
    url, key = flaky(fail=9, status=status, code=code)
    assert make(Retry(attempts=3, backoff=FAST), idempotency_key="auto").post(url).status_code == status
    assert len(flaky.seen(key)) == 1


@pytest.mark.parametrize("bad", ["", "a b", "ü", "x" * 256, 7])
def test_a_bad_key_is_refused(make, bad):
    with pytest.raises(ConfigurationError, match="idempotency_key must be 'auto' or 1 to 255 visible ASCII"):
        make().post("http://127.0.0.1:1/", idempotency_key=bad)


def test_a_session_takes_no_fixed_key():
    with pytest.raises(ConfigurationError, match="a key itself belongs to one call"):
        ResilientSession(idempotency_key="always-the-same")


class TestBodies:
    def test_a_file_is_sent_whole_each_time(self, make, flaky):
        session = make(Retry(attempts=3, backoff=FAST))
        url, key = flaky(fail=2)
        file = io.BytesIO(b"skipped" + b"f" * 100_000)
        file.seek(7)
        assert session.put(url, data=file).content == b"f" * 100_000
        assert len(flaky.seen(key)) == 3

    @pytest.mark.parametrize("kind", ["generator", "unseekable"])
    def test_what_cannot_be_rewound_is_sent_once(self, make, flaky, kind):
        class Unseekable(io.BytesIO):
            def seekable(self):
                return False

            def tell(self):
                raise OSError("a pipe")

        body = (block for block in (b"a", b"b")) if kind == "generator" else Unseekable(b"ab")
        url, key = flaky(fail=2)
        assert make(Retry(attempts=3, backoff=FAST)).put(url, data=body).status_code == 503
        assert len(flaky.seen(key)) == 1

    def test_forms_json_and_multipart_are_sent_again(self, make, flaky):
        session = make(Retry(attempts=2, backoff=FAST), idempotency_key="auto")
        for body in ({"data": {"a": "1"}}, {"json": {"a": 1}}, {"files": {"f": io.BytesIO(b"file")}}):
            url, key = flaky(fail=1)
            answer = session.post(url, **body)
            assert answer.status_code == 200
            sent = answer.request.body
            assert answer.content == (sent.encode() if isinstance(sent, str) else sent)
            assert len(flaky.seen(key)) == 2

    def test_an_error_of_the_callers_generator_comes_out_and_is_not_counted(self, make, flaky):
        class Mine(Exception):
            pass

        mine = Mine("of the generator")

        def body():
            yield b"a"
            raise mine

        url, _ = flaky(fail=0)
        with pytest.raises(Mine) as caught:
            make(Retry(attempts=3, backoff=FAST, handle=Exception)).put(url, data=body())
        assert caught.value is mine


class TestTimes:
    def test_timeout_bounds_an_attempt_with_its_redirects(self, make, upstream, watch):
        session = make()
        slow = upstream.url("http", "/slow?for=1.5")
        url = upstream.url("http", f"/redirect?to={upstream.url('http', '/redirect?to=')}{slow}")
        assert session.get(url, timeout=5).text == "ok"
        with watch() as timer, pytest.raises(requests.Timeout):
            session.get(url, timeout=0.2)
        assert timer.took < 5

    def test_each_attempt_has_the_timeout_and_the_deadline_has_them_all(self, make, upstream, watch):
        session = make(Retry(attempts=3, backoff=FAST))
        with watch() as timer, pytest.raises(requests.Timeout):
            session.get(upstream.url("http", "/hang"), timeout=0.2)
        assert 0.6 <= timer.took < 6
        session = make(Retry(attempts=50, backoff=FAST))
        with watch() as timer, pytest.raises(TimeoutExceededError):
            Policy(name="outer").options(deadline=0.3).call(
                session.get, upstream.url("http", "/hang"), timeout=0.2
            )
        assert timer.took < 5, "the attempts alone would take 10 s"

    def test_a_timeout_strategy_bounds_each_attempt(self, make, upstream, watch):
        session = make(Retry(attempts=2, backoff=FAST), Timeout("200ms"))
        with watch() as timer, pytest.raises(TimeoutExceededError) as caught:
            session.get(upstream.url("http", "/drip-length"))
        assert isinstance(caught.value, requests.ReadTimeout | requests.Timeout)
        assert caught.value.policy == "upstream"
        assert 0.4 <= timer.took < 6

    def test_the_session_has_a_timeout_for_calls_without_one(self, make, upstream, watch):
        session = make(timeout="200ms")
        with watch() as timer, pytest.raises(requests.Timeout):
            session.get(upstream.url("http", "/hang"))
        assert timer.took < 5

    def test_a_pair_bounds_the_connection_and_the_rest(self, make, upstream, watch):
        session = make()
        backlog = f"http://127.0.0.1:{upstream.ports['backlog']}/"
        for url, timeout in ((backlog, (0.2, 30)), (upstream.url("http", "/drip-length"), (30, 0.2))):
            with watch() as timer, pytest.raises(requests.Timeout):
                session.get(url, timeout=timeout)
            assert 0.2 <= timer.took < 5
        assert session.get(upstream.url("http", "/slow?for=1.5"), timeout=(1, 10)).text == "ok"
        assert session.get(upstream.url("http", "/ok"), timeout=(None, 5)).text == "ok"

    def test_urllib3s_own_timeouts_are_read(self, make, upstream, watch):
        session = make()
        for timeout in (
            urllib3.Timeout(total=0.2),
            urllib3.Timeout(connect=20, read=0.2),
            urllib3.Timeout(total=0.2, connect=20, read=20),
        ):
            with watch() as timer, pytest.raises(requests.Timeout):
                session.get(upstream.url("http", "/drip-length"), timeout=timeout)
            assert 0.2 <= timer.took < 5

    def test_a_deadline_that_passes_in_a_queue_is_an_error_of_requests_too(self, make, upstream, watch):
        bulkhead = Bulkhead(max_concurrent=1, max_queue=1)
        session = make(bulkhead)
        busy = threading.Thread(target=session.get, args=(upstream.url("http", "/slow?for=3"),))
        busy.start()
        wait_until(lambda: bulkhead.stats().active == 1)
        with pytest.raises(requests.Timeout) as caught:
            Policy(name="outer").options(deadline=0.2).call(session.get, upstream.url("http", "/ok"))
        assert isinstance(caught.value, TimeoutExceededError)
        assert caught.value.limit == 0.2
        busy.join()

    @pytest.mark.parametrize("bad", [0, -1, True, float("nan"), "soon", (1, 2, 3), (0, 1)])
    def test_a_bad_timeout_is_refused(self, make, upstream, bad):
        with pytest.raises(ConfigurationError, match="timeout"):
            make().get(upstream.url("http", "/ok"), timeout=bad)
        with pytest.raises(ConfigurationError, match="timeout"):
            ResilientSession(timeout=bad)

    def test_a_spent_budget_is_told_before_any_socket_is_opened(self, make):
        for session in (make(), make(Retry(attempts=3, backoff=FAST))):
            with pytest.raises(
                TimeoutExceededError, match=r"GET http://127\.0\.0\.1:1/x: .*before anything was sent"
            ):
                spend_then(session.get, "http://u:secret@127.0.0.1:1/x?token=secret")

    def test_a_cancel_ends_the_pause_between_attempts(self, make, upstream, watch):
        token = CancelToken()
        session = make(Retry(attempts=2, backoff=Constant("20s")))
        timer = threading.Timer(0.2, token.cancel)
        timer.start()
        with watch() as took, pytest.raises(RequestCancelledError, match=r"GET .*/status/503: cancelled"):
            Policy().options(cancel=token).call(session.get, upstream.url("http", "/status/503"))
        timer.join()
        assert took.took < 6


def spend_then(work, *args):
    policy = Policy(name="outer").options(deadline="20ms")

    def late():
        time.sleep(0.05)
        work(*args)

    policy.call(late)


class TestRedirects:
    def test_a_failure_at_the_end_of_a_redirect_repeats_the_whole_attempt(self, make, flaky, upstream):
        url, key = flaky(fail=1)
        target = url.replace("&", "%26")
        answer = make(Retry(attempts=2, backoff=FAST)).get(upstream.url("http", f"/redirect?to={target}"))
        assert answer.status_code == 200
        assert len(answer.history) == 1
        assert len(flaky.seen(key)) == 2

    def test_a_circle_is_no_failure_of_the_server(self, make, upstream):
        session = make(Retry(attempts=3, backoff=FAST))
        session.max_redirects = 3
        circle = "/redirect?to=/redirect%3Fto=/circle"
        seen = upstream.url("http", "/seen")
        before = requests.get(seen, timeout=5).json()["requests"].get("/circle", 0)
        assert session.get(upstream.url("http", circle)).status_code == 404
        assert requests.get(seen, timeout=5).json()["requests"]["/circle"] == before + 1

    def test_a_bad_scheme_is_not_tried_again(self, make, upstream):
        with pytest.raises(requests.exceptions.InvalidSchema) as caught:
            make(Retry(attempts=3, backoff=FAST)).get(upstream.url("http", "/redirect?to=ftp://x/"))
        assert not getattr(caught.value, "__notes__", [])


def test_responses_that_are_given_up_give_their_connection_back(make, flaky, upstream):
    session = make(Retry(attempts=4, backoff=FAST), pool_maxsize=1, pool_block=True)
    url, key = flaky(fail=3)
    with session.get(url, stream=True, timeout=10) as answer:
        assert answer.raw.read() == b"ok"
    assert len(flaky.seen(key)) == 4
    assert session.get(upstream.url("http", "/ok"), timeout=10).text == "ok"


def test_a_response_that_a_hook_refuses_gives_its_connection_back_before_the_next_attempt(make, flaky):
    url, key = flaky(fail=2, status=503)
    session = make(Retry(attempts=3, backoff=FAST), pool_maxsize=1, pool_block=True, timeout="5s")
    session.hooks["response"].append(lambda response, *args, **kwargs: response.raise_for_status())
    assert session.get(url).text == "ok"
    assert len(flaky.seen(key)) == 3
    url, key = flaky(fail=9, status=503)
    with pytest.raises(requests.HTTPError) as caught:
        session.get(url)
    assert len(flaky.seen(key)) == 3
    assert caught.value.response.text == "try again", "the last one is the caller's"


def test_a_context_that_was_copied_in_an_attempt_is_not_bounded_by_it_for_ever(make, upstream):
    session, copies = make(timeout="2s"), []
    session.hooks["response"].append(lambda *args, **kwargs: copies.append(contextvars.copy_context()))
    url = upstream.url("http", "/ok")
    assert session.get(url).text == "ok"
    time.sleep(2.1)
    assert copies[0].run(session.get, url, timeout=5).text == "ok"


def test_a_response_that_a_hook_refuses_gives_its_connection_back_where_a_fallback_takes_its_place(
    make, flaky
):
    url, key = flaky(fail=9, status=503)
    session = make(Fallback("instead"), pool_maxsize=1, pool_block=True, timeout="5s")
    session.hooks["response"].append(lambda response, *args, **kwargs: response.raise_for_status())
    assert [session.get(url) for _ in range(2)] == ["instead"] * 2
    assert len(flaky.seen(key)) == 2


def test_the_callers_discard_is_kept(make, flaky):
    given_up = []
    url, _ = flaky(fail=2)
    retry = Retry(attempts=3, backoff=FAST, discard=given_up.append)
    assert make(retry).get(url).status_code == 200
    assert [answer.status_code for answer in given_up] == [503, 503]


def test_a_fallback_takes_the_place_of_the_answer(make, flaky):
    url, _ = flaky(fail=9)
    assert make(Fallback("from the cache"), Retry(attempts=2, backoff=FAST)).get(url) == "from the cache"


@pytest.mark.parametrize("kind", [ResilientSession, ResilientAdapter])
@pytest.mark.parametrize("policy", [None, Policy()])
@pytest.mark.parametrize(
    "options",
    [
        {"key": 5},
        {"max_hosts": 0},
        {"max_hosts": True},
        {"idempotency_header": ""},
        {"idempotency_header": "a b"},
        {"idempotency_header": None},
        {"pool_connections": 0},
        {"pool_maxsize": True},
        {"pool_block": 1},
    ],
)
def test_bad_options_are_refused(kind, policy, options):
    with pytest.raises(ConfigurationError, match=f"requests policies: {next(iter(options))} must be"):
        kind(policy, **options)


def test_all_bad_options_are_told_at_once():
    with pytest.raises(ConfigurationError, match=r"key must be.*max_hosts must be.*pool_maxsize must be"):
        ResilientSession(key=5, max_hosts=0, pool_maxsize=0)


def test_urllib3s_retries_cannot_be_turned_on():
    with pytest.raises(ConfigurationError, match="put a Retry into the policy"):
        ResilientAdapter(max_retries=3)


def test_an_adapter_alone_runs_the_policy_and_reads_the_body_inside(upstream, flaky, nothing_left):
    with requests.Session() as session:
        session.trust_env = False
        session.mount(
            "http://", ResilientAdapter(Policy(Retry(attempts=3, backoff=FAST)), idempotency_key="auto")
        )
        url, key = flaky(fail=2, status="cut")
        assert session.post(url, data=b"x").content == b"x"
        assert len(flaky.seen(key)) == 3
        assert len(set(flaky.seen(key))) == 1


def test_nothing_runs_for_a_plain_session(upstream, nothing_left):
    """Without policy, context and timeout it is the stock session."""
    with ResilientSession() as session:
        session.trust_env = False
        session.verify = upstream.ca
        for scheme in ("http", "https"):
            assert session.get(upstream.url(scheme, "/ok")).text == "ok"
            assert session.get(upstream.url(scheme, "/big")).content[:16] == b"0123456789abcdef"


def test_what_the_garbage_collector_runs_at_the_end_of_a_call_keeps_nothing_of_it():
    """CPython 3.11 collects garbage inside of `ContextVar.reset`.

    Where a finalizer, such as that of urllib3's pools, looks at the variable then, it would give out a freed object later.
    """
    run_python(
        """
        import contextvars, gc, weakref
        import requests
        from requests.adapters import HTTPAdapter
        from pyresil.integrations._http.adapter import active, current_attempt
        from pyresil.integrations.requests import ResilientSession

        class Cycle:
            def __init__(self):
                self.me = self
                weakref.finalize(self, lambda: (active.get(), current_attempt.get()))

        class Answer(requests.Response):
            content = property(lambda self: Cycle() and b"")

        def send(self, request, *args, **kwargs):
            answer = Answer()
            answer.request, answer.status_code, answer.url = request, 200, request.url
            Cycle()
            return answer

        HTTPAdapter.send = send
        others = [contextvars.ContextVar(str(number)) for number in range(40)]
        for other in others:
            other.set(1)  # an application's
        session = ResilientSession(timeout="5s")
        gc.set_threshold(1, 1, 1)
        for _ in range(200):
            session.get("http://localhost:9/")
            assert active.get() is None
            assert current_attempt.get() is None
        """
    )
