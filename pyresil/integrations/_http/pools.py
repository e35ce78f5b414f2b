"""Pools of urllib3 with our connections, and a queue in which waiting for a connection is bounded too."""

from __future__ import annotations

import functools
import queue
from typing import TYPE_CHECKING, Any

from pyresil.clock import SYSTEM, Parker
from pyresil.integrations._http.budget import Stop
from pyresil.integrations._http.call import active
from pyresil.integrations._http.connection import bound
from pyresil.integrations._http.forks import watch_manager
from pyresil.strategy import Forkable

if TYPE_CHECKING:
    from urllib3.poolmanager import PoolManager


class BoundQueue(Forkable, queue.LifoQueue[Any]):
    """The idle connections of a pool; with ``pool_block=True`` callers wait here until one comes back.

    A stock queue to whoever looks, but its lock is never taken: a signal handler that sent a request, or raised, while its thread
    held that would close the pool for good. The child of a fork begins without any connection: two processes that speak on one
    get each other's answers.
    """

    #: In such a child, in which what was in use as it was forked may still come back.
    _forked = False

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(maxsize)
        self._waiting: dict[Parker, None] = {}
        self._watch_forks()

    def _after_fork(self) -> None:
        self.queue = [None] * self.maxsize
        self._waiting = {}
        self._forked = True

    def qsize(self) -> int:
        """How many there are."""
        return len(self.queue)

    def empty(self) -> bool:
        """Whether there is none."""
        return not self.queue

    def full(self) -> bool:
        """Whether there are as many as there may be."""
        return 0 < self.maxsize <= len(self.queue)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """As in `queue.Queue`; the wait of a bounded call ends with its budget, as `queue.Empty`."""
        if not block:
            try:
                return self.queue.pop()
            except IndexError:
                raise queue.Empty from None
        end = None if timeout is None else SYSTEM.monotonic() + timeout
        taken: list[Any] = []
        try:
            while True:
                parker = Parker()
                # Listed before the look, so that nothing is put in between unnoticed.
                self._waiting[parker] = None
                try:
                    try:
                        taken.append(self.queue.pop())
                    except IndexError:
                        self._wait(parker, end)
                finally:
                    self._waiting.pop(parker, None)
                if taken:
                    self._wake_one()  # who put another one meanwhile may have woken us, who had one already
                    return taken[0]
        except BaseException as error:  # also of a signal handler, or of who kills a greenlet
            # We may have been woken and leave all the same: somebody else has to look.
            self.queue += taken
            try:
                self._wake_one()
            except BaseException:
                self._wake_one()
                raise
            if not isinstance(error, Stop):
                raise
            # urllib3 knows what to do about an empty queue only: anything else would put back a connection more.
            call = active.get()
            if call is not None:
                call.stopped = True
            raise queue.Empty from None

    def _wait(self, parker: Parker, end: float | None) -> None:
        call = active.get()
        if call is not None:
            call.phase = "while waiting for a connection of the pool"
            call.budget.park(parker)
        elif not parker.wait(None if end is None else end - SYSTEM.monotonic()):
            raise queue.Empty

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """As in `queue.Queue`, but it never waits: `queue.Full` where there are as many as there may be."""
        try:
            # Two threads at once may put one too many, which stays until somebody has used it.
            if not self.full():
                self.queue.append(item)
            elif not self._forked:
                raise queue.Full
            elif item is not None:
                item.close()
        finally:
            try:
                self._wake_one()
            except BaseException:
                # A signal handler raised: who waits must not sleep on beside the connection.
                self._wake_one()
                raise

    def close_idle(self) -> None:
        """Close the connections that nobody uses now; the pool goes on without them."""
        taken = []
        try:
            while True:
                taken.append(self.get(block=False))
        except queue.Empty:
            pass
        for connection in taken:
            if connection is not None:
                connection.close()
            try:
                self.put(None, block=False)
            except queue.Full:
                pass  # somebody has put his back meanwhile

    def _wake_one(self) -> None:
        """Have one of those who wait look, if there is something to see: who is woken for nothing waits on, but behind the others.

        It may be repeated.
        """
        for parker in list(self._waiting):
            if not self.queue:
                return  # whoever puts something wakes somebody
            # Woken while it is listed: were a signal handler to raise in between, nobody would find it any more.
            parker.unpark()
            if self._waiting.pop(parker, self) is None:
                return
            # It was on its way already, or another thread woke it for another connection: this one is for the next.


@functools.cache
def _bound_pool(cls: type[Any]) -> type[Any]:
    return type(
        f"Bound{cls.__name__}", (cls,), {"ConnectionCls": bound(cls.ConnectionCls), "QueueCls": BoundQueue}
    )


def bind_pools(manager: PoolManager) -> None:
    """Have a pool manager, or that of a proxy, make pools with our connections."""
    watch_manager(manager)
    classes = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {
        scheme: cls if getattr(cls, "QueueCls", None) is BoundQueue else _bound_pool(cls)
        for scheme, cls in classes.items()
    }


def close_idle(manager: Any) -> None:
    """Close the idle connections of all pools of a manager.

    urllib3 leaves that to the end of the pool object, and the traceback of an error that somebody keeps may hold it.
    """
    for key in manager.pools.keys():  # noqa: SIM118 - its own container, which cannot be iterated
        pool = manager.pools.get(key)
        waiting = getattr(pool, "pool", None)
        if isinstance(waiting, BoundQueue):
            waiting.close_idle()
