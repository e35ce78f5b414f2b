"""`connect`: one connection to a server or file by URL, from which all stores come."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyresil._validate import Checker
from pyresil.clock import Clock
from pyresil.errors import ConfigurationError
from pyresil.stores._default import path_of
from pyresil.stores.base import DEFAULT_PREFIX, check_prefix

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pyresil.stores.base import LockStore
    from pyresil.stores.cache import CacheStore
    from pyresil.stores.circuits import CircuitStateStore
    from pyresil.stores.limiter import LimiterStore

__all__ = ["Backend", "connect"]

_KNOWN = {
    "memory": "memory:",
    "sqlite": "sqlite:///path/to/file.db",
    "redis": "redis://host:6379/0",
    "rediss": "rediss://host:6379/0",
    "redis+sentinel": "redis+sentinel://host:26379,host2:26379/service/0",
    "redis+cluster": "redis+cluster://host:7000",
    "postgresql": "postgresql://user@host/database",
}


def connect(url: str, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None) -> Backend:
    """A backend for all shared state of one service. Nothing is opened before its first use.

    Args:
        url: ``"memory:"``, ``"sqlite:///path"`` (three slashes for a relative path, four for an absolute one),
            ``"redis://…"``, ``"rediss://…"``, ``"redis+sentinel://host,host/service/0"``, ``"redis+cluster://…"`` or
            ``"postgresql://…"``.
        prefix: Put before every key; one for each service. A brace in it is refused.
        clock: The clock of waiting, and of expiry where the store has no clock of its own (memory).

    Returns:
        The `Backend`.

    Raises:
        ConfigurationError: The URL, the prefix or the clock is at fault; a password in the URL is not shown.
        StoreError: A path is relative to a folder that was deleted.
        ImportError: The client library is missing; the text names the extra to install.
    """
    return Backend(url, prefix, clock)


def _refuse(must: str) -> NoReturn:
    raise ConfigurationError(f"connect: {must}")


def _scheme_of(url: object) -> tuple[str, str]:
    """The scheme and the rest of a URL."""
    known = ", ".join(_KNOWN.values())
    if not isinstance(url, str):
        _refuse(f"url must be a string such as {known}, got {type(url).__name__}")
    scheme, colon, rest = url.strip().partition(":")
    scheme = scheme.lower()
    if scheme == "postgres":
        scheme = "postgresql"
    if not colon or scheme not in _KNOWN:
        shown = f"scheme {scheme!r}" if colon else "a URL without a scheme"
        _refuse(f"url must be one of {known}; got {shown}")
    return scheme, rest


class Backend:
    """The stores that share one server or file.

    Attributes:
        url: The URL without user name and password.
        prefix: What stands before every key.
    """

    def __init__(self, url: str, prefix: str = DEFAULT_PREFIX, clock: Clock | None = None) -> None:
        self._scheme, rest = _scheme_of(url)
        self.prefix = check_prefix(prefix, "connect")
        self._url = url.strip()
        check = Checker("connect")
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        check.done()
        # A file has no password, and may have an @ in its name.
        self.url = f"{self._scheme}:{rest if self._scheme == 'sqlite' else _without_password(rest)}"
        self._locks: LockStore | None = None
        self._cache: CacheStore | None = None
        self._limiter: LimiterStore | None = None
        self._circuits: CircuitStateStore | None = None
        self._path = ""
        if self._scheme == "memory" and rest not in {"", "//"}:
            _refuse(f"url must be memory: and nothing more, got {self.url}")
        if self._scheme == "sqlite":
            self._path = path_of(rest)
            # Now, because a relative path is below the folder of now: it opens nothing.
            self._locks = self._make_locks()
        elif self._scheme != "memory" and not rest.startswith("//"):
            _refuse(f"url must be like {_KNOWN[self._scheme]}")
        if self._scheme.startswith("redis"):
            _require("redis", "redis")
        elif self._scheme == "postgresql":
            _require("psycopg", "postgres")

    @property
    def locks(self) -> LockStore:
        """The lock store; the same object every time."""
        if self._locks is None:
            fresh = self._make_locks()
            if self._locks is None:
                self._locks = fresh
        return self._locks

    def _make_locks(self) -> LockStore:
        if self._scheme == "memory":
            from pyresil.stores.memory import MemoryLockStore

            return MemoryLockStore(self._clock)
        if self._scheme == "sqlite":
            from pyresil.stores.sqlite import SQLiteLockStore

            return SQLiteLockStore(self._path, prefix=self.prefix)
        if self._scheme.startswith("redis"):
            from pyresil.stores.redis.locks import RedisLockStore

            return RedisLockStore(self._url, prefix=self.prefix)
        from pyresil.stores.postgres import PostgresLockStore

        return PostgresLockStore(self._url, prefix=self.prefix)

    def create_tables(self) -> None:
        """Make the tables of all stores where the backend is a database that needs it; elsewhere there is nothing to do."""
        from pyresil.stores.postgres import PostgresLockStore

        if isinstance(self.locks, PostgresLockStore):
            self.locks.create_tables()

    @property
    def cache(self) -> CacheStore:
        """The cache store; the same object every time."""
        if self._cache is None:
            if self._scheme != "memory":
                _refuse(f"{self._scheme} has no cache store; in this version memory: has one")
            from pyresil.stores.cache import MemoryCacheStore

            fresh = MemoryCacheStore(clock=self._clock)
            if self._cache is None:
                self._cache = fresh
        return self._cache

    @property
    def limiter(self) -> LimiterStore:
        """The limiter store; the same object every time."""
        if self._limiter is None:
            if self._scheme != "memory":
                _refuse(f"{self._scheme} has no limiter store; in this version memory: has one")
            from pyresil.stores.limiter import MemoryLimiterStore

            fresh = MemoryLimiterStore(self._clock)
            if self._limiter is None:
                self._limiter = fresh
        return self._limiter

    @property
    def circuits(self) -> CircuitStateStore:
        """The circuit store; the same object every time."""
        if self._circuits is None:
            if self._scheme != "memory":
                _refuse(f"{self._scheme} has no circuit store; in this version memory: has one")
            from pyresil.stores.circuits import MemoryCircuitStore

            fresh = MemoryCircuitStore(self._clock)
            if self._circuits is None:
                self._circuits = fresh
        return self._circuits

    def close(self) -> None:
        """Close what was opened here. It opens again when it is used again."""
        if self._locks is not None:
            self._locks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Backend {self.url} prefix={self.prefix!r}>"


def _without_password(rest: str) -> str:
    """The URL after its scheme, without what stands before its last @, and without its options."""
    if not rest.startswith("//"):
        return rest
    # Not the last one of the host alone: a password with a plain / in it ends behind it.
    plain, _, options = rest[2:].partition("?")
    if "@" in options:
        return "//…"  # of an option's value, or of a password with a plain ? in it: nobody can tell
    return f"//{plain.rpartition('@')[2]}"


def _require(module: str, extra: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise ImportError(f'{module} is not installed: pip install "pyresil[{extra}]"', name=module)
