"""Pools of urllib3 with our connections, and a queue in which waiting for a connection is bounded too."""

from __future__ import annotations

import functools
import queue
from typing import TYPE_CHECKING, Any

from pyresil.clock import Parker
from pyresil.integrations._http.budget import Stop
from pyresil.integrations._http.call import active
from pyresil.integrations._http.connection import bound
from pyresil.integrations._http.forks import watch_manager
from pyresil.strategy import Forkable

if TYPE_CHECKING:
    from urllib3.poolmanager import PoolManager


class BoundQueue(Forkable, queue.LifoQueue[Any]):
    """The idle connections of a pool; with ``pool_block=True`` callers wait here until one comes back.

    The child of a fork begins without any: two processes that speak on one connection get each other's answers.
    """

    #: In such a child, in which what was in use as it was forked may still come back.
    _forked = False

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(maxsize)
        self._waiting: dict[Parker, None] = {}
        self._watch_forks()

    def _after_fork(self) -> None:
        # With locks of its own, too: another thread may have held them.
        super().__init__(self.maxsize)
        self.queue += [None] * self.maxsize
        self._waiting = {}
        self._forked = True

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """As the stock method; the wait of a bounded call ends with its budget, as `queue.Empty`."""
        call = active.get()
        if call is None or not block:
            return super().get(block, timeout)
        try:
            while True:
                parker = Parker()
                # Listed before the look, so that nothing is put in between unnoticed.
                self._waiting[parker] = None
                try:
                    return super().get(block=False)
                except queue.Empty:
                    call.phase = "while waiting for a connection of the pool"
                    call.budget.park(parker)
                finally:
                    self._waiting.pop(parker, None)
        except BaseException as error:  # also of a signal handler, or of who kills a greenlet
            # We may have been woken and leave all the same: somebody else has to look.
            try:
                self._wake_one()
            except BaseException:
                self._wake_one()
                raise
            if not isinstance(error, Stop):
                raise
            # urllib3 knows what to do about an empty queue only: anything else would put back a connection more.
            call.stopped = True
            raise queue.Empty from None

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """As the stock method."""
        try:
            super().put(item, block, timeout)
        except queue.Full:
            if not self._forked:
                raise
            if item is not None:
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
                taken.append(super().get(block=False))
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
