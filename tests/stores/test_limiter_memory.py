"""`MemoryLimiterStore`: the contract, its bound, and where it comes from."""

from __future__ import annotations

import pytest

from pyresil import ConfigurationError, LimitSpec, MemoryLimiterStore, connect
from pyresil.testing import ManualClock
from pyresil.testing.contracts import LimiterStoreContract

HOURLY = LimitSpec("sliding-window", 1, 3600.0, 1)


class TestOnTheSystemsClock(LimiterStoreContract):
    @pytest.fixture
    def store(self):
        return MemoryLimiterStore()


class TestOnAManualClock(LimiterStoreContract):
    @pytest.fixture
    def store(self):
        self.clock = ManualClock()
        return MemoryLimiterStore(self.clock)

    def advance(self, store, seconds):
        self.clock.advance(seconds)


def test_it_keeps_a_bounded_number_of_keys_and_lets_go_of_idle_ones_first():
    clock = ManualClock()
    store = MemoryLimiterStore(clock, max_keys=10)
    two = LimitSpec("sliding-window", 2, 10.0, 2)
    for _ in range(2):
        assert store.hit("used up", two, 1).allowed
    clock.advance(5)
    for number in range(100):
        store.hit(f"k{number}", two, 1)
    assert repr(store) in {f"MemoryLimiterStore(keys={keys})" for keys in (9, 10)}
    assert not store.hit("used up", two, 1).allowed


def test_another_spec_counts_anew():
    store = MemoryLimiterStore()
    assert store.hit("k", HOURLY, 1).allowed
    assert not store.hit("k", HOURLY, 1).allowed
    assert store.hit("k", HOURLY._replace(permits=2, burst=2), 1).allowed


def test_it_comes_from_a_memory_backend_and_from_no_other_yet(tmp_path):
    backend = connect("memory:")
    assert isinstance(backend.limiter, MemoryLimiterStore)
    assert backend.limiter is backend.limiter
    with pytest.raises(ConfigurationError, match="limiter"):
        _ = connect(f"sqlite:///{tmp_path}/x.db").limiter


@pytest.mark.parametrize("options", [{"max_keys": 0}, {"max_keys": True}, {"clock": 5}])
def test_bad_options_are_refused(options):
    with pytest.raises(ConfigurationError, match="memory limiter store"):
        MemoryLimiterStore(**options)
