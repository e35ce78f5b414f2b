"""Slots that are leases: how a bulkhead holds its cap across processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil.clock import Parker
from pyresil.errors import LockError
from pyresil.locks._acquire import Acquisition
from pyresil.locks._terms import make_terms
from pyresil.locks.locks import Locks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.context import Context
    from pyresil.locks.lease import Lease
    from pyresil.strategy import Run, Strategy

#: A waiter looks again after 50 ms, doubling to 1 s, each shortened at random; in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class LeaseSlots:
    """``count`` leases of which each execution holds one, in whatever process it runs.

    A process that dies frees its slots when their ttl is over. A slot whose lease gets lost is logged; its work goes on.

    Args:
        store: What `Locks` takes, or `Locks`.
        name: All bulkheads of this name on this store share the slots.
        count: How many there are.
        strategy: Whose clock, which it may get from its first policy, is that of the leases.

    Raises:
        ConfigurationError: ``store`` is none, or the name is too long.
    """

    def __init__(self, store: Any, name: str, count: int, strategy: Strategy[Any]) -> None:
        # Checked now; the ones that are used are made when the clock is known.
        checked = store if isinstance(store, Locks) else Locks(store)
        self._locks = checked if checked is store else None
        self._store = checked.store
        self._strategy = strategy
        self._terms = [make_terms(f"bulkhead:{name}:{number}", checked.ttl) for number in range(count)]

    @property
    def locks(self) -> Locks:
        """Where the leases come from."""
        if self._locks is None:
            self._locks = Locks(self._store, clock=self._strategy._clock)
        return self._locks

    def take(self, ctx: Context, longest: float | None, reject: Callable[[str], Exception]) -> Lease:
        """A slot.

        Args:
            ctx: Its token ends the waiting.
            longest: Seconds to wait for a slot; 0 asks once, None waits until the token is set.
            reject: Makes the error for ``"full"`` or ``"queue-timeout"``.
        """
        clock = ctx.clock
        until = None if longest is None else clock.monotonic() + longest
        pause = _FIRST_PAUSE
        while True:
            lease = self._try(ctx)
            if lease is not None:
                return lease
            left = None if until is None else until - clock.monotonic()
            if left is not None and left <= 0.0:
                raise reject("full" if longest == 0.0 else "queue-timeout")
            wait = pause * (0.5 + clock.random() / 2.0)
            pause = min(pause * 2.0, _LONGEST_PAUSE)
            ctx.cancel.park(Parker(), wait if left is None else min(wait, left))
            ctx.cancel.raise_if_cancelled()

    def _try(self, ctx: Context) -> Lease | None:
        """One round over the slots, from a random one on, so that processes do not all ask for the same first."""
        count = len(self._terms)
        first = int(self.locks.clock.random() * count)
        for number in range(count):
            terms = self._terms[(first + number) % count]
            lease = Acquisition(self.locks, terms, ctx.cancel, ctx.policy, ctx.source).run()
            if lease is not None:
                return lease
        return None

    def around(self, inner: Run, longest: float | None, reject: Callable[[Context, str], Exception]) -> Run:
        """``inner`` with a slot held."""

        def run(ctx: Context) -> Any:
            lease: Lease | None = None
            try:
                lease = self.take(ctx, longest, lambda reason: reject(ctx, reason))
                self.begin(lease)
                return inner(ctx)
            finally:
                if lease is not None:
                    try:
                        self.end(lease)
                    except BaseException:
                        self.end(lease)  # a signal handler raised before the first one took hold
                        raise

        return run

    def begin(self, lease: Lease) -> None:
        """Work begins in a slot; `end` follows, also where this raises.

        Raises:
            LockError: The slot was handed back meanwhile, as the process ends.
        """
        lease._running += 1
        if lease._running <= 0:
            raise LockError("locks: this object was closed")

    def end(self, lease: Lease) -> None:
        """The work is over: the slot goes back. To be called again where a signal handler raised in it."""
        lease._running -= 1
        lease.release()
