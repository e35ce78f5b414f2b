"""Successful calls: what protection costs while nothing goes wrong."""

from __future__ import annotations

import contextvars
import functools

from benchmarks.model import Contender, Row, Target, need, ours


def work() -> int:
    """The protected function: does nothing, so that only the protection is measured."""
    return 1


def bare_wrapper():
    @functools.wraps(work)
    def wrapper(*args, **kwargs):
        return work(*args, **kwargs)

    return wrapper


def context_wrapper():
    """The least that tells the work its context: a cell in a contextvar, put back by its token even if a signal handler raises."""
    variable = contextvars.ContextVar("bench", default=None)
    get, put, back = variable.get, variable.set, variable.reset

    @functools.wraps(work)
    def wrapper(*args, **kwargs):
        outer = get()
        token = None
        try:
            token = put([None, work, args, kwargs])
            return work(*args, **kwargs)
        finally:
            if token is None:
                put(outer)
            else:
                back(token)

    return wrapper


REFERENCES = (
    Contender("(bare call)", lambda: work),
    Contender("(bare wrapper)", bare_wrapper),
    Contender("(wrapper with a contextvar)", context_wrapper),
)


def policy_of(*make):
    """Our three forms of one policy; `make` are functions that build the strategies."""

    def build():
        return ours.Policy(*[one() for one in make], name="bench")

    def decorated():
        return build()(work)

    def called():
        call = build().call
        return lambda: call(work)

    return Contender("pyresil (decorator)", decorated), Contender("pyresil (call)", called)


def block_of(*make):
    """Ours as a block, for guards."""

    def block():
        policy = ours.Policy(*[one() for one in make], name="bench")

        def operation():
            with policy.execute():
                work()

        return operation

    return Contender("pyresil (block)", block)


EMPTY = Row(
    "empty policy",
    "A policy with nothing in it: what every call pays for its context.",
    (*policy_of(), block_of(), *REFERENCES),
)

# Retry: 3 attempts, exponential back-off, nothing fails.


def our_retry():
    return ours.Retry(attempts=3)


def tenacity_retry():
    t = need("tenacity")
    return t.retry(stop=t.stop_after_attempt(3), wait=t.wait_random_exponential(0.2, max=30), reraise=True)(
        work
    )


def stamina_retry():
    return need("stamina").retry(on=Exception, attempts=3)(work)


def backoff_retry():
    b = need("backoff")
    return b.on_exception(b.expo, Exception, max_tries=3)(work)


def nopanic_retry():
    return need("nopanic").retry(attempts=3)(work)


def interlock_retry():
    need("tenacity")
    return need("interlock").Pipeline.builder().retry(attempts=3).build()(work)


def pyresilience_retry():
    p = need("pyresilience")
    return p.resilient(retry=p.RetryConfig(max_attempts=3))(work)


def grit_retry():
    return need("grit").retry(tries=3)(work)


RETRY = Row(
    "retry",
    "3 attempts with exponential back-off around a function that succeeds.",
    (
        *policy_of(our_retry),
        Contender("nopanic", nopanic_retry, "no context for the work"),
        Contender("grit", grit_retry, "no context for the work"),
        Contender("tenacity", tenacity_retry),
        Contender("stamina", stamina_retry),
        Contender("backoff", backoff_retry),
        Contender("interlock", interlock_retry, "runs tenacity"),
        Contender("pyresilience", pyresilience_retry),
        *REFERENCES,
    ),
    (
        Target("pyresil (decorator)", 1.8, "nopanic"),
        Target("pyresil (decorator)", 0.03, "tenacity"),
    ),
)

# Circuit breaker, closed.


def our_breaker():
    return ours.CircuitBreaker(failure_rate=0.5, minimum_calls=10, window=20, open_for="30s")


def our_time_breaker():
    return ours.CircuitBreaker(
        failure_rate=0.5, minimum_calls=10, window="30s", slow_call="1s", slow_call_rate=0.5, open_for="30s"
    )


def circuitbreaker_breaker():
    return need("circuitbreaker").CircuitBreaker(failure_threshold=10, recovery_timeout=30, name="bench")(
        work
    )


def pybreaker_breaker():
    return need("pybreaker").CircuitBreaker(fail_max=10, reset_timeout=30)(work)


def nopanic_breaker():
    return need("nopanic").circuit_breaker(failure_threshold=0.5, min_calls=10, window=30, reset_timeout=30)(
        work
    )


def nopanic_slow_breaker():
    return need("nopanic").circuit_breaker(
        failure_threshold=0.5,
        min_calls=10,
        window=30,
        reset_timeout=30,
        slow_call_duration=1,
        slow_call_threshold=0.5,
    )(work)


def interlock_breaker(**options):
    i = need("interlock")
    config = i.Config(minimum_number_of_calls=10, wait_duration_in_open=30, **options)
    return i.CircuitBreaker(name="bench", config=config)(work)


def interlock_time_breaker():
    kind = need("interlock").WindowType.TIME_BASED
    return interlock_breaker(
        window_type=kind, window_size=30, slow_call_duration_threshold=1.0, slow_call_rate_threshold=0.5
    )


def pyresilience_breaker(**options):
    p = need("pyresilience")
    config = p.CircuitBreakerConfig(
        sliding_window_size=20, minimum_calls=10, failure_rate_threshold=0.5, recovery_timeout=30, **options
    )
    return p.resilient(circuit_breaker=config)(work)


def grit_breaker():
    return need("grit").breaker(fails=10, reset_after=30)(work)


BREAKER = Row(
    "breaker, count window",
    "A closed circuit breaker over the last 20 calls, opening at half of them.",
    (
        *policy_of(our_breaker),
        block_of(our_breaker),
        Contender("circuitbreaker", circuitbreaker_breaker, "no lock; failures in a row"),
        Contender("pybreaker", pybreaker_breaker, "failures in a row; holds its lock while the work runs"),
        Contender("nopanic", nopanic_breaker, "time window"),
        Contender("interlock", lambda: interlock_breaker(window_size=20)),
        Contender("pyresilience", pyresilience_breaker),
        Contender("grit", grit_breaker, "failures in a row"),
        *REFERENCES,
    ),
    (Target("pyresil (decorator)", 0.85, "circuitbreaker"),),
)

TIME_BREAKER = Row(
    "breaker, time window and slow calls",
    "A closed circuit breaker over the last 30 s, opening at half of the calls failed or slower than 1 s.",
    (
        *policy_of(our_time_breaker),
        Contender("nopanic", nopanic_slow_breaker),
        Contender("interlock", interlock_time_breaker),
        Contender(
            "pyresilience",
            lambda: pyresilience_breaker(slow_call_duration=1.0, slow_call_rate_threshold=0.5),
            "count window",
        ),
        *REFERENCES,
    ),
    (Target("pyresil (decorator)", 0.5, "nopanic"),),
)

# Bulkhead of 10 with free slots, no queue.


def our_bulkhead():
    return ours.Bulkhead(max_concurrent=10)


def nopanic_bulkhead():
    return need("nopanic").bulkhead(10, max_wait=0)(work)


def grit_bulkhead():
    return need("grit").bulkhead(10)(work)


def interlock_bulkhead():
    return need("interlock").Pipeline.builder().bulkhead(10).build()(work)


def pyresilience_bulkhead():
    p = need("pyresilience")
    return p.resilient(bulkhead=p.BulkheadConfig(max_concurrent=10))(work)


BULKHEAD = Row(
    "bulkhead, free",
    "10 slots, no queue, a slot is free.",
    (
        *policy_of(our_bulkhead),
        block_of(our_bulkhead),
        Contender("grit", grit_bulkhead),
        Contender("nopanic", nopanic_bulkhead),
        Contender("interlock", interlock_bulkhead),
        Contender("pyresilience", pyresilience_bulkhead),
        *REFERENCES,
    ),
    (Target("pyresil (decorator)", 0.4, "grit"),),
)

# Rate limit, far from its limit, nobody waits.


def our_rate_limit():
    return ours.RateLimit("10000000/s")


def nopanic_rate_limit():
    return need("nopanic").rate_limit(10_000_000, per=1.0, max_wait=0)(work)


def grit_rate_limit():
    return need("grit").limiter(rate=10_000_000, per=1.0)(work)


def limits_rate_limit():
    need("limits")
    limiter = need("limits.strategies").SlidingWindowCounterRateLimiter(
        need("limits.storage").MemoryStorage()
    )
    item = need("limits").RateLimitItemPerSecond(10_000_000)

    def operation():
        if limiter.hit(item, "bench"):
            return work()
        raise RuntimeError("over the limit")

    return operation


def pyrate_rate_limit():
    p = need("pyrate_limiter")
    limiter = p.Limiter(p.Rate(1_000_000, p.Duration.SECOND))

    def operation():
        if limiter.try_acquire("bench", blocking=False):
            return work()
        raise RuntimeError("over the limit")

    return operation


RATE_LIMIT = Row(
    "rate limit, memory",
    "Far below the limit, kept in this process.",
    (
        *policy_of(our_rate_limit),
        Contender("nopanic", nopanic_rate_limit, "token bucket"),
        Contender("grit", grit_rate_limit, "token bucket"),
        Contender("limits", limits_rate_limit, "sliding window counter"),
        Contender("pyrate-limiter", pyrate_rate_limit, "log of every call"),
        *REFERENCES,
    ),
    (Target("pyresil (decorator)", 0.8, "nopanic"),),
)

# Stacks.


def our_timeout():
    return ours.Timeout("2s")


def nopanic_stack():
    n = need("nopanic")
    return n.compose(
        n.retry(attempts=3),
        n.circuit_breaker(failure_threshold=0.5, min_calls=10, window=30, reset_timeout=30),
        n.bulkhead(10, max_wait=0),
    )(work)


def interlock_stack():
    i = need("interlock")
    need("tenacity")
    breaker = i.CircuitBreaker(name="bench", config=i.Config(minimum_number_of_calls=10, window_size=20))
    return i.Pipeline.builder().retry(attempts=3).circuit_breaker(breaker).bulkhead(10).build()(work)


def pyresilience_stack(**more):
    p = need("pyresilience")
    breaker = p.CircuitBreakerConfig(
        sliding_window_size=20, minimum_calls=10, failure_rate_threshold=0.5, recovery_timeout=30
    )
    return p.resilient(
        retry=p.RetryConfig(max_attempts=3),
        circuit_breaker=breaker,
        bulkhead=p.BulkheadConfig(max_concurrent=10),
        **more,
    )(work)


def pyresilience_stack_with_timeout():
    return pyresilience_stack(timeout=need("pyresilience").TimeoutConfig(seconds=2.0))


def grit_stack():
    g = need("grit")
    return g.policy(g.retry(tries=3), g.breaker(fails=10, reset_after=30), g.bulkhead(10))(work)


STACK = Row(
    "retry + breaker + bulkhead",
    "3 attempts, a closed breaker over 20 calls, 10 slots.",
    (
        *policy_of(our_retry, our_breaker, our_bulkhead),
        Contender("nopanic", nopanic_stack, "time window"),
        Contender("grit", grit_stack, "failures in a row"),
        Contender("interlock", interlock_stack),
        Contender("pyresilience", pyresilience_stack),
        *REFERENCES,
    ),
    (Target("pyresil (decorator)", 0.35, "pyresilience"),),
)

STACK_WITH_TIMEOUT = Row(
    "retry + breaker + bulkhead + timeout",
    "The same with a timeout of 2 s that is not reached: cooperative, so that the work stays in its thread.",
    (
        *policy_of(our_retry, our_breaker, our_bulkhead, our_timeout),
        Contender("pyresilience", pyresilience_stack_with_timeout, "in a thread pool"),
        *REFERENCES,
    ),
    (Target("pyresil (decorator)", 0.05, "pyresilience"),),
)

# Timeouts of 2 s that are not reached.


def our_abandon():
    return ours.Timeout("2s", mode="abandon")


def nopanic_timeout():
    return need("nopanic").timeout(2.0)(work)


def interlock_timeout():
    return need("interlock").sync_timeout(2.0)(work)


def pyresilience_timeout():
    p = need("pyresilience")
    return p.resilient(timeout=p.TimeoutConfig(seconds=2.0))(work)


COOPERATIVE = Row(
    "timeout, cooperative",
    "A limit of 2 s that is not reached; the work runs in the caller's thread.",
    (*policy_of(our_timeout), block_of(our_timeout), *REFERENCES),
)

ABANDON = Row(
    "timeout, abandon",
    "A limit of 2 s that is not reached; the work runs in another thread, which can be left behind.",
    (
        *policy_of(our_abandon),
        Contender("nopanic", nopanic_timeout),
        Contender("interlock", interlock_timeout, "a new thread for each call"),
        Contender("pyresilience", pyresilience_timeout, "thread pool; loses contextvars"),
        *REFERENCES,
    ),
    (Target("pyresil (decorator)", 1.1, "fastest peer"),),
)


def our_hedge():
    return ours.Hedge("2s")


def our_percentile_hedge():
    return ours.Hedge("p95")


def our_abandon_decorated():
    return ours.Policy(our_abandon(), name="bench")(work)


HEDGE = Row(
    "hedge that does not fire",
    "A second copy after 2 s, which is never needed, beside our own timeout in abandon mode: both hand the work to a worker.",
    (
        *policy_of(our_hedge),
        Contender(
            "pyresil (p95)", lambda: ours.Policy(our_percentile_hedge(), name="bench")(work), "decorator"
        ),
        Contender("abandon mode", our_abandon_decorated, "decorator"),
        *REFERENCES,
    ),
    (Target("pyresil (decorator)", 1.1, "abandon mode"),),
)


def our_fallback():
    return ours.Fallback(None)


FALLBACK = Row(
    "fallback, not used",
    "A fallback value around a function that succeeds.",
    (
        *policy_of(our_fallback),
        Contender("nopanic", lambda: need("nopanic").fallback(None)(work)),
        Contender("grit", lambda: need("grit").fallback(value=None)(work)),
        *REFERENCES,
    ),
)

ROWS = (
    EMPTY,
    RETRY, BREAKER, TIME_BREAKER, BULKHEAD, RATE_LIMIT, STACK, STACK_WITH_TIMEOUT, COOPERATIVE, ABANDON, HEDGE,
    FALLBACK,
)  # fmt: skip
