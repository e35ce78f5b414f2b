"""Leases against what they promise, over random histories of two instances, failing stores and time."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyresil.errors import LockError, StoreUnavailableError
from pyresil.locks import Locks
from pyresil.stores.memory import MemoryLockStore
from pyresil.testing import ManualClock
from tests.locks.faults import FaultyStore
from tests.support.depth import times

KEYS = ("a", "b")
FAULTS = {
    "none": None,
    "drop-request": lambda number: "drop-request",
    "drop-reply": lambda number: "drop-reply",
    "now and then": lambda number: (
        "drop-request" if number % 3 == 0 else "drop-reply" if number % 3 == 1 else None
    ),
}
instances = st.sampled_from([0, 1])
keys = st.sampled_from(KEYS)


class Leases(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.clock = ManualClock()
        self.store = MemoryLockStore(clock=self.clock)
        self.stores = [FaultyStore(self.store) for _ in range(2)]
        self.locks = [Locks(store, ttl=12, clock=self.clock) for store in self.stores]
        self.leases = []
        self.lost = []
        self.tokens = dict.fromkeys(KEYS, 0)

    @rule(who=instances, key=keys, max_hold=st.sampled_from([None, 5, 30]), min_hold=st.sampled_from([0, 2]))
    def acquire(self, who, key, max_hold, min_hold):
        try:
            lease = self.locks[who].acquire(
                key, max_hold=max_hold, min_hold=min_hold, on_lost=self.lost.append
            )
        except StoreUnavailableError:
            return
        if lease is not None:
            assert lease.held
            assert lease.token > self.tokens[key], "tokens of a key grow"
            self.tokens[key] = lease.token
            self.leases.append(lease)

    @rule(number=st.integers(0, 30))
    def release(self, number):
        if self.leases:
            lease = self.leases[number % len(self.leases)]
            was_held = lease.held
            done = lease.release()
            assert not lease.held
            assert was_held or not done

    @rule(
        who=instances,
        method=st.sampled_from(["acquire", "renew", "release"]),
        fault=st.sampled_from(list(FAULTS)),
    )
    def the_store_changes(self, who, method, fault):
        self.stores[who].faults[method] = FAULTS[fault]

    @rule(duration=st.sampled_from([0.5, 1, 3.9, 4, 11.99, 12, 40]))
    def time_passes(self, duration):
        self.clock.advance(duration)

    @invariant()
    def who_believes_in_a_lease_has_it(self):
        """Without anybody breaking leases, no holder is ever wrong, whatever the network does."""
        for key in KEYS:
            holders = [lease for lease in self.leases if lease.key == key and lease.held]
            assert len(holders) <= 1
            for lease in holders:
                info = self.store.inspect(key)
                assert info is not None
                assert (info.owner, info.token) == (lease.owner, lease.token)
                assert lease.remaining() * 1000 <= info.remaining_ms + 1

    @invariant()
    def what_a_lease_says_fits_together(self):
        self.clock.advance(0)
        for lease in self.leases:
            lost = lease.lost.is_set()
            assert lost == (lease.detected_by is not None) == lease.cancel.is_set()
            assert not (lost and lease.held)
            assert self.lost.count(lease) == lost, "told once"
            if lost:
                assert lease.detected_by in {"deadline", "max-hold", "refused"}

    @invariant()
    def nothing_is_kept_of_what_is_over(self):
        kept = {lease for locks in self.locks for lease in locks._leases}
        assert kept == {lease for lease in self.leases if lease.held}

    def teardown(self):
        for store in self.stores:
            store.faults.clear()
        for lease in self.leases:
            lease.release()
        self.clock.advance(100)
        assert self.store.scan() == []
        try:
            for lease in self.leases:
                lease.raise_if_lost()
        except LockError:
            pass


TestLeases = Leases.TestCase
TestLeases.settings = settings(
    max_examples=times(50), stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
