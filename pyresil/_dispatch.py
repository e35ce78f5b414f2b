"""The thread on which callbacks and late events run.

The watchdog decides that a deadline passed, but runs no user code: a callback that sleeps there would delay every other
deadline. It posts here instead. One daemon thread a process, started with the first post, gone and made anew after a fork.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING

from pyresil.clock import Parker
from pyresil.errors import report_and_go_on, report_exception

if TYPE_CHECKING:
    from collections.abc import Callable


class Dispatcher:
    """A queue and, once something was posted, its thread. `post` may be called from a signal handler."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._serving: threading.Thread | None = None

    def post(self, job: Callable[[], object]) -> None:
        """Run ``job`` soon, after everything posted before it; what it raises is logged."""
        self._queue.put(job)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="pyresil-dispatch", daemon=True)
        mine = False
        try:
            # Test and assignment with no call in between: neither two threads nor a signal handler can both do it, and two
            # dispatchers would not keep the order.
            if self._thread is None:
                self._thread = thread
                mine = True
            if mine:
                thread.start()
        except RuntimeError:
            # The interpreter is ending, or out of threads: what is queued waits for the next post that can start one.
            self._thread = None
            report_exception("the dispatch thread cannot be started")
        except BaseException:
            # A signal handler raised in the start, and the thread may live or not: the next post starts one, and only the
            # first of them serves.
            self._thread = self._serving
            raise

    def flush(self, timeout: float) -> bool:
        """Wait until everything posted so far has run; False when that took longer than ``timeout`` real seconds.

        Called on the dispatch thread itself it returns False at once.
        """
        if self._thread is None:
            return True
        if threading.current_thread() is self._serving:
            return False
        done = Parker()
        self._queue.put(done.unpark)
        return done.wait(timeout)

    def _run(self) -> None:
        me = threading.current_thread()
        if self._serving is None:
            self._serving = me
        if self._serving is not me:
            return
        while True:
            job = self._queue.get()
            try:
                job()
            except BaseException:  # also sys.exit(): all later callbacks wait for this thread
                report_and_go_on("a callback raised")
            del job  # not kept alive until the next one comes


_dispatcher: Dispatcher | None = None


def _forget() -> None:
    global _dispatcher
    _dispatcher = None


os.register_at_fork(after_in_child=_forget)


def dispatcher() -> Dispatcher:
    """The process's dispatcher, made at first use."""
    global _dispatcher
    if _dispatcher is None:
        fresh = Dispatcher()
        # Test and assignment with no call in between: two threads cannot both do it.
        if _dispatcher is None:
            _dispatcher = fresh
    return _dispatcher


def post(job: Callable[[], object]) -> None:
    """Run ``job`` on the dispatch thread."""
    dispatcher().post(job)
