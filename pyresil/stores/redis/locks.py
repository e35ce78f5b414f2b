"""Locks on Redis: for all hosts that reach one primary.

A lock is a hash ``<prefix>{lock:<key>}`` that expires by itself; its fencing tokens come from a counter beside it, which is
seeded with the server's time, so they grow even where the counter was lost, and which expires seven days after its last use.
All keys of a lock are in one slot. One primary decides: no majority of independent servers is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil._validate import Checker
from pyresil.clock import SYSTEM
from pyresil.errors import StoreError
from pyresil.stores.base import (
    DEFAULT_PREFIX,
    DEFAULT_TIMEOUT,
    KEEP,
    Granted,
    Held,
    LockInfo,
    LockStore,
    check_key,
    check_meta,
    check_ms,
    check_owner,
    check_prefix,
    check_scan_prefix,
    check_timeout,
    check_token,
)
from pyresil.stores.redis._link import Link, check_client
from pyresil.stores.redis._urls import client_maker

if TYPE_CHECKING:
    from pyresil.durations import Duration

__all__ = ["RedisLockStore"]

_KEEP_MS = int(KEEP * 1000)
#: So many seconds after the end of a waiting its server is given up: who waits has a deadline, perhaps.
_LATE = 1.0


def escape(key: str) -> bytes:
    """A key as it stands inside the hash tag: braces would move it."""
    return key.replace("%", "%25").replace("{", "%7B").replace("}", "%7D").encode()


def unescape(key: bytes) -> str:
    """The key that `escape` was given."""
    return key.decode().replace("%7D", "}").replace("%7B", "{").replace("%25", "%")


class RedisLockStore(LockStore):
    """A lock store on Redis 7 and later, or Valkey.

    It makes its own connections to where the client points, so that every call ends in time whatever the client's socket
    timeout and retries are. Nothing is opened before the first use; no connection crosses a fork.

    A failover can lose what the old primary had not yet replicated, and with it a lock that was granted; fencing tokens grow
    over it, as they are seeded with time.

    Args:
        client: A URL, or the client that the application has: ``redis.Redis`` (with or without ``decode_responses``), a
            Sentinel master (``sentinel.master_for(…)``), ``redis.RedisCluster``, or their like of valkey-py.
        prefix: Put before every key (``"pyresil:"``); one for each service, without a brace.
        timeout: How long a call may take where it does not say so itself (5 s).

    Raises:
        ConfigurationError: An option is at fault.
        ImportError: redis is not installed and a URL was given; the text names the extra.
    """

    can_wait = True

    def __init__(
        self, client: Any, *, prefix: str = DEFAULT_PREFIX, timeout: Duration = DEFAULT_TIMEOUT
    ) -> None:
        check = Checker("Redis store")
        limit = check.duration("timeout", timeout)
        check.done()
        self._prefix = check_prefix(prefix, "Redis store").encode()
        if isinstance(client, str):
            client = client_maker(client, limit)
        else:
            check_client(client)
        self._link = Link(client, limit)
        self._own_timeout = limit

    def _key(self, key: str) -> bytes:
        return b"%s{lock:%s}" % (self._prefix, escape(check_key(key)))

    def acquire(
        self, key: str, owner: str, ttl_ms: int, meta: str = "", *, timeout: float | None = None
    ) -> Granted | Held:
        """Take the lock where it is free, expired, or already this owner's."""
        lock = self._key(key)
        args = (check_owner(owner), check_ms(ttl_ms), check_meta(meta), _KEEP_MS + ttl_ms)
        reply = self._run("lock_acquire", (lock, lock + b":token"), args, timeout)
        match reply:
            case [b"granted", token]:
                return Granted(self._token(token, key))
            case [b"held", int(left), token, meta_bytes]:
                return Held(self._left(left, key), self._token(token, key), self._text(meta_bytes, key))
        raise self._implausible(key, reply)

    def renew(self, key: str, owner: str, ttl_ms: int, *, timeout: float | None = None) -> bool:
        """Let the lock expire ``ttl_ms`` from now, where it still is this owner's."""
        lock = self._key(key)
        args = (check_owner(owner), check_ms(ttl_ms), _KEEP_MS + ttl_ms)
        return self._yes(key, self._run("lock_renew", (lock, lock + b":token"), args, timeout))

    def release(self, key: str, owner: str, min_hold_ms: int = 0, *, timeout: float | None = None) -> bool:
        """Give the lock back, where it still is this owner's."""
        lock = self._key(key)
        args = (check_owner(owner), check_ms(min_hold_ms, "min_hold_ms", 0))
        keys = (lock, lock + b":waiters", lock + b":bell")
        return self._yes(key, self._run("lock_release", keys, args, timeout))

    def force_release(self, key: str, *, timeout: float | None = None) -> bool:
        """Open the lock whoever holds it."""
        lock = self._key(key)
        keys = (lock, lock + b":waiters", lock + b":bell")
        return self._yes(key, self._run("lock_release", keys, ("", 0), timeout))

    def inspect(self, key: str, *, timeout: float | None = None) -> LockInfo | None:
        """What is known of the lock, or None where it is free."""
        reply = self._run("lock_inspect", (self._key(key),), (), timeout)
        match reply:
            case []:
                return None
            case [bytes() as owner, token, meta, int(left)]:
                text = self._text(owner, key)
                return LockInfo(
                    key, text, self._token(token, key), self._left(left, key), self._text(meta, key)
                )
        raise self._implausible(key, reply)

    def scan(self, prefix: str = "", *, timeout: float | None = None) -> list[LockInfo]:
        """All closed locks whose keys start with ``prefix``, sorted by key: one request for each, and for each 500 keys."""
        deadline = SYSTEM.monotonic() + check_timeout(timeout, self._link.timeout)
        start = b"%s{lock:" % self._prefix
        pattern = _literally(start + escape(check_scan_prefix(prefix))) + b"*}"
        names = self._link.scan(pattern, check_timeout(timeout, self._link.timeout))
        keys = sorted(
            unescape(name[len(start) : -1])
            for name in names
            if name.startswith(start) and name.endswith(b"}")
        )
        found = [self.inspect(key, timeout=max(deadline - SYSTEM.monotonic(), 0.001)) for key in keys]
        return [info for info in found if info is not None]

    def wait_for_release(self, key: str, *, timeout: float) -> bool:
        """Wait until a release rings, the lock expires, or the time is up."""
        lock = self._key(key)
        deadline = SYSTEM.monotonic() + check_timeout(timeout, self._link.timeout)
        first = True
        while True:
            left = deadline - SYSTEM.monotonic()
            if left <= 0.0 and not first:
                return False
            first = False
            window = max(1, int(left * 1000))
            limit = min(self._link.timeout, max(left, 0.0) + _LATE)
            opens = self._run("lock_wait", (lock, lock + b":waiters"), (window + 1_000,), limit)
            if not isinstance(opens, int):
                raise self._implausible(key, opens)
            if opens == 0:
                return True
            # 0 would be for ever; a little longer than the lock, so that it has expired then.
            pause = max(0.001, min(left, opens / 1000.0 + 0.002))
            rung = self._link.command(lock + b":bell", ("BLPOP", lock + b":bell", pause), pause + _LATE)
            if rung is not None:
                return True

    def diagnose(self, *, timeout: float | None = None) -> list[tuple[str, str, str]]:
        """Eviction, persistence and replication of the server (of one node, in a cluster)."""
        from pyresil.stores.redis._diagnose import diagnose

        limit = check_timeout(timeout, self._link.timeout)
        return diagnose(lambda words: self._link.command(self._key("doctor"), words, limit))

    def _run(self, name: str, keys: tuple[bytes, ...], args: tuple[Any, ...], timeout: float | None) -> Any:
        return self._link.run(name, keys, args, check_timeout(timeout, self._link.timeout))

    def _token(self, token: object, key: str) -> int:
        number = int(token) if isinstance(token, bytes) and token.isdigit() and len(token) <= 16 else token
        return check_token(number, key, self._link.where)

    def _left(self, left: int, key: str) -> int:
        if left == -1:
            raise StoreError(
                f"{self._link.where}: lock {key!r} never expires; another program may have written it. It was left as it is"
            )
        return max(1, left)

    def _text(self, value: object, key: str) -> str:
        if isinstance(value, bytes) and value.isascii():
            return value.decode("ascii")
        raise self._implausible(key, value)

    def _yes(self, key: str, reply: object) -> bool:
        if reply in (0, 1):
            return reply == 1
        raise self._implausible(key, reply)

    def _implausible(self, key: str, reply: object) -> StoreError:
        return StoreError(
            f"{self._link.where}: lock {key!r} reads {reply!r}; another program may have written it. It was left as it is"
        )

    def close(self) -> None:
        """Close the idle connections; a client that was handed over stays open. The store opens new ones when used again."""
        self._link.close()

    def __repr__(self) -> str:
        return f"<RedisLockStore {self._link.where} prefix={self._prefix.decode()!r}>"


def _literally(text: bytes) -> bytes:
    """The text as a glob pattern that matches only itself."""
    for char in (b"\\", b"*", b"?", b"[", b"]"):
        text = text.replace(char, b"\\" + char)
    return text
