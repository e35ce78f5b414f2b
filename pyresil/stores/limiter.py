"""The contract of limiter stores, and the one in the memory of a process.

A store counts the hits of keys on its own clock; what a limit is comes with every hit, so nothing has to be set up. Every
method is one atomic step. A store that is busy or cannot be reached raises `StoreUnavailableError`: whether there are permits
is unknown then, which is neither "used up" nor "free".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import ceil
from typing import Any, NamedTuple, cast

from pyresil._engine.limiters import Spec as LimitSpec
from pyresil._engine.partitions import Partitions
from pyresil._validate import Checker, Configured
from pyresil.clock import SYSTEM, Clock
from pyresil.errors import StoreError, shown
from pyresil.stores.base import check_key

__all__ = ["Decision", "LimitSpec", "LimiterStore", "MemoryLimiterStore"]


class Decision(NamedTuple):
    """What became of a hit.

    Attributes:
        allowed: The permits were taken.
        wait_ms: Milliseconds to wait before they are used; 0 where not allowed.
        retry_after_ms: Milliseconds until the same hit is allowed, if nobody else comes first; 0 where it was.
        remaining: Permits that are left.
        reservation: What `LimiterStore.cancel` takes; only the store knows what is in it.
    """

    allowed: bool
    wait_ms: int
    retry_after_ms: int
    remaining: int
    reservation: Any = None


class LimiterStore(Configured, ABC):
    """Counts hits. Every method is one atomic step, safe from any thread.

    Each method takes ``timeout``: seconds for the whole call with all its retries; None is the store's own default
    (5 seconds). All of them raise `ConfigurationError` for a key that no store accepts, `StoreUnavailableError` where the
    store is busy or cannot be reached, and `StoreError` where it answers what cannot be right or refuses for good.
    """

    @abstractmethod
    def hit(
        self, key: str, spec: LimitSpec, weight: int, max_wait_ms: int = 0, *, timeout: float | None = None
    ) -> Decision:
        """Take ``weight`` permits of a key, for now or for a time within ``max_wait_ms``, or none.

        Times for which permits are taken never go back: who asks later is admitted later.

        Args:
            key: 1 to 500 characters of any Unicode, without NUL and surrogates.
            spec: The algorithm, the permits, the window in seconds, the burst and the segments. Another spec under the same
                key counts anew.
            weight: 1 or more, at most ``spec.permits`` (``spec.burst`` for buckets).
            max_wait_ms: The longest wait, 0 or more.
            timeout: Seconds for the call.
        """

    @abstractmethod
    def cancel(self, key: str, reservation: Any, *, timeout: float | None = None) -> None:
        """Give back the permits of a hit that is not used; no error where they are gone already."""

    @abstractmethod
    def reset(self, key: str, *, timeout: float | None = None) -> None:
        """Forget what was counted for a key."""

    def close(self) -> None:
        """Let go of connections and files. The store opens them again when it is used again."""


def check_decision(given: object) -> Decision:
    """What a store answered, if it can be right.

    Raises:
        StoreError: It cannot.
    """
    if isinstance(given, Decision):
        allowed, *numbers = cast("tuple[object, ...]", given)[:4]
        if isinstance(allowed, bool) and all(_is_whole(number) for number in numbers):
            return given
    raise StoreError(f"a limiter store answered {shown(given)} instead of a Decision of whole numbers")


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


class MemoryLimiterStore(LimiterStore):
    """A limiter store for the threads of one process; the child of a fork goes on with a copy of its own.

    Args:
        clock: The clock that counts; None for the system's.
        max_keys: The most keys that are kept; idle ones are let go first, exhausted ones last. Default: 100,000.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type.
    """

    def __init__(self, clock: Clock | None = None, *, max_keys: int = 100_000) -> None:
        check = Checker("memory limiter store")
        check.instance("clock", clock, Clock, "a Clock or None")
        self._max_keys = check.integer("max_keys", max_keys)
        check.done()
        self._clock = clock or SYSTEM
        self._by_spec: dict[LimitSpec, Partitions] = {}

    def _partitions(self, spec: LimitSpec) -> Partitions:
        found = self._by_spec.get(spec)
        if found is None:
            # Fixed windows are aligned with the epoch; the wall clock says how far off the monotonic one is, once.
            phase = (self._clock.wall() - self._clock.monotonic()) % spec.window
            found = self._by_spec.setdefault(spec, Partitions(spec, self._max_keys, phase))
        return found

    def hit(
        self, key: str, spec: LimitSpec, weight: int, max_wait_ms: int = 0, *, timeout: float | None = None
    ) -> Decision:
        """See `LimiterStore.hit`."""
        check_key(key)
        now = self._clock.monotonic()
        verdict = self._partitions(spec).get(key, now).hit(weight, now, max_wait_ms / 1000.0)
        wait_ms = ceil(verdict.wait * 1000.0)
        if verdict.allowed:
            return Decision(True, wait_ms, 0, verdict.remaining, (spec, weight, verdict.at))
        return Decision(False, 0, max(1, wait_ms), verdict.remaining)

    def cancel(self, key: str, reservation: Any, *, timeout: float | None = None) -> None:
        """See `LimiterStore.cancel`."""
        if reservation is not None:
            spec, weight, at = reservation
            now = self._clock.monotonic()
            self._partitions(spec).get(check_key(key), now).cancel(at, weight, now)

    def reset(self, key: str, *, timeout: float | None = None) -> None:
        """See `LimiterStore.reset`."""
        check_key(key)
        for partitions in list(self._by_spec.values()):
            partitions.states.pop(key, None)

    def __repr__(self) -> str:
        keys = sum(len(partitions.states) for partitions in list(self._by_spec.values()))
        return f"MemoryLimiterStore(keys={keys})"
