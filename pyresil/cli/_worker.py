"""The thread that talks to the store, so that a call which hangs delays neither a signal nor the lease's deadline."""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from pyresil.cli._signals import CAUGHT
from pyresil.clock import SYSTEM
from pyresil.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.stores.base import LockStore


class Answer(NamedTuple):
    """What came of a job.

    Attributes:
        job: Its name.
        sent: When it was begun, in seconds since boot: a lease counts from here.
        value: What it returned, or None.
        error: What it raised, or None.
    """

    job: str
    sent: float
    value: object
    error: Exception | None


class Worker:
    """Runs jobs on the store one after the other, in one daemon thread that starts with the first one.

    Args:
        connect: Gives the store; called in the thread, once, and again after it failed.
    """

    def __init__(self, connect: Callable[[], LockStore]) -> None:
        self._connect = connect
        self._store: LockStore | None = None
        self._started = False
        self._jobs: deque[tuple[str, Callable[[LockStore], object]]] = deque()
        self._answers: deque[Answer] = deque()
        # Pipes both ways: the main loop polls its end, and the thread waits on its own without importing `queue`.
        self._wake_reader, self._wake_writer = os.pipe()
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        #: Jobs that were given and have not been answered.
        self.outstanding = 0

    def give(self, job: str, work: Callable[[LockStore], object]) -> None:
        """Have ``work`` done; its `Answer` comes out of `take`."""
        self.outstanding += 1
        if not self._started:
            # The thread inherits this mask: the signals go to the main thread, so that one which stops the process has done
            # so when the main thread goes on.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
            try:
                SYSTEM.spawn(self._serve, "pyresil-lock-store")
                self._started = True
            except RuntimeError as error:  # no further thread
                failure = StoreUnavailableError(f"the store cannot be asked: {error}")
                self._answer(Answer(job, SYSTEM.boottime(), None, failure))
                return
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._jobs.append((job, work))
        os.write(self._wake_writer, b".")

    def take(self) -> list[Answer]:
        """The answers since the last call; call it when `reader` is readable."""
        try:
            os.read(self.reader, 4096)
        except BlockingIOError:
            pass
        found = []
        while self._answers:
            found.append(self._answers.popleft())
        self.outstanding -= len(found)
        return found

    def rest(self, timeout: float) -> None:
        """Wait until a job that is under way has been done, but no longer than ``timeout`` seconds.

        For a process that is about to be stopped: a file that it has locked for a moment would stay locked for all others.
        """
        if self.outstanding > len(self._answers):
            select.select([self.reader], [], [], timeout)

    def _serve(self) -> None:
        while os.read(self._wake_reader, 1):
            job, work = self._jobs.popleft()
            sent = SYSTEM.boottime()
            try:
                if self._store is None:
                    self._store = self._connect()
                    # Importing a driver may have taken seconds of a lease that nobody has yet.
                    sent = SYSTEM.boottime()
                answer = Answer(job, sent, work(self._store), None)
            except Exception as error:  # whatever a store or its client raises is an answer
                answer = Answer(job, sent, None, error)
            self._answer(answer)

    def _answer(self, answer: Answer) -> None:
        self._answers.append(answer)
        os.write(self._writer, b".")
