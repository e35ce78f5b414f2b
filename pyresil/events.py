"""What happens inside policies, leases and stores, as frozen events, and who listens.

`subscribe` adds a listener for some types or for all. A listener runs where the event happens, outside every lock, and never
changes an outcome: what it raises is logged. An event that nobody listens to is never built and costs one attribute read:
every type keeps its own tuple of ``listeners``, and the code that would emit asks it first::

    if Retried.listeners:
        emit(Retried(policy=..., source=..., at=..., attempt=1, delay=0.2, error=error))

Every event has ``type`` (a fixed word), ``policy`` (name or None), ``source`` (the name of the strategy, else what the
caller gave as ``source=``, else None) and ``at`` (seconds since the epoch on the clock of whoever emits).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, dataclass_transform

from pyresil._outbox import Outbox as Outbox
from pyresil.errors import ConfigurationError, report_exception, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "BulkheadRejected", "CacheHit", "CacheMiss", "CacheRefreshFailed", "CacheStale", "CircuitClosed",
    "CircuitHalfOpened", "CircuitIsolated", "CircuitOpened", "CircuitRejected", "CircuitStoreError",
    "Event", "Executed", "FellBack", "Hedged", "IdempotencyLockLost", "IdempotencyRejected",
    "IdempotencyReplayed", "JobSkipped", "LeadershipAcquired", "LeadershipLost", "LockAcquired", "LockLost",
    "LockRejected", "LockReleased", "LockRenewFailed", "RateLimited", "Retried", "TimedOut", "subscribe",
]  # fmt: skip

Listener: TypeAlias = "Callable[[Any], object]"

#: Every event type by its word, in the order of definition.
TYPES: dict[str, type[Event]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _Frozen:
    """What type checkers read as a frozen dataclass; importing the real ones costs more than all the rest of the core."""


class Event(_Frozen):
    """Base of all events: frozen, built by keyword, compared by its fields.

    Attributes:
        type: The fixed word of the kind.
        policy: The name of the policy, or None.
        source: The name of the strategy, else the caller's ``source=``, else None.
        at: Seconds since the epoch.
    """

    type: ClassVar[str]
    listeners: ClassVar[tuple[Listener, ...]] = ()
    #: The same as a list that stays the same object, for code that binds it once.
    heard: ClassVar[list[Listener]]
    fields: ClassVar[tuple[str, ...]] = ("policy", "source", "at")

    policy: str | None
    source: str | None
    at: float

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = (name for name in cls.__annotations__ if name != "type")
        cls.fields = (*cls.fields, *own)
        cls.heard = []
        if "type" in cls.__dict__:
            TYPES[cls.type] = cls

    def __init__(self, **values: Any) -> None:
        if len(values) != len(self.fields) or not all(name in values for name in self.fields):
            raise TypeError(
                f"{type(self).__name__} takes exactly {', '.join(self.fields)}, got {', '.join(values)}"
            )
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return hash((type(self), self.at, self.policy, self.source))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.fields)})"
        )


class Executed(Event):
    """A policy's execution ended (``duration`` in seconds; ``outcome`` is a `Success` or `Failure`)."""

    type = "execution"
    duration: float
    outcome: Any


class Retried(Event):
    """An attempt failed and another one follows after ``delay`` seconds; ``error`` is None for a refused result."""

    type = "retry"
    attempt: int
    delay: float
    error: BaseException | None


class TimedOut(Event):
    """A deadline passed (``limit`` in seconds); ``late`` is True where the work succeeded all the same, but after it."""

    type = "timeout"
    limit: float
    late: bool


class _Transition(Event):
    from_state: Any
    to_state: Any


class CircuitOpened(_Transition):
    """A circuit breaker opened."""

    type = "circuit-opened"


class CircuitHalfOpened(_Transition):
    """A circuit breaker lets probes through."""

    type = "circuit-half-opened"


class CircuitClosed(_Transition):
    """A circuit breaker closed (or was disabled, or only measures: see ``to_state``)."""

    type = "circuit-closed"


class CircuitIsolated(_Transition):
    """A circuit breaker was opened by hand, until it is reset."""

    type = "circuit-isolated"


class CircuitRejected(Event):
    """A call was refused by an open circuit; ``retry_after`` in seconds, None while nothing is known."""

    type = "circuit-rejected"
    retry_after: float | None


class CircuitStoreError(Event):
    """A shared circuit's store failed; the breaker goes on with what it knows."""

    type = "circuit-store-error"
    error: BaseException


class BulkheadRejected(Event):
    """A bulkhead had no slot: ``reason`` is ``"full"`` or ``"queue-timeout"``; so many were active and queued."""

    type = "bulkhead-rejected"
    reason: str
    active: int
    queued: int


class RateLimited(Event):
    """A rate limit refused a call; ``retry_after`` in seconds, None where it is never admitted."""

    type = "rate-limited"
    retry_after: float | None


class Hedged(Event):
    """Another copy of the work was started, after ``delay`` seconds; ``copy`` counts from 1."""

    type = "hedged"
    copy: int
    delay: float


class FellBack(Event):
    """A fallback took the place of an error (None: of a refused result)."""

    type = "fallback"
    error: BaseException | None


class _CacheEvent(Event):
    key: Any


class CacheHit(_CacheEvent):
    """A fresh value was found."""

    type = "cache-hit"


class CacheStale(_CacheEvent):
    """A stale value was served."""

    type = "cache-stale"


class CacheMiss(_CacheEvent):
    """No value was found."""

    type = "cache-miss"


class CacheRefreshFailed(_CacheEvent):
    """A stale value's refresh raised ``error``; None where it returned a result that is judged a failure."""

    type = "cache-refresh-failed"
    error: BaseException | None


class _LockEvent(Event):
    key: str
    token: int | None


class LockAcquired(_LockEvent):
    """A lease was granted."""

    type = "lock-acquired"


class LockRejected(_LockEvent):
    """A lease is held by someone else; ``token`` is the holder's, where the store tells it."""

    type = "lock-rejected"


class LockRenewFailed(_LockEvent):
    """A renewal raised; it is tried again until the lease's deadline."""

    type = "lock-renew-failed"


class LockLost(_LockEvent):
    """A lease was lost: ``detected_by`` is ``"refused"``, ``"deadline"`` or ``"max-hold"``."""

    type = "lock-lost"
    detected_by: str


class LockReleased(_LockEvent):
    """A lease was handed back."""

    type = "lock-released"


class JobSkipped(Event):
    """A job did not run here: ``reason`` is ``"not-owner"``, ``"running"`` or ``"closed"`` (its `Locks` are)."""

    type = "job-skipped"
    key: str
    reason: str


class LeadershipAcquired(Event):
    """This instance leads."""

    type = "leadership-acquired"
    key: str
    token: int


class LeadershipLost(Event):
    """This instance leads no more: ``reason`` is ``"lost"`` or ``"released"``."""

    type = "leadership-lost"
    key: str
    token: int
    reason: str


class _IdempotencyEvent(Event):
    handler: str
    key: str
    scope: str | None


class IdempotencyReplayed(_IdempotencyEvent):
    """A stored answer was given again."""

    type = "idempotency-replayed"
    status: int | None


class IdempotencyRejected(_IdempotencyEvent):
    """A request with a key was refused."""

    type = "idempotency-rejected"
    code: str
    status: int | None


class IdempotencyLockLost(_IdempotencyEvent):
    """A claim was lost: ``phase`` is ``"extend"``, ``"complete"`` or ``"release"``."""

    type = "idempotency-lock-lost"
    phase: str


def _resolve(types: Iterable[type[Event] | str] | type[Event] | str | None) -> list[type[Event]]:
    if types is None:
        return list(TYPES.values())
    wanted = list(types) if hasattr(types, "__iter__") and not isinstance(types, str) else [types]
    found: list[type[Event]] = []
    for item in wanted:
        if isinstance(item, str) and item in TYPES:
            found.append(TYPES[item])
        elif isinstance(item, type) and issubclass(item, Event):
            found += [kind for kind in TYPES.values() if issubclass(kind, item)]
        else:
            raise ConfigurationError(
                f"subscribe: types must be event types or words of {', '.join(TYPES)}, got {shown(item)}"
            )
    return list(dict.fromkeys(found))


def subscribe(
    listener: Callable[[Any], object], types: Iterable[type[Event] | str] | type[Event] | str | None = None
) -> Callable[[], None]:
    """Call ``listener(event)`` for every event of these types.

    Args:
        listener: Runs synchronously where the event happens, outside every lock, in the order of subscription. What it
            raises is logged and dropped. Loss of a lease and other late news come on the library's dispatch thread.
        types: Event classes or their words (``"retry"``); None for all.

    Returns:
        A function that ends the subscription; calling it again has no effect.

    Raises:
        ConfigurationError: The listener is not callable or async, or a type is unknown.
    """
    from pyresil._logs import logger
    from pyresil._validate import Checker

    check = Checker("subscribe")
    check.required("listener", listener)
    check.done()
    logger()  # loaded now, and not when a listener raises in a signal handler or next to a fork
    entered = _resolve(types)
    for kind in entered:
        # One stretch without a call, here and below: no lock, which a fork could leave locked for ever.
        kind.listeners = (*kind.listeners, listener)
        note_listeners(kind)

    def unsubscribe() -> None:
        nonlocal entered
        mine, entered = entered, []
        for kind in mine:
            seen = kind.listeners
            while listener in seen:
                place = seen.index(listener)
                rest = seen[:place] + seen[place + 1 :]
                if kind.listeners is seen:
                    kind.listeners = rest
                    note_listeners(kind)
                    break
                seen = kind.listeners

    return unsubscribe


def note_listeners(kind: type[Event]) -> None:
    """Bring ``kind.heard`` in line with ``kind.listeners``, which was changed."""
    seen: tuple[Listener, ...] | None = None
    while seen is not kind.listeners:  # another thread changed it meanwhile
        seen = kind.listeners
        kind.heard[:] = seen


def emit(event: Event) -> None:
    """Hand an event to its listeners, in order; called outside every lock."""
    for listener in type(event).listeners:
        try:
            listener(event)
        except Exception:
            report_exception(f"a listener of {event.type!r} events raised")
