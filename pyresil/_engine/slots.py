"""A number of slots and a first-in, first-out queue for them.

Free slots are a list of permits, one item each; a slot is taken by ``del permits[-1]``. That and the note that it was taken
stand next to each other with no call, loop or function start in between, so on builds with a GIL no other thread and no
signal handler comes between them: no lock is needed, and a handler that raises leaks nothing. A slot that is given back goes
straight to the first waiter, so there are free permits only while nobody waits, and a newcomer who finds one overtakes
nobody. Nothing with a call is allowed in such a stretch, not even ``len()``, and no container is built in it (that may run
the garbage collector, and with it anything).

The stretches are repeated where a function of their own would open a gap between taking and noting: in the strategies that
take and give back. `Slots` has each of them once for everybody else, and for the tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: What is added to ``permits`` when a slot becomes free: ``permits += PERMIT``.
PERMIT = (None,)


class Waiter:
    """Somebody who waits for a slot.

    Attributes:
        wake: Wakes the thread; one C function, so that no signal handler runs between the grant and the waking.
        queued: It stood in the queue, and stands there still unless ``granted``.
        granted: It owns a slot.
        entry: Itself as a tuple, which the queue is extended by.
    """

    __slots__ = ("entry", "granted", "queued", "wake")

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake = wake
        self.queued = False
        self.granted = False
        self.entry = (self,)


class Slots:
    """Slots and the queue for them.

    Args:
        size: How many slots there are.

    Attributes:
        permits: One item for each free slot; empty while anybody waits.
        queue: Who waits, the first in front.
        debt: How many slots are still to be taken out of use as they come back, after `resize` made them fewer.
    """

    __slots__ = ("debt", "permits", "queue", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.permits: list[object] = [None] * size
        self.queue: list[Waiter] = []
        self.debt = 0

    @property
    def active(self) -> int:
        """How many slots are taken."""
        return max(0, self.size - len(self.permits) + self.debt)

    def take(self) -> bool:
        """Take a free slot; False where there is none."""
        permits = self.permits
        try:
            if permits:
                del permits[-1]
                return True
        except IndexError:
            pass  # a build without a GIL: another thread was faster
        return False

    def join(self, waiter: Waiter, limit: int) -> bool:
        """Take a free slot after all, or stand in the queue.

        Args:
            waiter: A fresh one.
            limit: How many may stand in the queue.

        Returns:
            False where the queue was full. Then, and whenever it gives up, the waiter has to `leave`.
        """
        permits, queue, entry = self.permits, self.queue, waiter.entry
        try:
            if permits:
                del permits[-1]
                waiter.granted = True
            else:
                queue += entry
                waiter.queued = True
        except IndexError:
            return False
        if not waiter.granted:
            # Counted once it stands there: no thread can come between the count and the joining.
            try:
                return queue.index(waiter) < limit
            except ValueError:
                pass  # it was granted a slot meanwhile
        return True

    def leave(self, waiter: Waiter) -> None:
        """A waiter gives up: out of the queue, or, where it was granted a slot meanwhile, that slot goes on."""
        if waiter.granted:
            waiter.granted = waiter.queued = False
            self.release()
        elif waiter.queued:
            self.queue.remove(waiter)
            waiter.queued = False

    def release(self) -> None:
        """Give a slot back: to the first who waits, else it is free."""
        queue, permits = self.queue, self.permits
        if self.debt:
            self.debt -= 1
        elif queue:
            waiter = queue[0]
            del queue[0]
            waiter.granted = True
            try:
                waiter.wake()
            except (RuntimeError, ValueError):
                pass  # awake already: its time was up, or it was cancelled
        else:
            permits += PERMIT

    def resize(self, size: int) -> None:
        """Change how many slots there are. Fewer take effect as slots come back; more serve the queue first.

        By one caller at a time; others may take and give back meanwhile.
        """
        queue, permits = self.queue, self.permits
        while self.size < size:
            self.size += 1
            if self.debt:
                self.debt -= 1
            elif queue:
                waiter = queue[0]
                del queue[0]
                waiter.granted = True
                try:
                    waiter.wake()
                except (RuntimeError, ValueError):
                    pass  # awake already
            else:
                permits += PERMIT
        while self.size > size:
            self.size -= 1
            if permits:
                del permits[-1]
            else:
                self.debt += 1
