"""Percentiles of the latencies of late: a ring of the last `SIZE` observations."""

from __future__ import annotations

import math

__all__ = ["Latencies"]

#: How many observations are kept.
SIZE = 256

#: With fewer there is no percentile yet.
ENOUGH = 10

#: The percentile is worked out again when a sixteenth of the observations are new.
_SHARE = 16


class Latencies:
    """A percentile (nearest rank) of the last observations.

    Thread-safe; `record` is a few steps, the sorting is done once in a while by `value`.

    Args:
        percentile: Above 0 and below 100.
    """

    __slots__ = ("_count", "_next", "_ring", "_value", "_worked_out", "percentile")

    def __init__(self, percentile: float) -> None:
        self.percentile = percentile
        self._ring: list[float] = []
        self._next = 0
        self._count = 0
        self._worked_out = 0
        self._value: float | None = None

    def record(self, latency: float) -> None:
        """One more observation, in seconds."""
        ring, entry = self._ring, (latency,)
        # No call and no loop from here: other threads and signal handlers see all of it or nothing.
        if self._count < SIZE:
            ring += entry
        else:
            ring[self._next] = latency
            self._next = (self._next + 1) % SIZE
        self._count += 1

    def value(self) -> float | None:
        """The percentile in seconds; None before there are `ENOUGH` observations."""
        count = self._count
        if count < ENOUGH:
            return None
        if self._value is None or (count - self._worked_out) * _SHARE >= len(self._ring):
            ordered = sorted(self._ring)
            self._worked_out = count
            self._value = ordered[max(0, math.ceil(self.percentile / 100.0 * len(ordered)) - 1)]
        return self._value
