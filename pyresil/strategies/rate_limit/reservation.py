"""Permits that were taken for later."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyresil.clock import Parker

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.cancel import CancelToken
    from pyresil.clock import Clock

__all__ = ["RateDecision", "RateLimitStats", "Reservation"]


class RateDecision(NamedTuple):
    """What became of a hit.

    Attributes:
        allowed: Whether the permits were taken.
        retry_after: Seconds until the same hit is allowed, if nobody else comes first; 0.0 where it was, None where it never is.
        remaining: Permits that are left.
    """

    allowed: bool
    retry_after: float | None
    remaining: int


class RateLimitStats(NamedTuple):
    """A rate limit at one moment.

    Attributes:
        limit: Permits in a window.
        window: The window in seconds.
        remaining: Permits that are left now (of the partition asked for); None where a store counts.
        waiting: Calls that wait for their turn.
        partitions: Partitions that are kept here.
    """

    limit: int
    window: float
    remaining: int | None
    waiting: int
    partitions: int


class Reservation:
    """Permits that are taken already, for a time that has yet to come. Made by `RateLimit.reserve`.

    Attributes:
        weight: How many permits.
        delay: Seconds from the reservation until it may be used; 0.0 for at once.
    """

    __slots__ = ("_at", "_clock", "_give_back", "delay", "weight")

    def __init__(
        self, weight: int, delay: float, at: float, clock: Clock, give_back: Callable[[], object]
    ) -> None:
        self.weight = weight
        self.delay = delay
        self._at = at
        self._clock = clock
        self._give_back: Callable[[], object] | None = give_back

    def remaining(self) -> float:
        """Seconds left until it may be used, 0.0 or more."""
        return max(0.0, self._at - self._clock.monotonic())

    def wait(self, cancel: CancelToken | None = None) -> None:
        """Wait until it may be used.

        Args:
            cancel: Ends the wait; the reservation is then given back.

        Raises:
            CancelledError: The token was set (or its own reason, where that is an exception).
        """
        try:
            while (left := self.remaining()) > 0.0:
                if cancel is None:
                    if not self._clock.park(Parker(), left):
                        return  # the time was up, also on a clock that skips waits
                else:
                    cancel.raise_if_cancelled()
                    woken = cancel.park(Parker(), left)
                    if not woken and cancel._clock is self._clock and not cancel.is_set():
                        return
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> bool:
        """Give the permits back, because what they were for is not done.

        Those behind keep the times that they were told, and permits that flowed past in between are not given back, so the
        limit's promise holds.

        Returns:
            False where it was cancelled before.
        """
        give_back, self._give_back = self._give_back, None
        if give_back is None:
            return False
        give_back()
        return True

    def __repr__(self) -> str:
        return f"Reservation(weight={self.weight}, delay={self.delay:g})"
