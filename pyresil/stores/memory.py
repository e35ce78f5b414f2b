"""Locks in the memory of one process: for tests, for one-process programs, and for strategies that need no other store."""

from __future__ import annotations

import threading

from pyresil._validate import Checker
from pyresil.clock import SYSTEM, Clock, Parker
from pyresil.errors import StoreError
from pyresil.stores.base import (
    MAX_TOKEN,
    Granted,
    Held,
    LockInfo,
    LockStore,
    check_key,
    check_meta,
    check_ms,
    check_owner,
    check_scan_prefix,
    check_timeout,
    ms_from_seconds,
)
from pyresil.strategy import Forkable

__all__ = ["MemoryLockStore"]

#: Expired rows are swept when so many rows were added since the last sweep, or as many as that one left.
_SWEEP = 256


class _Row:
    """One closed lock. A row that is free is taken out."""

    __slots__ = ("acquired", "expires", "meta", "owner", "token")

    def __init__(self, owner: str, meta: str) -> None:
        self.owner = owner
        self.meta = meta
        self.token = 0
        self.acquired = 0.0
        self.expires = 0.0


class MemoryLockStore(LockStore, Forkable):
    """A lock store for the threads of one process; the child of a fork starts with an empty one.

    Tokens come from one counter for all keys, so a key that was forgotten still gets larger ones. Rows leave when they are
    released and are swept when they are expired. A release wakes everybody who waits for the key.

    Args:
        clock: The clock of expiry (its `boottime`, which counts suspend) and of waiting; None for the system's.

    Raises:
        ConfigurationError: ``clock`` is none.
    """

    can_wait = True

    def __init__(self, clock: Clock | None = None) -> None:
        check = Checker("memory lock store")
        self._clock: Clock = check.instance("clock", clock, Clock, "a Clock or None") or SYSTEM
        check.done()
        self._lock: threading.RLock | None = None
        self._rows: dict[str, _Row] = {}
        self._waiters: dict[str, list[Parker]] = {}
        self._last_token = 0
        self._sweep_at = _SWEEP
        self._watch_forks()

    def _after_fork(self) -> None:
        self._lock = None
        self._rows = {}
        self._waiters = {}

    def _guard(self) -> threading.RLock:
        # At first use, because gevent patches threading after a constructor may have run.
        lock = self._lock
        if lock is None:
            fresh = threading.RLock()
            if self._lock is None:
                self._lock = fresh
            lock = self._lock
        return lock

    # In every method below there is no call and no loop between the first read of a row and the last write: a signal
    # handler that uses the store itself runs before or after that stretch, never in it.

    def acquire(
        self, key: str, owner: str, ttl_ms: int, meta: str = "", *, timeout: float | None = None
    ) -> Granted | Held:
        """Take the lock where it is free, expired, or already this owner's."""
        check_key(key)
        check_timeout(timeout, 1.0)
        ttl = check_ms(ttl_ms) / 1000.0
        fresh = _Row(check_owner(owner), check_meta(meta))
        wall = int(self._clock.wall() * 1e6)
        rows = self._rows
        with self._guard():
            now = self._clock.boottime()
            row = rows[key] if key in rows else None  # noqa: SIM401 - get() is a call
            if row is not None and row.expires > now:
                if row.owner == owner:
                    row.expires = now + ttl
                    row.meta = meta
                    mine = True
                else:
                    mine = False
            else:
                token = self._last_token + 1 if self._last_token >= wall else wall
                self._last_token = token
                fresh.token = token
                fresh.acquired = now
                fresh.expires = now + ttl
                rows[key] = row = fresh
                mine = True
            answer = (
                Granted(row.token) if mine else Held(ms_from_seconds(row.expires - now), row.token, row.meta)
            )
        if not 1 <= row.token <= MAX_TOKEN:
            self.release(key, owner)
            raise StoreError(
                f"memory store: the fencing token {row.token} is beyond 2^53-1; is the wall clock right?"
            )
        if len(rows) >= self._sweep_at:
            self._sweep()
        return answer

    def renew(self, key: str, owner: str, ttl_ms: int, *, timeout: float | None = None) -> bool:
        """Let the lock expire ``ttl_ms`` from now, where it still is this owner's."""
        check_key(key)
        check_owner(owner)
        check_timeout(timeout, 1.0)
        ttl = check_ms(ttl_ms) / 1000.0
        rows = self._rows
        done = False
        with self._guard():
            now = self._clock.boottime()
            if key in rows:
                row = rows[key]
                if row.owner == owner and row.expires > now:
                    row.expires = now + ttl
                    done = True
        return done

    def release(self, key: str, owner: str, min_hold_ms: int = 0, *, timeout: float | None = None) -> bool:
        """Give the lock back, where it still is this owner's; its waiters wake."""
        check_key(key)
        check_owner(owner)
        check_timeout(timeout, 1.0)
        hold = check_ms(min_hold_ms, "min_hold_ms", 0) / 1000.0
        rows = self._rows
        done = False
        with self._guard():
            now = self._clock.boottime()
            if key in rows:
                row = rows[key]
                if row.owner == owner and row.expires > now:
                    done = True
                    if row.acquired + hold > now:
                        row.owner = ""
                        row.expires = row.acquired + hold
                    else:
                        del rows[key]
        if done:
            self._wake(key)
        return done

    def force_release(self, key: str, *, timeout: float | None = None) -> bool:
        """Open the lock whoever holds it; its waiters wake."""
        check_key(key)
        check_timeout(timeout, 1.0)
        rows = self._rows
        done = False
        with self._guard():
            now = self._clock.boottime()
            if key in rows:
                done = rows[key].expires > now
                del rows[key]
        if done:
            self._wake(key)
        return done

    def inspect(self, key: str, *, timeout: float | None = None) -> LockInfo | None:
        """What is known of the lock, or None where it is free."""
        check_key(key)
        check_timeout(timeout, 1.0)
        with self._guard():
            return self._info(key, self._clock.boottime())

    def scan(self, prefix: str = "", *, timeout: float | None = None) -> list[LockInfo]:
        """All closed locks whose keys start with ``prefix``, sorted by key."""
        check_scan_prefix(prefix)
        check_timeout(timeout, 1.0)
        with self._guard():
            now = self._clock.boottime()
            keys = sorted(key for key in list(self._rows) if key.startswith(prefix))
            found = [self._info(key, now) for key in keys]
        return [info for info in found if info is not None]

    def _info(self, key: str, now: float) -> LockInfo | None:
        row = self._rows.get(key)
        if row is None or row.expires <= now:
            return None
        return LockInfo(key, row.owner, row.token, ms_from_seconds(row.expires - now), row.meta)

    def wait_for_release(self, key: str, *, timeout: float) -> bool:
        """Wait until the key is released or opens, at most ``timeout`` seconds."""
        check_key(key)
        parker = Parker()
        try:
            with self._guard():
                self._waiters.setdefault(key, []).append(parker)
            # Looked at once we are listed, so that no release falls in between.
            info = self.inspect(key)
            if info is None:
                return True
            left = info.remaining_ms / 1000.0
            return self._clock.park(parker, min(timeout, left)) or left <= timeout
        finally:
            with self._guard():
                waiting = self._waiters.get(key)
                if waiting is not None and parker in waiting:
                    waiting.remove(parker)
                    if not waiting:
                        self._waiters.pop(key, None)

    def _wake(self, key: str) -> None:
        for parker in list(self._waiters.get(key, ())):
            parker.unpark()

    def _sweep(self) -> None:
        with self._guard():
            now = self._clock.boottime()
            rows = self._rows
            for key in list(rows):
                if key in rows:
                    row = rows[key]
                    if row.expires <= now:
                        del rows[key]
            self._sweep_at = max(_SWEEP, 2 * len(self._rows))

    def __repr__(self) -> str:
        return f"<MemoryLockStore with {len(self._rows)} closed locks>"
