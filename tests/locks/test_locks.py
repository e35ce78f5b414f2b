from __future__ import annotations

import contextlib
import os
import threading
import time
from datetime import timedelta

import pytest

from pyresil import CancelToken, Lock, Policy, connect
from pyresil.context import current_context
from pyresil.errors import (
    CancelledError,
    ConfigurationError,
    LockError,
    LockNotAcquiredError,
    RejectedError,
    StoreError,
    StoreUnavailableError,
)
from pyresil.locks import Lease, Locks, _closing
from pyresil.locks._scope import Scope
from pyresil.stores._default import default_path, default_url
from pyresil.stores.base import Held
from pyresil.stores.memory import MemoryLockStore
from pyresil.stores.sqlite import SQLiteLockStore
from pyresil.strategies.lock import _Held
from pyresil.testing import record_events
from tests.locks.faults import interrupt
from tests.support.processes import wait_until


def in_thread(target):
    box = {}

    def run():
        try:
            box["value"] = target()
        except BaseException as error:
            box["error"] = error

    thread = threading.Thread(daemon=True, target=run)
    thread.start()
    return thread, box


# -- options


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"wait": -1}, "wait"),
        ({"wait": True}, "wait"),
        ({"wait": "soon"}, "wait"),
        ({"cancel": object()}, "cancel"),
        ({"on_lost": 5}, "on_lost"),
        ({"min_hold": -1}, "min_hold"),
        ({"min_hold": None}, "min_hold"),
        ({"max_hold": 0}, "max_hold"),
        ({"max_hold": float("nan")}, "max_hold"),
        ({"renew": 1}, "renew"),
        ({"renew": False, "ttl": 0.0004}, "ttl"),
    ],
)
def test_bad_options_are_refused(locks, store, options, word):
    for method in (locks.acquire, locks.hold):
        with pytest.raises(ConfigurationError, match=f"lock 'k': {word} must be"):
            method("k", **options)
    assert store.calls == []


class Unspeakable:
    def __repr__(self):
        raise RuntimeError


BAD_KEYS = ["", "x" * 501, "nul\0", "\ud800", None, 5, b"k", Unspeakable(), 10**5000]


@pytest.mark.parametrize("key", BAD_KEYS, ids=range(len(BAD_KEYS)))
def test_bad_keys_are_refused_with_the_value(locks, key):
    with pytest.raises(ConfigurationError, match="key must be a string of 1 to 500"):
        locks.acquire(key)
    with pytest.raises(ConfigurationError, match="key must be a string of 1 to 500"):
        locks.status(key)


def test_all_faults_in_one_message(locks):
    with pytest.raises(ConfigurationError, match=r"key must be.*ttl must be.*wait must be.*min_hold must be"):
        locks.acquire("", ttl=0, wait=-1, min_hold=-1)
    with pytest.raises(ConfigurationError, match=r"ttl must be.*clock must be.*store must be"):
        Locks(object(), ttl=0, clock=object())


@pytest.mark.parametrize("key", ["k", "x" * 500, "a{b}c", "ключ", "🔒" * 100, " ", "a\nb"])
def test_keys_of_any_script(locks, key):
    lease = locks.acquire(key)
    assert lease.key == key
    assert locks.status(key).key == key
    lease.release()


def test_durations_in_every_form(locks):
    for ttl in (2, 2.0, "2s", "2000ms", timedelta(seconds=2)):
        with locks.acquire("k", ttl) as lease:
            assert lease.ttl == 2


# -- acquiring


def test_one_of_two_gets_it(locks, others):
    with record_events(["lock-acquired", "lock-rejected"]) as events:
        lease = locks.acquire("k")
        assert others.acquire("k") is None
        assert locks.acquire("k") is None, "an acquisition is not re-entrant"
    assert events.types == ["lock-acquired", "lock-rejected", "lock-rejected"]
    assert {(event.key, event.token) for event in events} == {("k", lease.token)}


def test_hold_gives_the_lease_and_takes_it_back(locks, others):
    with locks.hold("k") as lease:
        with pytest.raises(LockNotAcquiredError) as caught, others.hold("k"):
            raise AssertionError
        error = caught.value
        assert (error.key, error.waited, error.retry_after, error.code) == ("k", 0, 30, "LOCK_NOT_ACQUIRED")
        assert isinstance(error, RejectedError)
    assert not lease.held
    with others.hold("k") as other:
        assert other.token > lease.token


def test_a_hold_can_be_entered_again_after_it_was_left_and_not_before(locks):
    hold = locks.hold("k")
    for _ in range(2):
        with hold, pytest.raises(LockError, match="entered already"), hold:
            pass
    assert locks.status("k") is None


def test_waiting_for_a_lease_that_is_released(clock, locks, others):
    lease = locks.acquire("k")
    thread, box = in_thread(lambda: others.acquire("k", wait="1m"))
    clock.wait_until_parked()
    clock.advance(25)
    assert "value" not in box
    lease.release()
    thread.join(5)
    assert box["value"].held
    assert box["value"].token > lease.token


def test_waiting_for_a_lease_that_expires(clock, store, locks, others):
    store.faults["renew"] = ConnectionError("dead")
    locks.acquire("k")
    thread, box = in_thread(lambda: others.acquire("k", wait="1m"))
    clock.wait_until_parked()
    clock.advance(30)
    thread.join(5)
    assert box["value"].held
    assert clock.elapsed == 30


@pytest.mark.parametrize("can_wait", [True, False])
def test_waiting_ends_when_the_time_is_over(clock, store, locks, others, can_wait):
    locks.acquire("k")
    waiter = others if can_wait else locks
    thread, box = in_thread(lambda: waiter.acquire("k", wait="5s"))
    clock.wait_until_parked()
    clock.advance(4.9)
    assert box == {}
    clock.advance(0.1)
    thread.join(5)
    assert box == {"value": None}
    assert clock.elapsed == 5


def test_tries_without_notification_follow_a_growing_pause(clock, store, locks):
    locks.acquire("k")
    before = store.count("acquire")
    thread, _ = in_thread(lambda: locks.acquire("k", wait="20s"))
    clock.wait_until_parked()
    clock.advance(1)
    first = store.count("acquire") - before
    assert 4 <= first <= 12, "50, 100, 200, 400 ms, each shortened at random"
    clock.advance(19)
    thread.join(5)
    assert 19 <= store.count("acquire") - before - first <= 42


def test_waiting_without_an_end(clock, locks, others):
    lease = locks.acquire("k")
    thread, box = in_thread(lambda: others.acquire("k", wait=None))
    clock.wait_until_parked()
    clock.advance("10m")
    lease.release()
    thread.join(5)
    assert box["value"].held


@pytest.mark.parametrize("can_wait", [True, False])
@pytest.mark.parametrize("reason", [None, "shutdown", KeyError("mine")])
def test_a_cancel_while_waiting_raises_the_tokens_reason(clock, locks, others, can_wait, reason):
    lease = locks.acquire("k")
    token = CancelToken(clock=clock)
    waiter = others if can_wait else locks
    thread, box = in_thread(lambda: waiter.acquire("k", wait="1h", cancel=token))
    clock.wait_until_parked()
    token.cancel(reason)
    thread.join(5)
    if isinstance(reason, Exception):
        assert box["error"] is reason
    else:
        assert isinstance(box["error"], CancelledError)
        assert box["error"].reason == reason
    lease.release()
    assert locks.status("k") is None


def test_a_cancel_in_real_time_on_a_store_that_polls(tmp_path):
    locks = Locks(SQLiteLockStore(tmp_path / "locks.db"))
    lease = locks.acquire("k")
    token = CancelToken()
    thread, box = in_thread(lambda: locks.acquire("k", wait="1m", cancel=token))
    time.sleep(0.1)
    begun = time.monotonic()
    token.cancel("enough")
    thread.join(5)
    assert time.monotonic() - begun < 2
    assert isinstance(box["error"], CancelledError)
    lease.release()


def test_a_token_that_is_set_already_asks_nobody(store, locks):
    token = CancelToken()
    token.cancel()
    with pytest.raises(CancelledError):
        locks.acquire("k", cancel=token)
    assert store.calls == []


def test_a_grant_that_arrives_after_the_cancel_is_released(clock, store, locks):
    token = CancelToken(clock=clock)
    store.faults["acquire"] = lambda number: token.cancel("changed my mind") and None
    with pytest.raises(CancelledError, match="changed my mind"):
        locks.acquire("k", cancel=token)
    wait_until(lambda: locks.status("k") is None)
    assert store.count("release") == 1


def test_waiting_ends_with_the_execution_around_it(clock, locks, others):
    lease = locks.acquire("k")
    policy = Policy(clock=clock)
    thread, box = in_thread(lambda: policy.options(deadline="3s").call(others.acquire, "k", wait="1h"))
    clock.wait_until_parked()
    clock.advance(3)
    thread.join(5)
    assert type(box["error"]).__name__ == "TimeoutExceededError"

    def work():
        threading.Timer(0.05, current_context().cancel.cancel).start()
        return others.acquire("k", wait="1h")

    thread, box = in_thread(lambda: policy.call(work))
    thread.join(5)
    assert isinstance(box["error"], CancelledError)
    lease.release()


# -- stores that fail


def test_an_unreachable_store_is_neither_held_nor_free(store, locks):
    store.faults["acquire"] = StoreUnavailableError("connection refused")
    with pytest.raises(StoreUnavailableError, match="connection refused"):
        locks.acquire("k")
    with pytest.raises(StoreUnavailableError), locks.hold("k"):
        raise AssertionError


def test_a_waiter_asks_an_unreachable_store_again_until_its_time_is_over(clock, store, locks):
    store.faults["acquire"] = lambda number: "drop-request" if number < 4 else None
    thread, box = in_thread(lambda: locks.acquire("k", wait="10s"))
    clock.wait_until_parked()
    clock.advance(5)
    thread.join(5)
    assert box["value"].held

    store.faults["acquire"] = StoreUnavailableError("down for good")
    thread, box = in_thread(lambda: locks.acquire("other", wait="10s"))
    clock.wait_until_parked()
    clock.advance(10)
    thread.join(5)
    assert isinstance(box["error"], StoreUnavailableError)


def test_a_lost_reply_is_one_acquisition(clock, store, locks):
    store.faults["acquire"] = lambda number: "drop-reply" if number == 1 else None
    thread, box = in_thread(lambda: locks.acquire("k", wait="10s"))
    clock.wait_until_parked()
    granted = locks.status("k")
    clock.advance(1)
    thread.join(5)
    assert (box["value"].token, box["value"].owner) == (granted.token, granted.owner)


def test_what_may_have_been_granted_is_released(store, locks, others):
    store.faults["acquire"] = lambda number: "drop-reply"
    with pytest.raises(StoreUnavailableError):
        locks.acquire("k")
    wait_until(lambda: others.status("k") is None)


def test_what_may_have_been_granted_is_released_also_where_the_next_request_is_refused(clock, store, locks):
    def fault(number):
        if number == 1:
            return "drop-reply"
        raise StoreError("refused")

    store.faults["acquire"] = fault
    waiter, box = in_thread(lambda: locks.acquire("k", wait=5))
    clock.wait_until_parked()
    clock.advance(1)
    waiter.join(5)
    assert type(box["error"]) is StoreError
    wait_until(lambda: locks.status("k") is None)


def test_a_signal_handler_that_raises_in_the_request_leaves_no_lock(store, locks, others):
    def interrupt(number):
        raise KeyboardInterrupt

    store.faults["acquire"] = lambda number: None
    inner = store.inner.acquire

    def acquire(*args, **kwargs):
        inner(*args, **kwargs)
        raise KeyboardInterrupt

    store.inner.acquire = acquire
    with pytest.raises(KeyboardInterrupt):
        locks.acquire("k")
    wait_until(lambda: others.status("k") is None)


def test_a_refusal_of_the_store_comes_out(store, locks):
    store.faults["acquire"] = StoreError("wrong type")
    with pytest.raises(StoreError, match="wrong type"):
        locks.acquire("k", wait="10s")
    assert store.count("release") == 0


# -- what is held, by whom, and the end


@pytest.mark.parametrize("token", [0, -1, 2**53, True, "5", 1.0, None])
def test_a_token_that_is_none_is_refused(store, locks, others, monkeypatch, token):
    acquire = store.acquire

    def wrong(*args, **kwargs):
        return acquire(*args, **kwargs)._replace(token=token)

    monkeypatch.setattr(store, "acquire", wrong)
    with pytest.raises(
        StoreError, match=r"the fencing token of lock 'k' must be an integer from 1 to 2\^53-1"
    ):
        locks.acquire("k")
    monkeypatch.undo()
    wait_until(lambda: others.status("k") is None, what="the release of what was granted, in the background")


@pytest.mark.parametrize("answer", [None, True, 5, (5,), Held(-1, None, ""), Held("x", None, "")])
def test_an_answer_that_is_none_is_refused(store, locks, monkeypatch, answer):
    monkeypatch.setattr(store, "acquire", lambda *args, **kwargs: answer)
    with pytest.raises(StoreError, match="acquire of lock 'k' must be Granted or Held, got"):
        locks.acquire("k")


def test_list_status_and_break(clock, locks, others):
    for key in ("b:1", "a:1", "a:2"):
        locks.acquire(key)
    assert [info.key for info in others.list()] == ["a:1", "a:2", "b:1"]
    assert [info.key for info in others.list("a:")] == ["a:1", "a:2"]
    info = others.status("a:1")
    assert info.meta == f"host={os.uname().nodename} pid={os.getpid()}"
    assert others.status("free") is None
    assert others.break_lease("a:1") is True
    assert others.break_lease("a:1") is False
    assert others.status("a:1") is None
    assert others.acquire("a:1").held


def test_close_hands_back_and_gives_out_no_more(locks, others):
    idle = locks.acquire("idle")
    locks.close()
    assert not idle.held
    assert others.status("idle") is None
    with pytest.raises(LockError, match="closed"):
        locks.acquire("k")
    with pytest.raises(LockError, match="closed"), locks.hold("k"):
        pass
    locks.close()


@pytest.mark.parametrize("bad", [-1, "soon", None, True])
def test_close_refuses_a_bad_timeout(locks, bad):
    with pytest.raises(ConfigurationError, match="timeout must be"):
        locks.close(bad)
    assert locks.acquire("k")


def working(locks, clock, stubborn=False):
    """A thread that works under a lease until it is cancelled, or further."""
    begun, go_on, seen = threading.Event(), threading.Event(), []

    def work():
        with locks.hold("k") as lease:
            lease.cancel.on_cancel(go_on.set) if not stubborn else None
            begun.set()
            with clock.blocked():
                go_on.wait(20)
            seen.append(lease.cancel.reason)

    thread, _box = in_thread(work)
    assert begun.wait(5)
    return thread, go_on, seen


def test_close_waits_for_work(clock, locks, others):
    worker, go_on, seen = working(locks, clock)
    closer, _ = in_thread(lambda: locks.close("30s"))
    clock.wait_until_parked()
    clock.advance(20)
    assert others.acquire("k") is None
    go_on.set()
    worker.join(5)
    closer.join(5)
    assert seen == [None]
    assert not closer.is_alive()
    assert others.acquire("k").held
    assert clock.elapsed == 20


def test_close_cancels_work_that_takes_longer(clock, locks, others):
    worker, _, seen = working(locks, clock)
    closer, _ = in_thread(lambda: locks.close("30s"))
    clock.wait_until_parked()
    clock.advance(30)
    worker.join(5)
    closer.join(5)
    assert isinstance(seen[0], CancelledError)
    assert others.acquire("k").held


def test_close_leaves_the_lease_of_work_that_does_not_stop_to_expire(clock, locks, others, caplog):
    worker, go_on, _ = working(locks, clock, stubborn=True)
    closer, _ = in_thread(lambda: locks.close("5s"))
    clock.wait_until_parked()
    clock.advance(6)
    closer.join(5)
    assert not closer.is_alive()
    assert "did not stop" in caplog.text
    assert others.acquire("k") is None
    clock.advance(30)
    assert others.acquire("k").held, "it was not renewed any more"
    go_on.set()
    worker.join(5)


def test_a_renewal_on_its_way_does_not_give_back_what_is_left_to_expire(store, clock, locks, others):
    worker, work_ends, _ = working(locks, clock, stubborn=True)
    asked, answered = threading.Event(), threading.Event()

    def slow(number):
        with clock.blocked():
            asked.set()
            answered.wait(20)

    store.faults["renew"] = slow
    clock.advance(10)
    assert asked.wait(5)
    closer, _ = in_thread(lambda: locks.close("5s"))
    clock.wait_until_parked()
    clock.advance(6)
    closer.join(5)
    renewing = next(t for t in threading.enumerate() if t.name == "pyresil-lease-k")
    answered.set()
    renewing.join(5)
    assert store.count("release") == 0
    assert others.acquire("k") is None, "the work did not stop, so nobody may have the key yet"
    work_ends.set()
    worker.join(5)


@pytest.mark.parametrize("can_wait", [True, False])
def test_close_ends_waiting(clock, store, locks, others, can_wait):
    waiting = Locks(store.inner, clock=clock) if can_wait else locks
    others.acquire("k")
    waiter, box = in_thread(lambda: waiting.acquire("k", wait=None))
    clock.wait_until_parked()
    waiting.close()
    clock.advance(1)
    waiter.join(5)
    assert not waiter.is_alive()
    assert isinstance(box["error"], LockError)
    assert "closed" in str(box["error"])


@pytest.mark.parametrize("form", ["block", "run", "policy"])
def test_work_that_begins_as_close_takes_its_lease_back_does_not_run(locks, others, monkeypatch, form):
    """What closes finds the lease idle; the work begins before that is said."""
    begins = (_Held, "begin") if form == "policy" else (Scope, "enter")
    begin, ran = getattr(*begins), []

    def closed_meanwhile(self):
        locks.close(0)
        begin(self)

    lease = locks.acquire("k") if form == "run" else None
    monkeypatch.setattr(*begins, closed_meanwhile)
    with pytest.raises(LockError, match="released"):
        if form == "block":
            with locks.hold("k"):
                ran.append(1)
        elif form == "run":
            lease.run(ran.append, 1)
        else:
            Policy(Lock("k", store=locks)).call(ran.append, 1)
    assert ran == []
    assert current_context() is None
    assert others.acquire("k").held


def test_two_may_close_at_once(clock, locks):
    worker, go_on, _ = working(locks, clock)
    first, _ = in_thread(lambda: locks.close("30s"))
    clock.wait_until_parked(1)
    second, _ = in_thread(lambda: locks.close("30s"))
    clock.wait_until_parked(2)
    go_on.set()
    for thread in (worker, first, second):
        thread.join(5)
        assert not thread.is_alive()
    assert clock.elapsed == 0


def test_what_a_signal_handler_kept_close_from_handing_back_the_next_one_hands_back(
    locks, others, monkeypatch
):
    assert locks.acquire("k")
    interrupted = interrupt(monkeypatch, Lease, "_hand_back")
    with pytest.raises(interrupted):
        locks.close()
    locks.close(0)
    assert others.acquire("k")


def test_the_end_of_the_process_hands_back_though_a_signal_handler_raised_at_the_first_lease(
    locks, monkeypatch
):
    interrupted = interrupt(monkeypatch, _closing._live, "add")
    with pytest.raises(interrupted):
        locks.acquire("k")
    assert locks.acquire("l")
    assert locks in _closing._live


def test_as_a_block_it_closes(store, clock, others):
    with Locks(store, clock=clock) as locks:
        locks.acquire("k")
    assert others.status("k") is None


# -- which store


def test_stores_by_url_and_by_backend(tmp_path):
    path = tmp_path / "locks.db"
    by_url = Locks(f"sqlite:///{path}")
    by_backend = Locks(connect(f"sqlite:///{path}"))
    with by_url.hold("k"):
        assert by_backend.acquire("k") is None
    with pytest.raises(ConfigurationError, match="store"):
        Locks("nonsense://x")


def test_nothing_is_opened_before_the_first_use(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("PYRESIL_STORE", raising=False)
    locks = Locks()
    assert list(tmp_path.iterdir()) == []
    with locks.hold("k"):
        assert (tmp_path / "pyresil" / "locks.db").exists()
    locks.close()


def test_the_environment_names_the_store(tmp_path, monkeypatch, caplog):
    url = f"sqlite:///{tmp_path}/mine.db"
    monkeypatch.setenv("PYRESIL_STORE", url)
    with caplog.at_level("INFO", "pyresil"), Locks().hold("k"):
        assert Locks(url).acquire("k") is None
    assert "the store in use" in caplog.text


def test_threads_that_come_first_at_once_use_one_store(monkeypatch):
    monkeypatch.setenv("PYRESIL_STORE", "memory:")
    locks = Locks()
    other = []

    def make(*args, **options):
        monkeypatch.setattr("pyresil.stores.backend.connect", connect)
        thread, box = in_thread(lambda: locks.store)
        thread.join()
        other.append(box["value"])
        return connect(*args, **options)

    monkeypatch.setattr("pyresil.stores.backend.connect", make)
    assert [locks.store] == other


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({"XDG_STATE_HOME": "/state"}, "/state/pyresil/locks.db"),
        ({"XDG_STATE_HOME": "relative"}, None),
        ({"XDG_STATE_HOME": ""}, None),
        ({}, None),
    ],
)
def test_the_default_file(environment, path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_path(environment) == (path or "/var/lib/pyresil/locks.db")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/me")
    assert default_path(environment) == (path or "/home/me/.local/state/pyresil/locks.db")
    monkeypatch.setenv("HOME", "/home/a%b?c#d")
    assert default_url({}) == "sqlite:////home/a%25b%3Fc%23d/.local/state/pyresil/locks.db"
    assert default_url({"PYRESIL_STORE": "memory:"}) == "memory:"


def test_the_command_means_the_same_file():
    try:
        from pyresil.cli._store import store_url
    except ImportError:
        pytest.skip("no command here")
    for environment in (
        {},
        {"XDG_STATE_HOME": "/a b%"},
        {"PYRESIL_STORE": "redis://x"},
        {"XDG_STATE_HOME": "r"},
    ):
        assert store_url(None, environment) == default_url(environment)


def test_the_stores_own_clock_is_taken_over(clock):
    assert Locks(MemoryLockStore(clock=clock)).clock is clock


def test_many_leases_of_one_object_from_many_threads():
    locks = Locks(MemoryLockStore())
    counter = {"value": 0}
    inside = []

    def work():
        for _ in range(50):
            with locks.hold("k", wait=20):
                inside.append(1)
                assert len(inside) == 1
                before = counter["value"]
                time.sleep(0)
                counter["value"] = before + 1
                inside.pop()

    threads = [in_thread(work) for _ in range(8)]
    for thread, box in threads:
        thread.join(25)
        assert box == {"value": None}
    assert counter["value"] == 400
    with contextlib.closing(locks):
        assert locks.list() == []


def test_close_asks_a_sick_store_only_once(store, locks):
    leases = [locks.acquire(f"k{number}") for number in range(20)]
    store.faults["release"] = StoreUnavailableError("down")
    locks.close()
    assert store.count("release") <= 2, "once, and once more in the background"
    assert not any(lease.held for lease in leases)
    assert locks._leases == {}


def test_callers_that_give_up_while_the_store_hangs_leave_few_threads(locks, store):
    recovered, tidied = threading.Event(), []

    def hangs(number):
        recovered.wait(30)
        tidied.append(number)

    store.faults = {"acquire": lambda _: "drop-request", "release": hangs}
    for _ in range(100):
        with pytest.raises(StoreUnavailableError):
            locks.acquire("k")
    threads = [thread for thread in threading.enumerate() if thread.name == "pyresil-lock-cleanup"]
    recovered.set()
    assert len(threads) <= 16
    wait_until(lambda: len(tidied) == 100)
