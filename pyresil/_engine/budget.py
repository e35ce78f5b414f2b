"""A retry budget: retries as a share of the calls of the last ten seconds.

When everything fails, retries multiply the load that broke the dependency. A budget lets through ``ratio`` retries a call,
plus ``min_per_second`` a second so that a quiet service can still retry; shared between policies it holds for them together.
The scheme is that of Finagle's ``RetryBudget``.
"""

from __future__ import annotations

from pyresil._validate import Checker, Configured

__all__ = ["RetryBudget"]

#: The window in seconds, in slots of one second.
_SLOTS = 10

#: One retry, less what adding up fractions loses (100 calls x 0.29 are 28.999999999999996).
_ONE = 1.0 - 1e-9


class RetryBudget(Configured):
    """At most ``ratio`` x calls + ``min_per_second`` x 10 retries (or hedges) in any ten slots of a second.

    Thread-safe, made to be shared between policies.

    Args:
        ratio: Retries per call, 0 or more. Default: 0.2.
        min_per_second: Retries a second that are allowed whatever the calls, 0 or more. Default: 1.

    Raises:
        ConfigurationError: An option is out of range.
    """

    def __init__(self, ratio: float = 0.2, min_per_second: float = 1) -> None:
        check = Checker("retry budget")
        self.ratio = check.number("ratio", ratio, 0.0, 1000.0)
        self.min_per_second = check.number("min_per_second", min_per_second, 0.0, 1e9)
        check.done()
        self._stamps = [-1] * _SLOTS
        self._calls = [0] * _SLOTS
        self._spent = [0] * _SLOTS
        self._version = 0

    def record(self, now: float) -> None:
        """A call begins."""
        second = int(now)
        slot = second % _SLOTS
        # No call and no loop from here: other threads and signal handlers see all of it or nothing.
        if self._stamps[slot] == second:
            self._calls[slot] += 1
        else:
            self._stamps[slot] = second
            self._calls[slot] = 1
            self._spent[slot] = 0
        self._version += 1

    def available(self, now: float) -> float:
        """How many retries are left at ``now``."""
        return self._left(int(now))

    def _left(self, second: int) -> float:
        calls = spent = 0
        for slot, stamp in enumerate(self._stamps):
            if second - _SLOTS < stamp <= second:
                calls += self._calls[slot]
                spent += self._spent[slot]
        return self.ratio * calls + self.min_per_second * _SLOTS - spent

    def try_spend(self, now: float) -> bool:
        """Take one retry; False where the budget is used up."""
        second = int(now)
        slot = second % _SLOTS
        while True:
            seen = self._version
            if self._left(second) < _ONE:
                return False
            # Committed only where nobody changed anything since we looked; no call and no loop in between.
            if self._version == seen:
                self._version = seen + 1
                if self._stamps[slot] == second:
                    self._spent[slot] += 1
                else:
                    self._stamps[slot] = second
                    self._calls[slot] = 0
                    self._spent[slot] = 1
                return True

    def describe(self) -> dict[str, float]:
        """Plain data: the options."""
        return {"ratio": self.ratio, "min_per_second": self.min_per_second}

    def __repr__(self) -> str:
        return f"RetryBudget(ratio={self.ratio!r}, min_per_second={self.min_per_second!r})"
