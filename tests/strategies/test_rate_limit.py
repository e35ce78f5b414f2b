"""`RateLimit`: who is admitted, who waits, who is refused and what it is told."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from datetime import timedelta

import pytest

from pyresil import (
    CancelledError,
    CancelToken,
    ConfigurationError,
    Decision,
    LimiterStore,
    MemoryLimiterStore,
    Policy,
    RateLimit,
    RateLimitedError,
    Retry,
    StoreError,
    StoreUnavailableError,
    Timeout,
    TimeoutExceededError,
)
from pyresil.clock import SYSTEM
from pyresil.testing import instant, record_events
from tests.support.threads import Caller

ALGORITHMS = ["sliding-window", "fixed-window", "token-bucket", "gcra"]


class Response:
    def __init__(self, status_code, headers=None):
        self.status_code = status_code
        self.headers = headers or {}


@pytest.fixture
def make(clock):
    """`make(limit, **options)`: a limit, and the call of a policy around it."""

    def build(limit="2/10s", **options):
        limiter = RateLimit(limit, clock=clock, **options)
        return limiter, Policy(limiter, name="carrier", clock=clock).call

    return build


def ok():
    return "ok"


def refused(call, *args):
    with pytest.raises(RateLimitedError) as caught:
        call(ok, *args)
    return caught.value


# -- admission ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["2/10s", (2, "10s"), (2, 10), (2, timedelta(seconds=10)), "2 / 10s"])
def test_it_admits_as_many_as_the_limit_and_tells_when_the_next_is(make, clock, limit):
    _, call = make(limit)
    assert call(ok) == call(ok) == "ok"
    error = refused(call)
    assert error.retry_after == 10.0
    assert error.policy == "carrier"
    assert error.code == "RATE_LIMITED"
    clock.advance(9.75)
    assert refused(call).retry_after == 0.25
    clock.advance(0.25)
    assert call(ok) == "ok"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("limit", ["3/s", "100/minute", "7/49s", "1/h"])
def test_who_comes_again_after_what_it_was_told_is_admitted(make, clock, algorithm, limit):
    _, call = make(limit, algorithm=algorithm)
    refusals = 0
    for _ in range(300):
        try:
            call(ok)
        except RateLimitedError as error:
            refusals += 1
            clock.advance(error.retry_after)
            assert call(ok) == "ok"
    assert refusals


def test_a_token_bucket_keeps_unused_permits_up_to_its_burst(make, clock):
    limiter, call = make("1/s", algorithm="token-bucket", burst=3)
    clock.advance("1h")
    for _ in range(3):
        call(ok)
    assert refused(call).retry_after == 1.0
    clock.advance(2)
    assert limiter.stats().remaining == 2


def test_gcra_spreads_calls_evenly(make, clock):
    _, call = make("4/s", algorithm="gcra")
    for _ in range(8):
        call(ok)
        assert refused(call).retry_after == 0.25
        clock.advance(0.25)


def test_a_fixed_window_is_aligned_with_the_epoch(make, clock):
    # The manual clock's wall time begins at midnight, its monotonic time at 1,000.
    _, call = make("2/minute", algorithm="fixed-window")
    clock.advance(50)
    call(ok)
    call(ok)
    assert refused(call).retry_after == 10.0
    clock.advance(10)
    assert call(ok) == call(ok) == "ok"
    assert refused(call).retry_after == 60.0


def test_weights(make, clock):
    limiter, call = make("10/s", weight=lambda ctx: ctx.args[0])
    call(str, 7)
    with pytest.raises(RateLimitedError):
        call(str, 4)
    call(str, 3)
    call(str, 0)  # free
    clock.advance(1)
    with pytest.raises(RateLimitedError) as never:
        call(str, 11)
    assert never.value.retry_after is None
    for wrong in (-1, 1.5, True, "2", None):
        with pytest.raises(ConfigurationError, match="weight"):
            call(str, wrong)
    assert limiter.stats().remaining == 10


def test_allowed_calls_are_not_counted_and_denied_ones_refused_for_good(make):
    limiter, call = make(
        "1/h", per=lambda ctx: ctx.args[0], allow={"admin"}, deny=lambda ctx: ctx.args[0] == "spammer"
    )
    for _ in range(5):
        call(str, "admin")
    with pytest.raises(RateLimitedError) as caught:
        call(str, "spammer")
    assert caught.value.retry_after is None
    call(str, "user")
    assert limiter.stats().partitions == 1


def test_block_for_closes_a_partition_that_was_refused(make, clock):
    limiter, call = make("1/s", block_for="1m", per=lambda ctx: ctx.args[0])
    call(str, "a")
    with pytest.raises(RateLimitedError) as caught:
        call(str, "a")
    assert caught.value.retry_after == 60.0
    call(str, "b")
    clock.advance(59)
    with pytest.raises(RateLimitedError) as caught:
        call(str, "a")
    assert caught.value.retry_after == 1.0  # being refused again does not begin it anew
    assert limiter.stats("a").remaining == 0
    clock.advance(1)
    call(str, "a")


@pytest.mark.parametrize(
    "drain_on", [429, (429, 503), {429}, lambda outcome: getattr(outcome, "value", None).status_code == 429]
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_outcome_that_says_so_empties_it(make, clock, algorithm, drain_on):
    limiter, call = make(
        "5/5s", algorithm=algorithm, burst=5 if algorithm == "gcra" else None, drain_on=drain_on
    )
    call(Response, 200)
    assert limiter.stats().remaining == 4
    call(Response, 429)
    assert limiter.stats().remaining == 0
    error = refused(call)
    assert 0.0 < error.retry_after <= 5.0


def test_a_retry_after_of_what_drains_it_is_obeyed_up_to_an_hour(make, clock):
    class TooMany(Exception):
        status_code = 429
        headers = {"Retry-After": "120"}

    def work():
        raise TooMany

    _, call = make("5/s", drain_on=429)
    with pytest.raises(TooMany):
        call(work)
    assert refused(call).retry_after == 120.0
    TooMany.headers = {"Retry-After": "86400"}
    clock.advance(120)
    with pytest.raises(TooMany):
        call(work)
    assert refused(call).retry_after == 3600.0


# -- waiting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_who_waits_is_served_in_order_at_its_time(make, clock, algorithm):
    _, call = make("1/s", algorithm=algorithm, max_wait="1m")
    call(ok)
    served = []
    callers = []
    for number in range(3):
        callers.append(Caller(lambda number=number: call(lambda: served.append((number, clock.elapsed)))))
        clock.wait_until_parked(number + 1)
    for second in range(3):
        clock.advance(1)
        callers[second].ended()
        assert served == [(number, number + 1) for number in range(second + 1)]


def test_who_cannot_be_served_in_time_is_refused_at_once(make, clock):
    _, call = make("1/10s", max_wait="5s")
    call(ok)
    assert refused(call).retry_after == 10.0
    clock.advance(6)
    waiting = Caller(lambda: call(ok))
    clock.wait_until_parked()
    assert refused(call).retry_after == 14.0  # behind the one that waits
    clock.advance(4)
    assert waiting.ended().value == "ok"


def test_a_deadline_that_comes_first_refuses_at_once(make, clock):
    limiter, _ = make("1/10s", max_wait="1m")
    policy = Policy(Timeout("2s"), limiter, clock=clock)
    policy.call(ok)
    assert refused(policy.call).retry_after == 10.0
    clock.advance(9)
    waiting = Caller(lambda: policy.call(ok))
    clock.wait_until_parked()
    clock.advance(1)
    assert waiting.ended().value == "ok"


def test_more_than_the_queue_holds_are_refused(make, clock):
    limiter, call = make("1/s", max_wait="1m", max_queue=2)
    call(ok)
    callers = []
    for number in range(2):
        callers.append(Caller(lambda: call(ok)))
        clock.wait_until_parked(number + 1)
    assert limiter.stats().waiting == 2
    assert refused(call).retry_after == 3.0
    clock.advance(2)
    for caller in callers:
        assert caller.ended().value == "ok"
    assert limiter.stats().waiting == 0


def test_a_cancel_ends_the_wait_and_gives_the_permits_back(make, clock):
    limiter, _ = make("1/10s", max_wait="1m")
    policy = Policy(limiter, clock=clock)
    policy.call(ok)
    token = CancelToken(clock=clock)
    waiting = Caller(lambda: policy.options(cancel=token).call(ok))
    clock.wait_until_parked()
    token.cancel()
    assert isinstance(waiting.ended().error, CancelledError)
    assert limiter.stats().waiting == 0
    next_one = Caller(lambda: policy.call(ok))
    clock.wait_until_parked()
    clock.advance(10)  # not 20: the place of the cancelled one is free
    assert next_one.ended().value == "ok"


def test_a_retry_around_it_waits_for_nothing_since_rejections_are_not_retried(make):
    limiter, _ = make("1/h")
    policy = Policy(Retry(3), limiter)
    policy.call(ok)
    refused(policy.call)


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_hit_decides_without_raising(make, clock):
    limiter, _ = make("3/s")
    assert limiter.hit(2) == (True, 0.0, 1)
    assert limiter.hit(2) == (False, 1.0, 1)
    assert limiter.hit() == (True, 0.0, 0)
    assert limiter.hit(4) == (False, None, 0)
    for wrong in (0, -1, True, 1.0):
        with pytest.raises(ConfigurationError, match="weight"):
            limiter.hit(wrong)


def test_a_reservation_waits_and_can_be_cancelled(make, clock):
    limiter, _ = make("1/10s")
    now = limiter.reserve()
    assert (now.delay, now.remaining(), now.weight) == (0.0, 0.0, 1)
    now.wait()
    later = limiter.reserve()
    assert later.delay == 10.0
    assert later.cancel() is True
    assert later.cancel() is False
    again = limiter.reserve()
    assert again.delay == 10.0
    waiting = Caller(again.wait)
    clock.wait_until_parked()
    clock.advance(10)
    assert waiting.ended().error is None
    with pytest.raises(RateLimitedError) as caught:
        limiter.reserve(max_wait="5s")
    assert caught.value.retry_after == 10.0
    with pytest.raises(RateLimitedError) as caught:
        limiter.reserve(2)
    assert caught.value.retry_after is None
    with pytest.raises(ConfigurationError, match="max_wait"):
        limiter.reserve(max_wait=-1)


def test_a_cancelled_reservation_of_now_frees_its_permit(make):
    for algorithm in ALGORITHMS:
        limiter, call = make("1/10s", algorithm=algorithm)
        limiter.reserve().cancel()
        assert call(ok) == "ok"


def test_waiting_for_a_reservation_ends_with_a_cancel_and_gives_it_back(make, clock):
    limiter, _ = make("1/10s")
    limiter.reserve()
    token = CancelToken(clock=clock)
    waiting = Caller(lambda: limiter.reserve().wait(token))
    clock.wait_until_parked()
    token.cancel()
    assert isinstance(waiting.ended().error, CancelledError)
    assert limiter.reserve().delay == 10.0


@pytest.mark.parametrize("with_token", [False, True])
def test_waiting_for_a_reservation_is_left_out_where_all_waits_are(with_token):
    limiter = RateLimit("1/10s")
    limiter.reserve()
    later = limiter.reserve()
    begun = SYSTEM.monotonic()
    with instant():
        later.wait(CancelToken() if with_token else None)
    assert SYSTEM.monotonic() - begun < 5.0


def test_reset_forgets(make):
    limiter, call = make("1/h", per=lambda ctx: ctx.args[0])
    for key in "ab":
        call(str, key)
    limiter.reset("a")
    call(str, "a")
    with pytest.raises(RateLimitedError):
        call(str, "b")
    limiter.reset()
    call(str, "b")


def test_stats_repr_and_describe(make):
    limiter, call = make("5/10s", name="search", max_wait="1s")
    assert limiter.stats() == (5, 10.0, 5, 0, 0)
    call(ok)
    assert limiter.stats().remaining == 4
    assert repr(limiter) == "RateLimit('5/10s', name='search', algorithm='sliding-window')"
    assert limiter.describe() == {
        "strategy": "rate limit", "name": "search", "limit": "5/10s", "algorithm": "sliding-window", "segments": 10,
        "burst": None, "max_wait": 1.0, "max_queue": 1000, "weight": 1, "per": None, "max_partitions": 10_000,
        "block_for": None, "allow": False, "deny": False, "drain_on": False, "store": None, "insurance": None,
    }  # fmt: skip


# -- forms and events --------------------------------------------------------------------------------------------------


def test_as_a_block_and_in_a_loop(make):
    limiter, _ = make("1/h", drain_on=429)
    with Policy(limiter).execute() as ctx:
        ctx.report(Response(429))
    assert limiter.stats().remaining == 0
    with pytest.raises(RateLimitedError), Policy(limiter).execute():
        raise AssertionError("entered")
    entered = 0
    with pytest.raises(RateLimitedError):
        for _ in Policy(Retry(3), limiter).execute():
            entered += 1
    assert not entered


def test_a_refusal_is_an_event(make):
    _, call = make("1/h", name="search")
    with record_events("rate-limited") as events:
        call(ok)
        refused(call)
    (event,) = events
    assert (event.policy, event.source, event.retry_after) == ("carrier", "search", 3600.0)


# -- partitions --------------------------------------------------------------------------------------------------------


def test_each_partition_has_the_limit_for_itself_and_none_is_one_too(make):
    _, call = make("1/h", per=lambda ctx: ctx.args[0] or None)
    for key in ("a", "b", ""):
        call(str, key)
        with pytest.raises(RateLimitedError):
            call(str, key)


def test_a_partition_that_is_not_hashable_is_a_clear_error(make):
    _, call = make("1/h", per=lambda ctx: [])
    with pytest.raises(ConfigurationError, match=r"per .*\[\]"):
        call(ok)


def test_idle_partitions_are_let_go_before_exhausted_ones(make, clock):
    limiter, call = make("2/10s", per=lambda ctx: ctx.args[0], max_partitions=10)
    call(str, "busy")
    call(str, "busy")
    clock.advance(5)
    for number in range(200):
        call(str, number)
        assert limiter.stats().partitions <= 10
    with pytest.raises(RateLimitedError):
        call(str, "busy")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_ten_thousand_partitions_take_ten_megabytes(algorithm):
    limiter = RateLimit("5/h", algorithm=algorithm, per=lambda ctx: ctx.args[0])
    limiter.hit(key="first")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1_000):
            limiter.hit(key=f"client-{number}")
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used < 1_000_000


def test_a_limit_is_freed_without_the_collector_and_keeps_nothing_of_its_calls(make):
    limiter, call = make("1/h", max_wait=0.1, per=lambda ctx: "x", drain_on=429)

    class Held:
        pass

    watched = weakref.ref(limiter)

    def work():
        local = Held()
        seen.append(weakref.ref(local))
        raise OSError

    seen = []
    gc.disable()
    try:
        try:
            call(work)
        except OSError:
            pass
        assert seen[0]() is None
        try:
            call(ok)
        except RateLimitedError:
            pass
        del limiter, call
        assert watched() is None
    finally:
        gc.enable()


# -- shared stores -----------------------------------------------------------------------------------------------------


class Down(MemoryLimiterStore):
    """A store that can be out of reach."""

    down = False

    def hit(self, *args, **options):
        if self.down:
            raise StoreUnavailableError("down")
        return super().hit(*args, **options)


def test_a_store_is_not_waited_for_longer_than_the_caller_has_time(clock):
    class Asked(MemoryLimiterStore):
        def hit(self, *args, timeout=None, **options):
            asked.append(timeout)
            return super().hit(*args, **options)

    asked = []
    policy = Policy(RateLimit("9/s", name="api", store=Asked(clock), max_wait="1m"), clock=clock)
    policy.call(ok)
    for deadline in (60, 2):
        policy.options(deadline=deadline).call(ok)
    Policy(Timeout("1s"), policy).call(ok)
    assert asked == [None, None, 2.0, 1.0]


def test_two_limits_on_one_store_share_what_has_one_name(clock):
    store = MemoryLimiterStore(clock)
    first, second = (RateLimit("2/10s", name="api", store=store, clock=clock) for _ in range(2))
    other = RateLimit("2/10s", name="other", store=store, clock=clock)
    Policy(first).call(ok)
    Policy(second).call(ok)
    assert refused(Policy(first).call).retry_after == 10.0
    assert Policy(other).call(ok) == "ok"
    first.reset()
    assert Policy(second).call(ok) == "ok"
    assert first.stats().remaining is None


def test_waiting_reserving_and_partitions_on_a_store(clock):
    store = MemoryLimiterStore(clock)
    limiter = RateLimit(
        "1/s", name="api", store=store, max_wait="5s", per=lambda ctx: ctx.args[0], clock=clock
    )
    call = Policy(limiter, clock=clock).call
    call(str, "a")
    waiting = Caller(lambda: call(str, "a"))
    clock.wait_until_parked()
    call(str, 7)
    clock.advance(1)
    assert waiting.ended().value == "a"
    later = limiter.reserve(key="a")
    assert later.delay == 1.0
    later.cancel()
    assert limiter.reserve(key="a").delay == 1.0
    with pytest.raises(ConfigurationError, match="per"):
        call(str, 1.5)


@pytest.mark.parametrize("given", [True, False])
def test_an_insurance_is_on_the_clock_of_its_limit(clock, given):
    store = Down(clock)
    store.down = True
    insured = RateLimit(
        "1/h", name="api", store=store, insurance=RateLimit("1/m"), clock=clock if given else None
    )
    call = Policy(insured, clock=clock).call
    assert call(ok) == "ok"
    assert refused(call).retry_after == 60.0
    clock.advance(60)
    assert call(ok) == "ok"


def test_a_store_that_is_down_is_an_error_or_a_matter_of_the_insurance(clock, caplog):
    store = Down(clock)
    bare = RateLimit("1/h", name="api", store=store)
    insured = RateLimit("1/h", name="api", store=store, insurance=RateLimit("2/h", name="spare"))
    store.down = True
    with pytest.raises(StoreUnavailableError):
        Policy(bare).call(ok)
    with caplog.at_level("WARNING", "pyresil"):
        for _ in range(2):
            assert Policy(insured).call(ok) == "ok"
        assert refused(Policy(insured).call).name == "spare"
    assert "insurance" in caplog.text
    store.down = False
    assert Policy(insured).call(ok) == "ok"


@pytest.mark.parametrize(
    "answer",
    [None, True, (True, 0, 0, 1), Decision(1, 0, 0, 0), Decision(True, -1, 0, 0), Decision(True, 0.5, 0, 0)],
)
def test_what_a_store_answers_is_checked(answer):
    class Wrong(MemoryLimiterStore):
        def hit(self, *args, **options):
            return answer

    with pytest.raises(StoreError, match="Decision"):
        Policy(RateLimit("1/s", name="api", store=Wrong())).call(ok)


def test_a_reservation_that_cannot_be_given_back_is_logged(clock, caplog):
    class Stuck(MemoryLimiterStore):
        def cancel(self, *args, **options):
            raise StoreUnavailableError("down")

    limiter = RateLimit("1/s", name="api", store=Stuck(clock), clock=clock)
    limiter.reserve().cancel()
    assert "given back" in caplog.text


# -- what it refuses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "options", "words"),
    [
        ("often", {}, r"limit .*100/minute"),
        ("0/s", {}, "limit"),
        ("-1/s", {}, "limit"),
        ((True, 1), {}, "limit"),
        ((1, 0), {}, "limit"),
        ((float("nan"), 1), {}, "limit"),
        (5, {}, "limit"),
        (None, {}, "limit"),
        ("1/s", {"name": ""}, "name"),
        ("1/s", {"algorithm": "leaky"}, "algorithm .*'gcra'"),
        ("1/s", {"segments": 0}, "segments"),
        ("1/s", {"segments": True}, "segments"),
        ("1/s", {"burst": 5}, "burst .*token-bucket"),
        ("1/s", {"burst": 0, "algorithm": "gcra"}, "burst"),
        ("1/s", {"max_wait": -1}, "max_wait"),
        ("1/s", {"max_wait": float("inf")}, "max_wait"),
        ("1/s", {"max_queue": -1}, "max_queue"),
        ("1/s", {"weight": -1}, "weight"),
        ("1/s", {"weight": 1.5}, "weight"),
        ("1/s", {"weight": 2}, "weight .*at most 1"),
        ("5/s", {"weight": 2, "algorithm": "gcra"}, "weight .*at most 1"),
        ("1/s", {"per": 5}, "per"),
        ("1/s", {"max_partitions": 0}, "max_partitions"),
        ("1/s", {"block_for": 0}, "block_for"),
        ("1/s", {"allow": 5}, "allow"),
        ("1/s", {"allow": "abc"}, "allow"),
        ("1/s", {"deny": [[]]}, "deny"),
        ("1/s", {"drain_on": True}, "drain_on"),
        ("1/s", {"drain_on": 4290}, "drain_on"),
        ("1/s", {"drain_on": ()}, "drain_on"),
        ("1/s", {"store": 5}, "store"),
        ("1/s", {"store": MemoryLimiterStore()}, "name"),
        ("1/s", {"store": MemoryLimiterStore(), "name": "a", "block_for": 1}, "block_for"),
        ("1/s", {"store": MemoryLimiterStore(), "name": "a", "drain_on": 429}, "drain_on"),
        ("1/s", {"insurance": 5}, "insurance"),
        ("1/s", {"insurance": RateLimit("1/s")}, "insurance"),
        ("1/s", {"clock": 5}, "clock"),
    ],
)
def test_bad_options_are_refused(limit, options, words):
    with pytest.raises(ConfigurationError, match=rf"rate limit.*{words}"):
        RateLimit(limit, **options)


def test_all_faults_come_in_one_message():
    with pytest.raises(ConfigurationError) as caught:
        RateLimit("often", "api", algorithm="x", max_wait="soon", max_queue=-1)
    for word in ("'api'", "limit", "algorithm", "max_wait", "max_queue"):
        assert word in str(caught.value)


def test_the_contract_cannot_be_made_by_halves():
    with pytest.raises(TypeError):
        LimiterStore()


def test_a_timeout_inside_is_left_alone(make, clock):
    limiter, _ = make("1/10s", max_wait="1m")
    with pytest.raises(TimeoutExceededError):
        Policy(limiter, Timeout("1s"), clock=clock).call(lambda: (clock.advance(2), 1 / 0))


def test_a_weight_that_cannot_be_shown_is_named_by_its_type():
    class Loud:
        def __repr__(self):
            raise RuntimeError("no repr")

    with pytest.raises(ConfigurationError, match="weight must be an integer of 0 or more, got <Loud>"):
        Policy(RateLimit("1/s", weight=lambda ctx: Loud())).call(int)
