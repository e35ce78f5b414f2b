"""The only place that reads a clock, sleeps, draws randomness or starts a thread.

Everything in pyresil takes a ``clock=``. In-process durations run on `Clock.monotonic`; the deadlines of leases on
`Clock.boottime`, which counts the time a machine was suspended. `Clock.wall` decides nothing: it dates events, reads HTTP
dates and seeds fencing tokens.

Waiting is done by parking a thread on a `Parker`, a bare lock and nothing else: `threading.Event` and `Condition` hang
when a signal handler wakes the very thread that it interrupted, a lock does not.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from functools import partial

TYPE_CHECKING = False  # importing it from typing would cost a start of the command 2.5 ms

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Clock", "Parker", "SignalSafeEvent", "SystemClock", "TimerHandle"]


class Parker:
    """A place where one thread waits until somebody calls `unpark`.

    An `unpark` that comes first is remembered, so nothing is missed; several count once. Both may be called from a signal
    handler, also one that interrupted the wait itself. Use one Parker for one wait.
    """

    __slots__ = ("_lock", "_watcher")

    def __init__(self) -> None:
        # Looked up at use: gevent may have replaced it since this module was imported.
        self._lock = threading.Lock()
        self._lock.acquire()
        self._watcher: Callable[[], object] | None = None

    def unpark(self) -> None:
        """Wake the thread that waits, or the next one that would."""
        if self._watcher is not None:
            self._watcher()  # a clock that moves by hand notes who runs again, before it does
        try:
            self._lock.release()
        except (RuntimeError, ValueError):
            pass  # already awake

    def wait(self, timeout: float | None = None) -> bool:
        """Wait in real time. Library code calls `Clock.park` instead, so that a manual clock can move it.

        Args:
            timeout: Seconds, or None for ever.

        Returns:
            True when woken, False when the time was up.
        """
        if timeout is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX))


class SignalSafeEvent(threading.Event):
    """A `threading.Event` that a signal handler may set while the thread it interrupted waits on it.

    The stock one holds a lock around `set`, so that such a handler hangs now and then.
    """

    def __init__(self) -> None:
        super().__init__()
        self._flag = False  # the stock class's name: its repr reads it
        self._parkers: dict[int, Parker] = {}

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._flag

    isSet = is_set  # noqa: N815 - the stock class has it

    def set(self) -> None:
        """Set it and wake everybody who waits."""
        self._flag = True
        for parker in list(self._parkers.values()):
            parker.unpark()

    def clear(self) -> None:
        """Unset it."""
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most ``timeout`` real seconds; returns whether it is."""
        if self._flag:
            return True
        parker = Parker()
        self._parkers[id(parker)] = parker
        try:
            # Looked at again once we are listed, so that no `set` falls in between.
            return self.is_set() or parker.wait(timeout) or self.is_set()
        finally:
            self._parkers.pop(id(parker), None)


class TimerHandle(ABC):
    """A scheduled action that can be called off."""

    @abstractmethod
    def cancel(self) -> None:
        """Call the action off; no effect once it ran."""


class Clock(ABC):
    """Time, waiting, randomness and threads, as one thing that tests can replace."""

    @abstractmethod
    def monotonic(self) -> float:
        """Seconds that never go back; for durations inside a process."""

    @abstractmethod
    def boottime(self) -> float:
        """Seconds that never go back and also count suspend; for leases."""

    @abstractmethod
    def wall(self) -> float:
        """Seconds since the epoch. Decides nothing."""

    @abstractmethod
    def park(self, parker: Parker, timeout: float | None) -> bool:
        """Wait on ``parker`` for at most ``timeout`` seconds of this clock; True when woken."""

    def park_for_work(self, parker: Parker, timeout: float | None) -> bool:
        """`park`, for a thread that waits for work in another one: a clock that leaves out sleeping does not leave out this."""
        return self.park(parker, timeout)

    def waker(self, parker: Parker) -> Callable[[], object]:
        """What wakes ``parker``, for code where no signal handler may run between a decision and the waking.

        On the system's clock it is one C function, which raises ``RuntimeError`` or ``ValueError`` where the parker is awake
        already.
        """
        return parker.unpark

    @abstractmethod
    def random(self) -> float:
        """A random number in [0, 1)."""

    def sleep(self, duration: float) -> None:
        """Wait for ``duration`` seconds of this clock."""
        if duration > 0.0:
            self.park(Parker(), duration)

    def spawn(self, target: Callable[[], object], name: str) -> threading.Thread:
        """Start a daemon thread of the library that runs ``target``."""
        thread = threading.Thread(target=target, name=name, daemon=True)
        try:
            thread.start()
        except KeyError as error:
            # A signal handler raised in the middle: CPython's own tidying up trips over the thread that did start.
            if error.__context__ is None:
                raise
            raise error.__context__ from None
        return thread

    def call_later(self, delay: float, action: Callable[[], object]) -> TimerHandle | None:
        """Run ``action`` after ``delay`` seconds where the clock does that itself; None sends it to the watchdog thread.

        ``action`` is short, runs no user code and never blocks.
        """
        return None

    def __deepcopy__(self, memo: object) -> Clock:
        # A copy of a policy lives in the same time, and waits where this clock can move it.
        return self


class SystemClock(Clock):
    """The machine's own clocks."""

    # The builtins themselves, so that a hot path pays for one call only.
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    # A partial and no function of ours: SQLite calls it while it holds a file's write lock, where no signal handler may run.
    boottime = staticmethod(
        partial(time.clock_gettime, time.CLOCK_BOOTTIME)
        if hasattr(time, "CLOCK_BOOTTIME")
        else time.monotonic
    )

    def park(self, parker: Parker, timeout: float | None) -> bool:
        """Wait on ``parker`` in real time."""
        return parker.wait(timeout)

    def park_for_work(self, parker: Parker, timeout: float | None) -> bool:
        """Wait on ``parker`` in real time."""
        return parker.wait(timeout)

    def waker(self, parker: Parker) -> Callable[[], object]:
        """The method of the parker's lock itself."""
        return parker._lock.release

    def random(self) -> float:
        """A random number in [0, 1), from the process-wide generator."""
        import random

        return random.random()

    def __repr__(self) -> str:
        return "SystemClock()"


#: Used wherever no clock is given.
SYSTEM = SystemClock()
