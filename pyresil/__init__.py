"""Sync-first, thread-safe resilience for Python services that run on threads.

Every public name but those of ``pyresil.integrations``, ``pyresil.testing`` and ``pyresil.cli`` comes from here. Modules are
loaded when one of their names is first used (PEP 562), so ``import pyresil`` costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing it from typing would cost a start of the command 2.5 ms

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pyresil._bound import BoundPolicy as BoundPolicy
    from pyresil._engine.backoff import Backoff as Backoff
    from pyresil._engine.backoff import Constant as Constant
    from pyresil._engine.backoff import Decorrelated as Decorrelated
    from pyresil._engine.backoff import Exponential as Exponential
    from pyresil._engine.backoff import Linear as Linear
    from pyresil._engine.budget import RetryBudget as RetryBudget
    from pyresil._engine.circuit import CircuitState as CircuitState
    from pyresil._execution import Attempt as Attempt
    from pyresil._execution import Execution as Execution
    from pyresil._merging import policy_of as policy_of
    from pyresil.cancel import CancelToken as CancelToken
    from pyresil.clock import Clock as Clock
    from pyresil.clock import SystemClock as SystemClock
    from pyresil.context import Context as Context
    from pyresil.context import current_context as current_context
    from pyresil.context import current_lease as current_lease
    from pyresil.context import fencing_token as fencing_token
    from pyresil.decorators import bulkhead as bulkhead
    from pyresil.decorators import cached as cached
    from pyresil.decorators import circuit_breaker as circuit_breaker
    from pyresil.decorators import fallback as fallback
    from pyresil.decorators import hedge as hedge
    from pyresil.decorators import locked as locked
    from pyresil.decorators import rate_limit as rate_limit
    from pyresil.decorators import retry as retry
    from pyresil.decorators import timeout as timeout
    from pyresil.durations import Duration as Duration
    from pyresil.durations import RateLike as RateLike
    from pyresil.errors import BulkheadFullError as BulkheadFullError
    from pyresil.errors import CancelledError as CancelledError
    from pyresil.errors import CircuitOpenError as CircuitOpenError
    from pyresil.errors import ConfigurationError as ConfigurationError
    from pyresil.errors import LockError as LockError
    from pyresil.errors import LockLostError as LockLostError
    from pyresil.errors import LockNotAcquiredError as LockNotAcquiredError
    from pyresil.errors import PolicyUsageError as PolicyUsageError
    from pyresil.errors import PyresilError as PyresilError
    from pyresil.errors import RateLimitedError as RateLimitedError
    from pyresil.errors import RecursiveLoadError as RecursiveLoadError
    from pyresil.errors import RejectedError as RejectedError
    from pyresil.errors import StoreError as StoreError
    from pyresil.errors import StoreUnavailableError as StoreUnavailableError
    from pyresil.errors import TimeoutExceededError as TimeoutExceededError
    from pyresil.errors import TimeoutSaturatedError as TimeoutSaturatedError
    from pyresil.events import BulkheadRejected as BulkheadRejected
    from pyresil.events import CacheHit as CacheHit
    from pyresil.events import CacheMiss as CacheMiss
    from pyresil.events import CacheRefreshFailed as CacheRefreshFailed
    from pyresil.events import CacheStale as CacheStale
    from pyresil.events import CircuitClosed as CircuitClosed
    from pyresil.events import CircuitHalfOpened as CircuitHalfOpened
    from pyresil.events import CircuitIsolated as CircuitIsolated
    from pyresil.events import CircuitOpened as CircuitOpened
    from pyresil.events import CircuitRejected as CircuitRejected
    from pyresil.events import CircuitStoreError as CircuitStoreError
    from pyresil.events import Event as Event
    from pyresil.events import Executed as Executed
    from pyresil.events import FellBack as FellBack
    from pyresil.events import Hedged as Hedged
    from pyresil.events import IdempotencyLockLost as IdempotencyLockLost
    from pyresil.events import IdempotencyRejected as IdempotencyRejected
    from pyresil.events import IdempotencyReplayed as IdempotencyReplayed
    from pyresil.events import JobSkipped as JobSkipped
    from pyresil.events import LeadershipAcquired as LeadershipAcquired
    from pyresil.events import LeadershipLost as LeadershipLost
    from pyresil.events import LockAcquired as LockAcquired
    from pyresil.events import LockLost as LockLost
    from pyresil.events import LockRejected as LockRejected
    from pyresil.events import LockReleased as LockReleased
    from pyresil.events import LockRenewFailed as LockRenewFailed
    from pyresil.events import RateLimited as RateLimited
    from pyresil.events import Retried as Retried
    from pyresil.events import TimedOut as TimedOut
    from pyresil.events import subscribe as subscribe
    from pyresil.locks.election import Election as Election
    from pyresil.locks.lease import Lease as Lease
    from pyresil.locks.locks import Locks as Locks
    from pyresil.outcome import Failure as Failure
    from pyresil.outcome import Outcome as Outcome
    from pyresil.outcome import Success as Success
    from pyresil.outcome import caused_by as caused_by
    from pyresil.outcome import status_of as status_of
    from pyresil.policy import Policy as Policy
    from pyresil.registry import Registry as Registry
    from pyresil.stores.backend import Backend as Backend
    from pyresil.stores.backend import connect as connect
    from pyresil.stores.base import Granted as Granted
    from pyresil.stores.base import Held as Held
    from pyresil.stores.base import LockInfo as LockInfo
    from pyresil.stores.base import LockStore as LockStore
    from pyresil.stores.cache import CacheStore as CacheStore
    from pyresil.stores.cache import Found as Found
    from pyresil.stores.cache import MemoryCacheStore as MemoryCacheStore
    from pyresil.stores.circuits import CircuitSnapshot as CircuitSnapshot
    from pyresil.stores.circuits import CircuitStateStore as CircuitStateStore
    from pyresil.stores.circuits import MemoryCircuitStore as MemoryCircuitStore
    from pyresil.stores.circuits import VersionedCircuit as VersionedCircuit
    from pyresil.stores.limiter import Decision as Decision
    from pyresil.stores.limiter import LimiterStore as LimiterStore
    from pyresil.stores.limiter import LimitSpec as LimitSpec
    from pyresil.stores.limiter import MemoryLimiterStore as MemoryLimiterStore
    from pyresil.stores.memory import MemoryLockStore as MemoryLockStore
    from pyresil.stores.postgres import PostgresLockStore as PostgresLockStore
    from pyresil.stores.redis.locks import RedisLockStore as RedisLockStore
    from pyresil.stores.sqlite import SQLiteLockStore as SQLiteLockStore
    from pyresil.strategies.adaptive_bulkhead import AdaptiveBulkhead as AdaptiveBulkhead
    from pyresil.strategies.adaptive_bulkhead import AdaptiveBulkheadStats as AdaptiveBulkheadStats
    from pyresil.strategies.bulkhead import Bulkhead as Bulkhead
    from pyresil.strategies.bulkhead import BulkheadStats as BulkheadStats
    from pyresil.strategies.cache import Cache as Cache
    from pyresil.strategies.circuit_breaker import CircuitBreaker as CircuitBreaker
    from pyresil.strategies.circuit_breaker import CircuitStats as CircuitStats
    from pyresil.strategies.fallback import Fallback as Fallback
    from pyresil.strategies.hedge import Hedge as Hedge
    from pyresil.strategies.lock import Lock as Lock
    from pyresil.strategies.rate_limit import RateDecision as RateDecision
    from pyresil.strategies.rate_limit import RateLimit as RateLimit
    from pyresil.strategies.rate_limit import RateLimitStats as RateLimitStats
    from pyresil.strategies.rate_limit import Reservation as Reservation
    from pyresil.strategies.retry import Retry as Retry
    from pyresil.strategies.timeout import Timeout as Timeout
    from pyresil.strategy import Call as Call
    from pyresil.strategy import Guard as Guard
    from pyresil.strategy import Stepper as Stepper
    from pyresil.strategy import Strategy as Strategy

#: Where each public name lives, by group.
_HOMES = {
    "pyresil.registry": ("Registry",),
    "pyresil.decorators": (
        "fallback",
        "cached",
        "locked",
        "retry",
        "hedge",
        "circuit_breaker",
        "rate_limit",
        "bulkhead",
        "timeout",
    ),
    "pyresil._merging": ("policy_of",),
    "pyresil.strategies.cache": ("Cache",),
    "pyresil.stores.cache": ("CacheStore", "MemoryCacheStore", "Found"),
    "pyresil.policy": ("Policy",),
    "pyresil._bound": ("BoundPolicy",),
    "pyresil._execution": ("Execution", "Attempt"),
    "pyresil.strategies.rate_limit": ("RateLimit", "RateDecision", "RateLimitStats", "Reservation"),
    "pyresil.strategies.retry": ("Retry",),
    "pyresil._engine.backoff": ("Backoff", "Exponential", "Constant", "Linear", "Decorrelated"),
    "pyresil._engine.budget": ("RetryBudget",),
    "pyresil.strategies.circuit_breaker": ("CircuitBreaker", "CircuitState", "CircuitStats"),
    "pyresil.strategies.fallback": ("Fallback",),
    "pyresil.strategies.bulkhead": ("Bulkhead", "BulkheadStats"),
    "pyresil.strategies.adaptive_bulkhead": ("AdaptiveBulkhead", "AdaptiveBulkheadStats"),
    "pyresil.strategies.timeout": ("Timeout",),
    "pyresil.strategies.hedge": ("Hedge",),
    "pyresil.strategies.lock": ("Lock",),
    "pyresil.context": ("Context", "current_context", "current_lease", "fencing_token"),
    "pyresil.cancel": ("CancelToken",),
    "pyresil.clock": ("Clock", "SystemClock"),
    "pyresil.outcome": ("Success", "Failure", "Outcome", "caused_by", "status_of"),
    "pyresil.durations": ("Duration", "RateLike"),
    "pyresil.events": (
        "Event",
        "subscribe",
        "BulkheadRejected",
        "CacheHit",
        "CacheMiss",
        "CacheRefreshFailed",
        "CacheStale",
        "CircuitClosed",
        "CircuitHalfOpened",
        "CircuitIsolated",
        "CircuitOpened",
        "CircuitRejected",
        "CircuitStoreError",
        "Executed",
        "FellBack",
        "Hedged",
        "IdempotencyLockLost",
        "IdempotencyRejected",
        "IdempotencyReplayed",
        "JobSkipped",
        "LeadershipAcquired",
        "LeadershipLost",
        "LockAcquired",
        "LockLost",
        "LockRejected",
        "LockReleased",
        "LockRenewFailed",
        "RateLimited",
        "Retried",
        "TimedOut",
    ),
    "pyresil.locks.locks": ("Locks",),
    "pyresil.locks.lease": ("Lease",),
    "pyresil.locks.election": ("Election",),
    "pyresil.strategy": ("Strategy", "Guard", "Stepper", "Call"),
    "pyresil.stores.backend": ("connect", "Backend"),
    "pyresil.stores.base": ("LockStore", "Granted", "Held", "LockInfo"),
    "pyresil.stores.circuits": (
        "CircuitStateStore",
        "MemoryCircuitStore",
        "CircuitSnapshot",
        "VersionedCircuit",
    ),
    "pyresil.stores.limiter": ("LimiterStore", "MemoryLimiterStore", "LimitSpec", "Decision"),
    "pyresil.stores.memory": ("MemoryLockStore",),
    "pyresil.stores.postgres": ("PostgresLockStore",),
    "pyresil.stores.redis.locks": ("RedisLockStore",),
    "pyresil.stores.sqlite": ("SQLiteLockStore",),
    "pyresil.errors": (
        "PyresilError",
        "ConfigurationError",
        "PolicyUsageError",
        "TimeoutExceededError",
        "CancelledError",
        "RecursiveLoadError",
        "StoreError",
        "StoreUnavailableError",
        "LockError",
        "LockLostError",
        "RejectedError",
        "CircuitOpenError",
        "BulkheadFullError",
        "RateLimitedError",
        "TimeoutSaturatedError",
        "LockNotAcquiredError",
    ),
}

_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: PLE0604 - grouped by module in _HOMES
    "__version__",
    *_HOME_OF,
]


def __getattr__(name: str) -> object:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
