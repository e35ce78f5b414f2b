"""Locks in a SQLite file: for all processes of one host, with nothing to install.

Every method is one autocommitted statement (WAL, ``synchronous=FULL``, so a token that was given out survives a power
failure). Expiry runs on the clock since boot, read by SQL after the statement has the file's write lock; a row of another
boot is free.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pyresil._validate import Checker
from pyresil.clock import SYSTEM
from pyresil.errors import StoreError
from pyresil.stores._sqlite import SQLiteFile
from pyresil.stores._sqlite_layout import LOCKS, remaining_ms
from pyresil.stores.base import (
    DEFAULT_PREFIX,
    DEFAULT_TIMEOUT,
    KEEP,
    MAX_TOKEN,
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

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.clock import Clock
    from pyresil.durations import Duration
    from pyresil.stores._sqlite import Connection


__all__ = ["SQLiteLockStore"]

#: Rows are pruned at the first of so many grants, and then once for each as many.
_PRUNE_EVERY = 500
#: A waiter looks for a release this often, in seconds: a read of 15 µs that takes no lock.
_POLL = 0.025

_NOW = "(CAST(pyresil_now() * 1000000 AS INTEGER) - :offset)"
#: What a foreign program wrote is left as it is, and reported.
_SOUND = " AND ".join(
    [f"typeof({name}) = 'integer'" for name in ("token", "acquired", "expires")]
    + [f"typeof({name}) = 'text'" for name in ("owner", "meta", "boot")]
)
_MINE = f"owner = :owner AND boot = :boot AND expires > {_NOW} AND {_SOUND}"

_SAME = "(owner = excluded.owner AND boot = excluded.boot AND expires > excluded.acquired)"
_ACQUIRE = f"""
INSERT INTO pyresil_locks (key, owner, token, meta, boot, acquired, expires, used_at)
VALUES (:key, :owner, :wall, :meta, :boot, {_NOW}, {_NOW} + :ttl, :wall / 1000000)
ON CONFLICT (key) DO UPDATE SET
  token = CASE WHEN {_SAME} THEN token ELSE max(token + 1, excluded.token) END,
  acquired = CASE WHEN {_SAME} THEN acquired ELSE excluded.acquired END,
  owner = excluded.owner, meta = excluded.meta, boot = excluded.boot,
  expires = excluded.expires, used_at = excluded.used_at
WHERE {_SOUND} AND token BETWEEN 1 AND {MAX_TOKEN - 1}
  AND (owner = excluded.owner OR boot <> excluded.boot OR expires <= excluded.acquired)
RETURNING token
"""
_RENEW = f"""
UPDATE pyresil_locks SET expires = {_NOW} + :ttl, used_at = :wall / 1000000 WHERE key = :key AND {_MINE}
"""
_RELEASE = f"""
UPDATE pyresil_locks SET owner = '', expires = acquired + :hold, used_at = :wall / 1000000
WHERE key = :key AND {_MINE}
"""
_FORCE = f"""
UPDATE pyresil_locks SET owner = '', expires = {_NOW}
WHERE key = :key AND boot = :boot AND expires > {_NOW} AND {_SOUND}
"""
_COLUMNS = f"SELECT key, owner, token, meta, boot, acquired, expires, {_NOW} FROM pyresil_locks"
_READ = f"{_COLUMNS} WHERE key = :key"
_SCAN = f"{_COLUMNS} WHERE substr(key, 1, length(:prefix)) = :prefix ORDER BY key"
_PRUNE = f"""
DELETE FROM pyresil_locks WHERE key IN (
  SELECT key FROM pyresil_locks
  WHERE typeof(used_at) = 'integer' AND used_at < :before AND (boot <> :boot OR expires <= {_NOW}) LIMIT 1000
) RETURNING key
"""


class SQLiteLockStore(LockStore):
    """A lock store in a SQLite file on a local disk.

    Nothing is opened before the first use. Connections stay in the process that opened them. A file of another application,
    one on a network file system, and a row that another program wrote are refused with `StoreError`.

    Args:
        path: The file. Missing folders are made with mode 0700, a missing file with mode 0600.
        prefix: Put before every key (``"pyresil:"``); one for each service.
        timeout: How long a call may wait for the file's write lock where it does not say so itself (5 s).
        clock: The clock of expiry, for tests. The default is the host's clock since boot, which all its processes share.

    Raises:
        ConfigurationError: An option is at fault.
    """

    can_wait = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        prefix: str = DEFAULT_PREFIX,
        timeout: Duration = DEFAULT_TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        self._prefix = check_prefix(prefix, "SQLite store")
        check = Checker("SQLite store")
        self._own_timeout = check.duration("timeout", timeout)
        check.done()
        self._file = SQLiteFile(path, {"pyresil_locks": LOCKS}, clock)
        self._clock = clock or SYSTEM
        self._until_prune = 0

    @property
    def path(self) -> str:
        """The file, as an absolute path."""
        return self._file.path

    def _values(self, key: str, **values: Any) -> dict[str, Any]:
        values["key"] = self._prefix + check_key(key)
        return values

    def _run(self, values: dict[str, Any], work: Callable[[Connection], Any], timeout: float | None) -> Any:
        file = self._file
        values["boot"] = file.boot
        values["offset"] = file.offset_us
        values["wall"] = int(self._clock.wall() * 1e6)
        return file.run(work, check_timeout(timeout, self._own_timeout))

    def acquire(
        self, key: str, owner: str, ttl_ms: int, meta: str = "", *, timeout: float | None = None
    ) -> Granted | Held:
        """Take the lock where it is free, expired, or already this owner's."""
        values = self._values(
            key, owner=check_owner(owner), ttl=check_ms(ttl_ms) * 1000, meta=check_meta(meta)
        )

        def work(connection: Connection) -> Granted | Held:
            # A lock may open between the refused statement and the look at its row: then there is nobody to name, and
            # another try decides.
            for _ in range(10):
                granted = connection.rows(_ACQUIRE, values)
                if granted:
                    return Granted(check_token(granted[0][0], key, self._file.where))
                info = self._look(connection, key, values)
                if info is not None:
                    return Held(info.remaining_ms, info.token, info.meta)
            raise StoreError(
                f"{self._file.where}: lock {key!r} has no further fencing token: another program wrote a token of 2^53-1 or "
                "more into its row"
            )

        answer: Granted | Held = self._run(values, work, timeout)
        if isinstance(answer, Granted):
            self._until_prune -= 1
            if self._until_prune < 0:
                self._until_prune = _PRUNE_EVERY
                self._prune_quietly()
        return answer

    def renew(self, key: str, owner: str, ttl_ms: int, *, timeout: float | None = None) -> bool:
        """Let the lock expire ``ttl_ms`` from now, where it still is this owner's."""
        values = self._values(key, owner=check_owner(owner), ttl=check_ms(ttl_ms) * 1000)
        return self._owned(_RENEW, key, values, timeout)

    def release(self, key: str, owner: str, min_hold_ms: int = 0, *, timeout: float | None = None) -> bool:
        """Give the lock back, where it still is this owner's."""
        hold = check_ms(min_hold_ms, "min_hold_ms", 0) * 1000
        values = self._values(key, owner=check_owner(owner), hold=hold)
        return self._owned(_RELEASE, key, values, timeout)

    def _owned(self, sql: str, key: str, values: dict[str, Any], timeout: float | None) -> bool:
        def work(connection: Connection) -> bool:
            if connection.changed(sql, values):
                return True
            self._look(connection, key, values)  # a row that cannot be read is an error, not a "no"
            return False

        return self._run(values, work, timeout) is True

    def inspect(self, key: str, *, timeout: float | None = None) -> LockInfo | None:
        """What is known of the lock, or None where it is free."""
        values = self._values(key)
        info: LockInfo | None = self._run(
            values, lambda connection: self._look(connection, key, values), timeout
        )
        return info

    def scan(self, prefix: str = "", *, timeout: float | None = None) -> list[LockInfo]:
        """All closed locks whose keys start with ``prefix``, sorted by key."""
        values: dict[str, Any] = {"prefix": self._prefix + check_scan_prefix(prefix)}
        rows = self._run(values, lambda connection: connection.rows(_SCAN, values), timeout)
        found = (self._info(row, row[0][len(self._prefix) :], values["boot"]) for row in rows)
        return [info for info in found if info is not None]

    def force_release(self, key: str, *, timeout: float | None = None) -> bool:
        """Open the lock whoever holds it."""
        return self._owned(_FORCE, key, self._values(key), timeout)

    def _look(self, connection: Connection, key: str, values: dict[str, Any]) -> LockInfo | None:
        rows = connection.rows(_READ, values)
        return self._info(rows[0], key, values["boot"]) if rows else None

    def _info(self, row: tuple[Any, ...], key: str, this_boot: str) -> LockInfo | None:
        _, owner, token, meta, *_, now = row
        left = remaining_ms(row[1:7], now, this_boot, key, self._file.where)
        return None if left is None else LockInfo(key, owner, token, left, meta)

    def wait_for_release(self, key: str, *, timeout: float) -> bool:
        """Look every 25 ms, at most ``timeout`` seconds, whether the key opened."""
        deadline = self._clock.monotonic() + timeout
        while self.inspect(key) is not None:
            left = deadline - self._clock.monotonic()
            if left <= 0.0:
                return False
            self._clock.sleep(min(left, _POLL * (0.5 + self._clock.random())))
        return True

    def prune(self, *, timeout: float | None = None) -> int:
        """Delete free rows that nobody used for 7 days, at most 1,000; it also happens by itself now and then.

        Returns:
            How many rows were deleted.
        """
        values: dict[str, Any] = {"before": int(self._clock.wall() - KEEP)}
        return len(self._run(values, lambda connection: connection.rows(_PRUNE, values), timeout))

    def _prune_quietly(self) -> None:
        try:
            self.prune(timeout=0.05)
        except StoreError:
            pass  # housekeeping: the next one does it

    def diagnose(self, *, timeout: float | None = None) -> list[tuple[str, str, str]]:
        """Who may write to the file, and whether the disk has room."""
        self.scan(timeout=timeout)  # opens it, and makes it where it is missing
        found = os.stat(self.path)  # noqa: PTH116 - pathlib costs 5 ms of import
        mode = found.st_mode & 0o777
        loose = "warning" if mode & 0o002 else "ok"
        room = os.statvfs(self.path)
        free = room.f_bavail * room.f_frsize // 2**20
        return [
            (loose, "file", f"{self.path} belongs to user {found.st_uid}, mode {mode:04o}"),
            ("warning" if free < 16 else "ok", "disk", f"{free} MiB free"),
        ]

    def close(self) -> None:
        """Close the connections that are idle; the store opens new ones when it is used again."""
        self._file.close()

    def __repr__(self) -> str:
        return f"SQLiteLockStore({self._file.path!r}, prefix={self._prefix!r})"
