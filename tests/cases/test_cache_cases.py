"""Cases C1, C2, C5, P17 and P18: caches that broke elsewhere."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

from pyresil import Cache, Policy, RecursiveLoadError
from tests.strategies.test_cache import Loader, cached, run_all
from tests.support.processes import wait_until


def test_C1_a_loader_that_raises_is_called_once_for_all_who_wait():
    loader = Loader(ConnectionError("down"), delay=2.0)
    fn = cached(loader)
    begun = time.monotonic()
    results = run_all(8, fn)
    assert time.monotonic() - begun < 10.0, "all waited for the one load"
    assert all(result is loader.result for result in results)
    assert loader.calls == 1
    with pytest.raises(ConnectionError):
        fn()
    assert loader.calls == 2


def test_C2_fifty_threads_on_a_stale_key_get_the_old_value_and_load_once():
    loader = Loader("old")
    fn = cached(loader, ttl="50ms", stale_ttl="60s")
    fn()
    time.sleep(0.06)
    loader.result, loader.delay = "new", 6.0
    begun = time.monotonic()
    results = run_all(50, fn)
    assert time.monotonic() - begun < 5.5
    assert results == ["old"] * 50
    wait_until(lambda: loader.calls > 1, what="the refresh in the background")
    assert loader.calls == 2


def test_C3_a_refresh_that_takes_long_is_nobodys_error():
    loader = Loader("old")
    fn = cached(loader, ttl="20ms", stale_ttl="60s")
    fn()
    time.sleep(0.03)  # until it is stale
    loader.result, loader.delay = "new", 4.0
    until = time.monotonic() + 0.4
    seen = []
    while time.monotonic() < until:
        seen.append(fn())
    assert set(seen) == {"old"}
    wait_until(lambda: loader.calls > 1, what="the refresh in the background")
    assert loader.calls == 2  # one refresh, however long it takes
    loader.delay = 0.0
    deadline = time.monotonic() + 20
    while fn() != "new" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert fn() == "new"


def test_C5_a_key_that_loads_itself():
    policy = Policy(Cache(lambda ctx: "k"))

    def load():
        return policy.call(load)

    begun = time.monotonic()
    with pytest.raises(RecursiveLoadError, match="the load of cache key"):
        policy.call(load)
    assert time.monotonic() - begun < 5.0


def test_P17_a_hundred_threads_miss_one_key():
    loader = Loader("value", delay=0.1)
    assert run_all(100, cached(loader)) == ["value"] * 100
    assert loader.calls == 1


def test_P17_different_keys_load_in_parallel():
    both = threading.Barrier(2)
    fn = Policy(Cache())(lambda key: both.wait(5))
    keys = iter("ab")
    assert sorted(run_all(2, lambda: fn(next(keys)))) == [0, 1]


def test_P17_failing_keys_leave_nothing_behind():
    class Client:
        def load(self, number):
            raise KeyError(number)

    cache = Cache()
    policy = Policy(cache)
    client = Client()
    for number in range(5000):
        with pytest.raises(KeyError):
            policy.call(client.load, number)
    assert not cache._loads
    assert len(cache.store) == 0
    gone = weakref.ref(client)
    gc.collect()
    del client
    assert gone() is None


def test_P18_equal_reprs_and_equal_numbers_are_different_keys():
    class Thing:
        def __repr__(self):
            return "Thing"

    fn = Policy(Cache())(lambda o: [type(o).__name__, id(o)])
    one, two = Thing(), Thing()
    assert fn(o=one) != fn(o=two)
    assert fn(one) == fn(o=one)
    assert [fn(1)[0], fn(True)[0], fn(1.0)[0]] == ["int", "bool", "float"]
    assert [fn((1,))[1], fn((True,))[1]] != [fn((1,))[1]] * 2
