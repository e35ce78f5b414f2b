"""One daemon thread a process for all deadlines; it runs no user code.

Scheduling costs about a microsecond: a heap and a parked thread that is woken only for what comes before it would wake. An
action is short, never blocks and never raises: it sets an event, posts to the dispatcher, or starts a thread. A clock that
moves by hand runs its own timers (`Clock.call_later`).
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import threading
from typing import TYPE_CHECKING

from pyresil.clock import SYSTEM, Parker, TimerHandle
from pyresil.errors import report_and_go_on, report_exception

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.clock import Clock

#: How many called-off timers may lie in the heap before it is rebuilt.
_LITTER = 64

#: So many starts of the thread within each other: a signal handler that cuts into one may need the thread before it returns,
#: but where signals come faster than a thread starts, each start would be cut short by the next one.
_STARTS = 3

#: A suspended machine's monotonic clock stood still: look at least this often, so that deadlines that count suspend are
#: noticed soon after waking up. In seconds.
_LONGEST_NAP = 5.0


class Timer(TimerHandle):
    """One scheduled action on the watchdog."""

    __slots__ = ("_owner", "action", "when")

    def __init__(self, owner: Watchdog, when: float, action: Callable[[], object]) -> None:
        self._owner = owner
        self.when = when
        self.action: Callable[[], object] | None = action

    def cancel(self) -> None:
        """Call the action off; no effect once it ran. It is let go at once."""
        if self.action is not None:
            self.action = None
            self._owner._litter()


class Watchdog:
    """A heap of timers on the system's boot-time clock, and the thread that runs what is due."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._cancelled = 0
        self._parker: Parker | None = None
        self._thread: threading.Thread | None = None
        self._serving: threading.Thread | None = None
        self._starts: dict[object, int] = {}
        # Until when the thread sleeps, on the clock that its wait goes by. Only the thread says so: were it what is scheduled, and
        # a signal handler raised between the scheduling and the waking, nobody would wake it for a later timer either.
        self._until = -math.inf

    def call_later(self, delay: float, action: Callable[[], object]) -> Timer:
        """Run ``action`` on the watchdog thread after ``delay`` seconds (at once where it is 0 or less)."""
        now = SYSTEM.monotonic()  # first: a pause in between wakes the thread once too often, not too late
        timer = Timer(self, SYSTEM.boottime() + delay, action)
        entry = (timer.when, next(self._count), timer)
        with self._lock:
            heapq.heappush(self._heap, entry)
            # It is awake by then, or oversleeps where it was kept from going to sleep.
            wake = now + delay < self._until or self._until < now
        if self._thread is None and self._nested() < _STARTS:
            self._start()  # not under the lock: it may log; where several threads come here, one of those they start serves
        if wake:
            parker = self._parker
            if parker is not None:
                parker.unpark()
        return timer

    def _nested(self) -> int:
        return list(self._starts.values()).count(threading.get_ident())

    def _start(self) -> None:
        mark = object()
        try:
            self._starts[mark] = threading.get_ident()
            self._thread = SYSTEM.spawn(self._run, "pyresil-watchdog")
        except RuntimeError:
            # The interpreter is ending, or out of threads: deadlines are still computed by whoever looks, and the next timer
            # tries again.
            report_exception("the watchdog thread cannot be started")
        finally:
            self._starts.pop(mark, None)
        # Where a signal handler raised in the start, the thread may live or not, and the next timer starts one: only the
        # first of them serves.

    def _litter(self) -> None:
        self._cancelled += 1
        if self._littered():
            parker = self._parker
            if parker is not None:
                parker.unpark()

    def _littered(self) -> bool:
        """Whether most of the heap is called off: then a sweep costs less than it frees."""
        return self._cancelled > _LITTER and self._cancelled * 2 > len(self._heap)

    def _sweep(self) -> None:
        # On the watchdog thread alone: a signal handler that schedules runs on the main thread and waits for the lock, so
        # nothing it pushes is lost while the heap is rebuilt.
        with self._lock:
            if self._littered():
                self._heap = [entry for entry in self._heap if entry[2].action is not None]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def _take(self, now: float) -> tuple[Callable[[], object] | None, float | None]:
        """The next action that is due, else how long to wait for one (None: nothing is scheduled)."""
        with self._lock:
            while self._heap:
                when, _, timer = self._heap[0]
                if when > now:
                    # Also where it was called off: taken out now, the next timer would be the earliest and wake this thread
                    # again, and so each second of many short ones would cost a change of threads.
                    self._until = SYSTEM.monotonic() + min(when - now, _LONGEST_NAP)
                    return None, when - now
                heapq.heappop(self._heap)
                action, timer.action = timer.action, None
                if action is not None:
                    return action, None
                self._cancelled = max(0, self._cancelled - 1)
            self._until = math.inf
        return None, None

    def _run(self) -> None:
        me = threading.current_thread()
        if self._serving is None:
            self._serving = me
        if self._serving is not me:
            return
        while True:
            self._parker = parker = Parker()
            self._sweep()
            action, wait = self._take(SYSTEM.boottime())
            if action is None:
                parker.wait(None if wait is None else min(wait, _LONGEST_NAP))
                continue
            try:
                action()
            except BaseException:  # whatever it is: every later deadline waits for this thread
                report_and_go_on("a deadline's action raised")
            del action  # not kept alive until the next one is due


_watchdog: Watchdog | None = None


def _forget() -> None:
    global _watchdog
    _watchdog = None


os.register_at_fork(after_in_child=_forget)


def call_later(clock: Clock, delay: float, action: Callable[[], object]) -> TimerHandle:
    """Run ``action`` after ``delay`` seconds of ``clock``: by the clock itself, else on the watchdog thread."""
    global _watchdog
    handle = clock.call_later(delay, action)
    if handle is not None:
        return handle
    if _watchdog is None:
        fresh = Watchdog()
        # Test and assignment with no call in between: two threads cannot both do it.
        if _watchdog is None:
            _watchdog = fresh
    return _watchdog.call_later(delay, action)
