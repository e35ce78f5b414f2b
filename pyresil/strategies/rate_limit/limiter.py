"""The rate limit itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never

from pyresil._functions import describe_function
from pyresil._validate import Checker
from pyresil.clock import SYSTEM, Clock
from pyresil.durations import LONGEST
from pyresil.errors import ConfigurationError, RateLimitedError, StoreUnavailableError, shown
from pyresil.events import RateLimited, emit
from pyresil.outcome import Failure, retry_after_of
from pyresil.strategies.rate_limit.counts import LocalCounts, StoreCounts
from pyresil.strategies.rate_limit.options import drains, meant, spec_of
from pyresil.strategies.rate_limit.paths import compiled, inlined
from pyresil.strategies.rate_limit.reservation import RateDecision, RateLimitStats, Reservation
from pyresil.strategy import Forkable, Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyresil._engine.limiters import Limiter, Verdict
    from pyresil._flat import Inline
    from pyresil.context import Context
    from pyresil.durations import Duration, RateLike
    from pyresil.outcome import Outcome
    from pyresil.stores.limiter import LimiterStore
    from pyresil.strategy import Run

__all__ = ["RateLimit"]

#: A ``Retry-After`` of an outcome that drains keeps the limit closed at most this long, in seconds.
_LONGEST_RETRY_AFTER = 3600.0


class RateLimit(Guard[Never], Forkable):
    """At most so many executions in so much time; who comes too early is refused, or waits for its time.

    Whoever waits holds its permits already, for a time that is known from the start: first come, first served, nobody is
    woken in vain, and who cannot be served within ``max_wait`` or before its deadline is refused at once.

    ======================  =================================================================================================
    algorithm               promise
    ======================  =================================================================================================
    ``sliding-window``      never more than the limit in any window; permits come back at most ``window / segments`` late
    ``fixed-window``        never more than the limit in a window that begins at a multiple of its length since the epoch
    ``token-bucket``        at most ``burst + rate × t`` in any time ``t``; unused permits are kept, up to ``burst``
    ``gcra``                the same with a burst of 1: evenly spread, and never more than the limit in any window
    ======================  =================================================================================================

    Args:
        limit: The rate: ``"100/minute"``, ``"5/s"``, ``"3/10s"``, or (permits, window).
        name: Shown in errors, events and logs; with a ``store``, the key.
        algorithm: One of the table. Default: ``"sliding-window"``.
        segments: Parts of a sliding window, 1 to 1,000. Default: 10.
        burst: The size of a bucket. Default: the permits of the limit; 1 for gcra.
        max_wait: The longest wait (a duration); 0, the default, refuses whoever comes too early.
        max_queue: How many may wait at once. Default: 1,000.
        weight: Permits that a call takes, or a function of the context that gives them; 0 is free. Default: 1.
        per: A function of the context that gives a partition; each has the limit for itself. None is one more partition.
        max_partitions: The most partitions that are kept here; idle ones are let go first, exhausted ones last.
            Default: 10,000.
        block_for: A refused call closes its partition for so long (a duration). Default: None, not at all.
        allow: A function of the context, or a collection of partitions: calls that are let through and not counted.
        deny: The same for calls that are always refused; ``allow`` wins.
        drain_on: A status such as 429, several, or a function of the outcome: what says that the dependency's own limit is
            used up. No permit is left then, and a ``Retry-After`` of the outcome is obeyed, up to one hour.
        store: A `LimiterStore` that counts for all processes, on its own clock; None counts in this process.
        insurance: A `RateLimit` that is used while the store cannot be reached; without one, `StoreUnavailableError` is raised.
        clock: Default: the policy's.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type.

    A refused execution raises `RateLimitedError`, whose ``retry_after`` is exact: the same call is admitted after so many
    seconds, if nobody else comes first. None: it never is.

    Events: `RateLimited`.
    """

    kind = "rate limit"

    def __init__(
        self,
        limit: RateLike,
        name: str | None = None,
        *,
        algorithm: str = "sliding-window",
        segments: int = 10,
        burst: int | None = None,
        max_wait: Duration = 0,
        max_queue: int = 1000,
        weight: int | Callable[[Context], int] = 1,
        per: Callable[[Context], Any] | None = None,
        max_partitions: int = 10_000,
        block_for: Duration | None = None,
        allow: Callable[[Context], object] | Collection[Any] | None = None,
        deny: Callable[[Context], object] | Collection[Any] | None = None,
        drain_on: int | Collection[int] | Callable[[Any], object] | None = None,
        store: LimiterStore | None = None,
        insurance: RateLimit | None = None,
        clock: Clock | None = None,
    ) -> None:
        check = Checker(self.kind, name)
        self.name = check.name(name)
        self._spec = spec = spec_of(check, limit, algorithm, segments, burst)
        #: The most that can be admitted at once.
        self._capacity = spec.burst
        self.max_wait = check.duration("max_wait", max_wait, positive=False)
        self.max_queue = check.integer("max_queue", max_queue, 0)
        self._weigh = check.function("weight", weight) if callable(weight) else None
        self._weight = 1 if callable(weight) else check.integer("weight", weight, 0)
        if self._weight > self._capacity:
            check.fault("weight", f"at most {self._capacity}, or no call would ever be admitted", weight)
        self._per = check.function("per", per)
        self.max_partitions = check.integer("max_partitions", max_partitions)
        self.block_for = check.optional_duration("block_for", block_for)
        self._allow = meant(check, "allow", allow)
        self._deny = meant(check, "deny", deny)
        self._drains = drains(check, drain_on)
        self._store: StoreCounts | None = None
        if store is not None:
            self._store = self._shared(check, store)
        self._insurance = check.instance("insurance", insurance, RateLimit, "a RateLimit or None")
        if insurance is not None and store is None:
            check.fault("insurance", "None without a store", insurance)
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        check.done()
        self._now = SYSTEM.monotonic
        self._local: LocalCounts | None = None
        #: The state without partitions, for the hot path.
        self._whole: Limiter | None = None
        self._waiting = 0
        if clock is not None:
            self._adopt(clock)
        self._watch_forks()

    def _shared(self, check: Checker, store: object) -> StoreCounts | None:
        from pyresil.stores.limiter import LimiterStore

        for field, value in (("block_for", self.block_for), ("drain_on", self._drains)):
            if value is not None:
                check.fault(field, "None with a store: what it closes is closed in one process only", value)
        if not isinstance(store, LimiterStore):
            check.fault("store", "a LimiterStore or None", store)
        elif self.name is None:
            check.fault(
                "name", "given with a store: it is the key under which processes share the limit", None
            )
        else:
            return StoreCounts(store, self._spec, self.name)
        return None

    def _adopt(self, clock: Clock) -> None:
        super()._adopt(clock)
        self._now = self.clock.monotonic
        if self._insurance is not None:
            self._insurance._adopt(self.clock)

    def _after_fork(self) -> None:
        # Who waits is in the parent. What was counted stays: the child begins with the limit as used as it was.
        self._waiting = 0

    def _counts(self) -> LocalCounts:
        if self._local is None:
            fresh = LocalCounts(self._spec, self.max_partitions, self.clock)
            # Test and assignment with no call in between: all threads use one.
            whole = fresh.whole
            if self._local is None:
                self._local = fresh
                self._whole = whole
        return self._local

    # -- as a guard ------------------------------------------------------------------------------------------------------

    def compile(self, inner: Run, clock: Clock) -> Run:
        """See `Strategy.compile`: a limit without partitions and other conditions inline, everything else is `_admit`."""
        return super().compile(inner, clock) if self._plain else compiled(self, inner)

    def inline(self, inner: Run, clock: Clock) -> Inline | None:
        """See `Strategy.inline`."""
        return inlined(self) if self._plain else None

    @property
    def _plain(self) -> bool:
        """Whether all calls have one weight, and there are neither partitions nor other conditions."""
        special = (self._per, self._weigh, self._allow, self._deny, self._store, self.block_for, self._drains)
        return self._weight > 0 and all(option is None for option in special)

    def enter(self, ctx: Context) -> Any:
        """Admit the execution, perhaps after a wait; its partition.

        Raises:
            RateLimitedError: It came too early.
        """
        return self._admit(ctx)

    def exit(self, ctx: Context, token: Any, outcome: Outcome[Any]) -> Outcome[Any]:
        """Look whether the outcome drains."""
        if (
            self._drains is not None
            and not (isinstance(outcome, Failure) and not isinstance(outcome.error, Exception))
            and self._drains(outcome)
        ):
            now = self._now()
            asked = retry_after_of(outcome, self.clock.wall)
            until = None if asked is None else now + min(asked, _LONGEST_RETRY_AFTER)
            self._counts().drain(token, now, until)
        return outcome

    def _admit(self, ctx: Context) -> Any:
        key = None if self._per is None else self._per(ctx)
        if self._allow is not None and self._allow(ctx, key):
            return key
        if self._deny is not None and self._deny(ctx, key):
            raise self._rejection(ctx, None)
        weight = self._weight if self._weigh is None else self._checked(self._weigh(ctx), 0)
        if weight > 0:
            local = self._local
            if local is None or not local.take(key, weight, self._now()):
                self._acquire(ctx, key, weight)
        return key

    def _acquire(self, ctx: Context, key: Any, weight: int) -> None:
        """Take permits, and wait for their time."""
        if weight > self._capacity:
            raise self._rejection(ctx, None)
        max_wait = self.max_wait
        if max_wait <= 0.0 and self._store is None:
            verdict = self._counts().hit(key, weight, self._now(), 0.0, self.block_for)
            if not verdict.allowed:
                raise self._rejection(ctx, verdict.wait)
            return
        if max_wait > 0.0:
            left = ctx.remaining()
            if left is not None and left < max_wait:
                max_wait = left
        queued = False
        try:
            if max_wait > 0.0 and self._waiting < self.max_queue:
                self._waiting += 1
                queued = True
            try:
                verdict, give_back = self._take(key, weight, max_wait if queued else 0.0, ctx.remaining())
            except StoreUnavailableError:
                if self._insurance is None:
                    raise
                self._insure(ctx, key, weight)
                return
            if not verdict.allowed:
                raise self._rejection(ctx, verdict.wait)
            if verdict.wait > 0.0:
                try:
                    ctx.sleep(verdict.wait)
                except BaseException:
                    give_back()
                    raise
        finally:
            if queued:
                self._waiting -= 1

    def _insure(self, ctx: Context, key: Any, weight: int) -> None:
        """The store cannot be reached: let the insurance decide."""
        from pyresil._logs import logger

        assert self._insurance is not None
        logger().warning("rate limit %r: the store cannot be reached, its insurance decides", self.name)
        self._insurance._acquire(ctx, key, weight)

    def _take(
        self, key: Any, weight: int, max_wait: float, left: float | None = None
    ) -> tuple[Verdict, Callable[[], object]]:
        """Take permits where they are counted, within the ``left`` seconds of a caller; also how to give them back."""
        now = self._now()
        store = self._store
        if store is not None:
            verdict, reservation = store.hit(key, weight, now, max_wait, left)
            return verdict, lambda: store.give_back(key, reservation)
        counts = self._counts()
        verdict = counts.hit(key, weight, now, max_wait, self.block_for)
        return verdict, lambda: counts.give_back(key, weight, verdict.at, self._now())

    def _rejection(self, ctx: Context | None, retry_after: float | None) -> RateLimitedError:
        policy = None if ctx is None else ctx.policy
        if RateLimited.listeners:
            source = self.name or (None if ctx is None else ctx.source)
            emit(RateLimited(policy=policy, source=source, at=self.clock.wall(), retry_after=retry_after))
        return RateLimitedError(retry_after, self.name, policy)

    def _checked(self, weight: Any, least: int) -> int:
        if isinstance(weight, int) and not isinstance(weight, bool) and weight >= least:
            return weight
        words = "a positive integer" if least else "an integer of 0 or more"
        raise ConfigurationError(f"{self._label()}: weight must be {words}, got {shown(weight)}")

    # -- by hand ---------------------------------------------------------------------------------------------------------

    def hit(self, weight: int = 1, *, key: Any = None) -> RateDecision:
        """Take permits now or not at all, without raising.

        Args:
            weight: How many, 1 or more.
            key: The partition.

        Raises:
            ConfigurationError: The weight is no positive integer.
            StoreUnavailableError: The store cannot be reached.
        """
        if self._checked(weight, 1) > self._capacity:
            return RateDecision(False, None, 0)
        verdict, _ = self._take(key, weight, 0.0)
        return RateDecision(verdict.allowed, verdict.wait, verdict.remaining)

    def reserve(self, weight: int = 1, *, key: Any = None, max_wait: Duration | None = None) -> Reservation:
        """Take permits for the earliest possible time.

        Args:
            weight: How many, 1 or more.
            key: The partition.
            max_wait: The longest time until they may be used (a duration); None for any.

        Returns:
            A `Reservation`, which says when they may be used, waits for it, and can be cancelled.

        Raises:
            RateLimitedError: That would be later than ``max_wait``, or the partition is closed.
            ConfigurationError: An argument is out of range or of the wrong type.
            StoreUnavailableError: The store cannot be reached.
        """
        check = Checker(f"{self._label()} reserve")
        longest = check.optional_duration("max_wait", max_wait, positive=False)
        check.done()
        if self._checked(weight, 1) > self._capacity:
            raise self._rejection(None, None)
        verdict, give_back = self._take(key, weight, LONGEST if longest is None else longest)
        if not verdict.allowed:
            raise self._rejection(None, verdict.wait)
        return Reservation(weight, verdict.wait, verdict.at, self.clock, give_back)

    def reset(self, key: Any = None) -> None:
        """Forget what was counted, of one partition, or with None of all that are kept here."""
        if self._store is not None:
            self._store.reset(key)
        elif key is None:
            self._local = self._whole = None
        elif self._local is not None:
            self._local.parts.states.pop(key, None)

    def stats(self, key: Any = None) -> RateLimitStats:
        """The limit at this moment; ``remaining`` is of this partition."""
        now, local, remaining = self._now(), self._local, None
        if self._store is None:
            state = None if local is None else local.whole if key is None else local.parts.states.get(key)
            if state is None:
                remaining = self._capacity
            else:
                remaining = 0 if state.blocked > now else state.remaining(now)
        kept = 0 if local is None else len(local.parts.states)
        return RateLimitStats(self._spec.permits, self._spec.window, remaining, self._waiting, kept)

    def _label(self) -> str:
        return f"{self.kind} {self.name!r}" if self.name else self.kind

    def describe(self) -> dict[str, Any]:
        """Plain data: the effective options."""
        spec = self._spec
        buckets = spec.algorithm in ("token-bucket", "gcra")
        return {
            **super().describe(),
            "limit": f"{spec.permits}/{spec.window:g}s",
            "algorithm": spec.algorithm,
            "segments": spec.segments if spec.algorithm == "sliding-window" else None,
            "burst": spec.burst if buckets else None,
            "max_wait": self.max_wait,
            "max_queue": self.max_queue,
            "weight": self._weight if self._weigh is None else describe_function(self._weigh),
            "per": None if self._per is None else describe_function(self._per),
            "max_partitions": self.max_partitions,
            "block_for": self.block_for,
            "allow": self._allow is not None,
            "deny": self._deny is not None,
            "drain_on": self._drains is not None,
            "store": None if self._store is None else "shared",
            "insurance": None if self._insurance is None else self._insurance.describe(),
        }

    def __repr__(self) -> str:
        spec = self._spec
        return (
            f"RateLimit('{spec.permits}/{spec.window:g}s', name={self.name!r}, algorithm={spec.algorithm!r})"
        )
