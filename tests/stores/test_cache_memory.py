"""`MemoryCacheStore`: the contract, its bound, and where it comes from."""

from __future__ import annotations

import pytest

from pyresil import Cache, ConfigurationError, MemoryCacheStore, Policy, connect
from pyresil.testing import ManualClock
from pyresil.testing.contracts import CacheStoreContract


class TestOnTheSystemsClock(CacheStoreContract):
    @pytest.fixture
    def store(self):
        return MemoryCacheStore()


class TestOnAManualClock(CacheStoreContract):
    @pytest.fixture
    def store(self):
        self.clock = ManualClock()
        return MemoryCacheStore(clock=self.clock)

    def advance(self, store, seconds):
        self.clock.advance(seconds)


def test_both_entries_and_generations_are_bounded():
    store = MemoryCacheStore(10)
    began = store.get("first").generation
    for number in range(100):
        store.set(number, b"", 1000, store.get(number).generation)
        store.invalidate(f"invalidated {number}")
    assert len(store) == 10
    assert len(store._generations) <= 10
    store.invalidate("first")
    for number in range(100):
        store.invalidate(f"again {number}")
    assert store.set("first", b"old", 1000, began) is False


def test_it_comes_from_a_backend():
    backend = connect("memory:")
    assert backend.cache is backend.cache
    assert isinstance(backend.cache, MemoryCacheStore)
    policy = Policy(Cache(lambda ctx: "k", store=backend.cache))
    assert [policy.call(lambda value=value: value) for value in (1, 2)] == [1, 1]
    with pytest.raises(
        ConfigurationError, match="sqlite has no cache store; in this version memory: has one"
    ):
        _ = connect("sqlite:///unused.db").cache
