"""A concurrency limit that follows latency.

Latencies are looked at in windows of as many as the limit admits (at least `LEAST`). The median of a window is set against a
baseline, the lowest median of the last `HORIZON` windows. "Slower" and "faster" mean by more than `SLACK`, or by more than
what the spread of the latencies explains.

- Above ``tolerance`` x baseline the limit falls to ``tolerance x baseline / median`` of what it was, at least to a half. If
  the next window is no faster, the cause is elsewhere: the limit goes back, and the baseline is learned anew.
- Where the limit was used up and the median is not slower than the baseline, the limit is raised by a tenth, on trial. If
  the next window is slower, the raise is taken back, and the opposite is tried: a tenth less, and more and more for as long
  as each step makes it faster. A step down that makes nothing faster is taken back too.
- After a trial that failed there is none for `PATIENCE` windows, twice as many each time it happens again, up to `LONGEST`.

So a limit that raises latency is never raised further, and one that was too high from the start is found out. A step is a
tenth and `SLACK` half of that: a service whose latency grows with its load in proportion is noticed at any size. The gradient
is that of Netflix' concurrency-limits; trials and the baseline are our own.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AdaptiveLimit"]

#: The fewest latencies in a window.
LEAST = 20

#: How many windows the baseline looks back.
HORIZON = 60

#: By how much of itself a median may differ and still count as the same.
SLACK = 0.05

#: Windows without a trial after one that failed, the first time and at most.
PATIENCE = 8
LONGEST = 64

#: The standard error of a median of n normal values is 1.253 standard deviations / sqrt(n), and their quartiles are 1.349
#: standard deviations apart; two standard errors count as chance.
_CHANCE = 2.0 * 1.253 / 1.349


class AdaptiveLimit:
    """The limit, and what it has learned.

    Args:
        initial: The limit at the start.
        minimum: It never falls below this.
        maximum: It never rises above this.
        tolerance: A median of up to this many baselines does not lower it; above 1.

    Attributes:
        limit: How many may run at once.
        latency: The median of the last window in seconds, or None before the first.
    """

    __slots__ = (
        "_down",
        "_medians",
        "_patience",
        "_peak",
        "_rest",
        "_samples",
        "_trial",
        "_working",
        "latency",
        "limit",
        "maximum",
        "minimum",
        "tolerance",
    )

    def __init__(self, initial: int, minimum: int, maximum: int, tolerance: float) -> None:
        self.limit = initial
        self.minimum = minimum
        self.maximum = maximum
        self.tolerance = tolerance
        self.latency: float | None = None
        self._samples: list[float] = []
        self._peak = 0
        self._working = False
        self._medians: deque[float] = deque(maxlen=HORIZON)
        #: What was changed last, and the limit and the median before it, until the next window has judged it.
        self._trial: tuple[str, int, float] | None = None
        #: The next step down as a share of the limit; 0 while down is not the direction to try.
        self._down = 0.0
        self._patience = PATIENCE
        self._rest = 0

    @property
    def baseline(self) -> float | None:
        """The latency of the dependency at ease in seconds, or None before the first window."""
        return min(self._medians, default=None)

    def record(self, latency: float, active: int, apply: Callable[[int], object]) -> None:
        """One execution succeeded.

        Args:
            latency: How long it took, in seconds.
            active: How many were running when it ended, itself included.
            apply: Called with the limit at the end of each window, by one thread at a time.
        """
        fresh: list[float] = []
        samples, entry, peak = self._samples, (latency,), 0
        # No call and no loop up to the end of the stretch: other threads and signal handlers see all of it or nothing.
        samples += entry
        if active > self._peak:  # noqa: PLR1730 - max() is a call
            self._peak = active
        if len(samples) < max(LEAST, self.limit):
            return
        mine = False
        try:
            if not self._working and self._samples is samples:
                self._working = mine = True
                self._samples = fresh
                peak = self._peak
                self._peak = 0
            if mine:
                self.window(samples, peak)
                apply(self.limit)
        finally:
            if mine:
                self._working = False

    def window(self, latencies: list[float], peak: int) -> None:
        """A window is full.

        Args:
            latencies: In seconds.
            peak: The most that were running at once.
        """
        ordered = sorted(latencies)
        size = len(ordered)
        latency = self.latency = ordered[size // 2]
        spread = ordered[size * 3 // 4] - ordered[size // 4]
        slack = max(SLACK * latency, _CHANCE * spread / size**0.5)
        trial, self._trial = self._trial, None
        if trial is not None and self._failed(trial, latency, slack):
            return
        self._medians.append(latency)
        baseline = min(self._medians)
        limit = self.limit
        if latency > baseline * self.tolerance:
            self._change("shrink", min(limit - 1, int(limit * max(0.5, baseline * self.tolerance / latency))))
        elif self._rest > 0:
            self._rest -= 1
        elif peak >= limit and self._down:
            self._change("down", min(limit - 1, round(limit * (1.0 - self._down))))
        elif peak >= limit and latency <= baseline + slack:
            self._change("up", limit + max(1, round(limit * 0.1)))

    def _change(self, kind: str, limit: int) -> None:
        limit = min(self.maximum, max(self.minimum, limit))
        if limit != self.limit and self.latency is not None:
            self._trial = (kind, self.limit, self.latency)
            self.limit = limit

    def _failed(self, trial: tuple[str, int, float], latency: float, slack: float) -> bool:
        """Judge the last change by the first window after it; True where it was taken back."""
        kind, limit, before = trial
        if kind == "up":
            if latency <= before + slack:
                self._patience = PATIENCE
                return False
            self._down = 0.1  # at once: the limit may have been too high before it was raised
        else:
            faster = latency < before - slack
            if kind == "down":
                self._down = min(0.5, self._down * 2.0) if faster else 0.0
            if faster:
                return False
            if kind == "shrink":
                self._medians.clear()
                self._medians.append(latency)
            self._rest = self._patience
            self._patience = min(LONGEST, self._patience * 2)
        self.limit = limit
        return True
