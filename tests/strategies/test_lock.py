from __future__ import annotations

import copy
import threading

import pytest

from pyresil import (
    Bulkhead,
    CancelToken,
    Fallback,
    Lock,
    Locks,
    MemoryLockStore,
    Policy,
    Retry,
    Timeout,
    connect,
)
from pyresil.context import current_context, current_lease, fencing_token
from pyresil.errors import (
    CancelledError,
    ConfigurationError,
    LockLostError,
    LockNotAcquiredError,
    RejectedError,
    StoreUnavailableError,
    TimeoutExceededError,
)
from pyresil.stores.postgres import PostgresLockStore
from pyresil.stores.redis.locks import RedisLockStore
from pyresil.stores.sqlite import SQLiteLockStore
from pyresil.testing import ManualClock, fresh_state, record_events
from tests.locks.faults import FaultyStore


def lease_slots(store):
    return Bulkhead(1, name="b", lock_store=store)


@pytest.fixture
def store(clock):
    return FaultyStore(MemoryLockStore(clock=clock))


@pytest.fixture
def locks(store, clock):
    return Locks(store.inner, clock=clock)


@pytest.fixture
def policy(store, clock):
    return Policy(Lock("k", store=store), name="p", clock=clock)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"key": ""}, "key must be"),
        ({"key": None}, "key must be"),
        ({"key": 5}, "key must be"),
        ({"ttl": None}, "ttl must be"),
        ({"ttl": 0.4}, "ttl must be"),
        ({"wait": -1}, "wait must be"),
        ({"min_hold": -1}, "min_hold must be"),
        ({"max_hold": 0}, "max_hold must be"),
        ({"on_lost": "no"}, "on_lost must be"),
        ({"store": object()}, "store must be"),
        ({"store": "nonsense://"}, "store"),
        ({"name": ""}, "name must be"),
        ({"clock": object()}, "clock must be"),
    ],
)
def test_bad_options_are_refused(options, word):
    with pytest.raises(ConfigurationError, match=word):
        Lock(**{"key": "k", **options})


def test_all_faults_in_one_message():
    with pytest.raises(ConfigurationError, match=r"lock 'n': key must.*ttl must.*wait must.*store must"):
        Lock("", ttl=0, wait=-1, store=object(), name="n")


def test_the_work_runs_under_the_lease(policy, locks):
    def work():
        ctx = current_context()
        assert ctx.lease is current_lease()
        assert ctx.fencing_token == fencing_token() == ctx.lease.token
        assert locks.status("k").owner == ctx.lease.owner
        assert locks.acquire("k") is None
        return ctx.lease

    with record_events() as events:
        lease = policy.call(work)
    assert not lease.held
    assert locks.status("k") is None
    assert current_lease() is None
    assert [(event.type, event.policy) for event in events if event.type == "lock-acquired"] == [
        ("lock-acquired", "p")
    ]
    assert "lock-released" in events.types


def test_who_does_not_get_it_is_rejected(clock, policy, locks):
    other = locks.acquire("k", ttl="20s")
    ran = []
    with record_events("lock-rejected") as events, pytest.raises(LockNotAcquiredError) as caught:
        policy.call(ran.append, 1)
    error = caught.value
    assert (error.key, error.waited, error.retry_after, error.policy) == ("k", 0, 20, "p")
    assert ran == []
    assert [(event.policy, event.key, event.token) for event in events] == [("p", "k", other.token)]


def test_a_store_that_cannot_be_asked_is_no_rejection(policy, store):
    store.faults["acquire"] = StoreUnavailableError("down")
    with pytest.raises(StoreUnavailableError):
        policy.call(print)


def test_the_block_form(policy, locks):
    with policy.execute() as ctx:
        assert ctx.lease is current_lease()
        assert ctx.lease.held
        assert locks.acquire("k") is None
    assert locks.status("k") is None
    with pytest.raises(ZeroDivisionError), policy.execute():
        raise ZeroDivisionError
    assert locks.status("k") is None


def test_the_loop_form(clock, store, locks):
    policy = Policy(
        Lock("k", store=store), Retry(attempts=3, backoff=lambda attempt, outcome: 0), clock=clock
    )
    leases = []
    for attempt in policy.execute():
        with attempt as ctx:
            leases.append((ctx.lease, current_lease()))
            assert locks.acquire("k") is None
            if len(leases) < 3:
                raise ValueError
    assert len({id(lease) for pair in leases for lease in pair}) == 1, "one lease around all attempts"
    assert locks.status("k") is None
    assert current_lease() is None


def test_inside_a_retry_each_attempt_has_its_own(clock, store, locks):
    policy = Policy(
        Retry(attempts=3, backoff=lambda attempt, outcome: 0), Lock("k", store=store), clock=clock
    )
    tokens = []

    def work():
        tokens.append(fencing_token())
        raise ValueError

    with pytest.raises(ValueError):
        policy.call(work)
    assert len(set(tokens)) == 3
    assert tokens == sorted(tokens)
    assert locks.status("k") is None


def test_the_key_may_depend_on_the_context(clock, store, locks):
    policy = Policy(Lock(lambda ctx: f"user:{ctx.arguments()['user']}", store=store), clock=clock)

    def work(user):
        assert locks.status(f"user:{user}") is not None
        return current_lease().key

    assert policy.call(work, 7) == "user:7"
    assert policy.call(work, user=8) == "user:8"
    with pytest.raises(ConfigurationError, match="key must be"):
        Policy(Lock(lambda ctx: None, store=store), clock=clock).call(print)


def test_nested_locks_give_the_innermost_token(clock, store):
    inner = Policy(Lock("inner", store=store), clock=clock)
    outer = Policy(Lock("outer", store=store), clock=clock)
    seen = []

    def work():
        seen.append((current_lease().key, current_context().lease.key))
        inner.call(lambda: seen.append((current_lease().key, current_context().lease.key)))
        seen.append((current_lease().key, current_context().lease.key))

    outer.call(work)
    both = Policy(Lock("a", store=store), Lock("b", store=store), clock=clock)
    both.call(lambda: seen.append((current_lease().key, current_context().lease.key)))
    assert seen == [("outer", "outer"), ("inner", "inner"), ("outer", "outer"), ("b", "b")]


def lose(locks, clock):
    locks.break_lease("k")
    clock.advance(10)


def test_a_lost_lease_cancels_the_work_whose_failure_becomes_the_loss(clock, policy, locks):
    seen = []

    def work():
        token = current_context().cancel
        lose(locks, clock)
        seen.append(token.is_set())
        seen.append(type(token.reason))
        raise ValueError("half done")

    with pytest.raises(LockLostError, match="refused") as caught:
        policy.call(work)
    assert seen == [True, LockLostError]
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.policy == "p"
    with pytest.raises(LockLostError) as caught, policy.execute():
        lose(locks, clock)
        raise ValueError
    assert isinstance(caught.value.__cause__, ValueError)


def test_library_waits_end_with_the_lease(clock, policy, locks):
    box = []

    def run():
        try:
            policy.call(lambda: current_context().sleep("1h"))
        except LockLostError as error:
            box.append(error)

    thread = threading.Thread(daemon=True, target=run)
    thread.start()
    clock.wait_until_parked()
    locks.break_lease("k")
    clock.advance(60)
    thread.join(5)
    assert [(error.detected_by, clock.elapsed) for error in box] == [("refused", 60)]


def test_a_success_under_a_lost_lease_is_returned(clock, policy, locks):
    assert policy.call(lambda: lose(locks, clock) or "done") == "done"


def test_a_base_exception_passes_through(clock, policy, locks):
    def work():
        lose(locks, clock)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        policy.call(work)
    with pytest.raises(KeyboardInterrupt):
        policy.call(lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert locks.status("k") is None


def test_a_loss_found_at_the_end_counts(clock, policy):
    """The process was paused: no thread noticed yet."""

    def work():
        clock._elapsed += 60
        raise ValueError

    with pytest.raises(LockLostError, match="deadline"):
        policy.call(work)


def test_a_retry_outside_takes_the_lock_again_after_a_loss(clock, store, locks):
    policy = Policy(
        Retry(attempts=2, backoff=lambda attempt, outcome: 0), Lock("k", store=store), clock=clock
    )
    tokens = []

    def work():
        tokens.append(fencing_token())
        if len(tokens) == 1:
            lose(locks, clock)
            raise ValueError
        assert not current_context().cancel.is_set(), "the loss of the first lease is over"
        return "done"

    assert policy.call(work) == "done"
    assert tokens[1] > tokens[0]


def test_a_retry_inside_stops_when_the_lease_is_lost(clock, store, locks):
    policy = Policy(
        Lock("k", store=store), Retry(attempts=50, backoff=lambda attempt, outcome: 1), clock=clock
    )
    attempts = []

    def work():
        attempts.append(1)
        lose(locks, clock)
        raise ValueError

    with pytest.raises(LockLostError):
        policy.call(work)
    assert len(attempts) == 1


def test_cancelling_the_execution_from_inside_still_cancels_all_of_it(clock, store):
    policy = Policy(
        Retry(attempts=3, backoff=lambda attempt, outcome: 1), Lock("k", store=store), clock=clock
    )
    attempts = []

    def work():
        attempts.append(1)
        current_context().cancel.cancel("stop everything")
        raise ValueError

    with pytest.raises((ValueError, CancelledError)):
        policy.call(work)
    assert attempts == [1]


def test_the_deadline_ends_the_waiting(clock, store, locks):
    locks.acquire("k")
    policy = Policy(Timeout("5s"), Lock("k", store=store, wait="1h"), clock=clock)
    box = []

    def run():
        try:
            policy.call(print)
        except TimeoutExceededError as error:
            box.append(error)

    thread = threading.Thread(daemon=True, target=run)
    thread.start()
    clock.wait_until_parked()
    clock.advance(5)
    thread.join(5)
    assert len(box) == 1


@pytest.mark.parametrize("mode", ["cooperative", "abandon"])
def test_a_timeout_inside(store, mode):
    policy = Policy(Lock("k", store=MemoryLockStore()), Timeout("1s", mode=mode))
    with pytest.raises(TimeoutExceededError):
        policy.call(lambda: current_context().sleep(30))
    assert policy.call(lambda: (current_lease().key, current_context().lease.key)) == ("k", "k")


@pytest.mark.parametrize("inside", [True, False])
def test_abandoned_work_has_the_lock_where_the_timeout_is_around_it(inside):
    locks, token = Locks(MemoryLockStore()), CancelToken()
    go_on, ended, seen = threading.Event(), threading.Event(), []

    def work():
        token.cancel()  # the caller leaves, as it does at the deadline
        go_on.wait(20)
        seen.append((current_context().cancel.is_set(), current_lease().held))
        ended.set()

    stages = [Lock("k", store=locks), Timeout("30s", mode="abandon")]
    with pytest.raises(CancelledError):
        Policy(*(stages if inside else reversed(stages))).options(cancel=token).call(work)
    assert (locks.status("k") is None) is inside
    go_on.set()
    assert ended.wait(20)
    assert seen == [(True, not inside)]


def test_a_fallback_sees_rejections_and_losses(clock, store, locks):
    policy = Policy(
        Fallback(using=lambda error, ctx: type(error).__name__), Lock("k", store=store), clock=clock
    )
    other = locks.acquire("k")
    assert policy.call(print) == "LockNotAcquiredError"
    other.release()

    def work():
        lose(locks, clock)
        raise ValueError

    assert policy.call(work) == "LockLostError"


def test_without_a_store_locks_on_one_clock_exclude_each_other():
    with fresh_state():
        one, other = ManualClock(), ManualClock()
        first = Policy(Lock("k"), clock=one)
        second = Policy(Lock("k"), clock=one)
        third = Policy(Lock("k"), clock=other)

        def work():
            with pytest.raises(LockNotAcquiredError):
                second.call(print)
            return third.call(lambda: "another clock, another memory")

        assert first.call(work) == "another clock, another memory"
        assert second.call(lambda: "free") == "free"


def test_min_hold_max_hold_wait_and_on_lost(clock, store, locks):
    lost = []
    policy = Policy(
        Lock("k", store=store, ttl="6s", min_hold="3s", max_hold="10s", wait="2s", on_lost=lost.append),
        clock=clock,
    )
    policy.call(lambda: None)
    assert locks.acquire("k") is None
    clock.advance(3)

    def work():
        clock.advance(10)
        return current_lease()

    lease = policy.call(work)
    clock.advance()
    assert lost == [lease]
    assert lease.detected_by == "max-hold"


def test_a_store_may_be_anything_that_locks_take(tmp_path):
    url = f"sqlite:///{tmp_path}/locks.db"
    shared = Locks(SQLiteLockStore(tmp_path / "locks.db"))
    for store in (url, shared, SQLiteLockStore(tmp_path / "locks.db")):
        lock = Lock("k", store=store)
        with Policy(lock).execute():
            assert shared.acquire("k") is None
    assert Lock("k", store=shared).locks is shared


def test_the_file_of_a_relative_url_stays_the_same_when_the_working_folder_changes(tmp_path, monkeypatch):
    for name in ("built", "built/data", "used"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "built")
    lock = Lock("k", store=" SQLite:///data/locks.db")
    first = lock.describe()
    monkeypatch.chdir(tmp_path / "used")
    assert lock.describe() == first
    with Policy(lock).execute():
        assert lock.locks.store.path == str(tmp_path / "built/data/locks.db")
        assert Locks(f"sqlite:///{tmp_path}/built/data/locks.db").acquire("k") is None
    assert not list((tmp_path / "used").iterdir())


def test_describe_and_repr():
    lock = Lock("k", ttl="10s", wait=1, name="n")
    assert lock.describe() == {
        "strategy": "lock",
        "name": "n",
        "key": "k",
        "ttl": 10,
        "wait": 1,
        "store": "memory",
        "min_hold": 0,
        "max_hold": None,
        "on_lost": None,
    }
    assert repr(lock) == "Lock('k', ttl=10.0, wait=1.0)"

    def key_of(ctx):
        return "k"

    assert "key_of" in Lock(key_of).describe()["key"]
    assert "key_of" in repr(Lock(key_of))


def test_describe_tells_no_password():
    pytest.importorskip("redis")
    told = Lock("k", store="redis://user:secret@host:6379/0").describe()["store"]
    assert "redis://host:6379/0" in told
    assert "user" not in told
    assert "secret" not in told


def test_threads_that_come_first_at_once_exclude_each_other(monkeypatch):
    lock = Lock("k", store="memory:")
    other = []

    def make(*args, **options):
        monkeypatch.undo()
        thread = threading.Thread(target=lambda: other.append(lock.locks))
        thread.start()
        thread.join()
        return Locks(*args, **options)

    monkeypatch.setattr("pyresil.strategies.lock.Locks", make)
    assert [lock.locks] == other


def test_eight_threads_lose_no_update():
    policy = Policy(Lock("k", store=MemoryLockStore(), wait=20))
    counter = {"value": 0}

    def add():
        value = counter["value"]
        threading.Event().wait(0)
        counter["value"] = value + 1

    threads = [
        threading.Thread(daemon=True, target=lambda: [policy.call(add) for _ in range(25)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(25)
    assert counter["value"] == 200


@pytest.mark.parametrize("given", ["memory", "file", "locks", "backend"])
@pytest.mark.parametrize(
    "stage", [lambda store: Lock("k", store=store), lease_slots], ids=["lock", "bulkhead"]
)
def test_a_deep_copy_excludes_whom_the_policy_excludes(given, stage, tmp_path):
    url = f"sqlite:///{tmp_path}/locks.db"
    made = {
        "memory": MemoryLockStore,
        "file": lambda: url,
        "locks": lambda: Locks(url),
        "backend": lambda: connect(url),
    }
    policy = Policy(stage(made[given]()))
    assert policy.call(int) == 0
    copied = copy.deepcopy(policy)
    assert copied.call(int) == 0
    with policy.execute(), pytest.raises(RejectedError):
        copied.call(int)


def test_a_release_ends_with_the_deadline(clock):
    """A store that hangs must not keep the caller for the store's own 5 s."""
    limits = []

    class Spied(FaultyStore):
        def release(self, key, owner, min_hold_ms=0, *, timeout=None):
            limits.append(timeout)
            return super().release(key, owner, min_hold_ms, timeout=timeout)

    store = Spied(MemoryLockStore(clock=clock))
    lock = Lock("k", store=store, clock=clock)
    locks = Locks(store, clock=clock)

    def with_a_block():
        with locks.hold("other"):
            clock.advance("1s")

    for stage in ([lock], []):
        Policy(Timeout("3s"), *stage, clock=clock).call(with_a_block)
    assert limits == [2.0, 2.0, 2.0]
    limits.clear()
    Policy(Timeout("1s"), lock, clock=clock).call(clock.advance, "5s")
    Policy(lock, Timeout("1s"), clock=clock).call(clock.advance, "500ms")
    Policy(Timeout("1h"), lock, clock=clock).call(clock.advance, "500ms")
    assert limits == [0.5, None, None]


@pytest.mark.parametrize(("own", "left", "given"), [(0.5, "3s", None), (10.0, "8s", 8.0)])
def test_a_store_has_its_own_timeout_or_what_is_left_of_the_deadline_if_that_is_less(clock, own, left, given):
    limits = []

    class Spied(FaultyStore):
        _own_timeout = own

        def acquire(self, key, owner, ttl_ms, meta="", *, timeout=None):
            limits.append(timeout)
            return super().acquire(key, owner, ttl_ms, meta, timeout=timeout)

        def release(self, key, owner, min_hold_ms=0, *, timeout=None):
            limits.append(timeout)
            return super().release(key, owner, min_hold_ms, timeout=timeout)

    lock = Lock("k", store=Spied(MemoryLockStore(clock=clock)), clock=clock)
    Policy(Timeout(left), lock, clock=clock).call(int)
    assert limits == [given, given]


@pytest.mark.parametrize("kind", ["redis", "postgres", "sqlite"])
def test_what_a_store_is_given_as_its_own_timeout_is_known_of_it(kind, tmp_path):
    if kind == "redis":
        store = RedisLockStore("redis://127.0.0.1:1", timeout="2s")
    elif kind == "postgres":
        store = PostgresLockStore("postgresql://127.0.0.1:1/db", timeout="2s")
    else:
        store = SQLiteLockStore(tmp_path / "locks.db", timeout="2s")
    assert store._own_timeout == 2.0
