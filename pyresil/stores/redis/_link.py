"""The way to a Redis server, a master behind Sentinel, or the nodes of a cluster: routing, scripts, retries, and errors.

Every script may be repeated after a lost reply, so a failed exchange is retried here until the call's deadline.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from pyresil.clock import SYSTEM
from pyresil.errors import ConfigurationError, StoreError, StoreUnavailableError
from pyresil.stores import _forks
from pyresil.stores._opening import Opening
from pyresil.stores.redis._server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

#: Pauses between tries: from the first to the longest, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25

#: Answers that pass: the server starts, elects, moves slots, or runs somebody's long script.
_PASSING = ("LOADING", "BUSY ", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "UNKILLABLE", "NOREPLICAS")
_PASSING_ERRORS = (
    "BusyLoadingError",
    "ClusterDownError",
    "MasterDownError",
    "TryAgainError",
    "SlotNotCoveredError",
)
_REFUSED = ("NOAUTH", "WRONGPASS", "NOPERM", "DENIED")


class Script:
    """A Lua file of this package.

    Attributes:
        text: Its source.
        sha: What the server calls it.
    """

    def __init__(self, name: str) -> None:
        import hashlib

        path = os.path.join(os.path.dirname(__file__), f"{name}.lua")  # noqa: PTH118, PTH120 - as everywhere in stores
        with open(path, "rb") as file:  # noqa: PTH123 - as everywhere in stores
            self.text = file.read()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


@cache
def script(name: str) -> Script:
    """The script of that name, read once."""
    return Script(name)


class Link:
    """Runs commands where a key lives.

    Args:
        client: A redis-py or valkey-py client (single server, Sentinel master, or cluster), or a function that makes one.
        timeout: Seconds for a call that does not say so itself.
    """

    def __init__(self, client: Any, timeout: float) -> None:
        self._make: Callable[[], Any] | None = client if not _is_client(client) else None
        self._client: Any = None if self._make else client
        self._library = _library_of(client) or "redis"  # a function makes a client of redis-py
        self.timeout = timeout
        self._server: Server | None = None
        self._nodes: dict[str, Server] = {}
        self._moved: dict[int, Server] = {}
        #: The generation of forks in which the layout of the cluster is being asked for; -1 where it is not.
        self._looking = -1
        self._errors_module: ModuleType | None = None

    @property
    def errors(self) -> ModuleType:
        """The exceptions of the client library."""
        if self._errors_module is None:
            self._errors_module = importlib.import_module(f"{self._library}.exceptions")
        return self._errors_module

    @property
    def client(self) -> Any:
        """The client, made at first use where it came as a function."""
        client = self._client
        if client is None:
            assert self._make is not None
            client = self._client = self._make()
        return client

    def _make_client(self, deadline: float) -> None:
        """Make the client where there is none: that of a cluster asks the nodes, which nobody waits for beyond the deadline."""
        make = self._make
        if self._client is None and make is not None:
            self._keep(Opening(make, self._keep, "pyresil-redis-client", self).wait(deadline))

    def _keep(self, made: Any) -> None:
        if self._client is None:
            self._client = made
        elif self._client is not made:
            made.close()  # another call was faster

    @property
    def where(self) -> str:
        """Names the server in messages."""
        server = self._server
        if self._client is None:
            return "Redis store"
        if server is not None:
            return f"Redis store {server.name}"
        return "Redis cluster store" if self._is_cluster else "Redis store"

    @property
    def _is_cluster(self) -> bool:
        return hasattr(self._client, "get_node_from_key")

    def run(self, name: str, keys: tuple[bytes, ...], args: tuple[Any, ...], timeout: float) -> Any:
        """Run a script on the node of its keys, which are in one slot; sent whole where the server does not know it."""
        source = script(name)
        known: tuple[Any, ...] = (b"EVALSHA", source.sha, len(keys), *keys, *args)
        server = self._server
        if server is not None:
            # The short way, for nearly all calls. Whatever fails is tried again the long way, which knows what it means.
            begun = SYSTEM.monotonic()
            try:
                return server.exchange(known, begun + timeout)
            except Exception as error:
                if not _is_the_clients(error):
                    raise
                timeout -= SYSTEM.monotonic() - begun
        whole: tuple[Any, ...] = (b"EVAL", source.text, len(keys), *keys, *args)
        return self._until(timeout, lambda deadline: self._routed(keys[0], known, whole, deadline))

    def command(self, key: bytes, words: tuple[Any, ...], timeout: float) -> Any:
        """Send one command once, to the node of ``key``."""
        return self._once(lambda deadline: self._routed(key, words, words, deadline, once=True), timeout)

    def scan(self, pattern: bytes, timeout: float) -> set[bytes]:
        """All keys that match a glob pattern, on all primaries."""
        return set(self._until(timeout, lambda deadline: list(self._scan(pattern, deadline))))

    def _scan(self, pattern: bytes, deadline: float) -> Iterator[bytes]:
        self._make_client(deadline)
        for server in self._primaries():
            cursor: Any = b"0"
            while True:
                cursor, keys = server.exchange(("SCAN", cursor, "MATCH", pattern, "COUNT", 500), deadline)
                yield from keys
                if cursor in {b"0", 0}:
                    break

    def _until(self, timeout: float, work: Callable[[float], Any]) -> Any:
        """Call ``work(deadline)`` again while the server cannot be reached."""
        deadline = SYSTEM.monotonic() + timeout
        pause = _FIRST_PAUSE
        while True:
            try:
                return self._once(work, deadline - SYSTEM.monotonic())
            except StoreUnavailableError as error:
                left = deadline - SYSTEM.monotonic()
                if left <= pause or not getattr(error, "passing", True):
                    raise
                SYSTEM.sleep(pause * (0.5 + SYSTEM.random() / 2.0))
                pause = min(pause * 2.0, _LONGEST_PAUSE)

    def _once(self, work: Callable[[float], Any], timeout: float) -> Any:
        deadline = SYSTEM.monotonic() + timeout
        try:
            return work(deadline)
        except Exception as error:
            if not _is_the_clients(error):
                raise
            raise self._translated(error) from error

    def _routed(
        self,
        key: bytes,
        known: tuple[Any, ...],
        whole: tuple[Any, ...],
        deadline: float,
        *,
        once: bool = False,
    ) -> Any:
        self._make_client(deadline)
        server = self._server_of(key)
        words, asking = known, False
        for _ in range(8):
            try:
                return server.exchange(words, deadline, asking=asking, once=once)
            except self.errors.NoScriptError:
                words = whole
            except self.errors.AskError as error:  # and MovedError, which derives from it
                asking = not isinstance(error, self.errors.MovedError)
                server = self._node_at(server, error.host, error.port)
                if not asking:
                    self._moved[error.slot_id] = server
        raise StoreUnavailableError(f"{self.where}: the cluster sends a key from node to node")

    def _server_of(self, key: bytes) -> Server:
        client, server = self.client, self._server
        if not hasattr(client, "get_node_from_key"):
            if server is None:
                pool = client.connection_pool
                server = self._server = Server(pool.connection_class, pool.connection_kwargs, self.errors)
            return server
        moved = self._moved.get(client.keyslot(key)) if self._moved else None
        return moved or self._node(client.get_node_from_key(key))

    def _node(self, node: Any) -> Server:
        found = self._nodes.get(node.name)
        if found is None:
            pool = self.client.get_redis_connection(node).connection_pool
            found = Server(pool.connection_class, pool.connection_kwargs, self.errors)
            found = self._nodes.setdefault(node.name, found)
        return found

    def _node_at(self, like: Server, host: str, port: int) -> Server:
        name = f"{host}:{port}"
        found = self._nodes.get(name)
        return found or self._nodes.setdefault(name, like.at(host, port))

    def _primaries(self) -> list[Server]:
        if not hasattr(self.client, "get_node_from_key"):
            return [self._server_of(b"")]
        return [self._node(node) for node in self.client.get_primaries()]

    def _look_again(self) -> None:
        """The layout of the cluster may have changed: ask it.

        In a thread: the client asks one node after the other, each for as long as its own options say, which may be for ever. A
        call that has time left tries again meanwhile.
        """
        generation, client = _forks.generation, self._client
        self._moved = {}
        if client is None or self._looking == generation:
            return  # closed meanwhile, or being asked already, which may take long

        def look() -> None:
            try:
                with suppress(Exception):  # it cannot be reached: the next try finds out by itself
                    client.nodes_manager.initialize()
            finally:
                self._looking = -1

        self._looking = generation
        try:
            SYSTEM.spawn(look, "pyresil-cluster-layout")
        except RuntimeError:  # no further thread, at the end of the interpreter for one
            self._looking = -1
        except BaseException:
            self._looking = -1
            raise

    def _translated(self, error: Exception) -> StoreError:
        """What the error means to a user, in one line that says what to do."""
        errors, where = self.errors, self.where
        # Without the objects that redis-py's Sentinel shows, whole pools of connections.
        text = " ".join(str(error).split()).partition(" : <")[0]
        refused = (errors.AuthenticationError, errors.AuthorizationError, errors.NoPermissionError)
        if isinstance(error, refused) or text.startswith(_REFUSED):
            return StoreError(
                f"{where} refused the credentials ({text}): check user name, password and the user's rights"
            )
        if isinstance(error, errors.ReadOnlyError) or "READONLY" in text:
            return StoreError(f"{where} is a read-only replica: connect to the primary")
        if isinstance(error, errors.OutOfMemoryError) or text.startswith("OOM"):
            full = StoreUnavailableError(
                f"{where} is out of memory (maxmemory): make room; no lock can be taken until then"
            )
            full.passing = False  # type: ignore[attr-defined]  # read by _until alone: waiting a little does not help
            return full
        if "PYRESIL foreign" in text or "WRONGTYPE" in text:
            return StoreError(
                f"{where}: a key of this lock was written by another program; it was left as it is"
            )
        names = (
            "ConnectionError",
            "TimeoutError",
            f"{self._library.capitalize()}ClusterException",
            *_PASSING_ERRORS,
        )
        lost: tuple[type[Exception], ...] = (OSError, *(getattr(errors, name, OSError) for name in names))
        if isinstance(error, lost) or text.startswith(_PASSING):
            if self._is_cluster:
                self._look_again()
            return StoreUnavailableError(f"{where} cannot be reached ({text}): what it holds is unknown")
        if isinstance(error, errors.ResponseError):
            hint = (
                "; Redis 7 or later is needed" if "unexpected symbol" in text or "compiling" in text else ""
            )
            return StoreError(f"{where} answered: {text}{hint}")
        if isinstance(error, errors.InvalidResponse):
            return StoreError(f"{where} does not speak the protocol of Redis ({text}): is it another server?")
        raise error

    def close(self) -> None:
        """Close idle connections; the client that was handed over is its owner's to close."""
        for server in [*self._nodes.values(), *([self._server] if self._server else [])]:
            server.close()
        if self._make is not None:
            client, self._client = self._client, None
            self._server, self._nodes, self._moved = None, {}, {}
            if client is not None:
                client.close()


def _library_of(thing: Any) -> str:
    """``redis`` or ``valkey``: whichever the client, or the error, is derived from."""
    for cls in type(thing).__mro__:
        library: str = cls.__module__.partition(".")[0]
        if library in {"redis", "valkey"}:
            return library
    return ""


def _is_the_clients(error: Exception) -> bool:
    """Whether the client library or the network failed; what a signal handler raised (a job's time is up) goes to the caller."""
    return isinstance(error, OSError) or bool(_library_of(error))


def _is_client(client: Any) -> bool:
    return bool(_library_of(client)) and (
        hasattr(client, "connection_pool") or hasattr(client, "get_node_from_key")
    )


def check_client(client: Any) -> None:
    """Refuse what is no synchronous client of redis-py or valkey-py.

    Raises:
        ConfigurationError: It is something else.
    """
    asynchronous = any(".asyncio" in cls.__module__ for cls in type(client).__mro__)
    if asynchronous or not _is_client(client):
        wrong = "an asyncio client" if asynchronous else type(client).__name__
        raise ConfigurationError(
            f"Redis store: client must be a URL, or a redis.Redis, redis.RedisCluster or Sentinel master, got {wrong}"
        )
