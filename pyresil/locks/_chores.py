"""What a store is told in the background."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.clock import Clock

#: So many threads at most, and so many jobs that wait for one: the oldest is dropped, and what it is about expires by itself.
_THREADS, _WAITING = 16, 1_000


class Chores:
    """Releases that nobody waits for, in a few threads that end when nothing is left.

    A store that does not answer keeps a thread for seconds, and callers with short deadlines give up many times in these.

    Args:
        clock: Starts the threads.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Callable[[], object]] = deque(maxlen=_WAITING)
        self._threads: dict[object, None] = {}

    def add(self, job: Callable[[], object]) -> None:
        """Have ``job()`` done, which raises no ``Exception``."""
        self._waiting.append(job)
        if len(self._threads) >= _THREADS:
            return
        thread = object()
        try:
            self._threads[thread] = None
            self._clock.spawn(lambda: self._work(thread), "pyresil-lock-cleanup")
        except RuntimeError:
            self._threads.pop(thread, None)  # no thread to be had
        except BaseException:  # of a signal handler: where the thread lives, it is one too many
            self._threads.pop(thread, None)
            raise

    def _work(self, thread: object) -> None:
        try:
            while True:
                try:
                    job = self._waiting.popleft()
                except IndexError:
                    self._threads.pop(thread, None)
                    # Looked at once more: who came in between saw this one, and started none.
                    if not self._waiting:
                        return
                    self._threads[thread] = None
                    continue
                job()
        finally:
            self._threads.pop(thread, None)
