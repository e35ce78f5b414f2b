"""Where the hits of a rate limit are counted: in this process, or in a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil._cache_keys import NoKey
from pyresil._engine.limiters import Verdict
from pyresil._engine.partitions import Partitions
from pyresil.errors import ConfigurationError, StoreError, report_exception, shown
from pyresil.stores._checks import DEFAULT_TIMEOUT
from pyresil.stores.limiter import check_decision

if TYPE_CHECKING:
    from pyresil._engine.limiters import Limiter, Spec
    from pyresil.clock import Clock
    from pyresil.stores.limiter import LimiterStore

#: What a store is given at the least, in seconds.
_LEAST_TIMEOUT = 0.01


def _tells_nothing(key: Any) -> bool:
    """Whether a context is the key, or in it."""
    return isinstance(key, NoKey) or (isinstance(key, (tuple, frozenset)) and any(map(_tells_nothing, key)))


class LocalCounts:
    """Counts in this process. Made at first use, since fixed windows are aligned with the epoch then.

    The wall clock only says how far the monotonic clock is from a second 0; if it jumps later, nothing changes.
    """

    __slots__ = ("parts", "whole")

    def __init__(self, spec: Spec, maximum: int, clock: Clock) -> None:
        phase = 0.0
        if spec.algorithm == "fixed-window":
            phase = (clock.wall() - clock.monotonic()) % spec.window
        #: The state of what is not partitioned.
        self.whole: Limiter = spec.state(phase)
        self.parts = Partitions(spec, maximum, phase)

    def state(self, key: Any, now: float) -> Limiter:
        """The state of a partition; None is the one without partitions."""
        if key is None:
            return self.whole
        try:
            if not _tells_nothing(key):
                return self.parts.get(key, now)
            words = "what the context tells, such as ctx.args[0],"
        except TypeError:
            words = "something hashable,"
        raise ConfigurationError(f"rate limit: per must give {words} got {shown(key)}")

    def take(self, key: Any, weight: int, now: float) -> bool:
        """The quick way: True where the hit is admitted now; False says that `hit` has to look closer."""
        if key is None:
            state: Limiter | None = self.whole
        else:
            try:
                state = self.parts.states.get(key)
            except TypeError:
                return False
        return state is not None and state.blocked <= now and state.take(weight, now)

    def hit(self, key: Any, weight: int, now: float, max_wait: float, block_for: float | None) -> Verdict:
        """Take permits, now or within ``max_wait`` seconds. A refused hit blocks its partition for ``block_for``."""
        state = self.state(key, now)
        blocked = state.blocked - now
        if blocked > 0.0:
            verdict = state.hit(weight, now, -1.0)
            wait = max(blocked, verdict.wait)
            return Verdict(False, wait, now + wait, 0)
        verdict = state.hit(weight, now, max_wait)
        if not verdict.allowed and block_for is not None:
            state.blocked = now + block_for
            if verdict.wait < block_for:
                return Verdict(False, block_for, now + block_for, 0)
        return verdict

    def give_back(self, key: Any, weight: int, at: float, now: float) -> None:
        """A hit that was admitted for the time ``at`` is not used."""
        self.state(key, now).cancel(at, weight, now)

    def drain(self, key: Any, now: float, until: float | None) -> None:
        """Use up what is left, and let nothing through before ``until``."""
        state = self.state(key, now)
        state.drain(now)
        if until is not None and until > state.blocked:
            state.blocked = until


class StoreCounts:
    """Counts in a store, on the store's clock."""

    __slots__ = ("_name", "_spec", "_store")

    def __init__(self, store: LimiterStore, spec: Spec, name: str) -> None:
        self._store = store
        self._spec = spec
        self._name = name

    def _key(self, key: Any) -> str:
        if key is None:
            return self._name
        if isinstance(key, bool) or not isinstance(key, (str, int)):
            raise ConfigurationError(
                f"rate limit {self._name!r}: with a store, per must give a string or an int, got {shown(key)}"
            )
        return f"{self._name}:{key}"

    def hit(
        self, key: Any, weight: int, now: float, max_wait: float, left: float | None
    ) -> tuple[Verdict, Any]:
        """Take permits, now or within ``max_wait`` seconds; also what `give_back` needs.

        The store is not waited for longer than the ``left`` seconds of the caller.

        Raises:
            StoreUnavailableError: What the store holds is unknown.
            StoreError: It answered with something that cannot be right.
        """
        timeout = None if left is None or left >= DEFAULT_TIMEOUT else max(left, _LEAST_TIMEOUT)
        given = self._store.hit(self._key(key), self._spec, weight, int(max_wait * 1000.0), timeout=timeout)
        decision = check_decision(given)
        wait = (decision.wait_ms if decision.allowed else decision.retry_after_ms) / 1000.0
        return Verdict(decision.allowed, wait, now + wait, decision.remaining), decision.reservation

    def give_back(self, key: Any, reservation: Any) -> None:
        """A hit is not used. A store that fails now keeps it for used, which errs on the safe side."""
        try:
            self._store.cancel(self._key(key), reservation)
        except StoreError:
            report_exception(f"rate limit {self._name!r}: a reservation could not be given back")

    def reset(self, key: Any) -> None:
        """Forget what was counted."""
        self._store.reset(self._key(key))
