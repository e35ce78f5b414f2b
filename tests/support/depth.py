"""How long the tests look where more is found by looking longer: `TEST_DEPTH=10` makes searches ten times as long.

Storms of signals, campaigns of faults, stress with many threads and generated examples have no natural end. Their counts are
for depth 1, which a whole run on a small machine can afford; a soak run sets the variable higher.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

#: How long a busy machine may take to come to enough, in seconds.
PATIENCE = 20.0

DEPTH = float(os.environ.get("TEST_DEPTH") or 1)


def times(count: int) -> int:
    """That many repetitions at depth 1."""
    return max(1, round(count * DEPTH))


def seconds(duration: float) -> float:
    """That many seconds at depth 1."""
    return duration * DEPTH


def storm(duration: float, enough: Callable[[], bool]) -> Iterator[None]:
    """Goes on for that many seconds at depth 1, and longer where the machine is too busy to see ``enough`` by then."""
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < seconds(duration) or (not enough() and passed < PATIENCE):
        yield
