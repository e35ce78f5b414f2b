"""What every `CacheStore` promises.

The suite needs one fixture, ``store``: an empty store. Methods of the class say what else can be done with it: `another`,
`advance`. They are plain methods, so a subclass overrides what its store can do.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyresil.clock import SYSTEM
from pyresil.testing.contracts._locks import KEYS

if TYPE_CHECKING:
    from pyresil.stores.cache import CacheStore

__all__ = ["CacheStoreContract"]

HOUR = 3_600_000


class CacheStoreContract:
    """Derive from it and give it a fixture ``store``. Keys are strings and entries bytes, as every store takes them."""

    #: Callers at once, where there are many.
    callers = 16

    def another(self, store: CacheStore) -> CacheStore:
        """A second client of the same server or file; by default the same object."""
        return store

    def advance(self, store: CacheStore, seconds: float) -> None:
        """Let time pass for the store; by default by waiting."""
        SYSTEM.sleep(seconds)

    def put(self, store: CacheStore, key: str, entry: bytes, ttl_ms: int = HOUR) -> bool:
        """As a load does it that begins and ends now."""
        return store.set(key, entry, ttl_ms, store.get(key).generation)

    def test_what_is_put_is_found(self, store: CacheStore) -> None:
        """As it was put, empty entries too; the last one wins."""
        assert store.get("k").entry is None
        for entry in (b"one", b"", bytes(range(256)), b"x" * 100_000):
            assert self.put(store, "k", entry) is True
            assert store.get("k").entry == entry
            assert self.another(store).get("k").entry == entry

    def test_keys_are_kept_apart_exactly(self, store: CacheStore) -> None:
        """Whatever characters they consist of."""
        for number, key in enumerate(KEYS):
            assert self.put(store, key, b"%d" % number) is True
        assert [store.get(key).entry for key in KEYS] == [b"%d" % number for number in range(len(KEYS))]
        store.invalidate(KEYS[0])
        assert store.get(KEYS[0]).entry is None
        assert all(store.get(key).entry is not None for key in KEYS[1:])

    def test_an_entry_is_gone_after_its_ttl(self, store: CacheStore) -> None:
        """And no sooner; each has its own."""
        assert self.put(store, "short", b"1", 2_000)
        assert self.put(store, "long", b"2", HOUR)
        self.advance(store, 0.05)
        assert store.get("short").entry == b"1"
        self.advance(store, 2.0)
        assert (store.get("short").entry, store.get("long").entry) == (None, b"2")

    def test_putting_it_again_is_a_new_ttl(self, store: CacheStore) -> None:
        """Counted from then."""
        assert self.put(store, "k", b"1", 3_000)
        self.advance(store, 1.6)
        assert self.put(store, "k", b"2", 3_000)
        self.advance(store, 1.6)
        assert store.get("k").entry == b"2"

    def test_an_invalidation_wins_over_a_load_that_began_before_it(self, store: CacheStore) -> None:
        """Also where nothing was there, and where somebody else invalidates."""
        began = store.get("k").generation
        self.another(store).invalidate("k")
        assert store.set("k", b"old", HOUR, began) is False
        assert store.get("k").entry is None
        assert self.put(store, "k", b"new") is True
        began = store.get("k").generation
        store.invalidate("k")
        assert store.get("k").entry is None
        assert store.set("k", b"old", HOUR, began) is False
        assert self.put(store, "k", b"newer") is True
        assert store.get("k").entry == b"newer"

    def test_generations_of_a_key_only_grow(self, store: CacheStore) -> None:
        """They are ints; another key's invalidation does not let an old load through."""
        seen = []
        for number in range(5):
            seen.append(store.get("k").generation)
            store.invalidate("k")
            store.invalidate(f"other {number}")
        seen.append(store.get("k").generation)
        assert all(type(generation) is int for generation in seen)
        assert seen == sorted(set(seen))
        for generation in seen[:-1]:
            assert store.set("k", b"old", HOUR, generation) is False
        assert store.set("k", b"new", HOUR, seen[-1]) is True

    def test_two_loads_of_one_generation_may_both_put(self, store: CacheStore) -> None:
        """The later one wins: a put is no invalidation."""
        began = store.get("k").generation
        assert store.set("k", b"first", HOUR, began) is True
        assert store.set("k", b"second", HOUR, began) is True
        assert store.get("k").entry == b"second"

    def test_no_load_that_began_before_an_invalidation_comes_through_among_many(
        self, store: CacheStore
    ) -> None:
        """Many callers load and put while one invalidates; what is there afterwards was loaded after it."""
        source = [0]
        faults: list[BaseException] = []

        def load() -> None:
            mine = self.another(store)
            try:
                for _ in range(20):
                    began = mine.get("k").generation
                    value = source[0]
                    mine.set("k", b"%d" % value, HOUR, began)
            except BaseException as error:
                faults.append(error)

        threads = [threading.Thread(target=load) for _ in range(self.callers)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            source[0] += 1
            store.invalidate("k")
            found = store.get("k").entry
            assert found in (None, b"%d" % source[0])
        for thread in threads:
            thread.join(30.0)
            assert not thread.is_alive(), "a caller hangs"
        assert not faults
        assert store.get("k").entry in (None, b"%d" % source[0])
