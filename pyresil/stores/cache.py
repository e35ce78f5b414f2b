"""Where cached values live: the contract, and the store of one process."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from pyresil._validate import Checker, Configured
from pyresil.clock import SYSTEM, Clock
from pyresil.strategy import Forkable

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["CacheStore", "Found", "MemoryCacheStore"]


class Found(NamedTuple):
    """What a store has under a key.

    Attributes:
        entry: What was set, or None.
        generation: Grows with every invalidation of the key; given back to `CacheStore.set`.
    """

    entry: Any
    generation: int


class CacheStore(Configured, ABC):
    """Values by key, with generations so that an invalidation wins over a load that began before it."""

    #: Whether entries leave the process: then they are bytes and keys are strings.
    shared = True

    @abstractmethod
    def get(self, key: Hashable, *, timeout: float | None = None) -> Found:
        """What is under ``key``, expired entries excepted, and its generation."""

    @abstractmethod
    def set(
        self, key: Hashable, entry: Any, ttl_ms: int, if_generation: int, *, timeout: float | None = None
    ) -> bool:
        """Put ``entry`` under ``key`` for ``ttl_ms``, unless the key was invalidated since ``if_generation``; whether it was put."""

    @abstractmethod
    def invalidate(self, key: Hashable, *, timeout: float | None = None) -> None:
        """Drop what is under ``key``, and refuse what began to load before."""


class MemoryCacheStore(CacheStore, Forkable):
    """The store of one process: the least recently used entries make room.

    Args:
        max_entries: The most entries. Default: 1024.
        clock: Expiry is on its monotonic time.

    Raises:
        ConfigurationError: An option is out of range.
    """

    shared = False
    _dropped = ("_lock",)

    def __init__(self, max_entries: int = 1024, *, clock: Clock | None = None) -> None:
        check = Checker("memory cache store")
        self.max_entries = check.integer("max_entries", max_entries)
        check.instance("clock", clock, Clock, "a Clock or None")
        check.done()
        self._clock = clock or SYSTEM
        self._entries: OrderedDict[Hashable, tuple[Any, float]] = OrderedDict()
        # Generations of invalidated keys; those that were dropped to stay bounded count as invalidated at ``_floor``.
        self._generations: OrderedDict[Hashable, int] = OrderedDict()
        self._floor = 0
        self._last = 0
        self._lock: threading.RLock | None = None
        self._watch_forks()

    def get(self, key: Hashable, *, timeout: float | None = None) -> Found:
        """See `CacheStore.get`."""
        generation = self._generations.get(key, self._floor)
        found = self._entries.get(key)
        if found is None:
            return Found(None, generation)
        entry, until = found
        if self._clock.monotonic() < until:
            try:
                self._entries.move_to_end(key)
            except KeyError:
                pass  # evicted by another thread in between
            return Found(entry, generation)
        with self._lock or self._make_lock():
            if self._entries.get(key) is found:  # and not a new one, which another thread has put meanwhile
                del self._entries[key]
        return Found(None, generation)

    def set(
        self, key: Hashable, entry: Any, ttl_ms: int, if_generation: int, *, timeout: float | None = None
    ) -> bool:
        """See `CacheStore.set`."""
        until = self._clock.monotonic() + ttl_ms / 1000.0
        with self._lock or self._make_lock():
            if self._generations.get(key, self._floor) != if_generation:
                return False
            self._entries[key] = (entry, until)
            # A signal handler may have invalidated between the look and the put.
            if self._generations.get(key, self._floor) != if_generation:
                self._entries.pop(key, None)
                return False
            while len(self._entries) > self.max_entries:
                self._entries.popitem(last=False)
        return True

    def invalidate(self, key: Hashable, *, timeout: float | None = None) -> None:
        """See `CacheStore.invalidate`."""
        with self._lock or self._make_lock():
            self._last = generation = self._last + 1
            self._generations[key] = generation
            self._generations.move_to_end(key)
            self._entries.pop(key, None)
            while len(self._generations) > self.max_entries:
                self._floor = max(self._floor, self._generations.popitem(last=False)[1])

    def clear(self) -> None:
        """Drop everything, and refuse what began to load before."""
        with self._lock or self._make_lock():
            self._last = self._floor = self._last + 1
            self._generations.clear()
            self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def _after_fork(self) -> None:
        self._lock = None

    def _make_lock(self) -> threading.RLock:
        fresh = threading.RLock()
        # Test and assignment with no call in between: two threads cannot both do it.
        if self._lock is None:
            self._lock = fresh
        return self._lock
