"""Every lock store passes the published contract suite."""

from __future__ import annotations

from unittest import SkipTest

import pytest

from pyresil.testing.contracts import (
    LockStoreConcurrent,
    LockStoreDurable,
    LockStoreExpiry,
    LockStoreSequential,
)
from tests.support.stores import DURABLE, LOCK_STORES, MORE_CLIENTS


class OnHarness:
    """Joins a suite and the matrix."""

    matrix = LOCK_STORES

    @pytest.fixture
    def store(self, name, request):
        self.harness = self.matrix[name](request)
        self.can_advance = self.harness.can_advance
        yield self.harness.store()
        self.harness.close()

    def another(self, store):
        return self.harness.store()

    def advance(self, store, seconds):
        if self.can_advance:
            self.harness.advance(seconds)
        else:
            super().advance(store, seconds)

    def restart(self, store):
        return self.harness.restart()


@pytest.mark.parametrize("name", LOCK_STORES)
class TestSequential(OnHarness, LockStoreSequential):
    pass


@pytest.mark.parametrize("name", LOCK_STORES)
class TestExpiry(OnHarness, LockStoreExpiry):
    pass


@pytest.mark.parametrize("name", LOCK_STORES)
class TestConcurrent(OnHarness, LockStoreConcurrent):
    def test_a_waiter_is_woken_by_a_release(self, store):
        if self.can_advance:
            raise SkipTest("its waits end when the clock is moved: see test_memory.py")
        super().test_a_waiter_is_woken_by_a_release(store)


@pytest.mark.parametrize("name", DURABLE)
class TestDurable(OnHarness, LockStoreDurable):
    matrix = DURABLE


@pytest.mark.parametrize("name", MORE_CLIENTS)
class TestMoreClients(OnHarness, LockStoreSequential):
    matrix = MORE_CLIENTS
