"""The cache strategy: hits, misses loaded once, stale values, invalidation, keys and copies."""

from __future__ import annotations

import collections
import contextvars
import datetime as dt
import decimal
import enum
import functools
import gc
import itertools
import threading
import time
import weakref
from typing import NamedTuple

import pytest

import pyresil
from pyresil import (
    Cache,
    CancelToken,
    ConfigurationError,
    Failure,
    Hedge,
    Lock,
    Locks,
    MemoryLockStore,
    Policy,
    RecursiveLoadError,
    Success,
    Timeout,
    TimeoutExceededError,
    current_context,
)
from pyresil._single_flight import Load, Loads
from pyresil.stores.cache import MemoryCacheStore
from pyresil.testing import ManualClock, instant, record_events
from tests.support.processes import wait_until


def run_all(count, fn):
    """Run ``fn`` in so many threads that start together; the results or errors."""
    return run_numbered(count, lambda position: fn())


def run_numbered(count, fn):
    """`run_all`, for a function of the thread's number."""
    barrier = threading.Barrier(count)
    results = [None] * count

    def body(position):
        barrier.wait(5)
        try:
            results[position] = fn(position)
        except Exception as error:
            results[position] = error

    threads = [threading.Thread(target=body, args=(position,), daemon=True) for position in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return results


class Loader:
    def __init__(self, result=None, delay=0.0):
        self.calls = 0
        self.result = result
        self.delay = delay

    def __call__(self, *args, **kwargs):
        self.calls += 1
        time.sleep(self.delay)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def cached(loader, clock=None, **options):
    options.setdefault("key", lambda ctx: ctx.args)
    return Policy(Cache(clock=clock, **options))(loader)


@pytest.mark.parametrize("value", [None, 0, False, "", [], {}, 7, {"a": [1, 2]}])
def test_every_value_is_kept_also_falsy_ones(value):
    loader = Loader(value)
    fn = cached(loader)
    assert [fn(), fn(), fn()] == [value] * 3
    assert loader.calls == 1


def test_fresh_stale_gone():
    clock = ManualClock()
    loader = Loader("old")
    fn = cached(loader, clock, ttl="10s", stale_ttl="10s", refresh="inline")
    with record_events() as events:
        assert fn() == "old"
        clock.advance("9s")
        assert fn() == "old"
        clock.advance("2s")
        loader.result = "new"
        assert fn() == "new"  # refreshed by the caller that found it stale
        clock.advance("21s")
        assert fn() == "new"
    assert [event.type for event in events if event.type != "execution"] == [
        "cache-miss",
        "cache-hit",
        "cache-miss",
    ]
    assert loader.calls == 3


def test_a_stale_value_is_served_while_it_is_refreshed_in_the_background():
    clock = ManualClock()
    loader = Loader("old")
    fn = cached(loader, clock, ttl="10s", stale_ttl="10s")
    assert fn() == "old"
    clock.advance("11s")
    loader.result = "new"
    with record_events() as events:
        assert fn() == "old"
    assert [event.type for event in events if event.type != "execution"] == ["cache-stale"]
    deadline = time.monotonic() + 5
    while fn() == "old" and time.monotonic() < deadline:
        pass
    assert fn() == "new"
    assert loader.calls == 2


def test_a_background_refresh_has_no_deadline_of_the_caller():
    clock = ManualClock()
    seen = []

    def load():
        seen.append(current_context().remaining())
        return len(seen)

    policy = Policy(Cache(lambda ctx: "k", ttl="10s", stale_ttl="10s", clock=clock))
    assert policy.options(deadline="1s").call(load) == 1
    clock.advance("11s")
    assert policy.options(deadline="1s").call(load) == 1
    deadline = time.monotonic() + 5
    while len(seen) < 2 and time.monotonic() < deadline:
        pass
    assert seen == [1.0, None]


def test_stale_if_error_serves_the_old_value_and_cools_down():
    clock = ManualClock()
    loader = Loader("old")
    fn = cached(loader, clock, ttl="10s", stale_ttl="60s", refresh="inline")
    fn()
    clock.advance("11s")
    loader.result = ConnectionError("down")
    with record_events() as events:
        assert fn() == "old"
        assert fn() == "old"  # left alone for a while
    assert loader.calls == 2
    assert [event.type for event in events if event.type != "execution"] == [
        "cache-refresh-failed",
        "cache-stale",
        "cache-stale",
    ]
    clock.advance("5s")
    loader.result = "new"
    assert fn() == "new"


class Status:
    def __init__(self, status_code):
        self.status_code = status_code


@pytest.mark.parametrize("refresh", ["inline", "background"])
def test_a_refresh_that_brings_a_result_judged_a_failure_has_failed(refresh):
    clock = ManualClock()
    loader = Loader(Status(200))
    fn = cached(loader, clock, ttl="10s", stale_ttl="60s", refresh=refresh)
    fn()
    clock.advance("11s")
    loader.result = Status(503)
    with record_events("cache-refresh-failed") as events:
        for _ in range(3):
            assert fn().status_code == 200
            clock.advance(0)
    assert loader.calls == 2  # left alone for a while
    assert [event.error for event in events] == [None]
    clock.advance("5s")
    loader.result = Status(201)
    fn()
    clock.advance(0)
    assert fn().status_code == 201


def test_without_stale_if_error_a_result_judged_a_failure_comes_out():
    clock = ManualClock()
    loader = Loader(Status(200))
    fn = cached(loader, clock, ttl="10s", stale_ttl="60s", refresh="inline", stale_if_error=False)
    fn()
    clock.advance("11s")
    loader.result = Status(503)
    assert fn() is loader.result
    assert fn() is loader.result


def test_a_clock_that_leaves_out_waits_does_not_leave_out_somebody_elses_load():
    go, entered = threading.Event(), threading.Event()
    policy = Policy(Cache(lambda ctx: "k"), clock=instant())

    def load():
        entered.set()
        go.wait(5)
        return "loaded"

    def joins():
        return policy.options(deadline="5s").settle(load)

    results = []
    loading = threading.Thread(target=lambda: results.append(joins()))
    loading.start()
    entered.wait(5)
    joining = threading.Thread(target=lambda: results.append(joins()))
    joining.start()
    joining.join(0.1)
    go.set()
    joining.join(5)
    loading.join(5)
    assert results == [Success("loaded"), Success("loaded")]


def test_without_stale_if_error_the_error_comes_out():
    clock = ManualClock()
    loader = Loader("old")
    fn = cached(loader, clock, ttl="10s", stale_ttl="60s", refresh="inline", stale_if_error=False)
    fn()
    clock.advance("11s")
    loader.result = ConnectionError("down")
    with pytest.raises(ConnectionError) as caught:
        fn()
    assert caught.value is loader.result


def test_negative_caching_raises_a_copy_for_a_while():
    clock = ManualClock()
    error = KeyError("nobody")
    loader = Loader(error)
    fn = cached(loader, clock, negative_ttl="5s")
    with pytest.raises(KeyError) as first:
        fn()
    with pytest.raises(KeyError) as second:
        fn()
    assert first.value is error
    assert second.value is not error
    assert second.value.args == error.args
    assert loader.calls == 1
    clock.advance("6s")
    loader.result = "found"
    assert fn() == "found"


def test_errors_are_not_kept_by_default():
    loader = Loader(KeyError("nobody"))
    fn = cached(loader)
    for _ in range(3):
        with pytest.raises(KeyError):
            fn()
    assert loader.calls == 3


def test_a_result_that_is_a_failure_is_not_kept():
    class Response:
        status_code = 503

    loader = Loader(Response())
    fn = cached(loader, store=MemoryCacheStore())

    # not even copied, so a local class does not matter for the loader's own caller
    with pytest.raises(ConfigurationError, match="cannot be copied"):
        fn()


def test_values_are_copies():
    loader = Loader({"list": [1]})
    fn = cached(loader)
    mine = fn()
    theirs = fn()
    theirs["list"].append(2)
    assert fn() == {"list": [1]}
    assert mine is loader.result  # the caller that loaded gets what the work returned
    mine["list"].append(3)
    assert fn() == {"list": [1]}


def test_what_cannot_be_copied_is_refused():
    fn = Policy(Cache(lambda ctx: 1, name="locks"))(lambda: threading.Lock())
    with pytest.raises(ConfigurationError, match="cache 'locks': a result of type lock cannot be copied"):
        fn()


@pytest.mark.parametrize("value", [(1, 2), {1: "int key"}, {1, 2}])
def test_what_does_not_round_trip_through_json_is_refused(value):
    fn = cached(Loader(value), codec="json")
    with pytest.raises(ConfigurationError, match="cannot be copied"):
        fn()


def test_invalidation_during_a_load_wins_over_the_load():
    cache = Cache(lambda ctx: "k")
    started, go = threading.Event(), threading.Event()
    values = iter(["before", "after"])

    def load():
        value = next(values)
        if value == "before":
            started.set()
            go.wait(5)
        return value

    fn = Policy(cache)(load)
    results = []
    thread = threading.Thread(target=lambda: results.append(fn()))
    thread.start()
    started.wait(5)
    cache.invalidate("k")
    assert fn() == "after"  # joins nobody who began before
    go.set()
    thread.join(5)
    assert results == ["before"]
    assert fn() == "after"


def test_a_load_that_ends_does_not_take_the_one_after_it_along():
    first, second = Load(), Load()
    loads = Loads()

    class Running(dict):
        """Another thread invalidates, and a third one loads anew, in the middle of the end of the first load."""

        def get(self, key, default=None):
            found = dict.get(self, key, default)
            if found is first:
                self.update(k=second)
            return found

        def __contains__(self, key):
            if dict.get(self, key) is first:
                self.update(k=second)
            return dict.__contains__(self, key)

    loads._running = Running(k=first)
    loads.finish("k", first, Success(1))
    assert loads.claim("k", Load()) is second


def test_invalidate_call_drops_one_call():
    calls = []

    def fn(x, y=1):
        calls.append((x, y))
        return x + y

    cache = Cache()
    cached_fn = Policy(cache)(fn)
    cached_fn(1)
    cached_fn(2)
    cache.invalidate_call(fn, x=1)
    cached_fn(1)
    cached_fn(2)
    assert calls == [(1, 1), (2, 1), (1, 1)]


def test_the_least_recently_used_entry_makes_room():
    calls = []
    fn = Policy(Cache(max_entries=2))(lambda x: calls.append(x))
    for x in (1, 2, 1, 3, 1, 2):
        fn(x)
    assert calls == [1, 2, 3, 2]


def test_a_key_function_that_raises_is_the_callers_error():
    error = LookupError("no tenant")

    def key(ctx):
        raise error

    with pytest.raises(LookupError) as caught:
        Policy(Cache(key)).call(dict)
    assert caught.value is error


def test_a_key_that_is_not_hashable_is_named():
    class Odd:
        __hash__ = None

    with pytest.raises(ConfigurationError, match=r"cache 'x': key must be hashable, got <.*Odd"):
        Policy(Cache(lambda ctx: Odd(), name="x")).call(dict)


def test_two_functions_cannot_share_arguments_as_keys():
    policy = Policy(Cache(name="x"))
    policy.call(Loader(1))
    with pytest.raises(
        ConfigurationError, match="cache 'x': two functions cannot share a cache without key="
    ):
        policy.call(Loader(2))


def test_a_cancelled_loader_leaves_the_load_to_a_waiter():
    entered = threading.Event()
    token = CancelToken()
    policy = Policy(Cache(lambda ctx: "k"))

    def load():
        entered.set()
        ctx = current_context()
        if ctx.source == "first":
            ctx.sleep(10)
        return "loaded"

    first = []
    thread = threading.Thread(
        target=lambda: first.append(policy.options(cancel=token, source="first").settle(load)),
    )
    thread.start()
    entered.wait(5)
    second = []
    other = threading.Thread(target=lambda: second.append(policy.call(load)))
    other.start()
    token.cancel("enough")
    thread.join(5)
    other.join(5)
    assert second == ["loaded"]
    assert "enough" in str(first[0].error)


class LeftBehind:
    """A load that its caller left behind at work, until `go` is set; further loads bring something newer."""

    def __init__(self, *around, inside=(), error=None, **options):
        self.go = threading.Event()
        self.calls = 0
        self.cache = Cache(lambda ctx: "k", **options)
        self.token = CancelToken()
        self._leaving = Policy(*around, self.cache, *inside).options(cancel=self.token)
        self._others = Policy(self.cache, *inside)
        self._error = error

    def load(self):
        self.calls += 1
        if self.calls > 1:
            return "new"
        self.go.wait(20)
        if self._error is not None:
            raise self._error
        return "old"

    def call(self):
        return self._others.call(self.load)

    @property
    def parkers(self):
        return [parker for load in self.cache._loads._running.values() for parker in load.parkers]

    def __enter__(self):
        self._thread = threading.Thread(target=self._leaving.settle, args=(self.load,))
        self._thread.start()
        wait_until(lambda: self.calls, what="the load")
        return self

    def leave(self):
        self.token.cancel()
        self._thread.join(5)

    def __exit__(self, *exc_info):
        self.token.cancel()
        self.go.set()


@pytest.mark.parametrize("around", [Timeout("20s", mode="abandon"), Hedge("1ms")])
def test_a_load_that_its_caller_left_behind_and_that_hangs_keeps_nobody_from_the_key(monkeypatch, around):
    monkeypatch.setattr("pyresil._single_flight.PATIENCE", 0.0)
    monkeypatch.setattr("pyresil._single_flight.LOOK", 0.05)
    with LeftBehind(around) as left:
        before = []
        waiting = threading.Thread(target=lambda: before.append(left.call()), daemon=True)
        waiting.start()
        wait_until(lambda: left.parkers, what="the waiter")
        left.leave()
        assert left.call() == "new"
        waiting.join(10)
        assert before == ["new"], "who waited when it was left takes over, too"
        assert left.calls == 2


def lock_of_each_call():
    numbers = itertools.count()
    return Lock(lambda ctx: f"work-{next(numbers)}", store="memory:")


@pytest.mark.parametrize("around", [Timeout("20s", mode="abandon"), Hedge("1ms")])
@pytest.mark.parametrize("outer", [False, True], ids=["", "lock around"])
@pytest.mark.parametrize("inner", [0, 1, 2])
def test_so_it_is_with_locks_in_the_policy(monkeypatch, around, outer, inner):
    monkeypatch.setattr("pyresil._single_flight.PATIENCE", 0.0)
    locks = [lock_of_each_call() for _ in range(inner)]
    with LeftBehind(*[lock_of_each_call()] * outer, around, inside=locks) as left:
        left.leave()
        assert left.call() == "new"


def test_who_waits_for_a_load_under_a_lock_leaves_at_the_deadline():
    policy = Policy(Cache(lambda ctx: "k"), Lock("work", store="memory:"))
    go, entered = threading.Event(), threading.Event()

    def load():
        entered.set()
        go.wait(20)
        return 7

    leader = threading.Thread(target=policy.call, args=(load,))
    leader.start()
    assert entered.wait(5)
    outcomes = []
    waiter = threading.Thread(
        target=lambda: outcomes.append(policy.options(deadline="50ms").settle(load)), daemon=True
    )
    waiter.start()
    waiter.join(5)
    early = list(outcomes)
    go.set()
    leader.join(5)
    assert [type(outcome.error) for outcome in early] == [TimeoutExceededError]


def test_a_stale_value_is_served_while_its_refresh_waits_under_a_lock():
    clock = ManualClock()
    policy = Policy(Cache(lambda ctx: "k", "10s", stale_ttl="1h"), Lock("work", store="memory:"), clock=clock)
    go, entered = threading.Event(), threading.Event()

    def load():
        if entered.is_set() or clock.monotonic() - begun > 5:
            entered.set()
            go.wait(20)
        return "old"

    begun = clock.monotonic()
    assert policy.call(load) == "old"
    clock.advance("11s")
    assert policy.call(load) == "old"
    assert entered.wait(5)
    served = []
    other = threading.Thread(target=lambda: served.append(policy.call(load)), daemon=True)
    other.start()
    other.join(5)
    early = list(served)
    go.set()
    assert early == ["old"]


def test_a_refresh_in_the_background_that_hangs_is_taken_over_when_nothing_can_be_served():
    """Nobody waits for it, so nobody's deadline ends it; but as long as the stale value is served there is one only."""
    clock = ManualClock()
    cache = Cache(lambda ctx: "k", "10s", stale_ttl="1h")
    policy = Policy(cache, clock=clock)
    go, entered, hung = threading.Event(), threading.Event(), []

    def hang():
        hung.append(1)
        entered.set()
        go.wait(20)

    assert policy.call(lambda: "old") == "old"
    clock.advance("11s")
    assert policy.call(hang) == "old"
    assert entered.wait(5)
    clock.advance("59m")
    assert policy.call(hang) == "old"
    assert len(hung) == len(cache._refreshing) == 1
    clock.advance("1m")
    outcomes = []
    caller = threading.Thread(target=lambda: outcomes.append(policy.call(lambda: "new")), daemon=True)
    caller.start()
    caller.join(5)
    early = list(outcomes)
    go.set()
    wait_until(lambda: not cache._refreshing, what="the end of the refresh")
    assert early == ["new"]
    assert policy.call(lambda: "newer") == "new"


def test_who_waits_when_a_load_is_taken_over_waits_for_the_other_one(monkeypatch):
    monkeypatch.setattr("pyresil._single_flight.LOOK", 1000.0)
    with LeftBehind(Timeout("20s", mode="abandon")) as left:
        before = []
        waiting = threading.Thread(target=lambda: before.append(left.call()), daemon=True)
        waiting.start()
        wait_until(lambda: left.parkers, what="the waiter")
        left.leave()
        monkeypatch.setattr("pyresil._single_flight.PATIENCE", 0.0)
        assert left.call() == "new"
        waiting.join(10)
        assert before == ["new"]
        assert left.calls == 2


def test_the_late_error_of_a_load_that_was_taken_over_does_not_take_a_stale_values_place(monkeypatch):
    monkeypatch.setattr("pyresil._single_flight.PATIENCE", 0.0)
    timeout = Timeout("20s", mode="abandon")
    options = {"ttl": 0.02, "stale_ttl": "1h", "negative_ttl": "1h", "refresh": "inline"}
    with LeftBehind(timeout, error=ConnectionError("late"), **options) as left:
        left.leave()
        assert left.call() == "new"
        time.sleep(0.03)
        left.go.set()
        wait_until(lambda: not timeout.abandoned, what="the end of the first load")
        assert left.call() == "new"


def test_a_load_that_was_left_behind_and_is_only_slow_is_everybodys_all_the_same():
    with LeftBehind(Timeout("20s", mode="abandon")) as left:
        left.leave()
        waiting = []
        thread = threading.Thread(target=lambda: waiting.append(left.call()), daemon=True)
        thread.start()
        wait_until(lambda: left.parkers, what="the waiter")
        left.go.set()
        thread.join(5)
        assert waiting == ["old"]
        assert left.call() == "old"
        assert left.calls == 1


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_load_that_was_taken_over_brings_is_kept_where_there_is_nothing_newer(monkeypatch, fails):
    monkeypatch.setattr("pyresil._single_flight.PATIENCE", 0.0)
    timeout = Timeout("20s", mode="abandon")
    with LeftBehind(timeout) as left:
        left.leave()
        if fails:
            policy = Policy(left.cache)
            assert isinstance(policy.settle(int, "x"), Failure)
        else:
            assert left.call() == "new"
        left.go.set()
        wait_until(lambda: not timeout.abandoned, what="the end of the first load")
        assert left.call() == ("old" if fails else "new")


def test_who_waits_for_a_load_under_a_lease_is_not_woken_to_look_again(monkeypatch):
    """A lease cannot leave its work behind; on a clock that moves by hand each look would take its time."""
    looks = []
    monkeypatch.setattr("pyresil._single_flight.Load.hangs", lambda load: looks.append(None), raising=True)
    monkeypatch.setattr("pyresil._single_flight.LOOK", 0.001)
    go = threading.Event()
    entered = threading.Event()
    cache = Cache(lambda ctx: "k")

    def load():
        entered.set()
        go.wait(20)
        return 7

    def under_a_lease():
        with Locks(MemoryLockStore()).hold("k"):
            Policy(cache).call(load)

    threads = [threading.Thread(target=Policy().call, args=(under_a_lease,))]
    threads[0].start()
    entered.wait(5)
    threads.append(threading.Thread(target=Policy(cache).call, args=(load,)))
    threads[1].start()
    wait_until(lambda: any(load.parkers for load in cache._loads._running.values()), what="the waiter")
    time.sleep(0.2)  # it is listed a moment before its first look
    before = len(looks)
    time.sleep(0.05)
    go.set()
    for thread in threads:
        thread.join(5)
    assert len(looks) == before


def test_nothing_is_left_of_those_who_do_not_wait_for_a_load_to_its_end():
    go = threading.Event()
    entered = threading.Event()
    policy = Policy(cache := Cache(lambda ctx: "k"))

    def load():
        entered.set()
        go.wait(20)

    thread = threading.Thread(target=policy.call, args=(load,))
    thread.start()
    entered.wait(5)
    for _ in range(3):
        assert isinstance(policy.options(cancel=CancelToken(timeout=0.001)).settle(load), Failure)
    (running,) = cache._loads._running.values()
    assert not running.parkers
    go.set()
    thread.join(5)


def test_a_waiter_can_be_cancelled():
    go = threading.Event()
    entered = threading.Event()
    policy = Policy(Cache(lambda ctx: "k"))

    def load():
        entered.set()
        go.wait(5)

    thread = threading.Thread(target=policy.call, args=(load,))
    thread.start()
    entered.wait(5)
    token = CancelToken(timeout=0.05)
    with pytest.raises(TimeoutError):
        policy.options(cancel=token).call(load)
    go.set()
    thread.join(5)


def test_KeyboardInterrupt_of_the_loader_is_not_everybodys():
    policy = Policy(Cache(lambda ctx: "k"))

    def load():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        policy.call(load)
    assert policy.call(lambda: "fine") == "fine"


def test_two_keys_that_wait_for_each_other_are_noticed():
    cache = Cache(lambda ctx: ctx.args[0])
    policy = Policy(cache)
    both = threading.Barrier(2)

    def load(key):
        if key in ("a", "b"):
            both.wait(5)
            return policy.call(load, "b" if key == "a" else "a")
        return key

    results = []

    def start(key):
        try:
            results.append(policy.call(load, key))
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=start, args=(key,)) for key in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert len(results) == 2
    assert any(isinstance(result, RecursiveLoadError) for result in results)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ttl": 0}, "ttl must be a duration above 0, got 0"),
        ({"ttl": "x"}, "ttl must be a duration above 0 .*got 'x'"),
        ({"stale_ttl": -1}, "stale_ttl must be a duration of 0 or more .*got -1"),
        ({"max_entries": True}, "max_entries must be a positive integer, got True"),
        ({"refresh": "later"}, "refresh must be one of 'background', 'inline', got 'later'"),
        ({"store": {}}, "store must be a store inside the process"),
        ({"lock_store": 1}, "lock_store must be None"),
        ({"codec": "xml"}, "codec must be one of 'json', got 'xml'"),
        ({"key": "k"}, "key must be callable, got 'k'"),
        ({"ttl": 0, "refresh": 1, "name": "n"}, "^cache 'n': ttl must .*; refresh must"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Cache(**options)


def test_the_work_runs_in_the_callers_context():
    var = contextvars.ContextVar("var", default="outside")
    var.set("inside")
    assert Policy(Cache()).call(var.get) == "inside"


def test_a_method_does_not_keep_its_object_alive():
    class Client:
        def load(self):
            return "value"

    policy = Policy(Cache())
    client = Client()
    assert policy.call(client.load) == "value"
    gone = weakref.ref(client)
    gc.disable()
    try:
        del client
        assert gone() is None
    finally:
        gc.enable()


# -- what two threads, two caches and a clock's rounding must not mix up ---------------------------------------------------

UTC_NOON = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
PARIS_ONE = UTC_NOON.astimezone(dt.timezone(dt.timedelta(hours=1)))


class Point(NamedTuple):
    x: int


class Moment(dt.datetime):
    """As libraries for dates and tables have their own."""


MOMENT = Moment(2020, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (0j, -0j),
        ([0.0], [-0.0]),
        (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
        (UTC_NOON, PARIS_ONE),
        (MOMENT, MOMENT.astimezone(PARIS_ONE.tzinfo)),
        (Point(1), Point(True)),
        (Point(1), (1,)),
    ],
)
def test_values_that_are_equal_and_not_the_same_are_two_keys(one, other):
    @pyresil.cached("1h")
    def text(value):
        return repr(value)

    assert one == other
    assert (text(one), text(other)) == (repr(one), repr(other))
    assert (text(one), text(other)) == (repr(one), repr(other))


def test_functions_that_share_a_store_keep_their_arguments_apart():
    store = MemoryCacheStore()
    calls = []

    @pyresil.cached("1h", store=store)
    def name(number):
        calls.append("name")
        return f"name {number}"

    @pyresil.cached("1h", store=store)
    def price(number):
        calls.append("price")
        return f"price {number}"

    assert [name(1), price(1), name(1), price(1)] == ["name 1", "price 1"] * 2
    assert calls == ["name", "price"]


class Level(enum.IntEnum):
    LOW = 1


@pytest.mark.parametrize("value", [Level.LOW, [Level.LOW], {"a": Level.LOW}, collections.OrderedDict(a=1)])
def test_what_comes_back_from_json_as_another_type_is_refused(value):
    with pytest.raises(ConfigurationError, match="cannot be copied"):
        Policy(Cache(lambda ctx: 1, codec="json")).call(lambda: value)


class Turncoat:
    def __reduce__(self):
        return str, ("something else",)


def test_what_comes_back_from_pickle_as_another_type_is_refused():
    with pytest.raises(ConfigurationError, match="comes back as a str"):
        Policy(Cache(lambda ctx: 1)).call(Turncoat)


@pytest.mark.parametrize("refresh", ["inline", "background"])
def test_a_kept_error_does_not_take_a_stale_values_place(refresh):
    clock = ManualClock()
    policy = Policy(
        Cache(lambda ctx: 1, "10s", stale_ttl="1h", negative_ttl="1m", refresh=refresh), clock=clock
    )
    assert policy.call(lambda: "old") == "old"

    def failing():
        raise ValueError("down")

    for _ in range(4):
        clock.advance("11s")
        assert policy.call(failing) == "old"
        clock.advance("1s")
        assert policy.call(failing) == "old"


def test_without_a_stale_ttl_nothing_stale_is_served_whatever_the_stores_clock_says():
    clock = ManualClock()
    policy = Policy(Cache(lambda ctx: 1, "10s", store=MemoryCacheStore()), clock=clock)
    results = iter(["old", "new"])
    assert policy.call(lambda: next(results)) == "old"
    clock.advance("10s")
    assert policy.call(lambda: next(results)) == "new"


def test_a_leader_that_is_cancelled_with_an_error_of_its_own_says_nothing_to_others():
    policy = Policy(Cache(lambda ctx: 1, negative_ttl="1h"))
    token, begun = CancelToken(), threading.Event()

    def slow():
        begun.set()
        current_context().sleep("10s")

    outcomes = []
    leader = threading.Thread(target=lambda: outcomes.append(policy.options(cancel=token).settle(slow)))
    leader.start()
    assert begun.wait(5)
    results = []
    follower = threading.Thread(target=lambda: results.append(policy.call(lambda: "mine")))
    follower.start()
    time.sleep(0.05)
    reason = KeyError("shutting down")
    token.cancel(reason)
    leader.join(5)
    follower.join(5)
    assert outcomes[0].error is reason
    assert results == ["mine"]


def test_a_circle_of_loads_in_many_caches_is_noticed():
    count = 6
    policies = [Policy(Cache(lambda ctx: 1)) for _ in range(count)]
    barrier = threading.Barrier(count)

    def load(position):
        barrier.wait(5)
        return policies[(position + 1) % count].call(lambda: "never")

    results = run_numbered(count, lambda position: policies[position].call(load, position))
    assert any(isinstance(result, RecursiveLoadError) for result in results), results
    assert None not in results


def test_a_circle_through_an_outer_load_is_noticed():
    outer, inner, other = (Policy(Cache(lambda ctx: 1)) for _ in range(3))
    waits = threading.Event()

    def first():
        return outer.call(lambda: inner.call(asks_other))

    def asks_other():
        assert loads_other.wait(5)
        waits.set()
        return other.call(lambda: "never")

    loads_other = threading.Event()

    def second():
        return other.call(asks_outer)

    def asks_outer():
        loads_other.set()
        assert waits.wait(5)
        time.sleep(0.1)  # until the first one waits for us
        return outer.call(lambda: "never")

    results = run_numbered(2, lambda position: (first, second)[position]())
    assert any(isinstance(result, RecursiveLoadError) for result in results), results
    assert None not in results


def test_a_refresh_may_wait_for_what_its_caller_loads():
    clock = ManualClock()
    stale = Policy(Cache(lambda ctx: 1, "10s", stale_ttl="1h"), clock=clock)
    around = Policy(Cache(lambda ctx: 1, "10s"), clock=clock)
    assert stale.call(lambda: "old") == "old"
    clock.advance("11s")
    refreshed = threading.Event()

    def refresh():
        value = around.call(lambda: "never")
        refreshed.set()
        return value

    with record_events() as events:
        assert around.call(lambda: stale.call(refresh)) == "old"
        assert refreshed.wait(5)
    assert "cache-refresh-failed" not in [event.type for event in events]


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize(
    ("stale", "refresh", "step"),
    [
        (stale, refresh, step)
        for stale in (False, True)
        for refresh in ("inline", "background")
        for step in ("claim", "get", "finish")
        # Signal handlers run in the main thread only.
        if (stale, refresh, step) != (True, "background", "finish")
    ],
)
def test_an_interrupt_between_two_steps_leaves_no_load_that_nobody_ends(monkeypatch, stale, refresh, step):
    clock = ManualClock()
    cache = Cache(lambda ctx: 1, "10s", stale_ttl="1h", refresh=refresh)
    policy = Policy(cache, clock=clock)
    if stale:
        policy.call(lambda: "old")
        clock.advance("11s")
    holder, kind = (cache.store, MemoryCacheStore) if step == "get" else (cache._loads, Loads)
    original = getattr(kind, step)
    left = [2 if step == "get" else 1]

    def interrupted(self, *args, **options):
        if self is holder:
            left[0] -= 1
            if left[0] == 0:
                if step == "claim":
                    original(self, *args, **options)
                raise Interrupted
        return original(self, *args, **options)

    monkeypatch.setattr(kind, step, interrupted)
    try:
        policy.call(lambda: "new")
    except Interrupted:
        pass
    monkeypatch.undo()
    clock.advance("1s")
    assert run_all(1, lambda: policy.call(lambda: "new")) != [None]
    # A refresh in the background may be under way: it ends.
    wait_until(lambda: len(cache._loads) == 0, what="the end of every load")


@pytest.mark.parametrize("stale", [False, True])
def test_an_interrupt_where_a_load_is_let_go_leaves_nobody_waiting(monkeypatch, stale):
    """The value came between the look and the claim, so that nothing else has ended the load."""
    clock = ManualClock()
    cache = Cache(lambda ctx: 1, "10s", stale_ttl="1h", refresh="inline")
    policy = Policy(cache, clock=clock)
    if stale:
        policy.call(lambda: "old")
        clock.advance("11s")
    claim, let_go, cuts = Loads.claim, Loads.let_go, [Interrupted()]
    claimed, ran = [], []

    def claims(self, key, fresh, **options):
        entry = cache._packing.pack("new", clock.monotonic() + 10.0)
        assert cache.store.set(key, entry, 10_000, cache.store.get(key)[1])
        claimed.append(claim(self, key, fresh, **options))
        return claimed[-1]

    def interrupted(self, key, load):
        if cuts:
            raise cuts.pop()
        let_go(self, key, load)

    monkeypatch.setattr(Loads, "claim", claims)
    monkeypatch.setattr(Loads, "let_go", interrupted)
    with pytest.raises(Interrupted):
        policy.call(ran.append, 1)
    assert (len(claimed), ran, len(cache._loads)) == (1, [], 0)
    assert claimed[0].over


class Point(NamedTuple):
    x: int
    y: list[int]


@pytest.mark.parametrize(
    "key",
    ["user:1", 1, True, None, 1.5, b"x", (), ("a", [1, ("b", None)]), [1], {"a": [1]}, {1, 2}, frozenset({1}), Point(1, [2]),
     decimal.Decimal("1.0"), Loader(), len],
    ids=lambda key: type(key).__name__,
)  # fmt: skip
def test_events_have_the_key_that_the_key_function_gave(key):
    cache = Cache(lambda ctx: key, "10s", stale_ttl="1h", refresh="inline", name="c")
    clock = ManualClock()
    policy = Policy(cache, clock=clock)
    with record_events() as events:
        policy.call(lambda: 1)
        policy.call(lambda: 1)
        clock.advance("11s")
        policy.call(lambda: 1 / 0)
    told = [(event.type, event.key) for event in events if event.type.startswith("cache")]
    words = ["cache-miss", "cache-hit", "cache-refresh-failed"]
    assert [word for word, _ in told if word in words] == words
    for _, found in told:
        assert found == key
        assert type(found) is type(key)


def test_events_of_a_cached_function_have_its_arguments_as_key():
    @pyresil.cached("1m")
    def price(item, currency="EUR"):
        return 1

    shared = Cache(ttl="1m", store=MemoryCacheStore())
    with record_events("cache-miss") as events:
        price("a")
        price(currency="USD", item=[1])
        Policy(shared).call(price, "b", "EUR")
    assert [event.key for event in events] == [("a", "EUR"), ([1], "USD"), ("b", "EUR"), ("b", "EUR")]


def test_a_recursive_load_names_the_key_as_it_was_given():
    policy = Policy(Cache(lambda ctx: ("user", 1)))
    with pytest.raises(RecursiveLoadError) as caught:
        policy.call(lambda: policy.call(lambda: 1))
    assert caught.value.key == ("user", 1)
    assert "('user', 1)" in str(caught.value)


def test_describe():
    assert Cache().describe() == {
        "strategy": "cache",
        "name": None,
        "key": "arguments",
        "ttl": 60.0,
        "stale_ttl": 0.0,
        "max_entries": 1024,
        "refresh": "background",
        "stale_if_error": True,
        "negative_ttl": None,
        "codec": None,
        "store": "memory",
        "handle": "default",
        "handle_result": "default",
        "lock_store": None,
    }
    given = Cache(Loader.__init__, store=MemoryCacheStore(), handle=OSError).describe()
    assert given["key"] == "Loader.__init__"
    assert "MemoryCacheStore" in given["store"]
    assert given["handle"] == ["builtins.OSError"]


def test_invalidate_call_takes_the_decorated_function():
    cache, methods = Cache(ttl="1m"), Cache(ttl="1m")
    calls = []

    @pyresil.timeout("10s")
    @pyresil.cached(cache)
    @pyresil.retry
    def price(item, currency="EUR"):
        calls.append(item)
        return len(calls)

    class Shop:
        @pyresil.cached(methods)
        def stock(self, item):
            calls.append(item)
            return len(calls)

    assert (price("a"), price("b"), price("a")) == (1, 2, 1)
    cache.invalidate_call(price, item="a", currency="EUR")
    assert (price("a"), price("b")) == (3, 2)
    cache.invalidate_call(price.__wrapped__, "a")
    assert price("a") == 4
    first, second = Shop(), Shop()
    assert (first.stock("a"), second.stock("a")) == (5, 6)
    methods.invalidate_call(first.stock, "a")
    assert (first.stock("a"), second.stock("a")) == (7, 6)


def test_an_invalidation_that_could_hit_nothing_is_refused():
    by_arguments, by_key = Cache(name="prices"), Cache(lambda ctx: ctx.args[0])
    with pytest.raises(
        ConfigurationError, match=r"cache 'prices': no value has such a key; use invalidate_call\(fn"
    ):
        by_arguments.invalidate("EUR")
    with pytest.raises(ConfigurationError, match=r"cache: no value has such a key; use invalidate\(key\)"):
        by_key.invalidate_call(str.upper, "EUR")


def test_an_invalidation_before_the_first_call_does_not_say_whose_cache_it_is():
    def stock(item):
        return item

    @functools.wraps(stock)
    def counted(item):
        return stock(item)

    for wrong in (counted, print):
        policy = Policy(cache := Cache())
        cache.invalidate_call(wrong, 1)
        assert policy.call(stock, 1) == 1
        cache.invalidate_call(stock, 1)
        with pytest.raises(ConfigurationError, match="two functions"):
            cache.invalidate_call(print, 1)


def test_a_shared_store_has_keys_of_either_kind():
    store, calls = MemoryCacheStore(), []
    by_key, by_arguments = Cache(lambda ctx: ctx.args[0], store=store), Cache(store=store)
    assert Policy(by_key).call(lambda key: calls.append(key) or len(calls), "EUR") == 1
    by_arguments.invalidate("EUR")
    assert Policy(by_key).call(lambda key: calls.append(key) or len(calls), "EUR") == 2


@pytest.mark.parametrize("store", [None, MemoryCacheStore])
def test_invalidate_call_before_the_first_call(store):
    cache = Cache(ttl="1m", store=None if store is None else store())
    fetch = Policy(cache, pyresil.Hedge("10s"))(lambda item: item)
    cache.invalidate_call(fetch, 1)
    assert fetch(1) == 1
    with pytest.raises(ConfigurationError, match="two functions cannot share a cache"):
        cache.invalidate_call(len, [])
