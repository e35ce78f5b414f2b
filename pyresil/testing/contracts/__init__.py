"""Contract suites: what every store promises, as pytest classes.

Derive from a suite in a test module and give it a fixture that makes your store; every store of pyresil runs the same ones::

    class TestMyStore(LockStoreContract):
        @pytest.fixture
        def store(self):
            return MyLockStore()
"""

from __future__ import annotations

from pyresil.testing.contracts._caches import CacheStoreContract
from pyresil.testing.contracts._circuits import CircuitStateStoreContract
from pyresil.testing.contracts._limiters import LimiterStoreContract
from pyresil.testing.contracts._locks import LockStoreSequential
from pyresil.testing.contracts._locks_shared import (
    LockStoreConcurrent,
    LockStoreContract,
    LockStoreDurable,
    LockStoreExpiry,
)

__all__ = [
    "CacheStoreContract",
    "CircuitStateStoreContract",
    "LimiterStoreContract",
    "LockStoreConcurrent",
    "LockStoreContract",
    "LockStoreDurable",
    "LockStoreExpiry",
    "LockStoreSequential",
]
