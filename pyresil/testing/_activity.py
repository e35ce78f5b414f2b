"""Who is awake: what a clock that moves by hand has to wait for before it moves on.

A thread counts as awake from the moment it is woken (or started through `Clock.spawn`) until it parks on a manual clock
again, ends, or says that it is blocked. All manual clocks of the process share this book, because a thread that waits on one
instance's clock may be woken by another instance's.

Nothing can tell for sure whether a thread that left the library will ever come back, so every wait is bounded in real time:
see the constants.
"""

from __future__ import annotations

import os
import sys
import threading

from pyresil import _dispatch, _watchdog
from pyresil.clock import SYSTEM, Parker

#: A thread of the library's own is waited for this long in all, and this long after it last moved. In real seconds.
SERVICE_BOUND, SERVICE_STILL = 5.0, 1.0

#: The same for a thread of the user's that was woken inside the library: once it stands still this long, it has gone on to
#: wait for something that is not ours.
USER_BOUND, USER_STILL = 1.0, 0.05

#: How often somebody who is awake is looked at, in real seconds.
_LOOK = 0.002


def _wants_to_run(thread: threading.Thread) -> bool:
    """Whether the kernel says so (Linux): on a busy machine it may stand still only because it gets no processor."""
    try:
        with open(f"/proc/self/task/{thread.native_id}/stat", "rb") as stat:  # noqa: PTH123 - read every 2 ms
            return stat.read().rpartition(b")")[2].split(None, 1)[0] in {b"R", b"D"}
    except (OSError, IndexError):
        return False


class _Awake:
    """What is known of one thread that is awake."""

    __slots__ = ("_mark", "_moved", "service", "since")

    def __init__(self, service: bool) -> None:
        self.service = service
        self.since = self._moved = SYSTEM.monotonic()
        self._mark: tuple[int, int] | None = None

    def settled(self, thread: threading.Thread) -> bool:
        """Whether it need not be waited for any longer."""
        if thread.ident is not None and not thread.is_alive():
            return True
        now = SYSTEM.monotonic()
        frame = sys._current_frames().get(thread.ident or 0)
        mark = None if frame is None else (id(frame), frame.f_lasti)
        del frame
        if mark != self._mark or _wants_to_run(thread):
            self._mark = mark
            self._moved = now
        bound, still = (SERVICE_BOUND, SERVICE_STILL) if self.service else (USER_BOUND, USER_STILL)
        return now - self.since > bound or now - self._moved > still


class Activity:
    """The book of threads that are awake or parked, under one lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._awake: dict[threading.Thread, _Awake] = {}
        self._service: set[threading.Thread] = set()
        self._parked: set[threading.Thread] = set()
        self._quiet: Parker | None = None
        self._flush: Parker | None = None
        self._flushing: _Awake | None = None

    # -- what threads tell -----------------------------------------------------------------------------------------------

    def starts(self, thread: threading.Thread) -> None:
        """A thread of the library is about to start."""
        with self.lock:
            self._service.add(thread)
            self._awake[thread] = _Awake(service=True)

    def ends(self, thread: threading.Thread) -> None:
        """A thread of the library is about to end."""
        with self.lock:
            self._service.discard(thread)
            self._sleeps(thread)

    def parks(self, thread: threading.Thread) -> None:
        """It waits on a manual clock from here on."""
        with self.lock:
            self._parked.add(thread)
            self._sleeps(thread)

    def wakes(self, thread: threading.Thread) -> None:
        """It was parked and runs again."""
        with self.lock:
            self._parked.discard(thread)
            self._awake[thread] = _Awake(thread in self._service)

    def leaves(self, thread: threading.Thread) -> None:
        """It is not parked any more, whoever woke it."""
        with self.lock:
            self._parked.discard(thread)

    def blocks(self, thread: threading.Thread) -> bool:
        """It waits for something else than a clock; returns whether it was awake."""
        with self.lock:
            return self._sleeps(thread)

    def _sleeps(self, thread: threading.Thread) -> bool:
        was = self._awake.pop(thread, None) is not None
        quiet = self._quiet
        if not self._awake and quiet is not None:
            quiet.unpark()
        return was

    # -- what the one who advances asks ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until nobody is awake, and the watchdog and the dispatcher have done what they were given."""
        me = threading.current_thread()
        for _ in range(100):  # what callbacks wake may call back again
            self._wait_until_quiet(me)
            self._drain_watchdog()
            self._drain_dispatcher(me)
            with self.lock:
                if not self._others(me):
                    return

    def _others(self, me: threading.Thread) -> list[tuple[threading.Thread, _Awake]]:
        return [(thread, awake) for thread, awake in self._awake.items() if thread is not me]

    def _wait_until_quiet(self, me: threading.Thread) -> None:
        while True:
            with self.lock:
                for thread, awake in self._others(me):
                    if awake.settled(thread):
                        del self._awake[thread]
                if not self._others(me):
                    self._quiet = None
                    return
                self._quiet = quiet = Parker()
            quiet.wait(_LOOK)

    def _drain_watchdog(self) -> None:
        """A delay of 0 went to the real watchdog: let it come first."""
        watchdog = _watchdog._watchdog
        if watchdog is not None and watchdog._serving is not threading.current_thread():
            done = Parker()
            watchdog.call_later(0.0, done.unpark)
            done.wait(SERVICE_STILL)

    def _drain_dispatcher(self, me: threading.Thread) -> None:
        """Callbacks run to their end, unless one of them waits for a clock or stands still."""
        dispatcher = _dispatch._dispatcher
        thread = None if dispatcher is None else dispatcher._serving or dispatcher._thread
        if dispatcher is None or thread is None or thread is me:
            return
        done, seen = self._flush, self._flushing
        if done is None or seen is None or done.wait(0.0):
            # An earlier flush that is still behind a stuck callback is not asked for again.
            self._flush = done = Parker()
            self._flushing = seen = _Awake(service=True)
            dispatcher.post(done.unpark)
        while not done.wait(_LOOK):
            with self.lock:
                if thread in self._parked or seen.settled(thread):
                    return
        self._flush = self._flushing = None


#: The one of this process.
activity = Activity()


def _forget() -> None:
    # In place: clocks made before the fork refer to it. The other threads are gone.
    activity.__init__()  # type: ignore[misc]  # made anew on purpose


os.register_at_fork(after_in_child=_forget)
