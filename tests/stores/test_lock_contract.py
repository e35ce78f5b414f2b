"""Every lock store passes the published contract suite."""

from __future__ import annotations

from unittest import SkipTest

import pytest

from pyresil.testing.contracts import LockStoreContract
from tests.support.stores import LOCK_STORES


@pytest.mark.parametrize("name", LOCK_STORES)
class TestLockStores(LockStoreContract):
    @pytest.fixture(autouse=True)
    def _harness(self, name, request):
        self.harness = LOCK_STORES[name](request)
        self.can_advance = self.harness.can_advance
        yield
        self.harness.close()

    @pytest.fixture
    def store(self, _harness):
        return self.harness.store()

    def another(self, store):
        return self.harness.store()

    def advance(self, store, seconds):
        if self.can_advance:
            self.harness.advance(seconds)
        else:
            super().advance(store, seconds)

    def restart(self, store):
        if not self.harness.can_restart:
            raise SkipTest("its data does not outlive it")
        return self.harness.restart()

    def test_a_waiter_is_woken_by_a_release(self, store):
        if self.can_advance:
            raise SkipTest("its waits end when the clock is moved: see test_memory.py")
        super().test_a_waiter_is_woken_by_a_release(store)
