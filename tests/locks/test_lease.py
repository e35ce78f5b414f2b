from __future__ import annotations

import datetime as dt
import gc
import threading
import time
import weakref

import pytest
import time_machine

from pyresil import Policy, _dispatch
from pyresil.cancel import CancelToken
from pyresil.clock import SignalSafeEvent
from pyresil.context import current_context, current_lease, fencing_token
from pyresil.errors import LockError, LockLostError, StoreUnavailableError
from pyresil.events import LockReleased, subscribe
from pyresil.locks import Locks
from pyresil.stores.memory import MemoryLockStore
from pyresil.testing import ManualClock, record_events
from tests.locks.faults import interrupt
from tests.support.processes import wait_until


def test_fifteen_minutes_of_a_lease(clock, store, locks):
    lease = locks.acquire("k")
    before = store.count("renew")
    clock.advance("15m")
    assert lease.held
    assert store.count("renew") - before == 90
    assert lease.remaining() == 30
    assert lease.release() is True
    assert not lease.held
    assert lease.remaining() == 0
    assert not lease.lost.is_set()
    assert not lease.cancel.is_set()
    clock.advance("1m")
    assert store.count("renew") - before == 90


def test_what_it_tells(locks, store):
    lease = locks.acquire("k", ttl="10s")
    info = locks.status("k")
    assert (info.key, info.owner, info.token) == ("k", lease.owner, lease.token)
    assert isinstance(lease.token, int)
    assert len(lease.owner) >= 32
    assert lease.ttl == 10
    assert lease.detected_by is None
    assert isinstance(lease.lost, threading.Event)
    assert lease.lost is lease.lost
    assert lease.cancel is lease.cancel
    assert "'k'" in repr(lease)
    assert "held for 10 s" in repr(lease)
    lease.raise_if_lost()
    lease.release()
    assert "not held" in repr(lease)


def threads_of(prefix):
    """Those that keep the leases on keys that begin so."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"pyresil-lease-{prefix}")]


def test_a_release_that_meets_a_renewal_hands_back_what_was_ours():
    renewed, go_on = threading.Event(), threading.Event()

    class Store(MemoryLockStore):
        def renew(self, *args, **options):
            confirmed = super().renew(*args, **options)
            renewed.set()
            go_on.wait(20)
            return confirmed

        def release(self, *args, **options):
            if threading.current_thread() is threading.main_thread():
                go_on.set()
                wait_until(lambda: not lease._renewal._thread, what="the end of the renewal")
            return super().release(*args, **options)

    locks = Locks(Store(), ttl="30s")
    lease = locks.acquire("k")
    lease._renewal._due = 0.0
    lease._renewal._look()
    assert renewed.wait(20)
    assert lease.release() is True
    assert locks.acquire("k").release() is True


def test_no_thread_starts_before_the_first_renewal_is_due(clock, locks):
    leases = [locks.acquire(f"due{number}") for number in range(1000)]
    clock.advance(9.9)
    assert threads_of("due") == []
    for lease in leases:
        assert lease.held
        lease.release()
    assert clock.timers == 0


def test_many_leases_are_all_kept_by_threads_of_their_own(clock, locks):
    leases = [locks.acquire(f"many{number}") for number in range(200)]
    clock.advance("2m")
    assert len(threads_of("many")) == 200
    assert all(lease.held for lease in leases)
    for lease in leases:
        lease.release()
    wait_until(lambda: not threads_of("many"))


def test_its_deadline_counts_from_before_the_request():
    clock = ManualClock()

    class Slow(MemoryLockStore):
        def acquire(self, *args, **kwargs):
            answer = super().acquire(*args, **kwargs)
            clock.advance(3)  # less than a third of the ttl: a renewal is not due
            return answer

    lease = Locks(Slow(clock=clock), ttl=10, clock=clock).acquire("k")
    assert lease.remaining() == 7
    assert lease.held


def test_a_grant_that_takes_longer_than_the_ttl_is_released_not_used():
    clock = ManualClock()
    slow = [12]

    class Slow(MemoryLockStore):
        def acquire(self, *args, **kwargs):
            answer = super().acquire(*args, **kwargs)
            clock.advance(slow.pop() if slow else 0)
            # the store's own clock is behind: it still has the lock as ours
            self._rows["k"].expires = clock.boottime() + 5
            return answer

    store = Slow(clock=clock)
    locks = Locks(store, ttl=10, clock=clock)
    assert locks.acquire("k") is None
    wait_until(lambda: store.inspect("k") is None)
    assert locks.acquire("k").held


def test_a_late_confirmation_is_released_not_used(clock, store, locks):
    go_on = threading.Event()

    def hang(number):
        with clock.blocked():
            go_on.wait(20)

    lease = locks.acquire("k")
    store.faults["renew"] = hang
    clock.advance(29.99)
    assert lease.lost.is_set()
    assert lease.detected_by == "deadline"
    assert locks.status("k") is not None
    go_on.set()
    wait_until(lambda: locks.status("k") is None)
    assert not lease.held


def test_losing_comes_in_order(clock, store, locks):
    order = []
    lease = locks.acquire(
        "k", on_lost=lambda lost: order.append(("on_lost", lost is lease, lost.lost.is_set()))
    )
    lease.cancel.on_cancel(lambda: order.append(("cancel", lease.held, lease.lost.is_set())))
    unsubscribe = subscribe(lambda event: order.append(event.type), "lock-lost")
    try:
        locks.break_lease("k")
        clock.advance(10)
    finally:
        unsubscribe()
    assert order == [("cancel", False, True), "lock-lost", ("on_lost", True, True)]


@pytest.mark.parametrize("error", [ValueError("from on_lost"), SystemExit("from on_lost")])
def test_on_lost_runs_on_the_dispatch_thread_and_what_it_raises_is_logged(clock, locks, caplog, error):
    seen = []

    def on_lost(lease):
        seen.append(threading.current_thread().name)
        raise error

    locks.acquire("k", on_lost=on_lost)
    locks.break_lease("k")
    clock.advance(60)
    assert seen == ["pyresil-dispatch"]
    assert "from on_lost" in caplog.text
    assert "lost, detected by refused" in caplog.text
    assert any(record.levelname == "WARNING" for record in caplog.records)
    assert locks._leases == {}, "it is not kept for ever"


def test_a_listener_that_calls_sys_exit_keeps_no_loss_from_its_holder(clock, locks, caplog):
    def leave(event):
        raise SystemExit("from a listener")

    seen = []
    unsubscribe = subscribe(leave, ["lock-lost"])
    try:
        lease = locks.acquire("k", on_lost=seen.append)
        locks.break_lease("k")
        clock.advance(60)
    finally:
        unsubscribe()
    assert seen == [lease]
    assert "from a listener" in caplog.text
    assert locks._leases == {}, "it is not kept for ever"


def test_a_slow_on_lost_does_not_delay_other_losses(clock, store, locks):
    go_on = threading.Event()
    locks.acquire("a", on_lost=lambda lease: go_on.wait(10))
    other = locks.acquire("b")
    store.faults["renew"] = ConnectionError("down")
    clock.advance(31)
    assert other.lost.is_set()
    go_on.set()


def test_a_store_that_hangs_loses_no_lease_of_another_store(clock):
    sick_store, well_store = MemoryLockStore(clock=clock), MemoryLockStore(clock=clock)
    go_on = threading.Event()

    class Sick(MemoryLockStore):
        def renew(self, *args, **kwargs):
            with clock.blocked():
                go_on.wait(20)
            return super().renew(*args, **kwargs)

    del sick_store
    sick = [Locks(Sick(clock=clock), ttl=30, clock=clock).acquire("k") for _ in range(5)]
    locks = Locks(well_store, ttl=30, clock=clock)
    well = [locks.acquire(f"k{number}") for number in range(50)]
    clock.advance("2m")
    assert all(lease.held for lease in well)
    assert all(lease.lost.is_set() for lease in sick)
    go_on.set()


def test_held_is_right_although_no_thread_ran():
    """A paused process: its own clock has moved, its threads have not."""
    clock = ManualClock()
    lease = Locks(MemoryLockStore(clock=clock), ttl=10, clock=clock).acquire("k")
    clock._elapsed += 10  # nothing fires
    assert not lease.held
    assert lease.remaining() == 0
    assert lease._lost_by is None
    with pytest.raises(LockLostError, match="deadline"):
        lease.raise_if_lost()
    assert lease.lost.is_set()


@pytest.mark.parametrize("told_first", [False, True])
def test_a_loss_that_a_signal_handler_interrupts_is_told_once(monkeypatch, told_first):
    class Paused(ManualClock):
        pause = 0.0

        def boottime(self):
            return super().boottime() + self.pause

    def interrupted(job):
        if told_first:
            _dispatch.post(job)
        monkeypatch.undo()
        raise KeyboardInterrupt

    clock, told = Paused(), []
    lease = Locks(MemoryLockStore(clock=clock), ttl=1).acquire("k", on_lost=told.append)
    monkeypatch.setattr("pyresil.locks.lease.post", interrupted)
    clock.pause = 2.0
    with pytest.raises(KeyboardInterrupt):
        lease.raise_if_lost()
    assert lease.lost.is_set()
    assert lease.detected_by == "deadline"
    assert _dispatch.dispatcher().flush(5)
    assert told == [lease]


@pytest.mark.parametrize("what", ["lost", "cancel"])
def test_a_loss_is_seen_after_a_signal_handler_raised_where_it_was_first_asked_for(
    clock, locks, monkeypatch, what
):
    lease = locks.acquire("k")
    locks.break_lease("k")
    clock.advance(60)
    interrupted = interrupt(
        monkeypatch, *{"lost": (SignalSafeEvent, "set"), "cancel": (CancelToken, "_cancel_soon")}[what]
    )
    with pytest.raises(interrupted):
        getattr(lease, what)
    assert getattr(lease, what).is_set()


def test_a_suspend_that_is_shorter_than_what_is_left_loses_nothing():
    class Laptop(ManualClock):
        asleep = 0.0

        def boottime(self):
            return super().boottime() + self.asleep

    clock = Laptop()
    lease = Locks(MemoryLockStore(clock=clock), ttl=30).acquire("k")
    clock.advance(11)
    clock.asleep = 20.0
    clock.advance(5)
    assert lease.remaining() > 20, "renewed soon after waking up"
    clock.advance("5m")
    assert lease.held
    lease.release()


def test_after_a_pause_the_lease_is_lost_without_another_renewal(clock, store, locks):
    lease = locks.acquire("k")
    clock.advance(12)
    renewals = store.count("renew")
    clock._elapsed += 40
    clock.advance(0.001)
    clock.advance(30)
    assert lease.lost.is_set()
    assert lease.detected_by == "deadline"
    assert store.count("renew") == renewals


def test_lost_and_cancel_that_are_first_asked_for_afterwards(clock, locks):
    lease = locks.acquire("k")
    locks.break_lease("k")
    clock.advance(60)
    assert lease.lost.is_set()
    assert isinstance(lease.cancel.reason, LockLostError)
    with pytest.raises(LockLostError) as caught:
        lease.cancel.raise_if_cancelled()
    assert (caught.value.key, caught.value.token, caught.value.detected_by) == ("k", lease.token, "refused")


def test_renewals_that_fail_are_told_and_logged_once_a_streak(clock, store, locks, caplog):
    store.faults["renew"] = lambda number: "drop-request" if number in {2, 3, 5} else None
    with record_events(["lock-renew-failed"]) as events:
        lease = locks.acquire("k")
        clock.advance("1m")
    assert lease.held
    assert [(event.key, event.token) for event in events] == [("k", lease.token)] * 3
    assert caplog.text.count("could not be renewed") == 2


def test_retries_of_a_renewal_are_spread_and_do_not_hammer(clock, store, locks):
    store.faults["renew"] = ConnectionError("down")
    locks.acquire("k")
    clock.advance("1m")
    assert 4 <= store.count("renew") <= 12


def test_a_failed_release_is_logged_and_changes_nothing(store, locks, caplog):
    lease = locks.acquire("k")
    store.faults["release"] = StoreUnavailableError("down")
    assert lease.release() is False
    assert "could not be released" in caplog.text
    assert not lease.held
    with pytest.raises(ZeroDivisionError), locks.hold("other"):
        raise ZeroDivisionError


def test_a_second_release_does_nothing(store, locks):
    lease = locks.acquire("k")
    assert lease.release() is True
    again = locks.acquire("k")
    assert lease.release() is False
    assert again.held
    assert store.count("release") == 1


def test_a_lease_that_was_broken_is_not_told_as_released(locks):
    lease = locks.acquire("k")
    locks.break_lease("k")
    with record_events("lock-released") as events:
        assert lease.release() is False
    assert events == []


def test_the_end_of_a_lost_lease_frees_the_rest_of_its_ttl(clock, store, locks):
    with locks.hold("k", max_hold=25) as lease:
        clock.advance(25)
        assert lease.lost.is_set()
        assert locks.status("k") is not None
    assert locks.status("k") is None


def test_as_a_block(clock, locks):
    lease = locks.acquire("k")
    with record_events() as events, lease as same:
        assert same is lease
        assert current_lease() is lease
        assert fencing_token() == lease.token
        assert current_context().lease is lease
        assert current_context().fencing_token == lease.token
    assert current_lease() is None
    assert current_context() is None
    assert locks.status("k") is None
    # A lease of another test may be lost meanwhile; its token is another one.
    (released,) = [event for event in events if getattr(event, "token", lease.token) == lease.token]
    assert isinstance(released, LockReleased)
    with pytest.raises(LockError, match="was released"), lease:
        pass


def test_nested_blocks_of_one_lease_release_it_at_the_outermost(locks):
    with locks.hold("k") as lease:
        with lease:
            assert lease.held
        assert lease.held
    assert not lease.held


def test_blocks_of_one_lease_in_two_threads_leave_their_own_context(locks):
    lease = locks.acquire("k")
    first, second, left, seen = threading.Event(), threading.Event(), threading.Event(), []

    def one():
        with lease:
            first.set()
            assert second.wait(5)
        seen.append((current_context(), current_lease(), lease.held))
        left.set()

    def other():
        assert first.wait(5)
        with lease:
            second.set()
            assert left.wait(5)
            seen.append((current_lease(), fencing_token()))
        seen.append((current_context(), current_lease(), lease.held))

    threads = [threading.Thread(daemon=True, target=target) for target in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert seen == [(None, None, True), (lease, lease.token), (None, None, False)]


def test_a_block_cannot_begin_on_a_lost_lease(clock, locks):
    lease = locks.acquire("k")
    locks.break_lease("k")
    clock.advance(60)
    with pytest.raises(LockLostError), lease:
        raise AssertionError
    with pytest.raises(LockLostError):
        lease.run(print)


def test_library_waits_inside_a_block_end_with_the_lease(clock, locks):
    begun = threading.Event()
    ended = []

    def work():
        with locks.hold("k"):
            begun.set()
            try:
                Policy(clock=clock).call(lambda: current_context().sleep(3600))
            except LockLostError as error:
                ended.append((clock.elapsed, error.detected_by))

    thread = threading.Thread(daemon=True, target=work)
    thread.start()
    assert begun.wait(5)
    clock.wait_until_parked()
    locks.break_lease("k")
    clock.advance(60)
    thread.join(5)
    assert ended == [(10.0, "refused")]


def test_run_returns_what_the_work_returns_and_keeps_the_lease(clock, locks):
    lease = locks.acquire("k")

    def work(a, *, b):
        assert current_lease() is lease
        assert current_context().cancel.is_set() is False
        return a + b

    assert lease.run(work, 1, b=2) == 3
    assert lease.held
    with pytest.raises(KeyError, match="mine"):
        lease.run(lambda: {}["mine"])
    assert current_lease() is None
    lease.release()


def test_run_on_a_lease_that_gets_lost(clock, locks):
    lease = locks.acquire("k")

    def late_success():
        locks.break_lease("k")
        clock.advance(30)
        return "done"

    assert lease.run(late_success) == "done"

    lease = locks.acquire("k")

    def failure():
        locks.break_lease("k")
        clock.advance(30)
        raise ValueError("because it stopped halfway")

    with pytest.raises(LockLostError, match="refused") as caught:
        lease.run(failure)
    assert isinstance(caught.value.__cause__, ValueError)


def test_base_exceptions_pass_through_and_release(clock, locks):
    with pytest.raises(KeyboardInterrupt), locks.hold("k"):
        raise KeyboardInterrupt
    assert locks.status("k") is None
    lease = locks.acquire("k")

    def interrupted():
        locks.break_lease("k")
        clock.advance(30)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lease.run(interrupted)


def test_a_released_lease_dies_without_the_collector(clock, locks):
    gc.disable()
    try:
        lease = locks.acquire("k")
        lease.cancel.on_cancel(print)
        assert not lease.lost.is_set()
        gone = weakref.ref(lease)
        with lease:
            pass
        del lease
        assert gone() is None
        renewed = locks.acquire("k")
        clock.advance("1m")
        renewed.release()
        gone = weakref.ref(renewed)
        del renewed
        clock.advance(1)
        wait_until(lambda: gone() is None)
    finally:
        gc.enable()


def test_without_renewal_it_ends_after_its_ttl(clock, store, locks):
    lease = locks.acquire("k", ttl="50ms", renew=False)
    clock.advance(0.04)
    assert lease.held
    clock.advance(0.01)
    assert lease.lost.is_set()
    assert store.count("renew") == 0
    assert locks.acquire("k").held


def test_max_hold_shorter_than_the_first_renewal(clock, store, locks):
    lease = locks.acquire("k", max_hold="2s")
    assert lease.remaining() == 2
    clock.advance(2)
    assert lease.lost.is_set()
    assert lease.detected_by == "max-hold"
    assert store.count("renew") == 0


def test_no_thread_to_be_had_is_tried_again(clock, store, locks, caplog):
    starting = clock.spawn
    refuse = [True, True]

    def spawn(target, name):
        if refuse:
            refuse.pop()
            raise RuntimeError("can't start new thread")
        return starting(target, name)

    clock.spawn = spawn
    lease = locks.acquire("k")
    clock.advance("2m")
    assert lease.held
    assert "cannot be started" in caplog.text


def test_leases_in_real_time(tmp_path):
    locks = Locks(MemoryLockStore(), ttl="3s")
    lease = locks.acquire("k")
    time.sleep(3.5)
    assert lease.held
    assert lease.release()
    _dispatch.dispatcher().flush(1)


def test_no_wall_clock_decides_anything():
    locks = Locks(MemoryLockStore(), ttl="3s")
    first = locks.acquire("k")
    for year in (1999, 2040, 2026):
        with time_machine.travel(dt.datetime(year, 1, 1, tzinfo=dt.UTC), tick=True):
            time.sleep(1.2)
            assert first.held
            assert locks.acquire("k") is None
    assert first.release()
    with time_machine.travel(dt.datetime(1999, 1, 1, tzinfo=dt.UTC), tick=True):
        again = locks.acquire("k")
        assert again.token > first.token, "tokens grow although the wall clock went back"
        again.release()


def test_a_block_inside_an_execution_keeps_what_its_context_knows(clock, locks):
    policy = Policy(clock=clock, name="p")
    seen = []

    def work(number):
        outer = current_context()
        outer.properties["a"] = 1
        with locks.hold("k") as lease:
            ctx = current_context()
            ctx.properties["b"] = 2
            seen.append(
                (ctx.policy, ctx.key, ctx.source, ctx.arguments(), ctx.lease is lease, ctx.remaining())
            )
        seen.append((dict(outer.properties), outer.lease, current_context() is outer))
        with locks.hold("k"):
            current_context().cancel.cancel("stop")
        return outer.cancel.reason

    bound = policy.options(key="key", source="source", deadline="1m")
    assert bound.call(work, 7) == "stop"
    assert seen == [
        ("p", "key", "source", {"number": 7}, True, 60),
        ({"a": 1, "b": 2}, None, True),
    ]


def test_a_report_inside_a_block_is_the_executions(clock, locks):
    from pyresil.context import UNSET

    with Policy(clock=clock).execute() as ctx:
        with locks.hold("k"):
            pass
        assert ctx._reported is UNSET
        with locks.hold("k"):
            current_context().report("result")
        assert ctx._reported == "result"


def test_a_block_inside_a_call_that_has_ended_leaves_nothing_of_it_behind(clock, locks):
    policy = Policy(clock=clock)

    def in_a_block():
        with locks.acquire("k"):
            pass
        current_context().cancel.cancel("this call alone")

    def in_a_run():
        with locks.hold("k") as lease:
            lease.run(int)
        current_context().cancel.cancel("this call alone")

    for work in (in_a_block, in_a_run):
        policy.call(work)
        assert current_context() is None
        assert policy.call(lambda: current_context().cancel.is_set()) is False
