"""Daemon threads on which work runs that its caller may walk away from, and the calls that are handed to them.

Idle workers are used again: handing a call to a thread that waits for one costs a fraction of starting a thread. A worker
that had nothing to do for `IDLE` seconds ends. Nothing waits for workers when the interpreter exits, and a forked child
starts with none. A clock that moves by hand gets a fresh thread for each job, through its own `Clock.spawn`.
"""

from __future__ import annotations

import os
import queue
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from pyresil.clock import SYSTEM, SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.clock import Clock
    from pyresil.context import Context
    from pyresil.strategy import Run

    Job = Callable[[Callable[[], None]], None]

__all__ = ["Handed", "submit"]

#: How long a worker without work stays, in seconds.
IDLE = 10.0

_NAME = "pyresil-worker"


class Workers:
    """The workers of this process, and the jobs that wait for one that is free or about to be.

    A worker that ends a job takes the next one that waits, which under load is mostly there already: that spares the wait
    for another thread to wake up. A job says that its worker is free before it wakes its caller, so a caller that comes
    back at once finds that same worker.
    """

    def __init__(self) -> None:
        # Looked up at use: gevent may have replaced it since this module was imported.
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        # One for each worker that is free or about to be, and that no job counts on.
        self._free: list[None] = []
        #: This is the child of a fork, where none of the workers is.
        self.forked = False

    def submit(self, job: Job) -> None:
        """Run the job on an idle worker, else on a new one.

        Raises:
            RuntimeError: No thread can be started: the system has none left, or the interpreter is shutting down.
        """
        try:
            self._free.pop()
        except IndexError:
            # In a box that the worker empties: the thread keeps what it was started with for as long as it lives.
            box = [job]
            SYSTEM.spawn(lambda: self._work(box), _NAME)
        else:
            self._jobs.put(job)

    def _work(self, box: list[Job]) -> None:
        job: Job | None = box.pop()
        while job is not None:
            job(self._is_free)
            job = None
            if self.forked:
                return  # the work did it
            job = self._next()

    def _is_free(self) -> None:
        self._free.append(None)

    def _next(self) -> Job | None:
        """The next job, or None when there was none for a while."""
        try:
            return self._jobs.get(timeout=IDLE)
        except queue.Empty:
            pass
        try:
            self._free.pop()
        except IndexError:
            # Somebody counts on this worker and is about to leave a job, unless a signal handler raised there.
            try:
                return self._jobs.get(timeout=IDLE)
            except queue.Empty:
                pass
        return None


class Handed:
    """A call that was handed to a worker. Either its caller finds it ``done``, or it is ``abandoned``.

    Args:
        inner: What runs, as a function of the context.
        ctx: The context it runs under.
        wake: Wakes the caller, as `Clock.waker` has it.
        stuck: Where the caller notes that it abandons the call; it is taken out when the call has ended after all.

    Attributes:
        done: It ended, and its result or error can be taken.
        abandoned: Nobody waits for it; what comes of it is dropped. The caller tests ``done`` and sets this, and adds it to
            ``stuck``, in one stretch without a call, so one of the two sees the other.
    """

    __slots__ = ("abandoned", "context", "ctx", "done", "error", "inner", "stuck", "value", "wake")

    def __init__(
        self, inner: Run, ctx: Context, wake: Callable[[], object], stuck: dict[Handed, None]
    ) -> None:
        self.inner = inner
        self.ctx = ctx
        self.wake = wake
        self.stuck = stuck
        self.context = copy_context()
        self.value: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.abandoned = False

    def __call__(self, is_free: Callable[[], None]) -> None:
        """On the worker, which is free as soon as the caller may know that the call is done."""
        try:
            if not self.abandoned:
                self.value = self.context.run(self.ctx._enter, self.inner)
        except BaseException as error:
            self.error = error
        self.ctx._close()
        if self.ctx._scope is not None:
            self.ctx._scope.close()
        del self.inner
        if self.abandoned:
            # What dies with it may take its time: the worker is not free yet.
            self.value = self.error = None
        is_free()
        self.done = True
        if self.abandoned:
            self.value = self.error = None
            self.stuck.pop(self, None)
            return
        try:
            self.wake()
        except (RuntimeError, ValueError):
            pass  # awake already

    def result(self) -> Any:
        """What the work returned, or raised. Lets go of it, since an error's traceback leads back here."""
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                error = None
        value, self.value = self.value, None
        return value


_workers: Workers | None = None


def _forget() -> None:
    global _workers
    if _workers is not None:
        _workers.forked = True
    _workers = None


os.register_at_fork(after_in_child=_forget)


def _nothing() -> None:
    pass


def submit(clock: Clock, job: Job) -> None:
    """Run the job on a daemon thread, outside every context of the caller.

    Args:
        clock: Where the thread belongs.
        job: Handles its own exceptions. It calls what it is given, once, when its thread is about to be free.

    Raises:
        RuntimeError: No thread can be started: the system has none left, or the interpreter is shutting down.
    """
    global _workers
    if type(clock) is not SystemClock:
        clock.spawn(lambda: job(_nothing), _NAME)
        return
    workers = _workers
    if workers is None:
        fresh = Workers()
        # Test and assignment with no call in between: two threads cannot both do it.
        if _workers is None:
            _workers = fresh
        workers = _workers
    workers.submit(job)
