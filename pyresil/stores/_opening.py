"""Opening a connection in a thread, so that nobody waits for it beyond the time of a call.

A client library counts in whole seconds, begins anew with every address of every host, and has no limit for finding out what
the addresses are.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pyresil.clock import SYSTEM, Parker

if TYPE_CHECKING:
    from collections.abc import Callable

#: So many to one server at most: callers with short deadlines give up many times while a dead server keeps one.
MOST = 32
_under_way: dict[Opening, None] = {}

os.register_at_fork(after_in_child=_under_way.clear)


class Opening:
    """A connection while it is being opened; one that comes too late is kept for another call.

    Args:
        connect: Opens and returns it.
        keep: Is given the one that came too late.
        name: Of the thread.
        server: Stands for the server, or the pool: one that is dead takes nothing from the others.
        most_left: So many at most whose callers gave up.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        keep: Callable[[Any], object],
        name: str,
        server: object,
        most_left: int = MOST,
    ) -> None:
        self._connect = connect
        self._keep = keep
        self._name = name
        self._server = server
        self._most_left = most_left
        self._parker = Parker()
        self._made: list[Any] = []
        self._error: Exception | None = None
        self._done = self._abandoned = False

    def wait(self, deadline: float) -> Any:
        """The connection.

        Args:
            deadline: On the system's monotonic clock.

        Raises:
            TimeoutError: It is not there in time, or too many others are not there.
            Exception: What opening it raised.
        """
        try:
            others = [other for other in list(_under_way) if other._server == self._server]
            if len(others) >= MOST or sum(other._abandoned for other in others) >= self._most_left:
                raise TimeoutError("no connection in time, for many others")
            try:
                SYSTEM.spawn(self._run, self._name)
            except RuntimeError:  # no further thread, at the end of the interpreter for one
                self._run()
            SYSTEM.park_for_work(self._parker, max(0.0, deadline - SYSTEM.monotonic()))
            if not self._done:
                raise TimeoutError("no connection in time")
            error, self._error = self._error, None
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # its traceback has this frame
            connection = self._made[0]
            del self._made[0]  # no call from here on: a signal handler that raised after one would lose it
            return connection
        except BaseException:  # also what a signal handler raised
            self._abandoned = True
            self._keep_what_came()
            raise

    def _run(self) -> None:
        try:
            _under_way[self] = None
            self._made.append(self._connect())
        except Exception as error:
            self._error = error.with_traceback(None)
        finally:
            _under_way.pop(self, None)
        self._done = True
        self._parker.unpark()
        if self._abandoned:
            self._keep_what_came()

    def _keep_what_came(self) -> None:
        try:
            late = self._made.pop()
        except IndexError:
            return  # it did not come, or the other thread has it
        self._keep(late)
