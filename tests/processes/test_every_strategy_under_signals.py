"""Signal handlers that raise at any moment, under every strategy: nothing is left taken, and nothing waits for ever."""

from __future__ import annotations

import pytest

from tests.support.processes import run_python

STORM = """
    from pyresil import (
        AdaptiveBulkhead, Bulkhead, Cache, CircuitBreaker, Constant, Fallback, Lock, Locks, MemoryLockStore, Policy, RateLimit, Retry,
        Timeout, current_context, current_lease,
    )
    from tests.support.processes import wait_until
    from tests.support.storm import storm

    store = MemoryLockStore()
    bulkhead, adaptive, cache = Bulkhead(3), AdaptiveBulkhead(), Cache(lambda ctx: "k", ttl="1ms", refresh="inline")
    breaker = CircuitBreaker(minimum_calls=5, window=10, handle=KeyError)
    again = Retry(2, Constant(0), handle=ValueError)
    guards = (breaker, RateLimit("1000000/s"), bulkhead, adaptive, Timeout(60))
    policy = Policy(*{{
        "guards": guards,
        "lock": (Lock("k", store=store, ttl="30s"), Timeout(60)),
        "loop": (Timeout(60), again, *guards),
        "stack": (Fallback(0, handle=ValueError), again, *guards),
        "cache": (cache, again),
        "hold": (),
        "lock call": (Lock("k", store=store, ttl="30s"), again),
    }}[{strategies!r}])

    def work():
        for _ in range(3):
            pass
        return 1

    def block():
        with policy.execute():
            work()

    def loop():
        for attempt in policy.execute():
            with attempt as ctx:
                work()
                if ctx.attempt == 1:
                    raise ValueError

    locks = Locks(store)

    def hold():
        with locks.hold("k"):
            work()

    decorated = policy(work)

    def call():
        policy.call(work)
        decorated()

    def given_back():
        found = store.inspect("k")
        return found is None or not found.owner

    def check():
        assert current_context() is None
        assert current_lease() is None
        wait_until(given_back, what="the lease's release, which goes on in another thread where it was interrupted,")

    fired = storm({form}, {base}, seconds=0.4, longest=3e-4, check=check)
    assert (bulkhead.stats().active, adaptive.stats().active, len(cache._loads)) == (0, 0, 0)
    {form}()
    print(fired)
"""


@pytest.mark.parametrize("base", ["Exception", "BaseException"])
@pytest.mark.parametrize(
    ("strategies", "form"),
    [
        ("guards", "block"),
        ("lock", "block"),
        ("loop", "loop"),
        ("stack", "call"),
        ("cache", "call"),
        ("lock call", "call"),
        ("hold", "hold"),
    ],
)
def test_a_handler_that_raises_leaves_nothing_taken(strategies, form, base):
    done = run_python(STORM.format(strategies=strategies, form=form, base=base))
    assert int(done.stdout) > 50
