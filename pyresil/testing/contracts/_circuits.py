"""What every `CircuitStateStore` promises.

The suite needs one fixture, ``store``: an empty store. Methods of the class say what else can be done with it: `another`,
`advance`. They are plain methods, so a subclass overrides what its store can do.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from pyresil.clock import SYSTEM
from pyresil.errors import ConfigurationError
from pyresil.stores.circuits import CircuitSnapshot
from pyresil.testing.contracts._locks import KEYS

if TYPE_CHECKING:
    from pyresil.stores.circuits import CircuitStateStore

__all__ = ["CircuitStateStoreContract"]

WEEKS = 3 * 7 * 86_400_000
OPEN = CircuitSnapshot("open", 60_000, 1, "a")
CLOSED = CircuitSnapshot("closed", 0, 0, "b")


class CircuitStateStoreContract:
    """Derive from it and give it a fixture ``store``."""

    #: Callers at once, where there are many.
    callers = 16

    def another(self, store: CircuitStateStore) -> CircuitStateStore:
        """A second client of the same server or file; by default the same object."""
        return store

    def advance(self, store: CircuitStateStore, seconds: float) -> None:
        """Let time pass for the store; by default by waiting."""
        SYSTEM.sleep(seconds)

    def test_nothing_was_written(self, store: CircuitStateStore) -> None:
        """Version 0."""
        assert store.read("k") == (None, 0)

    def test_a_write_is_read(self, store: CircuitStateStore) -> None:
        """With what is left of its time."""
        assert store.write("k", OPEN, 0).version == 1
        for client in (store, self.another(store)):
            snapshot, version = client.read("k")
            assert version == 1
            assert snapshot is not None
            assert snapshot._replace(remaining_ms=60_000) == OPEN
            assert 50_000 < snapshot.remaining_ms <= 60_000

    def test_a_write_in_ignorance_changes_nothing(self, store: CircuitStateStore) -> None:
        """And answers what stands in its way."""
        store.write("k", OPEN, 0)
        for expected in (0, 2, 7):
            answer = store.write("k", CLOSED, expected)
            assert answer.version == 1
            assert answer.snapshot is not None
            assert answer.snapshot.writer == "a"
        assert store.write("k", CLOSED, 1) == (CLOSED, 2)
        assert store.read("k") == (CLOSED, 2)

    def test_time_runs_out_and_stays_at_zero(self, store: CircuitStateStore) -> None:
        """The state stays, as no timer changes it."""
        store.write("k", OPEN._replace(remaining_ms=200), 0)
        self.advance(store, 0.25)
        assert store.read("k") == (OPEN._replace(remaining_ms=0), 1)

    def test_long_breaks(self, store: CircuitStateStore) -> None:
        """Of weeks."""
        store.write("k", OPEN._replace(remaining_ms=WEEKS), 0)
        snapshot = store.read("k").snapshot
        assert snapshot is not None
        assert WEEKS - 60_000 < snapshot.remaining_ms <= WEEKS

    def test_keys_are_kept_apart_exactly(self, store: CircuitStateStore) -> None:
        """The ones that stores have mixed up."""
        for number, key in enumerate(KEYS):
            assert store.write(key, OPEN._replace(opened=number), 0).version == 1
        for number, key in enumerate(KEYS):
            snapshot = store.read(key).snapshot
            assert snapshot is not None
            assert snapshot.opened == number

    def test_keys_that_no_store_accepts_are_refused(self, store: CircuitStateStore) -> None:
        """With a clear error."""
        for key in ("", "k\0", "k" * 501, "\ud800"):
            for call in (partial(store.read, key), partial(store.write, key, OPEN, 0)):
                try:
                    call()
                except ConfigurationError:
                    continue
                raise AssertionError(f"the key {key!r} must raise ConfigurationError")

    def test_one_of_many_writers_wins_each_version(self, store: CircuitStateStore) -> None:
        """Nobody overwrites what it has not seen."""
        won: list[int] = []
        ended: list[int] = []
        barrier = threading.Barrier(self.callers)

        def caller(number: int) -> None:
            mine = self.another(store)
            me = OPEN._replace(writer=f"w{number}")
            barrier.wait(10)
            for _ in range(20):
                known = mine.read("k").version
                answer = mine.write("k", me, known)
                if (
                    answer.version == known + 1
                    and answer.snapshot is not None
                    and answer.snapshot.writer == me.writer
                ):
                    won.append(known)
            ended.append(number)

        threads = [threading.Thread(target=caller, args=(number,)) for number in range(self.callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(ended) == self.callers, "a caller failed or hangs"
        assert sorted(won) == list(range(store.read("k").version))
