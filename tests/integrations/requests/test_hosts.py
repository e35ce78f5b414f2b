"""One policy for each host, as many as are allowed, and what counts against whom."""

from __future__ import annotations

import threading
import time

import pytest
import requests

from pyresil import (
    Bulkhead,
    BulkheadFullError,
    CircuitBreaker,
    CircuitOpenError,
    CircuitState,
    ConfigurationError,
    Constant,
    Guard,
    Hedge,
    Policy,
    RateLimit,
    RateLimitedError,
    Registry,
    Retry,
    Timeout,
    TimeoutExceededError,
    current_context,
)
from pyresil.integrations._http.hosts import HostPolicies, _Execution
from pyresil.integrations.requests import ResilientAdapter, ResilientSession, host_key
from tests.support.processes import wait_until

FAST = Constant("10ms")


def prepared(url, method="GET", **options):
    return requests.Request(method, url, **options).prepare()


@pytest.fixture
def make(make_session):
    return make_session


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://API.example.com/x?y", "http://api.example.com:80"),
        ("https://api.example.com", "https://api.example.com:443"),
        ("https://user:pw@api.example.com:8443/x", "https://api.example.com:8443"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
    ],
)
def test_hosts_are_told_apart_by_scheme_host_and_port(url, key):
    assert host_key(prepared(url)) == key


def breaker_policy(**options):
    return Policy(CircuitBreaker(minimum_calls=2, window=4, **options), name="upstream")


def test_each_host_has_a_breaker_of_its_own(make, upstream):
    session = make(breaker_policy)
    bad = upstream.url("http", "/status/503")
    for _ in range(2):
        assert session.get(bad).status_code == 503
    with pytest.raises(CircuitOpenError):
        session.get(upstream.url("http", "/ok"))
    assert session.get(upstream.url("https", "/ok")).text == "ok"
    assert session.get(upstream.url("http", "/ok", "localhost")).text == "ok"
    states = [
        session.policy_for(upstream.url(*where)).strategies[0].state for where in (("http",), ("https",))
    ]
    assert states == [CircuitState.OPEN, CircuitState.CLOSED]


def test_one_policy_is_shared_by_all_hosts_and_tells_them_apart_by_key(make, upstream):
    keys = []

    class Spy(Guard):
        def enter(self, ctx):
            keys.append((ctx.key, ctx.source))

        def exit(self, ctx, token, outcome):
            return outcome

    breaker = CircuitBreaker(minimum_calls=2, window=4)
    session = make(Policy(Spy(), breaker))
    for _ in range(2):
        session.get(upstream.url("http", "/status/503"))
    assert breaker.state is CircuitState.OPEN
    with pytest.raises(CircuitOpenError):
        session.get(upstream.url("https", "/ok"))
    assert keys[0] == (upstream.url("http"), upstream.url("http"))
    assert keys[2] == (upstream.url("https"), upstream.url("https"))


def test_client_errors_and_refused_requests_do_not_open_a_breaker(make, upstream):
    session = make(breaker_policy)
    for _ in range(5):
        session.get(upstream.url("http", "/status/404"))
        session.get(upstream.url("http", "/status/422"))
        with pytest.raises(requests.exceptions.InvalidHeader):
            session.get(upstream.url("http", "/ok"), headers={"x": "a\nb"})
        with pytest.raises(requests.exceptions.InvalidSchema):
            session.get(upstream.url("http", "/redirect?to=gopher://x/"))
    assert session.policy_for(upstream.url("http")).strategies[0].state is CircuitState.CLOSED


def test_timeouts_and_refused_connections_open_a_breaker(make, upstream):
    session = make(breaker_policy)
    for _ in range(2):
        with pytest.raises(requests.Timeout):
            session.get(upstream.url("http", "/drip-length"), timeout=0.5)
        with pytest.raises(requests.ConnectionError):
            session.get("http://127.0.0.1:1/")
    for url in (upstream.url("http", "/ok"), "http://127.0.0.1:1/"):
        with pytest.raises(CircuitOpenError):
            session.get(url)


def test_a_cancel_counts_against_nobody(make, upstream):
    session = make(breaker_policy)

    class MyReason(Exception):
        pass

    for reason in (None, "text", MyReason()):
        for _ in range(2):
            with pytest.raises((requests.RequestException, MyReason)), Policy().execute() as ctx:
                threading.Timer(0.05, ctx.cancel.cancel, (reason,)).start()
                session.get(upstream.url("http", "/hang"))
    assert session.policy_for(upstream.url("http")).strategies[0].state is CircuitState.CLOSED


def test_a_spent_budget_counts_against_nobody(make, upstream):
    session = make(breaker_policy)
    for _ in range(5):
        with pytest.raises(requests.Timeout, match="before anything was sent"):
            Policy().options(deadline="1ms").call(
                lambda: (time.sleep(0.01), session.get(upstream.url("http", "/ok")))
            )
    assert session.get(upstream.url("http", "/ok")).text == "ok"


def test_each_host_has_a_bulkhead_of_its_own(make, upstream):
    session = make(lambda: Policy(Bulkhead(max_concurrent=1)))
    thread = threading.Thread(target=session.get, args=(upstream.url("http", "/slow?for=2"),))
    thread.start()
    bulkhead = session.policy_for(upstream.url("http")).strategies[0]
    wait_until(lambda: bulkhead.stats().active == 1)
    with pytest.raises(BulkheadFullError):
        session.get(upstream.url("http", "/ok"))
    assert session.get(upstream.url("https", "/ok")).text == "ok"
    thread.join()
    assert session.get(upstream.url("http", "/ok")).text == "ok"


def test_each_host_has_a_rate_limit_of_its_own(make, upstream):
    session = make(lambda: RateLimit("2/minute"))
    for _ in range(2):
        assert session.get(upstream.url("http", "/ok")).text == "ok"
    with pytest.raises(RateLimitedError):
        session.get(upstream.url("http", "/ok"))
    assert session.get(upstream.url("https", "/ok")).text == "ok"


def test_a_losing_copy_is_cut(make, upstream):
    """The copy that wins ends the other, and with it its connection."""
    paths = ["/ok", "/hang/copy"]
    session = make()
    before = closed(upstream, "/hang/copy")

    def fetch():
        return session.get(upstream.url("http", paths.pop()))

    assert Policy(Hedge("1s")).call(fetch).text == "ok"
    wait_until(lambda: closed(upstream, "/hang/copy") == before + 1, 10)


def test_a_call_that_is_abandoned_is_cut(make, upstream, watch):
    session = make()
    before = closed(upstream, "/hang/abandoned")
    with watch() as timer, pytest.raises(TimeoutExceededError):
        Policy(Timeout("1s", mode="abandon")).call(session.get, upstream.url("http", "/hang/abandoned"))
    assert timer.took < 6
    wait_until(lambda: closed(upstream, "/hang/abandoned") == before + 1, 10)


def closed(upstream, path):
    return requests.get(upstream.url("http", "/seen"), timeout=5).json()["closed"].get(path, 0)


def test_a_factory_may_take_the_key(make, upstream):
    made = []

    def policy(host):
        made.append(host)
        return Retry(attempts=2, backoff=FAST)

    session = make(policy, key=lambda request: request.headers["X-Tenant"])
    for tenant in ("a", "b", "a"):
        session.get(upstream.url("http", "/ok"), headers={"X-Tenant": tenant})
    assert made == ["a", "b"]


def test_a_preset_gives_each_host_stages_of_its_own(make, upstream):
    registry = Registry(
        defaults={"circuit_breaker": {"window": 4}},
        presets={
            "carrier": {
                "retry": {"attempts": 2, "backoff": {"delay": "10ms"}},
                "circuit_breaker": {"minimum_calls": 2},
            }
        },
    )
    session = make(None, registry=registry, preset="carrier")
    before = seen(upstream, "/status/503")
    assert session.get(upstream.url("http", "/status/503")).status_code == 503
    assert seen(upstream, "/status/503") - before == 2
    with pytest.raises(CircuitOpenError, match=f"carrier {upstream.url('http')}"):
        session.get(upstream.url("http", "/ok"))
    assert session.get(upstream.url("https", "/ok")).text == "ok"
    assert session.policy_for(upstream.url("https")).name == f"carrier {upstream.url('https')}"
    assert registry.breaker("carrier").state is CircuitState.CLOSED


def test_an_unknown_preset_is_refused():
    with pytest.raises(ConfigurationError, match="no preset 'nobody'"):
        ResilientSession(registry=Registry(), preset="nobody")


def test_hedges_are_for_requests_that_can_be_under_way_twice(make, upstream):
    session = make(Policy(Hedge("50ms")))

    def copies(method, **options):
        seen = upstream.url("http", "/seen")
        before = requests.get(seen, timeout=5).json()["requests"].get("/slow", 0)
        assert session.request(method, upstream.url("http", "/slow?for=1.5"), **options).text == "ok"
        return requests.get(seen, timeout=5).json()["requests"]["/slow"] - before

    assert copies("GET") == 2
    assert copies("POST", data=b"x") == 1
    assert copies("PUT", data=iter([b"x"])) == 1
    assert copies("POST", data=b"x", idempotency_key="auto") == 2


def test_nested_and_bound_policies_keep_their_place(make, upstream):
    outer = Policy(
        Policy(Retry(attempts=3, backoff=FAST), name="inner").options(source="mine"), Timeout("5s")
    )
    session = make(outer)
    for method, attempts in (("GET", 3), ("POST", 1)):
        before = seen(upstream, "/status/503")
        assert session.request(method, upstream.url("http", "/status/503")).status_code == 503
        assert seen(upstream, "/status/503") - before == attempts
    bound = make(outer.options(key="fixed", deadline="5s"))
    assert bound.get(upstream.url("http", "/ok")).text == "ok"


def seen(upstream, path):
    return requests.get(upstream.url("http", "/seen"), timeout=5).json()["requests"].get(path, 0)


class TestBounds:
    def fill(self, policies, count, *, start=0):
        for number in range(start, start + count):
            policies.run(prepared(f"http://h{number}/"), self.answer)

    @staticmethod
    def answer():
        response = requests.Response()
        response.status_code = 200
        return response

    @staticmethod
    def failure():
        response = requests.Response()
        response.status_code = 503
        return response

    def test_there_are_never_more_than_allowed(self):
        policies = HostPolicies(lambda: Policy(), max_hosts=10)
        self.fill(policies, 50)
        assert policies.known() == [f"http://h{number}:80" for number in range(40, 50)]

    def test_an_open_breaker_is_kept_before_an_idle_one(self):
        policies = HostPolicies(breaker_policy, max_hosts=3)
        for _ in range(2):
            policies.run(prepared("http://bad/"), self.failure)
        self.fill(policies, 20)
        assert "http://bad:80" in policies.known()
        assert len(policies.known()) == 3
        with pytest.raises(CircuitOpenError):
            policies.run(prepared("http://bad/"), self.answer)

    @pytest.mark.parametrize("options", [{}, {"per": lambda ctx: ctx.key}])
    def test_a_limiter_that_is_used_up_is_kept_before_an_idle_one(self, options):
        policies = HostPolicies(lambda: Policy(RateLimit("2/minute", **options)), max_hosts=3)
        for _ in range(2):
            policies.run(prepared("http://full/"), self.answer)
        self.fill(policies, 20)
        assert "http://full:80" in policies.known()
        with pytest.raises(RateLimitedError):
            policies.run(prepared("http://full/"), self.answer)

    def test_one_in_use_is_kept(self):
        policies = HostPolicies(lambda: Policy(Bulkhead(max_concurrent=1)), max_hosts=2)

        def inside():
            self.fill(policies, 10)
            with pytest.raises(BulkheadFullError):
                policies.run(prepared("http://busy/"), self.answer)
            return self.answer()

        policies.run(prepared("http://busy/"), inside)

    def test_the_least_recently_used_goes_first(self):
        policies = HostPolicies(lambda: Policy(), max_hosts=3)
        self.fill(policies, 3)
        self.fill(policies, 1)
        self.fill(policies, 1, start=3)
        assert sorted(policies.known()) == ["http://h0:80", "http://h2:80", "http://h3:80"]

    def test_threads_that_meet_a_new_host_get_one_policy(self):
        policies = HostPolicies(breaker_policy)
        barrier = threading.Barrier(8)
        found = []

        def ask():
            barrier.wait()
            found.append(policies.policy_for("http://h:80"))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(policy) for policy in found}) == 1


class Answer(requests.Response):
    """A response that notes that it was closed."""

    closed = False

    def __init__(self, on_close=lambda: None):
        super().__init__()
        self._on_close = on_close

    def close(self):
        if not self.closed:
            self.closed = True
            self._on_close()


def test_a_copy_that_comes_while_the_call_ends_leaves_the_response_of_the_caller_open():
    late = Answer()
    winner, loser = Answer(), Answer(on_close=lambda: Policy().call(execution._once))
    answers = iter((winner, loser, late))
    execution = _Execution(prepared("http://127.0.0.1/"), lambda: next(answers))

    class TwoCopies:
        def call(self, once):
            first = Policy().call(once)
            Policy().call(once)
            return first

    assert execution.run(TwoCopies()) is winner
    assert (winner.closed, loser.closed, late.closed) == (False, True, True)


def test_two_copies_of_an_attempt_may_close_what_the_one_before_brought():
    before = [Answer(on_close=lambda: another_copy()), Answer()]
    answers = iter([*before, Answer(), Answer()])
    execution = _Execution(prepared("http://127.0.0.1/"), lambda: next(answers))
    ctx = Policy().call(current_context)

    def another_copy(attempt=2):
        return ctx._next(attempt)._enter(lambda _: execution._once())

    another_copy(1)
    another_copy(1)
    assert another_copy().closed is False  # and the other one came in its middle
    assert [answer.closed for answer in before] == [True, True]
    assert next(answers, None) is None


def test_the_context_is_that_of_the_attempt(make, upstream):
    attempts = []
    session = make(Policy(Retry(attempts=3, backoff=FAST), name="upstream"))
    session.hooks["response"].append(lambda response, **_: attempts.append(current_context().attempt))
    session.get(upstream.url("http", "/status/503"))
    assert attempts == [1, 2, 3]


def test_a_request_of_a_hook_is_a_call_of_its_own(make, upstream):
    session = make(Policy(Retry(attempts=3, backoff=FAST), name="upstream"))
    inner = []

    def hook(response, **_):
        if not inner:
            inner.append(None)
            inner.append(session.get(upstream.url("http", "/status/503")).status_code)

    session.hooks["response"].append(hook)
    before = seen(upstream, "/status/503")
    assert session.get(upstream.url("http", "/ok")).text == "ok"
    assert inner[1] == 503
    assert seen(upstream, "/status/503") - before == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": 7}, "policy must be a policy, or a function"),
        ({"policy": breaker_policy, "max_hosts": 0}, "max_hosts must be a positive integer, got 0"),
        ({"policy": breaker_policy, "key": "host"}, "key must be callable"),
        ({"preset": "carrier"}, "preset 'carrier' needs registry="),
        ({"registry": Registry()}, "goes with preset="),
        ({"registry": object(), "preset": "carrier"}, "registry= must be a Registry"),
        ({"polcy": 7, "max_hosts": 0}, "max_hosts must be a positive integer, got 0; no option 'polcy'"),
    ],
)
@pytest.mark.parametrize("kind", [ResilientSession, ResilientAdapter])
def test_wrong_options_are_refused(kind, options, message):
    with pytest.raises(ConfigurationError, match=message):
        kind(**options)


def test_what_a_factory_makes_is_checked(make):
    with pytest.raises(ConfigurationError, match="must make a Policy, got 'no policy'"):
        make(lambda: "no policy").get("http://127.0.0.1:1/")
