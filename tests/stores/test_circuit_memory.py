"""`MemoryCircuitStore` passes the published contract suite."""

from __future__ import annotations

import pytest

from pyresil import MemoryCircuitStore
from pyresil.testing import ManualClock
from pyresil.testing.contracts import CircuitStateStoreContract


class TestOnTheSystemsClock(CircuitStateStoreContract):
    @pytest.fixture
    def store(self):
        return MemoryCircuitStore()


class TestOnAManualClock(CircuitStateStoreContract):
    @pytest.fixture
    def store(self):
        self.clock = ManualClock()
        return MemoryCircuitStore(self.clock)

    def advance(self, store, seconds):
        self.clock.advance(seconds)
