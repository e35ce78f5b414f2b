from __future__ import annotations

import pytest

from pyresil.locks import Locks
from pyresil.stores.memory import MemoryLockStore
from tests.locks.faults import FaultyStore


@pytest.fixture
def store(clock):
    return FaultyStore(MemoryLockStore(clock=clock))


@pytest.fixture
def locks(store, clock):
    return Locks(store, ttl="30s", clock=clock)


@pytest.fixture
def others(store, clock):
    """Another instance on the same store."""
    return Locks(store.inner, ttl="30s", clock=clock)
