"""Every pair of strategies, nested both ways, does what the table in docs/explanation/order.md says of it."""

from __future__ import annotations

import contextvars
import re
import threading

import pytest

from pyresil import (
    Bulkhead,
    BulkheadFullError,
    Cache,
    CircuitBreaker,
    CircuitOpenError,
    CircuitState,
    Constant,
    Fallback,
    Hedge,
    Lock,
    LockNotAcquiredError,
    Locks,
    MemoryLockStore,
    Policy,
    RateLimit,
    RateLimitedError,
    Retry,
    Timeout,
    TimeoutExceededError,
    current_context,
    fencing_token,
)
from pyresil.testing import InstantClock, ManualClock, record_events
from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "explanation" / "order.md"
NAMES = [
    "fallback",
    "cache",
    "lock",
    "retry",
    "hedge",
    "circuit breaker",
    "rate limit",
    "bulkhead",
    "timeout",
]

#: (outer, inner) -> the sentence of the table and the function that proves it.
SCENARIOS = {}


def scenario(outer, inner, text):
    def note(function):
        assert (outer, inner) not in SCENARIOS
        SCENARIOS[outer, inner] = (text, function)
        return function

    return note


class Work:
    """Fails so many times, then returns the number of the call."""

    def __init__(self, failures=10**9):
        self.failures = failures
        self.calls = 0
        self.tokens = []
        self.lock = threading.Lock()

    def __call__(self):
        with self.lock:
            self.calls += 1
            number = self.calls
            self.tokens.append(fencing_token())
        if number <= self.failures:
            raise ValueError(number)
        return number


def outcome(policy, work):
    """The value, or the error's type."""
    try:
        return policy.call(work)
    except Exception as error:
        return type(error)


def policy_of(*strategies):
    return Policy(*strategies, clock=InstantClock())


def opened(**options):
    breaker = CircuitBreaker(minimum_calls=1, **options)
    breaker.trip()
    return breaker


def open_after(calls):
    return CircuitBreaker(minimum_calls=calls, window=calls)


def key(ctx):
    return "k"


def used_up():
    limit = RateLimit("1/h")
    Policy(limit).call(int)
    return limit


def full():
    """A bulkhead whose only slot is taken."""
    bulkhead = Bulkhead(1)
    bulkhead.block = Policy(bulkhead).execute()
    contextvars.copy_context().run(bulkhead.block.__enter__)
    return bulkhead


def free_lock():
    return Lock("k", store=MemoryLockStore())


def locked(**options):
    """A lock strategy whose lease somebody else holds."""
    store = MemoryLockStore()
    strategy = Lock("k", store=store, **options)
    strategy.holder = Locks(store).acquire("k")
    assert strategy.holder is not None
    return strategy


def retry(attempts=3):
    return Retry(attempts, Constant("1s"))


SLOW = 1.0  # until then the second copy has begun, on a busy machine too


class Slow:
    """Two copies that take a while; told apart by number."""

    def __init__(self, fails=False):
        self.fails = fails
        self.calls = 0
        self.tokens = []
        self.lock = threading.Lock()

    def __call__(self):
        with self.lock:
            self.calls += 1
            number = self.calls
            self.tokens.append(fencing_token())
        if number == 1:
            current_context().cancel.wait(SLOW)
        if self.fails:
            raise ValueError
        return number


def hedge():
    return Hedge("20ms", max_hedges=1)


# -- fallback ----------------------------------------------------------------------------------------------------------------


@scenario("fallback", "cache", "takes the place of a load that fails, and is not stored")
def _():
    work = Work(1)
    policy = policy_of(Fallback("spare"), Cache(key, ttl="1m"))
    assert [outcome(policy, work), outcome(policy, work)] == ["spare", 2]


@scenario("cache", "fallback", "stores the fallback's value like any other")
def _():
    work = Work(1)
    policy = policy_of(Cache(key, ttl="1m"), Fallback("spare"))
    assert [outcome(policy, work), outcome(policy, work)] == ["spare", "spare"]


@scenario("fallback", "lock", "takes the place of a lock that is held elsewhere")
def _():
    assert outcome(policy_of(Fallback("spare"), locked()), int) == "spare"


@scenario("lock", "fallback", "refuses before the fallback is asked")
def _():
    assert outcome(policy_of(locked(), Fallback("spare")), int) is LockNotAcquiredError


@scenario("fallback", "retry", "takes the place of the last attempt's failure")
def _():
    work = Work()
    assert outcome(policy_of(Fallback("spare"), retry()), work) == "spare"
    assert work.calls == 3


@scenario("retry", "fallback", "never sees a failure, so there is one attempt")
def _():
    work = Work()
    assert outcome(policy_of(retry(), Fallback("spare")), work) == "spare"
    assert work.calls == 1


@scenario("fallback", "hedge", "comes when every copy has failed")
def _():
    work = Slow(fails=True)
    assert outcome(Policy(Fallback("spare"), hedge()), work) == "spare"
    assert work.calls == 2


@scenario("hedge", "fallback", "takes the fallback of the copy that fails first as the success")
def _():
    work = Slow(fails=True)
    assert outcome(Policy(hedge(), Fallback("spare")), lambda: work() and 0) == "spare"


@scenario(
    "fallback",
    "circuit breaker",
    "takes the place of failures and of refusals; the breaker counts the failures",
)
def _():
    breaker = open_after(2)
    policy = policy_of(Fallback("spare"), breaker)
    work = Work()
    assert [outcome(policy, work) for _ in range(4)] == ["spare"] * 4
    assert breaker.state is CircuitState.OPEN
    assert work.calls == 2


@scenario("circuit breaker", "fallback", "sees the fallback's value as a success and never opens")
def _():
    breaker = open_after(2)
    work = Work()
    policy = policy_of(breaker, Fallback("spare"))
    assert [outcome(policy, work) for _ in range(4)] == ["spare"] * 4
    assert breaker.state is CircuitState.CLOSED
    assert work.calls == 4


@scenario("fallback", "rate limit", "takes the place of a refusal")
def _():
    assert outcome(policy_of(Fallback("spare"), used_up()), int) == "spare"


@scenario("rate limit", "fallback", "refuses before the fallback is asked")
def _():
    assert outcome(policy_of(used_up(), Fallback("spare")), int) is RateLimitedError


def slots_in_fallback(*make):
    """How many slots are taken while the fallback runs."""
    seen = []
    bulkhead = Bulkhead(1)
    using = Fallback(using=lambda error, ctx: seen.append(bulkhead.stats().active))
    outcome(policy_of(*(using if item is Fallback else bulkhead for item in make)), Work())
    return seen


@scenario("fallback", "bulkhead", "takes the place of a refusal, and runs without a slot")
def _():
    assert outcome(policy_of(Fallback("spare"), full()), int) == "spare"
    assert slots_in_fallback(Fallback, Bulkhead) == [0]


@scenario("bulkhead", "fallback", "refuses before the fallback is asked, which runs in the slot")
def _():
    assert outcome(policy_of(full(), Fallback("spare")), int) is BulkheadFullError
    assert slots_in_fallback(Bulkhead, Fallback) == [1]


def left_for_fallback(*make):
    """The error that the fallback gets, and what `remaining()` is for it, once the work took 2 s of `Timeout("1s")`."""
    left = []
    clock = ManualClock()
    using = Fallback(using=lambda error, ctx: left.append((type(error), ctx.remaining())) or "spare")
    policy = Policy(*(using if item is Fallback else item("1s") for item in make), clock=clock)
    assert outcome(policy, lambda: clock.advance("2s") or int("x")) == "spare"
    return left


@scenario("fallback", "timeout", "takes the place of a work that ran out of time, and has time of its own")
def _():
    assert left_for_fallback(Fallback, Timeout) == [(TimeoutExceededError, None)]


@scenario("timeout", "fallback", "counts the fallback's time too; its value may come late")
def _():
    assert left_for_fallback(Timeout, Fallback) == [(ValueError, 0.0)]


# -- cache -------------------------------------------------------------------------------------------------------------------


@scenario("cache", "lock", "takes the lock for a load only")
def _():
    policy = policy_of(Cache(key, ttl="1m"), free_lock())
    with record_events("lock-acquired") as recorded:
        assert [outcome(policy, Work(0)) for _ in range(3)] == [1, 1, 1]
    assert len(recorded) == 1


@scenario("lock", "cache", "takes the lock for every look-up")
def _():
    policy = policy_of(free_lock(), Cache(key, ttl="1m"))
    with record_events("lock-acquired") as recorded:
        assert [outcome(policy, Work(0)) for _ in range(3)] == [1, 1, 1]
    assert len(recorded) == 3


@scenario("cache", "retry", "attempts a load again, as one load")
def _():
    with record_events("cache-miss") as recorded:
        assert outcome(policy_of(Cache(key, ttl="1m"), retry()), Work(2)) == 3
    assert len(recorded) == 1


@scenario("retry", "cache", "looks the value up again with each attempt")
def _():
    with record_events("cache-miss") as recorded:
        assert outcome(policy_of(retry(), Cache(key, ttl="1m")), Work(2)) == 3
    assert len(recorded) == 3


@scenario("cache", "hedge", "hedges the load")
def _():
    work = Slow()
    assert outcome(Policy(Cache(key, ttl="1m"), hedge()), work) == 2
    assert work.calls == 2


@scenario("hedge", "cache", "lets both copies wait for the one load")
def _():
    work = Slow()
    assert outcome(Policy(hedge(), Cache(key, ttl="1m")), work) == 1
    assert work.calls == 1


@scenario("cache", "circuit breaker", "serves hits while the circuit is open")
def _():
    breaker = CircuitBreaker()
    policy = policy_of(Cache(key, ttl="1m"), breaker)
    outcome(policy, Work(0))
    breaker.trip()
    assert outcome(policy, Work()) == 1


@scenario("circuit breaker", "cache", "refuses hits too while it is open, and counts them as successes")
def _():
    breaker = CircuitBreaker()
    policy = policy_of(breaker, Cache(key, ttl="1m"))
    outcome(policy, Work(0))
    breaker.trip()
    assert outcome(policy, Work()) is CircuitOpenError


@scenario("cache", "rate limit", "spends a permit for a load only")
def _():
    policy = policy_of(Cache(key, ttl="1m"), RateLimit("1/h"))
    assert [outcome(policy, Work(0)) for _ in range(3)] == [1, 1, 1]


@scenario("rate limit", "cache", "spends a permit for every look-up")
def _():
    policy = policy_of(RateLimit("1/h"), Cache(key, ttl="1m"))
    assert [outcome(policy, Work(0)) for _ in range(2)] == [1, RateLimitedError]


@scenario("cache", "bulkhead", "needs a slot for a load only")
def _():
    bulkhead = Bulkhead(1)
    policy = policy_of(Cache(key, ttl="1m"), bulkhead)
    outcome(policy, Work(0))
    with Policy(bulkhead).execute():
        assert outcome(policy, Work()) == 1


@scenario("bulkhead", "cache", "needs a slot for every look-up")
def _():
    bulkhead = Bulkhead(1)
    policy = policy_of(bulkhead, Cache(key, ttl="1m"))
    outcome(policy, Work(0))
    with Policy(bulkhead).execute():
        assert outcome(policy, Work()) is BulkheadFullError


def left_seen(asking, *make):
    """What `remaining()` is where a strategy calls a function of its own; ``asking`` makes it, in the place of None."""
    left = []
    strategy = asking(lambda ctx: left.append(ctx.remaining()))
    outcome(Policy(*(item or strategy for item in make), clock=ManualClock()), int)
    return left


def cache_asking(ask):
    return Cache(lambda ctx: ask(ctx) or "k", ttl="1m")


def lock_asking(ask):
    return Lock(lambda ctx: ask(ctx) or "k", store=MemoryLockStore())


def limit_asking(ask):
    return RateLimit("5/h", weight=lambda ctx: ask(ctx) or 1)


@scenario("cache", "timeout", "limits the load")
def _():
    assert left_seen(cache_asking, None, Timeout("5s")) == [None]


@scenario(
    "timeout", "cache", "limits the look-up with the load, and with it the wait for somebody else's load"
)
def _():
    assert left_seen(cache_asking, Timeout("5s"), None) == [5.0]


# -- lock --------------------------------------------------------------------------------------------------------------------


@scenario("lock", "retry", "holds one lease over all attempts and the pauses")
def _():
    work = Work(2)
    outcome(policy_of(free_lock(), retry()), work)
    assert len(set(work.tokens)) == 1
    assert work.calls == 3


@scenario("retry", "lock", "takes a lease for each attempt; a lock that is held elsewhere is not tried again")
def _():
    work = Work(2)
    outcome(policy_of(retry(), free_lock()), work)
    assert len(set(work.tokens)) == 3
    with record_events("retry") as recorded:
        assert outcome(policy_of(retry(), locked()), int) is LockNotAcquiredError
    assert recorded == []


@scenario("lock", "hedge", "lets the copies run under one lease")
def _():
    work = Slow()
    assert outcome(Policy(free_lock(), hedge()), work) == 2
    assert len(set(work.tokens)) == 1


@scenario("hedge", "lock", "lets the copies compete for the lock, so the second one is refused")
def _():
    work = Slow()
    with record_events("lock-rejected") as recorded:
        outcome(Policy(hedge(), free_lock()), work)
    assert work.calls == 1
    assert len(recorded) == 1


@scenario("lock", "circuit breaker", "holds the lease when the circuit refuses")
def _():
    with record_events("lock-acquired") as recorded:
        assert outcome(policy_of(free_lock(), opened()), int) is CircuitOpenError
    assert len(recorded) == 1


@scenario(
    "circuit breaker",
    "lock",
    "takes no lease while it is open, and does not count a lock that is held elsewhere",
)
def _():
    with record_events("lock-acquired") as recorded:
        assert outcome(policy_of(opened(), free_lock()), int) is CircuitOpenError
    assert recorded == []
    breaker = open_after(1)
    assert outcome(policy_of(breaker, locked()), int) is LockNotAcquiredError
    assert breaker.state is CircuitState.CLOSED


@scenario("lock", "rate limit", "holds the lease when the limit refuses")
def _():
    with record_events("lock-acquired") as recorded:
        assert outcome(policy_of(free_lock(), used_up()), int) is RateLimitedError
    assert len(recorded) == 1


@scenario("rate limit", "lock", "spends a permit also where the lock is held elsewhere")
def _():
    policy = policy_of(RateLimit("1/h"), locked())
    assert [outcome(policy, int), outcome(policy, int)] == [LockNotAcquiredError, RateLimitedError]


@scenario("lock", "bulkhead", "holds the lease when the bulkhead refuses")
def _():
    with record_events("lock-acquired") as recorded:
        assert outcome(policy_of(free_lock(), full()), int) is BulkheadFullError
    assert len(recorded) == 1


@scenario("bulkhead", "lock", "takes no lease when it is full, and holds the slot while waiting for the lock")
def _():
    with record_events("lock-acquired") as recorded:
        assert outcome(policy_of(full(), free_lock()), int) is BulkheadFullError
    assert recorded == []
    seen = []
    bulkhead = Bulkhead(1)
    outcome(
        policy_of(
            bulkhead, Lock(lambda ctx: seen.append(bulkhead.stats().active) or "k", store=MemoryLockStore())
        ),
        int,
    )
    assert seen == [1]


@scenario("lock", "timeout", "starts the limit when the lease is held")
def _():
    assert left_seen(lock_asking, None, Timeout("5s")) == [None]


@scenario("timeout", "lock", "counts the wait for the lock")
def _():
    assert left_seen(lock_asking, Timeout("5s"), None) == [5.0]


# -- retry -------------------------------------------------------------------------------------------------------------------


@scenario("retry", "hedge", "hedges each attempt")
def _():
    work = Work()
    with record_events("retry") as recorded:
        outcome(Policy(Retry(3, Constant(0)), Hedge("1ms", max_hedges=1)), work)
    assert len(recorded) == 2
    assert 3 <= work.calls <= 6


@scenario("hedge", "retry", "lets each copy make its own attempts")
def _():
    work = Slow(fails=True)
    with record_events("retry") as recorded:
        outcome(Policy(hedge(), Retry(2, Constant(0))), work)
    assert work.calls == 4
    assert len(recorded) == 2


@scenario("retry", "circuit breaker", "counts each attempt, and stops at once when the circuit opens")
def _():
    work = Work()
    breaker = open_after(2)
    assert outcome(policy_of(retry(5), breaker), work) is CircuitOpenError
    assert work.calls == 2


@scenario("circuit breaker", "retry", "counts the execution with all its attempts once")
def _():
    work = Work()
    breaker = open_after(2)
    assert outcome(policy_of(breaker, retry(5)), work) is ValueError
    assert work.calls == 5
    assert breaker.state is CircuitState.CLOSED


@scenario("retry", "rate limit", "spends a permit for each attempt; a refusal is final")
def _():
    work = Work()
    assert outcome(policy_of(retry(5), RateLimit("2/h")), work) is RateLimitedError
    assert work.calls == 2


@scenario("rate limit", "retry", "spends one permit for all attempts")
def _():
    work = Work()
    policy = policy_of(RateLimit("1/h"), retry(3))
    assert [outcome(policy, work), outcome(policy, work)] == [ValueError, RateLimitedError]
    assert work.calls == 3


def slots_in_pauses(*make):
    seen = []
    bulkhead = Bulkhead(1)
    again = Retry(2, lambda attempt, outcome: seen.append(bulkhead.stats().active) or 0)
    outcome(policy_of(*(bulkhead if item is Bulkhead else again for item in make)), Work())
    return seen


@scenario("retry", "bulkhead", "holds a slot during an attempt, not in the pauses; a refusal is final")
def _():
    assert slots_in_pauses(Retry, Bulkhead) == [0]
    with record_events("retry") as recorded:
        assert outcome(policy_of(retry(), full()), int) is BulkheadFullError
    assert recorded == []


@scenario("bulkhead", "retry", "holds the slot over all attempts and the pauses")
def _():
    assert slots_in_pauses(Bulkhead, Retry) == [1]


def left_in_attempts(*strategies):
    """What `remaining()` is in each attempt, where each takes 2 s and fails; and how that ends."""
    clock = ManualClock()
    left = []

    def work():
        left.append(current_context().remaining())
        clock.advance("2s")
        raise ValueError

    return left, outcome(Policy(*strategies, clock=clock), work)


@scenario("retry", "timeout", "gives each attempt the whole limit")
def _():
    assert left_in_attempts(Retry(3, Constant(0)), Timeout("5s")) == ([5.0, 5.0, 5.0], ValueError)


@scenario("timeout", "retry", "limits all attempts together; a pause that does not fit is not begun")
def _():
    assert left_in_attempts(Timeout("5s"), Retry(9, Constant(0))) == ([5.0, 3.0, 1.0], TimeoutExceededError)


# -- hedge -------------------------------------------------------------------------------------------------------------------


@scenario("hedge", "circuit breaker", "counts each copy")
def _():
    breaker = open_after(2)
    outcome(Policy(hedge(), breaker), Slow(fails=True))
    assert breaker.state is CircuitState.OPEN


@scenario("circuit breaker", "hedge", "counts the execution with all its copies once")
def _():
    breaker = open_after(2)
    outcome(Policy(breaker, hedge()), Slow(fails=True))
    assert breaker.state is CircuitState.CLOSED


@scenario("hedge", "rate limit", "spends a permit for each copy")
def _():
    work = Slow()
    limit = RateLimit("2/h")
    assert outcome(Policy(hedge(), limit), work) == 2
    assert outcome(Policy(limit), int) is RateLimitedError


@scenario("rate limit", "hedge", "spends one permit for all copies")
def _():
    work = Slow()
    limit = RateLimit("2/h")
    assert outcome(Policy(limit, hedge()), work) == 2
    assert outcome(Policy(limit), int) == 0


@scenario("hedge", "bulkhead", "needs a slot for each copy; a copy that gets none has failed")
def _():
    work = Slow()
    with record_events("bulkhead-rejected") as recorded:
        assert outcome(Policy(hedge(), Bulkhead(1)), work) == 1
    assert (work.calls, len(recorded)) == (1, 1)


@scenario("bulkhead", "hedge", "needs one slot for all copies")
def _():
    work = Slow()
    assert outcome(Policy(Bulkhead(1), hedge()), work) == 2
    assert work.calls == 2


def left_of_copies(*strategies):
    left = {}

    def work():
        ctx = current_context()
        number = len(left)
        left[number] = ctx.remaining()
        if number == 0:
            ctx.cancel.wait(10)  # until the other one has won
        return number

    assert outcome(Policy(*strategies), work) == 1
    return left


@scenario("hedge", "timeout", "gives each copy the whole limit")
def _():
    left = left_of_copies(Hedge("2s"), Timeout("10s"))
    assert left[1] > 8.2


@scenario("timeout", "hedge", "limits all copies together, the delay included")
def _():
    left = left_of_copies(Timeout("10s"), Hedge("100ms"))
    assert left[1] <= 9.9


# -- circuit breaker, rate limit, bulkhead, timeout --------------------------------------------------------------------------


@scenario(
    "circuit breaker",
    "rate limit",
    "spends no permit while it is open, and does not count a refusal of the limit",
)
def _():
    limit = RateLimit("1/h")
    assert outcome(policy_of(opened(), limit), int) is CircuitOpenError
    assert outcome(Policy(limit), int) == 0
    breaker = open_after(1)
    assert outcome(policy_of(breaker, limit), int) is RateLimitedError
    assert breaker.state is CircuitState.CLOSED


@scenario("rate limit", "circuit breaker", "spends a permit also where the circuit refuses")
def _():
    limit = RateLimit("1/h")
    assert outcome(policy_of(limit, opened()), int) is CircuitOpenError
    assert outcome(Policy(limit), int) is RateLimitedError


@scenario("circuit breaker", "bulkhead", "takes no slot while it is open, and does not count a full bulkhead")
def _():
    assert outcome(policy_of(opened(), full()), int) is CircuitOpenError
    breaker = open_after(1)
    assert outcome(policy_of(breaker, full()), int) is BulkheadFullError
    assert breaker.state is CircuitState.CLOSED


@scenario("bulkhead", "circuit breaker", "asks for a slot before the circuit is asked")
def _():
    assert outcome(policy_of(full(), opened()), int) is BulkheadFullError


def late(*strategies):
    """A policy whose work succeeds or fails after its limit of 1 s."""
    clock = ManualClock()
    policy = Policy(*strategies, clock=clock)

    def work():
        clock.advance("2s")
        raise ValueError

    return outcome(policy, work)


@scenario("circuit breaker", "timeout", "counts running out of time as a failure")
def _():
    breaker = open_after(1)
    assert late(breaker, Timeout("1s")) is TimeoutExceededError
    assert isinstance(outcome(Policy(breaker), int), type)
    with pytest.raises(CircuitOpenError) as caught:
        Policy(breaker).call(int)
    assert isinstance(caught.value.last_failure, TimeoutExceededError)


@scenario("timeout", "circuit breaker", "lets the breaker see what the work did, late or not")
def _():
    breaker = open_after(1)
    assert late(Timeout("1s"), breaker) is TimeoutExceededError
    with pytest.raises(CircuitOpenError) as caught:
        Policy(breaker).call(int)
    assert isinstance(caught.value.last_failure, ValueError)


@scenario("rate limit", "bulkhead", "spends a permit also where the bulkhead is full")
def _():
    limit = RateLimit("1/h")
    assert outcome(policy_of(limit, full()), int) is BulkheadFullError
    assert outcome(Policy(limit), int) is RateLimitedError


@scenario(
    "bulkhead",
    "rate limit",
    "spends no permit when it is full, and holds the slot while waiting for a permit",
)
def _():
    limit = RateLimit("1/h")
    assert outcome(policy_of(full(), limit), int) is BulkheadFullError
    assert outcome(Policy(limit), int) == 0
    seen = []
    bulkhead = Bulkhead(1)
    weighed = RateLimit("5/h", weight=lambda ctx: seen.append(bulkhead.stats().active) or 1)
    outcome(policy_of(bulkhead, weighed), int)
    assert seen == [1]


@scenario("rate limit", "timeout", "starts the limit when the permit is there")
def _():
    assert left_seen(limit_asking, None, Timeout("5s")) == [None]


@scenario("timeout", "rate limit", "counts the wait for a permit")
def _():
    assert left_seen(limit_asking, Timeout("5s"), None) == [5.0]


def queued(*make):
    """A call that waits for a slot that never comes."""
    bulkhead = Bulkhead(1, max_queue=1, queue_timeout="5s")
    block = Policy(bulkhead).execute()
    with block:
        return outcome(policy_of(*(bulkhead if item is Bulkhead else item for item in make)), int)


@scenario("bulkhead", "timeout", "starts the limit when the slot is there")
def _():
    assert queued(Bulkhead, Timeout("1s")) is BulkheadFullError


@scenario("timeout", "bulkhead", "counts the wait for a slot")
def _():
    assert queued(Timeout("1s"), Bulkhead) is TimeoutExceededError


# -- the table ---------------------------------------------------------------------------------------------------------------

PAIRS = [(outer, inner) for position, outer in enumerate(NAMES) for inner in NAMES[position + 1 :]]


def table():
    """The table as the page has it: a row for each pair, the canonical order first."""
    lines = ["| outer | inner | outer around inner | inner around outer |", "|---|---|---|---|"]
    for outer, inner in PAIRS:
        lines.append(f"| {outer} | {inner} | {SCENARIOS[outer, inner][0]} | {SCENARIOS[inner, outer][0]} |")
    return "\n".join(lines)


def test_every_pair_has_a_scenario_both_ways():
    assert set(SCENARIOS) == {(one, two) for one in NAMES for two in NAMES if one != two}


def test_the_page_has_the_table():
    assert table() in PAGE.read_text(encoding="utf-8")


def test_the_page_names_the_canonical_order():
    order = re.search(r"^    (.* > .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert order.split(" > ") == NAMES


@pytest.mark.parametrize(("outer", "inner"), sorted(SCENARIOS), ids=lambda name: name.replace(" ", "-"))
def test_pair(outer, inner):
    SCENARIOS[outer, inner][1]()
