"""The contract of circuit stores, through which circuit breakers of several processes share their state, and the memory store.

What is shared is the state, not the counts: each process judges its own calls, and when one of them opens the circuit it is open
for all. Every method is one atomic step. Durations run on the store's clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from pyresil._validate import Checker, Configured
from pyresil.clock import SYSTEM, Clock
from pyresil.stores.base import check_key

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CircuitSnapshot", "CircuitStateStore", "MemoryCircuitStore", "VersionedCircuit"]


class CircuitSnapshot(NamedTuple):
    """The state of a shared circuit.

    Attributes:
        state: The value of a `CircuitState`.
        remaining_ms: Milliseconds until the break is over (open) or until the probes of ``writer`` lose their turn (half-open);
            0 otherwise, and where that has passed.
        opened: How often it opened in a row.
        writer: Id of the breaker that wrote it.
    """

    state: str
    remaining_ms: int
    opened: int
    writer: str


class VersionedCircuit(NamedTuple):
    """What a store has under a key.

    Attributes:
        snapshot: The latest snapshot, or None where nothing was written.
        version: Grows with every write; 0 where nothing was written.
    """

    snapshot: CircuitSnapshot | None
    version: int


class CircuitStateStore(Configured, ABC):
    """Keeps the states of shared circuits. Every method is one atomic step, safe from any thread.

    Each method takes ``timeout``: seconds for the whole call with all its retries; None is the store's own default
    (5 seconds). All of them raise `ConfigurationError` for a key that no store accepts, `StoreUnavailableError` where the
    store is busy or cannot be reached, and `StoreError` where it answers what cannot be right or refuses for good.
    """

    @abstractmethod
    def read(self, key: str, *, timeout: float | None = None) -> VersionedCircuit:
        """What is known of a circuit."""

    @abstractmethod
    def write(
        self, key: str, snapshot: CircuitSnapshot, expected_version: int, *, timeout: float | None = None
    ) -> VersionedCircuit:
        """Write a snapshot, unless somebody else wrote since ``expected_version``.

        Returns:
            What is there now: the snapshot under ``expected_version + 1``, or what stands in its way.
        """

    def close(self) -> None:
        """Let go of connections and files. The store opens them again when it is used again."""


class MemoryCircuitStore(CircuitStateStore):
    """A circuit store for the breakers of one process.

    Args:
        clock: The clock that counts; None for the system's.
        max_keys: The most circuits that are kept; closed ones are let go first, open ones last. Default: 100,000.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type.
    """

    def __init__(self, clock: Clock | None = None, *, max_keys: int = 100_000) -> None:
        check = Checker("memory circuit store")
        check.instance("clock", clock, Clock, "a Clock or None")
        self._max_keys = check.integer("max_keys", max_keys)
        check.done()
        self._clock = clock or SYSTEM
        #: By key: the snapshot, its version, and when its duration ends.
        self._rows: dict[str, tuple[CircuitSnapshot, int, float]] = {}

    def _now(self, row: tuple[CircuitSnapshot, int, float] | None) -> VersionedCircuit:
        if row is None:
            return VersionedCircuit(None, 0)
        snapshot, version, ends = row
        left = max(0, ceil((ends - self._clock.monotonic()) * 1000.0))
        return VersionedCircuit(snapshot._replace(remaining_ms=left), version)

    def read(self, key: str, *, timeout: float | None = None) -> VersionedCircuit:
        """See `CircuitStateStore.read`."""
        return self._now(self._rows.get(check_key(key)))

    def write(
        self, key: str, snapshot: CircuitSnapshot, expected_version: int, *, timeout: float | None = None
    ) -> VersionedCircuit:
        """See `CircuitStateStore.write`."""
        rows = self._rows
        if check_key(key) not in rows and len(rows) >= self._max_keys:
            for victim in list(self._victims())[: max(1, self._max_keys // 10)]:
                rows.pop(victim, None)
        fresh = (snapshot, expected_version + 1, self._clock.monotonic() + snapshot.remaining_ms / 1000.0)
        # Nothing of ours is called from the test to the assignment, so it is one step for the threads of this process.
        row = rows[key] if key in rows else None  # noqa: SIM401 - get() is a call
        if (row[1] if row is not None else 0) == expected_version:
            rows[key] = row = fresh
        return self._now(row)

    def _victims(self) -> Iterator[str]:
        """Keys that may go, closed circuits first."""
        rows = list(self._rows.items())
        for closed in (True, False):
            yield from (key for key, row in rows if (row[0].state == "closed") is closed)

    def __repr__(self) -> str:
        return f"MemoryCircuitStore(keys={len(self._rows)})"
