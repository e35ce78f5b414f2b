"""Work that cannot be interrupted, such as name resolution, in a helper thread that the caller may leave behind.

``getaddrinfo`` has no timeout: with a dead name server it takes ten seconds and more. Callers that ask for the same at the
same time share one thread, and only so many are left behind before further calls are refused.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from pyresil.clock import SYSTEM, Parker

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from pyresil.integrations._http.budget import Budget

#: The most helper threads at a time; each is stuck in the platform's resolver for a while where name servers are dead.
MOST_HELPERS = 64

_running: dict[Hashable, Aside] = {}


def _forget() -> None:
    _running.clear()


os.register_at_fork(after_in_child=_forget)


class Aside:
    """One piece of work in a helper thread, and those who wait for it.

    A result that has to be discarded when it comes too late has one waiter; whoever takes it out, uses or discards it.
    """

    __slots__ = ("_discard", "_key", "_left", "_parkers", "_work", "done", "error", "value")

    def __init__(
        self, key: Hashable, work: Callable[[], Any], discard: Callable[[Any], object] | None
    ) -> None:
        self._key = key
        self._work = work
        self._discard = discard
        self._parkers: dict[Parker, None] = {}
        self._left = False
        self.done = False
        self.value: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        """On the helper thread."""
        try:
            self.value = self._work()
        except Exception as error:
            self.error = error
        finally:
            self._end()
        if self._left:
            self._discard_value()

    def cannot_run(self) -> None:
        """There is no helper thread: who waits already is told, too."""
        self.error = OSError("no thread can be started for a name lookup or a proxy connection")
        self._end()

    def _end(self) -> None:
        if _running.get(self._key) is self:  # else it has ended before, and somebody asks for the same again
            _running.pop(self._key, None)
        self.done = True
        for parker in list(self._parkers):
            parker.unpark()

    def wait(self, budget: Budget) -> Any:
        """The result, or a fresh copy of the error.

        Raises:
            Stop: The budget was spent first; the thread goes on alone.
        """
        parker = Parker()
        self._parkers[parker] = None
        try:
            while not self.done:
                budget.park(parker)
        except BaseException:
            # Noted before the look: one of the two sides sees the other.
            self._left = True
            if self.done:
                self._discard_value()
            raise
        finally:
            self._parkers.pop(parker, None)
        if self.error is None:
            return self.value if self._discard is None else self._take()
        if isinstance(self.error, OSError):
            raise type(self.error)(*self.error.args)  # each waiter its own, or they would share a traceback
        raise self.error

    def _take(self) -> Any:
        value, self.value = self.value, None
        return value

    def _discard_value(self) -> None:
        if self._discard is not None:
            value = self._take()
            if value is not None:
                self._discard(value)


def aside(
    key: Hashable, work: Callable[[], Any], budget: Budget, discard: Callable[[Any], object] | None = None
) -> Any:
    """Run ``work()`` in a helper thread and wait for it, as long as the budget allows.

    Args:
        key: Those who ask for the same at the same time share one result.
        work: What may block.
        budget: Bounds the wait.
        discard: Called with a result that comes when nobody waits for it any more.

    Raises:
        Stop: The budget was spent first.
        OSError: Too many helpers are stuck, or no thread can be started.
    """
    budget.left()
    running = _running.get(key)
    if running is None:
        if len(_running) >= MOST_HELPERS:
            raise OSError(
                f"{len(_running)} name lookups or proxy connections are stuck: no further one is started"
            )
        fresh = Aside(key, work, discard)
        try:
            # In the try: listed without a thread, it would keep everybody waiting who asks for the same.
            running = _running.setdefault(key, fresh)
            if running is fresh:
                SYSTEM.spawn(fresh.run, "pyresil-resolver")
        except RuntimeError:
            fresh.cannot_run()
            running = fresh
        except BaseException:
            fresh.cannot_run()
            raise
    return running.wait(budget)


def is_numeric(host: str) -> bool:
    """Whether a host needs no name server."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return True
    return False


def resolve(host: str, port: int, family: int, budget: Budget) -> list[Any]:
    """`socket.getaddrinfo` for a stream, bounded.

    Raises:
        Stop: The budget was spent first.
        OSError: As ``getaddrinfo``, or too many lookups are stuck.
    """

    def lookup() -> list[Any]:
        return list(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM))

    if is_numeric(host):
        return lookup()
    found: list[Any] = aside((host, port, family), lookup, budget)
    return found
