"""Pools of urllib3 with our connections, and a queue in which waiting for a connection is bounded too."""

from __future__ import annotations

import functools
import queue
import threading
from typing import TYPE_CHECKING, Any

from urllib3.exceptions import EmptyPoolError

from pyresil.clock import SYSTEM, Parker
from pyresil.integrations._http import forks
from pyresil.integrations._http.call import active
from pyresil.integrations._http.connection import bound
from pyresil.strategy import Forkable

if TYPE_CHECKING:
    from urllib3.poolmanager import PoolManager


class Left(queue.Empty):
    """Who waited has left without a connection, for a reason of his own: the budget of his call, or a signal handler that raised.

    Anything but an empty queue would have urllib3 put a place back that was never taken: somebody else's connection would find
    the pool full. `BoundPool.urlopen` raises the reason.
    """

    def __init__(self, reason: BaseException) -> None:
        super().__init__()
        self.reason = reason


class _Waiter(Parker):
    __slots__ = ("thread",)

    def __init__(self) -> None:
        super().__init__()
        # Looked up at use: gevent may have replaced it since this module was imported.
        self.thread = threading.get_ident()


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
        self._waiting: dict[_Waiter, None] = {}
        self._watch_forks()

    def _after_fork(self) -> None:
        self.queue = [None] * self.maxsize
        waiting, self._waiting = self._waiting, {}
        self._forked = True
        for waiter in waiting:
            waiter.unpark()  # where a signal handler forked, the thread that it interrupted goes on here, too

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
        """As in `queue.Queue`; whatever else ends the wait comes as `Left`, such as the end of the budget of a bounded call."""
        if not block:
            try:
                return self.queue.pop()
            except IndexError:
                raise queue.Empty from None
        end = None if timeout is None else SYSTEM.monotonic() + timeout
        taken: list[Any] = []
        in_time = True
        try:
            while True:
                waiter = _Waiter()
                try:
                    # Listed before the look, so that nothing is put in between unnoticed.
                    self._waiting[waiter] = None
                    try:
                        # In one step: no signal handler may raise between the taking out and the noting.
                        taken.extend(map(self.queue.pop, (-1,)))
                    except IndexError:
                        if not in_time:
                            raise queue.Empty from None
                        in_time = self._wait(waiter, end)
                finally:
                    self._waiting.pop(waiter, None)
                if taken:
                    self._wake_one()  # who put another one meanwhile may have woken us, who had one already
                    return taken[0]
        except BaseException as error:  # also of a signal handler, or of who kills a greenlet
            # We may have been woken and leave all the same: somebody else has to look.
            self.queue += taken
            try:
                self._wake_one()
            except BaseException as second:
                self._wake_one()
                raise Left(second) from None
            if isinstance(error, queue.Empty):
                raise
            raise Left(error) from None

    def _wait(self, waiter: _Waiter, end: float | None) -> bool:
        """Wait to be woken; False: the time was up."""
        call = active.get()
        if call is None:
            return waiter.wait(None if end is None else end - SYSTEM.monotonic())
        call.phase = "while waiting for a connection of the pool"
        call.budget.park(waiter)
        return True

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """As in `queue.Queue`, but it never waits: `queue.Full` where there are as many as there may be."""
        try:
            # Two threads at once may put one too many, which stays until somebody has used it.
            if self._forked and getattr(item, "era", forks.era) is not forks.era:
                item.close()  # the parent speaks on it
            elif not self.full():
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
        for _ in range(self.qsize()):
            try:
                connection = self.queue.pop(0)  # the oldest: its place is put back at the other end
            except IndexError:
                return
            try:
                self.put(None, block=False)
            except queue.Full:
                pass  # somebody has put his back meanwhile
            if connection is not None:
                connection.close()

    def _wake_one(self) -> None:
        """Have one of those who wait look, if there is something to see: who is woken for nothing waits on, but behind the others.

        It may be repeated.
        """
        woken = None
        for waiter in list(self._waiting):
            if not self.queue:
                return  # whoever puts something wakes somebody
            if woken is not None and waiter.thread != woken:
                continue
            # Woken while it is listed: were a signal handler to raise in between, nobody would find it any more.
            waiter.unpark()
            if self._waiting.pop(waiter, self) is None:
                # A signal handler that waits in the same thread came later, but has to be through first: it looks, too.
                woken = waiter.thread
            # Else it was on its way already, or another thread woke it for another connection: this one is for the next.


class BoundPool:
    """Mixed into the classes of pools by `bind_pools`."""

    QueueCls = BoundQueue

    def urlopen(self, *args: Any, **kwargs: Any) -> Any:
        """As in urllib3; who has left the queue leaves with his reason."""
        try:
            return super().urlopen(*args, **kwargs)  # type: ignore[misc]  # the class beside it has one
        except EmptyPoolError as error:
            if not isinstance(error.__context__, Left):
                raise
            reason: Any = error.__context__.reason
        # Outside of the handler, and not kept here: else the reason would lead to itself.
        try:
            raise reason
        finally:
            reason = None


@functools.cache
def _bound_pool(cls: type[Any]) -> type[Any]:
    return type(f"Bound{cls.__name__}", (BoundPool, cls), {"ConnectionCls": bound(cls.ConnectionCls)})


def bind_pools(manager: PoolManager) -> None:
    """Have a pool manager, or that of a proxy, make pools with our connections."""
    forks.watch_manager(manager)
    classes: dict[str, Any] = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {
        scheme: cls if issubclass(cls, BoundPool) else _bound_pool(cls) for scheme, cls in classes.items()
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
