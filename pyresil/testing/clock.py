"""`ManualClock`: time that moves only when told, so that fifteen minutes of a lease are a moment."""

from __future__ import annotations

import heapq
import itertools
import math
import random
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyresil._validate import Checker, Configured
from pyresil.clock import SYSTEM, Clock, TimerHandle
from pyresil.durations import seconds
from pyresil.errors import ConfigurationError, report_exception
from pyresil.testing._activity import activity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyresil.clock import Parker
    from pyresil.durations import Duration

__all__ = ["ManualClock"]

#: Readings are multiples of this many seconds. Sums of them are exact, and advancing rounds up, so a deadline taken from a
#: reading has come after advancing by the same duration, in one step or in many.
_GRID = 2.0**-30

#: Where the clocks start, in seconds. They differ so that mixing them up shows.
_MONOTONIC, _BOOTTIME, _WALL = 1_000.0, 10_000.0, 1_767_225_600.0


def _up(value: float) -> float:
    """The next multiple of the grid."""
    return math.ceil(value / _GRID) * _GRID


class _Timer(TimerHandle):
    """An action that is due at a time of the clock."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], object]) -> None:
        self.action: Callable[[], object] | None = action

    def cancel(self) -> None:
        self.action = None

    def take(self) -> Callable[[], object] | None:
        """The action, once; None where it was called off."""
        action, self.action = self.action, None
        return action


class _Wait:
    """One thread that is parked, or about to be."""

    __slots__ = ("awake", "clock", "expired", "parked", "parker", "thread")

    def __init__(self, clock: ManualClock, parker: Parker) -> None:
        self.clock = clock
        self.parker = parker
        self.thread = threading.current_thread()
        self.parked = False
        self.awake = False
        self.expired = False

    def note(self) -> None:
        """Somebody is about to wake it; called before it can run."""
        with activity.lock:
            if not self.awake:
                self.awake = True
                if self.parked:
                    self.parked = False
                    self.clock._waits.discard(self)
                    activity.wakes(self.thread)

    def take(self) -> Callable[[], object] | None:
        """Its time is up: what wakes it, or None where it is awake already."""
        with activity.lock:
            if self.awake or not self.parked:
                return None
            self.expired = True
            return self.parker.unpark


class ManualClock(Configured, Clock):
    """A clock that stands still until `advance` moves it.

    `advance` runs what falls due on the way, timers and waits alike, in the order of their times. After each of them it waits
    until every thread that was woken has parked again, has ended, or has declared itself `blocked`; threads that the library
    starts through the clock count as woken. So when `advance` returns, everything that this time brings has happened.
    Callbacks on the library's dispatch thread are waited for as well.

    An instance of something on a clock that nobody advances behaves as a paused process.

    These waits take real time and are bounded. A thread of the library is given up after 5 s, or once it stood still for 1 s
    outside of any clock (in a store that hangs, say; `blocked` says so at once). A thread of yours that was woken inside the
    library and then went its own way is given up once it stands still for 50 ms, and after 1 s at the latest. Who has been
    given up counts again from the next time it is woken.

    The monotonic and the boot-time clock differ by a constant; `wall` moves with them.

    Args:
        wall: Seconds since the epoch at the start; default 1 January 2026.
        seed: Of `random`; the same seed gives the same numbers.
    """

    def __init__(self, *, wall: float = _WALL, seed: int | str = 0) -> None:
        check = Checker("manual clock")
        self._start = check.number("wall", wall, 0.0, float("inf"))
        given: object = seed
        if not isinstance(given, (int, str)):
            check.fault("seed", "an int or a string", seed)
        check.done()
        self._elapsed = 0.0
        self._random = random.Random(seed)  # noqa: TID251 - the clock of tests is where their randomness lives
        self._due: list[tuple[float, int, _Timer | _Wait]] = []
        self._count = itertools.count()
        self._waits: set[_Wait] = set()
        self._advancing = threading.RLock()

    # -- the clock -------------------------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """Seconds, from 1,000 on."""
        return _MONOTONIC + self._elapsed

    def boottime(self) -> float:
        """Seconds, from 10,000 on."""
        return _BOOTTIME + self._elapsed

    def wall(self) -> float:
        """Seconds since the epoch."""
        return self._start + self._elapsed

    def random(self) -> float:
        """A number in [0, 1) that depends on the seed alone."""
        return self._random.random()

    def park(self, parker: Parker, timeout: float | None) -> bool:
        """Wait until woken, or until `advance` reached the end of the timeout."""
        # Told first, tried afterwards: no wake-up falls in between unseen.
        wait = _Wait(self, parker)
        parker._watcher = wait.note
        if parker.wait(0.0):
            return True
        if timeout is not None and timeout <= 0.0:
            return False
        try:
            with activity.lock:
                if not wait.awake:
                    wait.parked = True
                    self._waits.add(wait)
                    if timeout is not None:
                        self._schedule(timeout, wait)
                    activity.parks(wait.thread)
            parker.wait(None)
            return not wait.expired
        finally:
            with activity.lock:
                wait.parked = False
                wait.awake = True
                self._waits.discard(wait)
                activity.leaves(wait.thread)

    def spawn(self, target: Callable[[], object], name: str) -> threading.Thread:
        """Start a daemon thread that `advance` waits for until it parks or ends."""

        def run() -> None:
            try:
                target()
            finally:
                activity.ends(threading.current_thread())

        thread = threading.Thread(target=run, name=name, daemon=True)
        activity.starts(thread)
        try:
            thread.start()
        except BaseException:
            activity.ends(thread)
            raise
        return thread

    def call_later(self, delay: float, action: Callable[[], object]) -> TimerHandle | None:
        """Run ``action`` when `advance` comes to it; what is due at once goes to the real watchdog thread."""
        if delay <= 0.0:
            return None
        timer = _Timer(action)
        with activity.lock:
            self._schedule(delay, timer)
        return timer

    def _schedule(self, delay: float, item: _Timer | _Wait) -> None:
        heapq.heappush(self._due, (_up(self._elapsed + delay), next(self._count), item))

    # -- what tests do ---------------------------------------------------------------------------------------------------

    def advance(self, duration: Duration = 0.0) -> None:
        """Move the clock, running what falls due on the way; 0 only lets everybody come to rest.

        Args:
            duration: Seconds, a timedelta, or ``"5m"``.

        Raises:
            ConfigurationError: It is no duration.
        """
        try:
            length = seconds(duration)
        except ValueError as error:
            raise ConfigurationError(f"manual clock: advance {error}") from None
        with self._advancing:
            activity.settle()
            target = _up(self._elapsed + length)
            while self._step(target):
                activity.settle()
            activity.settle()

    def _step(self, target: float) -> bool:
        """Move to the next thing that is due and run it; False, at the target, where there is none."""
        action: Callable[[], object] | None = None
        with activity.lock:
            while action is None:
                if not self._due or self._due[0][0] > target:
                    self._elapsed = max(self._elapsed, target)
                    return False
                when, _, item = heapq.heappop(self._due)
                action = item.take()
                if action is not None:
                    self._elapsed = max(self._elapsed, when)
        try:
            action()
        except Exception:
            report_exception("a timer's action raised")
        return True

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """The calling thread waits for something else than a clock inside this block: `advance` moves on without it.

        For fault injection: a store that hangs wraps its waiting in it.
        """
        me = threading.current_thread()
        was = activity.blocks(me)
        try:
            yield
        finally:
            if was:
                activity.wakes(me)

    @property
    def elapsed(self) -> float:
        """Seconds advanced so far, without the rounding of the grid."""
        return round(self._elapsed, 6)

    @property
    def parked(self) -> int:
        """How many threads wait on this clock."""
        return len(self._waits)

    @property
    def timers(self) -> int:
        """How many actions and waits with a timeout are still to come."""
        with activity.lock:
            items = [item for _, _, item in self._due]
            return sum(item.action is not None if isinstance(item, _Timer) else item.parked for item in items)

    def wait_until_parked(self, count: int = 1, timeout: float = 5.0) -> None:
        """Wait in real time until at least ``count`` threads are parked on this clock: for threads that a test started.

        Raises:
            TimeoutError: It took longer than ``timeout`` real seconds.
        """
        until = SYSTEM.monotonic() + timeout
        while len(self._waits) < count:
            if SYSTEM.monotonic() > until:
                raise TimeoutError(f"{len(self._waits)} of {count} threads parked within {timeout:g} s")
            SYSTEM.sleep(0.001)

    def __repr__(self) -> str:
        return f"<ManualClock elapsed={self._elapsed:g} parked={self.parked}>"
