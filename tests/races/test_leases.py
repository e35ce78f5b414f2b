"""Leases under threads that switch after every bytecode: exact counts, one winner, one loss."""

from __future__ import annotations

import pytest

from pyresil._renewal import Renewal
from pyresil.errors import LockError
from pyresil.locks import Locks
from pyresil.stores.memory import MemoryLockStore
from pyresil.testing import ManualClock, record_events
from tests.support.processes import wait_until
from tests.support.threads import together


def at_once(*targets):
    results = [None] * len(targets)

    def run(number):
        results[number] = targets[number]()

    together(len(targets), run)
    return results


def test_one_of_eight_gets_the_lock():
    locks = Locks(MemoryLockStore())
    for _ in range(100):
        leases = at_once(*[lambda: locks.acquire("k")] * 8)
        winners = [lease for lease in leases if lease is not None]
        assert len(winners) == 1
        assert winners[0].release()


def test_one_of_eight_releases_it():
    locks = Locks(MemoryLockStore())
    for _ in range(100):
        lease = locks.acquire("k")
        with record_events("lock-released") as events:
            assert sorted(at_once(*[lease.release] * 8)) == [False] * 7 + [True]
        assert len(events) == 1
        assert locks._leases == {}


def test_a_release_and_a_loss_at_once_are_one_of_them():
    clock = ManualClock()
    store = MemoryLockStore(clock=clock)
    locks = Locks(store, ttl=1, clock=clock)
    ended = {"released": 0, "lost": 0}
    for _ in range(200):
        lost = []
        lease = locks.acquire("k", max_hold=0.5, on_lost=lost.append)
        clock.advance(0.3)
        released, _ = at_once(lease.release, lambda: clock.advance(0.3))
        clock.advance(0)
        if not released:  # the watchdog may be in the middle of it, on a busy machine for long
            wait_until(lost.__len__, 10)
        assert (released, lost, lease.lost.is_set()) in [(True, [], False), (False, [lease], True)]
        assert not lease.held
        ended["released" if released else "lost"] += 1
        store.force_release("k")
        wait_until(lambda: locks._leases == {})  # a loss is told, and forgotten, in the background
    assert sum(ended.values()) == 200


def test_a_loss_during_which_the_holder_stops_is_told():
    class Met(Renewal):
        """Its holder stops it at the very moment when it is found to be over."""

        @property
        def over(self):
            return Renewal.over.__get__(self)

        @over.setter
        def over(self, value):
            Renewal.over.__set__(self, value)
            if value:
                stopped.append(self.stop())

    clock, told, stopped = ManualClock(), [], []
    renewal = Met(clock, 10.0, clock.boottime(), lambda timeout: True, told.append, max_hold=1.0)
    renewal.start()
    clock.advance(2)
    assert stopped == [False]
    assert told == ["max-hold"]


def test_eight_losses_at_once_are_told_once():
    clock = ManualClock()
    locks = Locks(MemoryLockStore(clock=clock), ttl=1, clock=clock)
    for number in range(50):
        key, told = f"eight-{number}", []  # a loss of an earlier test may be told meanwhile
        with record_events("lock-lost") as events:
            lease = locks.acquire(key, on_lost=told.append)
            clock._elapsed += 5

            def look(lease=lease):
                with pytest.raises(LockError):
                    lease.raise_if_lost()

            at_once(*[look] * 8)

            def is_told(key=key, told=told, events=events):
                return told and any(event.key == key for event in events)

            wait_until(is_told)
            clock.advance(0)
        assert told == [lease]
        assert [event.key for event in events].count(key) == 1


def test_lost_and_cancel_asked_for_while_the_lease_gets_lost():
    clock = ManualClock()
    locks = Locks(MemoryLockStore(clock=clock), ttl=1, clock=clock)
    for _ in range(200):
        lease = locks.acquire("k", renew=False)
        called = []

        def ask(lease=lease, called=called):
            event, token = lease.lost, lease.cancel
            token.on_cancel(lambda: called.append(1))
            return event, token

        *pairs, _ = at_once(ask, ask, ask, lambda: clock.advance(1))
        clock.advance(0)
        assert len({id(event) for event, _ in pairs}) == len({id(token) for _, token in pairs}) == 1
        assert all(event.is_set() and token.is_set() for event, token in pairs)
        assert len(called) == 3


def test_a_counter_under_the_lock_loses_nothing():
    store = MemoryLockStore()
    instances = [Locks(store) for _ in range(4)]
    counter = {"value": 0}
    tokens = []

    def add(locks):
        for _ in range(20):
            with locks.hold("k", wait=20) as lease:
                value = counter["value"]
                tokens.append(lease.token)
                counter["value"] = value + 1

    at_once(*[lambda locks=locks: add(locks) for locks in instances])
    assert counter["value"] == 80
    assert tokens == sorted(set(tokens))


def test_closing_while_others_acquire():
    for _ in range(50):
        store = MemoryLockStore()
        locks = Locks(store)

        def acquire(number, locks=locks):
            found = []
            for step in range(20):
                try:
                    found.append(locks.acquire(f"{number}:{step}"))
                except LockError:
                    break
            return found

        at_once(*[lambda number=number: acquire(number) for number in range(3)], locks.close)
        assert locks._leases == {}
        assert store.scan() == []
