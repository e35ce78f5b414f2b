"""`instant`: nothing sleeps, for tests that do not care about time."""

from __future__ import annotations

import contextvars
import threading
from typing import TYPE_CHECKING, Self

from pyresil.clock import SYSTEM, Clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pyresil.clock import Parker

__all__ = ["InstantClock", "instant"]

#: A library thread that waits again and again must not spin: it really waits this many seconds each time.
_BREATH = 0.001

_instant: contextvars.ContextVar[bool] = contextvars.ContextVar("pyresil_instant", default=False)


def _park(parker: Parker, timeout: float | None) -> bool:
    if timeout is None or not _instant.get():
        return parker.wait(timeout)
    return parker.wait(0.0)


class InstantClock(Clock):
    """A clock on which a wait with an end is over at once, and counts as if the time had passed.

    Also a context manager: inside the block, everything that runs on the *system's* clock in the same thread of control waits
    no more either (there the time does not move, the waits are only left out).
    """

    def __init__(self) -> None:
        self._skipped = 0.0
        self._outer: list[bool] = []
        self._service: set[threading.Thread] = set()

    def monotonic(self) -> float:
        """The machine's, plus what was skipped."""
        return SYSTEM.monotonic() + self._skipped

    def boottime(self) -> float:
        """The machine's, plus what was skipped."""
        return SYSTEM.boottime() + self._skipped

    def wall(self) -> float:
        """The machine's, plus what was skipped."""
        return SYSTEM.wall() + self._skipped

    def random(self) -> float:
        """The machine's."""
        return SYSTEM.random()

    def park(self, parker: Parker, timeout: float | None) -> bool:
        """True where it was woken already; else the whole timeout is skipped. Without a timeout it waits as ever."""
        if timeout is None:
            return parker.wait(None)
        breath = min(timeout, _BREATH) if threading.current_thread() in self._service else 0.0
        if parker.wait(breath):
            return True
        self._skipped += max(0.0, timeout)
        return False

    def park_for_work(self, parker: Parker, timeout: float | None) -> bool:
        """In real time: the work is not a wait."""
        return parker.wait(timeout)

    def spawn(self, target: Callable[[], object], name: str) -> threading.Thread:
        """Start a daemon thread of the library."""

        def run() -> None:
            self._service.add(threading.current_thread())
            try:
                target()
            finally:
                self._service.discard(threading.current_thread())

        return super().spawn(run, name)

    def __enter__(self) -> Self:
        SYSTEM.park = _park  # type: ignore[method-assign]  # for good: outside of the blocks it does what it always did
        self._outer.append(_instant.get())
        _instant.set(True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _instant.set(self._outer.pop())

    def __repr__(self) -> str:
        return f"<InstantClock skipped={self._skipped:g}>"


def instant() -> InstantClock:
    """Leave out every wait.

    Returns:
        A clock on which nothing sleeps, for ``clock=``; also a context manager, ``with instant():``, for code on the default one.
    """
    return InstantClock()
