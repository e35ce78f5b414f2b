from __future__ import annotations

import threading
import time

import pytest

from pyresil._dispatch import post
from pyresil.context import current_context, current_lease
from pyresil.errors import CancelledError, ConfigurationError, LockError, LockLostError
from pyresil.events import LeadershipAcquired, LeadershipLost, LockAcquired, LockReleased, subscribe
from pyresil.locks import Locks
from pyresil.stores.memory import MemoryLockStore
from pyresil.testing import record_events
from tests.locks.faults import FaultyStore, interrupt
from tests.support.processes import wait_until


class Leader:
    """Notes what happens to one candidate; its work goes on until it is told to stop, or longer."""

    def __init__(self, locks, key="k", *, work=None, **options):
        self.notes = []
        self.leases = []
        self.work = work or self.until_told
        self.election = locks.election(key, self.on_acquired, self.on_lost, **options)

    def until_told(self, lease):
        try:
            current_context().sleep(10**6)
        except (LockLostError, CancelledError) as error:
            self.notes.append(("told", type(error).__name__))
            raise

    def on_acquired(self, lease):
        assert current_lease() is lease
        self.leases.append(lease)
        self.notes.append("acquired")
        self.work(lease)

    def on_lost(self, lease, reason):
        assert lease is self.leases[-1]
        assert lease.cancel.is_set()
        self.notes.append(("lost", reason))


def instances(clock, count=2, ttl="30s"):
    store = MemoryLockStore(clock=clock)
    faulty = [FaultyStore(store) for _ in range(count)]
    for one in faulty:
        one.can_wait = True
        one.wait_for_release, one._wake = store.wait_for_release, store._wake
    return faulty, [Locks(one, ttl=ttl, clock=clock) for one in faulty]


def test_one_leads_and_hands_over_when_stopped(clock):
    _, (first, second) = instances(clock)
    a = Leader(first)
    clock.advance(0.1)
    b = Leader(second)
    clock.advance("10m")
    assert (a.election.is_leader, b.election.is_leader) == (True, False)
    assert a.election.lease.held
    assert a.election.stop() is True
    assert a.notes == ["acquired", ("told", "CancelledError"), ("lost", "released")]
    assert not a.election.is_leader
    clock.advance(1)
    assert b.election.is_leader
    assert b.leases[0].token > a.leases[0].token
    assert b.election.stop()
    assert first.list() == []


def test_a_dead_leader_is_followed_within_its_ttl(clock):
    (faulty, _), (first, second) = instances(clock)
    a = Leader(first)
    clock.advance(0.1)
    b = Leader(second)
    clock.advance(25)
    faulty.faults["renew"] = ConnectionError("cut off")
    clock.advance(30)
    assert b.election.is_leader
    assert not a.election.is_leader
    assert a.notes[0] == "acquired"
    assert sorted(a.notes[1:]) == [("lost", "lost"), ("told", "LockLostError")]
    faulty.faults.clear()
    clock.advance("5m")
    assert (a.election.is_leader, b.election.is_leader) == (False, True)
    b.election.stop()
    clock.advance(1)
    assert a.election.is_leader, "it stands again"
    assert a.leases[-1].token > b.leases[-1].token
    a.election.stop()


def test_events(clock):
    _, (locks, _) = instances(clock)
    with record_events(["leadership-acquired", "leadership-lost"]) as events:
        a = Leader(locks)
        clock.advance(1)
        a.election.stop()
        b = Leader(locks)
        clock.advance(1)
        locks.break_lease("k")
        clock.advance(11)
        b.election.stop()
    assert [(event.type, event.key, getattr(event, "reason", None)) for event in events][:4] == [
        ("leadership-acquired", "k", None),
        ("leadership-lost", "k", "released"),
        ("leadership-acquired", "k", None),
        ("leadership-lost", "k", "lost"),
    ]
    assert events[0].token == events[1].token < events[2].token


def test_on_acquired_may_return_and_the_leader_leads_on(clock):
    _, (locks, _) = instances(clock)
    a = Leader(locks, work=lambda lease: None)
    clock.advance("10m")
    assert a.election.is_leader
    assert a.notes == ["acquired"]
    a.election.stop()
    assert a.notes == ["acquired", ("lost", "released")]


def test_it_steps_down_when_on_acquired_raises_and_lets_others_have_their_turn(clock, caplog):
    _, (first, second) = instances(clock)

    def fail(lease):
        raise ValueError("cannot lead")

    a = Leader(first, work=fail)
    clock.advance(0.1)
    b = Leader(second)
    clock.advance(1)
    assert b.election.is_leader
    assert a.notes == ["acquired", ("lost", "released")]
    assert "cannot lead" in caplog.text
    assert "on_acquired raised" in caplog.text
    a.election.stop()
    b.election.stop()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_base_exception_of_the_work_steps_down_as_well(clock, error):
    _, (locks, _) = instances(clock)

    def fail(lease):
        raise error

    a = Leader(locks, work=fail)
    clock.advance(1)
    assert a.notes == ["acquired", ("lost", "released")]
    assert not a.election.is_leader
    a.election.stop()


@pytest.mark.parametrize("by", ["the work", "somebody else"])
def test_a_leader_whose_lease_is_released_steps_down_and_stands_again(clock, by):
    _, (locks, other) = instances(clock)

    def work(lease):
        with lease:
            pass

    a = Leader(locks, work=work) if by == "the work" else Leader(locks)
    clock.advance(1)
    if by == "somebody else":
        a.election.lease.release()
        clock.advance(0)
    told = [("told", "CancelledError")] if by == "somebody else" else []
    assert a.notes == ["acquired", *told, ("lost", "released")]
    assert not a.election.is_leader
    clock.advance(3)
    assert a.notes[len(told) + 2] == "acquired"
    a.election.stop()
    assert other.acquire("k").held


def test_a_lease_that_is_released_before_the_work_began_is_no_failure_of_the_work(clock, caplog):
    _, (locks, _) = instances(clock)
    led, worked = [], []

    def hand_back(event):
        led.append(event.token)
        if len(led) == 1:
            next(iter(locks._leases)).release()

    stop = subscribe(hand_back, "leadership-acquired")
    election = locks.election("k", lambda lease: worked.append(lease.token))
    clock.advance(3)  # the turn of others, and not the third of the ttl that a failure costs
    assert len(led) == 2
    assert worked == led[1:]
    assert "raised" not in caplog.text
    election.stop()
    stop()


def test_released_by_somebody_else_it_does_not_stand_beside_its_own_work(clock, stubborn):
    _, (locks, _) = instances(clock)
    a = Leader(locks, work=stubborn)
    clock.advance(1)
    a.election.lease.release()
    clock.advance(60)
    assert a.notes == ["acquired"]
    stubborn.go_on.set()
    wait_until(lambda: not a.election._working)
    clock.advance(3)
    assert a.notes == ["acquired", ("lost", "released"), "acquired"]
    a.election.stop()


@pytest.fixture
def stubborn(clock):
    """Work that heeds no token, until `stubborn.go_on` is set."""

    def work(lease):
        with clock.blocked():
            work.go_on.wait(20)

    work.go_on = threading.Event()
    yield work
    work.go_on.set()


def test_work_that_ignores_its_token_is_reported_and_not_killed(clock, caplog, stubborn):
    _, (first, second) = instances(clock)
    a = Leader(first, work=stubborn)
    clock.advance(0.1)
    first.break_lease("k")
    b = Leader(second)
    clock.advance(12)
    assert a.notes == ["acquired", ("lost", "lost")]
    assert b.election.is_leader
    clock.advance(10)
    assert "still runs" in caplog.text
    b.election.stop()
    clock.advance(60)
    assert a.notes == ["acquired", ("lost", "lost")], "it does not stand beside its own old work"
    stubborn.go_on.set()
    wait_until(lambda: not a.election._working)
    clock.advance(3)
    assert a.notes[2:] == ["acquired"]
    assert a.election.stop()


@pytest.mark.parametrize("ends_first", [False, True])
def test_stopping_beside_stubborn_work_leaves_the_lease_to_expire(
    clock, caplog, stubborn, monkeypatch, ends_first
):
    _, (first, second) = instances(clock)
    a = Leader(first, work=stubborn)
    clock.advance(1)
    box = []
    thread = threading.Thread(daemon=True, target=lambda: box.append(a.election.stop("5s")))
    thread.start()
    clock.wait_until_parked(2)
    wake = a.election._wake

    def wake_and_wait():
        wake()
        if ends_first:
            wait_until(lambda: a.election._ended)

    monkeypatch.setattr(a.election, "_wake", wake_and_wait)
    clock.advance(5)
    thread.join(5)
    assert box == [False]
    assert "left to expire" in caplog.text
    assert not a.election.is_leader
    assert second.acquire("k") is None
    clock.advance(30)
    assert second.acquire("k").held


def test_stopping_as_the_lease_is_granted_leaves_it_to_expire_as_well(clock, stubborn):
    _, (first, second) = instances(clock)
    elections, stopping = [], []

    def granted(event):
        wait_until(lambda: elections)
        thread = threading.Thread(daemon=True, target=elections[0].stop, args=("5s",))
        thread.start()
        clock.wait_until_parked()
        stopping.append(thread)

    unsubscribe = subscribe(granted, LockAcquired)
    elections.append(first.election("k", stubborn))
    wait_until(lambda: stopping)
    unsubscribe()
    clock.advance(5)
    stopping[0].join(5)
    assert not stopping[0].is_alive()
    clock.advance(60)
    assert second.acquire("k").held


@pytest.mark.parametrize("work", [False, True])
def test_a_leader_without_work_hands_over_however_short_stopping_waits(clock, caplog, work):
    _, (first, second) = instances(clock)
    leads, go_on, worked = threading.Event(), threading.Event(), []

    def slow(event):
        leads.set()
        with clock.blocked():
            go_on.wait(20)

    unsubscribe = subscribe(slow, "leadership-acquired")
    election = first.election("k", worked.append if work else None)
    assert leads.wait(5)
    assert election.stop(0) is False
    go_on.set()
    wait_until(lambda: second.acquire("k"))
    unsubscribe()
    assert worked == []
    assert "did not stop" not in caplog.text


def test_stopping_a_candidate(clock):
    _, (first, second) = instances(clock)
    lease = first.acquire("k")
    b = Leader(second)
    clock.advance(1)
    assert repr(b.election) == "<Election 'k' stands>"
    assert b.election.stop()
    assert b.election.stop()
    assert b.notes == []
    assert repr(b.election) == "<Election 'k' over>"
    lease.release()
    clock.advance(60)
    assert second.status("k") is None


def test_stop_may_be_called_from_the_work_and_from_on_lost(clock):
    _, (locks, _) = instances(clock)
    answers = []
    elections = []

    def work(lease):
        wait_until(lambda: elections)
        answers.append(elections[0].stop())

    elections.append(
        locks.election("k", work, lambda lease, reason: answers.append((reason, elections[0].stop())))
    )
    clock.advance(1)
    assert answers == [False, ("released", False)]
    assert locks.status("k") is None


def test_closing_the_locks_steps_down(clock):
    _, (first, second) = instances(clock)
    a = Leader(first)
    clock.advance(0.1)
    b = Leader(second)
    clock.advance(1)
    first.close()
    assert a.notes == ["acquired", ("told", "CancelledError"), ("lost", "released")]
    clock.advance(1)
    assert b.election.is_leader
    second.close()
    with pytest.raises(LockError, match="closed"):
        first.election("k")


def test_closing_waits_for_all_leaders_together(clock, stubborn):
    _, (locks, other) = instances(clock)
    for key in "abc":
        Leader(locks, key, work=stubborn)
    clock.advance(1)
    closer = threading.Thread(daemon=True, target=locks.close, args=("10s",))
    closer.start()
    clock.wait_until_parked(4)
    clock.advance(12)
    closer.join(5)
    assert not closer.is_alive()
    clock.advance(40)
    assert other.list() == []


def test_one_that_is_made_while_its_locks_are_closed_is_refused(clock, monkeypatch):
    _, (locks, _) = instances(clock)
    claim = locks._keys.claim_election

    closer = threading.Thread(daemon=True, target=locks.close)

    def meanwhile(key, election):
        claim(key, election)
        closer.start()
        clock.wait_until_parked()

    monkeypatch.setattr(locks._keys, "claim_election", meanwhile)
    with pytest.raises(LockError, match="closed"):
        locks.election("k")
    assert locks._keys.elections == {}
    closer.join(5)
    assert not closer.is_alive(), "it waits for no election that never began"


def test_a_candidate_ends_though_closing_was_broken_off(monkeypatch):
    store = MemoryLockStore()
    assert store.acquire("k", "somebody", 60_000)
    locks = Locks(store)
    election = locks.election("k")
    interrupted = interrupt(monkeypatch, type(election), "_step_down")
    with pytest.raises(interrupted):
        locks.close()
    wait_until(lambda: election._ended, 10, "the end of the campaign")
    locks.close()


def test_a_leader_ends_though_a_signal_handler_raised_while_its_lease_was_released_by_hand(
    clock, monkeypatch
):
    _, (locks, _) = instances(clock)
    a = Leader(locks)
    clock.advance(0.1)
    interrupted = interrupt(monkeypatch, Locks, "_wake_closers")
    with pytest.raises(interrupted):
        a.leases[0].release()
    wait_until(lambda: a.notes == ["acquired", ("told", "CancelledError"), ("lost", "released")])
    assert a.election.stop()


def test_a_store_that_is_down_is_asked_again(clock, caplog):
    (faulty, _), (locks, _) = instances(clock)
    faulty.faults["acquire"] = ConnectionError("refused")
    a = Leader(locks)
    clock.advance("1m")
    assert a.notes == []
    assert "trying again" in caplog.text
    faulty.faults.clear()
    clock.advance(11)
    assert a.election.is_leader
    a.election.stop()


def test_a_slow_callback_of_somebody_else_does_not_delay_the_leaders_loss(clock):
    _, (locks, _) = instances(clock)
    told, go_on = [], threading.Event()

    def slow():
        with clock.blocked():
            go_on.wait(20)

    election = locks.election("k", None, lambda lease, reason: told.append(reason))
    clock.advance(1)
    post(slow)
    locks.break_lease("k")
    clock.advance(11)
    assert told == ["lost"]
    go_on.set()
    election.stop()


@pytest.mark.parametrize("error", [ValueError("from on_lost"), SystemExit("from on_lost")])
def test_callbacks_that_raise_end_nothing(clock, caplog, error):
    _, (locks, _) = instances(clock)

    def on_lost(lease, reason):
        raise error

    election = locks.election("k", None, on_lost)
    clock.advance(1)
    assert election.is_leader
    locks.break_lease("k")
    clock.advance(11)
    assert "from on_lost" in caplog.text
    clock.advance(11)
    assert election.is_leader
    election.stop()


@pytest.mark.parametrize(
    "event",
    [LockAcquired, LeadershipAcquired, LockReleased, LeadershipLost],
    ids=lambda event: event.__name__,
)
def test_a_listener_that_calls_sys_exit_ends_nothing(clock, caplog, event):
    _, (first, second) = instances(clock)

    def work(lease):
        current_context().sleep(5)
        if len(a.leases) == 1:
            raise ValueError
        a.until_told(lease)

    a = Leader(first, work=work)
    clock.advance(1)
    left = []

    def leave(event):
        if threading.current_thread().name.startswith("pyresil-election") and not left:
            left.append(event)
            raise SystemExit("from a listener")

    unsubscribe = subscribe(leave, [event])
    try:
        clock.advance(30)
        first.break_lease("k")
        clock.advance("1m")
    finally:
        unsubscribe()
    assert "from a listener" in caplog.text
    assert len(left) == 1
    assert a.election.is_leader
    assert a.notes.count("acquired") - sum(note[0] == "lost" for note in a.notes) == 1
    assert a.election.stop()
    assert second.acquire("k").release(), "it was handed back"


def test_a_callback_of_the_leaders_token_that_calls_sys_exit_ends_nothing(clock, caplog):
    _, (first, second) = instances(clock)

    def leave():
        raise SystemExit("from on_cancel")

    def work(lease):
        lease.cancel.on_cancel(leave)
        raise ValueError

    a = Leader(first, work=work)
    clock.advance(1)
    assert "from on_cancel" in caplog.text
    assert a.notes == ["acquired", ("lost", "released")]
    assert second.acquire("k").release()
    clock.advance(11)
    assert a.notes.count("acquired") == 2
    a.election.stop()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"key": ""}, "key"),
        ({"ttl": 0.1}, "ttl"),
        ({"on_acquired": 5}, "on_acquired"),
        ({"on_lost": 5}, "on_lost"),
        ({"ttl": 0, "on_acquired": 5, "on_lost": 5}, "ttl must be .*; on_acquired must be .*; on_lost"),
    ],
)
def test_bad_options_are_refused(clock, options, word):
    _, (locks, _) = instances(clock)
    with pytest.raises(ConfigurationError, match=f"{word} must be"):
        locks.election(**{"key": "k", **options})
    assert locks._keys.elections == {}
    with locks.election("k") as election, pytest.raises(ConfigurationError, match="timeout must be"):
        election.stop(-1)


def test_in_real_time():
    store = MemoryLockStore()
    first, second = Leader(Locks(store, ttl="5s")), Leader(Locks(store, ttl="5s"))
    wait_until(lambda: first.election.is_leader or second.election.is_leader)
    leads, stands = (first, second) if first.election.is_leader else (second, first)
    time.sleep(5.5)
    assert (leads.election.is_leader, stands.election.is_leader) == (True, False)
    begun = time.monotonic()
    assert leads.election.stop()
    wait_until(lambda: stands.election.is_leader)
    assert time.monotonic() - begun < 4
    assert stands.election.stop()
