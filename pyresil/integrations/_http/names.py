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
    """One piece of work in a helper thread, and those who wait for it."""

    __slots__ = ("_discard", "_key", "_parkers", "_work", "done", "error", "value")

    def __init__(
        self, key: Hashable, work: Callable[[], Any], discard: Callable[[Any], object] | None
    ) -> None:
        self._key = key
        self._work = work
        self._discard = discard
        self._parkers: dict[Parker, None] = {}
        self.done = False
        self.value: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        """On the helper thread."""
        value: Any = None
        try:
            value = self._work()
        except Exception as error:
            self.error = error
        finally:
            _running.pop(self._key, None)
            self.value = value
            self.done = True
            waiting = list(self._parkers)
            for parker in waiting:
                parker.unpark()
        if self._discard is not None and not waiting and self.value is not None:
            self._discard(self.value)

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
        finally:
            self._parkers.pop(parker, None)
        if self.error is None:
            return self.value
        if isinstance(self.error, OSError):
            raise type(self.error)(*self.error.args)  # each waiter its own, or they would share a traceback
        raise self.error


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
        OSError: Too many helpers are stuck.
    """
    budget.left()
    running = _running.get(key)
    if running is None:
        if len(_running) >= MOST_HELPERS:
            raise OSError(
                f"{len(_running)} name lookups or proxy connections are stuck: no further one is started"
            )
        fresh = Aside(key, work, discard)
        running = _running.setdefault(key, fresh)
        if running is fresh:
            try:
                SYSTEM.spawn(fresh.run, "pyresil-resolver")
            except BaseException:
                _running.pop(key, None)
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
