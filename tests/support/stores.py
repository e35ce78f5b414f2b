"""The matrix of lock stores, as data: what the contracts, the cases and the benchmarks run over."""

from __future__ import annotations

import pathlib

from pyresil.stores.memory import MemoryLockStore
from pyresil.stores.sqlite import SQLiteLockStore
from pyresil.testing import ManualClock


class Harness:
    """One kind of store: makes an empty one, further ones on the same data, and moves its time.

    Args:
        request: pytest's request, through which servers are asked for.
    """

    can_advance = False
    can_restart = False

    def __init__(self, request):
        self.request = request
        self.opened = []

    def make(self):
        """A store object on this harness's data; each call gives another one."""
        raise NotImplementedError

    def store(self):
        made = self.make()
        self.opened.append(made)
        return made

    def advance(self, seconds):
        raise NotImplementedError

    def restart(self):
        raise NotImplementedError

    def close(self):
        for store in self.opened:
            store.close()


class Memory(Harness):
    """One object; its clock is moved by hand."""

    can_advance = True

    def __init__(self, request):
        super().__init__(request)
        self.clock = ManualClock()

    def make(self):
        return self.opened[0] if self.opened else MemoryLockStore(clock=self.clock)

    def advance(self, seconds):
        self.clock.advance(seconds)


class MemoryRealTime(Harness):
    """One object on the system's clock."""

    def make(self):
        return self.opened[0] if self.opened else MemoryLockStore()


class SQLite(Harness):
    """A file in the test's own folder."""

    can_restart = True

    def __init__(self, request):
        super().__init__(request)
        self.path = pathlib.Path(request.getfixturevalue("tmp_path")) / "state" / "locks.db"

    def make(self):
        return SQLiteLockStore(self.path)

    def restart(self):
        self.close()
        return self.store()


class SQLiteManualTime(SQLite):
    """The same, on a clock that is moved by hand."""

    can_advance = True

    def __init__(self, request):
        super().__init__(request)
        self.clock = ManualClock()

    def make(self):
        return SQLiteLockStore(self.path, clock=self.clock)

    def advance(self, seconds):
        self.clock.advance(seconds)


#: Name to harness.
LOCK_STORES = {
    "memory": Memory,
    "memory-real-time": MemoryRealTime,
    "sqlite": SQLite,
    "sqlite-manual-time": SQLiteManualTime,
}
