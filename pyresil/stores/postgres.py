"""Locks in PostgreSQL: for all hosts that reach one primary.

A lock is a row. Every method is one statement that reads `clock_timestamp()`, which goes on while a statement waits for a
row, where `now()` stands still. Who waits for a lock only reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil._validate import Checker
from pyresil.clock import SYSTEM
from pyresil.errors import ConfigurationError, StoreError
from pyresil.stores._postgres import Database
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
    from pyresil.durations import Duration

__all__ = ["PostgresLockStore"]

#: Free rows that are old are deleted once for so many grants.
_PRUNE_EVERY = 500
#: So many keys are remembered as held by others.
_MAX_CONTENDED = 1_000

_TABLE = """CREATE TABLE IF NOT EXISTS {table} (
  key text COLLATE "C" PRIMARY KEY,
  owner text NOT NULL,
  token bigint NOT NULL,
  meta text NOT NULL,
  acquired_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  used_at timestamptz NOT NULL
)"""

_NOW = "clock_timestamp()"
_SEED = f"(extract(epoch FROM {_NOW}) * 1000000)::bigint"
_UNTIL = f"{_NOW} + %(ttl)s::bigint * interval '1 millisecond'"
_LEFT = f"greatest(1, ceil(extract(epoch FROM expires_at - {_NOW}) * 1000))::bigint"
_SAME = f"(l.owner = %(owner)s::text AND l.expires_at > {_NOW})"

_ACQUIRE = f"""
INSERT INTO {{table}} AS l (key, owner, token, meta, acquired_at, expires_at, used_at)
VALUES (%(key)s::text, %(owner)s::text, {_SEED}, %(meta)s::text, {_NOW}, {_UNTIL}, {_NOW})
ON CONFLICT (key) DO UPDATE SET
  token = CASE WHEN {_SAME} THEN l.token ELSE greatest(l.token + 1, {_SEED}) END,
  acquired_at = CASE WHEN {_SAME} THEN l.acquired_at ELSE {_NOW} END,
  owner = %(owner)s::text, meta = %(meta)s::text, expires_at = {_UNTIL}, used_at = {_NOW}
WHERE l.token BETWEEN 1 AND {MAX_TOKEN - 1} AND (l.owner = %(owner)s::text OR l.expires_at <= {_NOW})
RETURNING l.token
"""
# The row is locked before the clock is read for it: a value of SET is computed before UPDATE itself waits.
_RENEW = f"""
WITH mine AS MATERIALIZED (
  SELECT key, expires_at FROM {{table}} WHERE key = %(key)s::text AND owner = %(owner)s::text FOR UPDATE
)
UPDATE {{table}} AS l SET expires_at = {_UNTIL}, used_at = {_NOW}
FROM mine WHERE l.key = mine.key AND mine.expires_at > {_NOW} RETURNING l.token
"""
_RELEASE = f"""
UPDATE {{table}} SET owner = '', used_at = {_NOW}, expires_at = acquired_at + %(hold)s::bigint * interval '1 millisecond'
WHERE key = %(key)s::text AND owner = %(owner)s::text AND expires_at > {_NOW} RETURNING token
"""
_FORCE = f"""
UPDATE {{table}} SET owner = '', expires_at = {_NOW} WHERE key = %(key)s::text AND expires_at > {_NOW} RETURNING token
"""
_COLUMNS = f"SELECT key, owner, token, {_LEFT}, meta FROM {{table}} WHERE expires_at > {_NOW}"
_READ = f"{_COLUMNS} AND key = %(key)s::text"
_SCAN = f"{_COLUMNS} AND starts_with(key, %(prefix)s::text) ORDER BY key"
_TOKEN = "SELECT token FROM {table} WHERE key = %(key)s::text"  # noqa: S105 - a fencing token is no secret
_PRUNE = f"""
DELETE FROM {{table}} WHERE key IN (
  SELECT key FROM {{table}} WHERE used_at < {_NOW} - interval '{int(KEEP)} seconds' AND expires_at <= {_NOW}
  LIMIT 1000 FOR UPDATE SKIP LOCKED
) RETURNING key
"""

_SETTINGS = """
SELECT current_setting('server_version'), current_setting('synchronous_commit'), current_setting('synchronous_standby_names')
"""


class PostgresLockStore(LockStore):
    """A lock store in a table of PostgreSQL 12 or later.

    The table is made by `create_tables`, or by a migration that runs what `table_sql` returns. Each call is one autocommitted
    statement and may land on another connection; inside the application's own transaction it never runs. On a hot standby
    it is refused; what a failover loses of the old primary's commits can be a lock that was granted, unless replication is
    synchronous.

    Args:
        source: A DSN or URL (own connections), or what the application has: a ``psycopg_pool.ConnectionPool``, or a SQLAlchemy
            engine on psycopg (also psycopg2, whose calls only the server's ``statement_timeout`` can end in time).
        prefix: Put before every key (``"pyresil:"``); one for each service.
        timeout: How long a call may take where it does not say so itself (5 s).
        table: Name of the table, also ``schema.table`` (``"pyresil_locks"``).

    Raises:
        ConfigurationError: An option is at fault; the text never has the password.
        ImportError: psycopg is not installed and a DSN was given; the text names the extra.
    """

    can_wait = False

    def __init__(
        self,
        source: Any,
        *,
        prefix: str = DEFAULT_PREFIX,
        timeout: Duration = DEFAULT_TIMEOUT,
        table: str = "pyresil_locks",
    ) -> None:
        check = Checker("PostgreSQL store")
        limit = check.duration("timeout", timeout)
        check.done()
        self._prefix = check_prefix(prefix, "PostgreSQL store")
        self._table = _check_table(table)
        self._database = Database(source, limit)
        self._own_timeout = limit
        self._until_prune = int(SYSTEM.random() * _PRUNE_EVERY)
        self._statements: dict[str, str] = {}
        self._contended: set[str] = set()

    def table_sql(self) -> str:
        """The SQL that makes the table, for a migration."""
        return _TABLE.format(table=self._table)

    def create_tables(self, *, timeout: float | None = None) -> None:
        """Make the table where it is missing; needs the right to create in its schema."""
        try:
            self._run(_TABLE, {}, timeout)
        except StoreError as error:
            # Two that make it at once: one of them is told of a duplicate in the catalogue. Then it is there.
            try:
                self._run("SELECT key FROM {table} LIMIT 0", {}, timeout)
            except StoreError:
                raise error from None

    def _run(self, sql: str, values: dict[str, Any], timeout: float | None) -> list[tuple[Any, ...]]:
        text = self._statements.get(sql)
        if text is None:
            text = self._statements[sql] = sql.format(table=self._table)
        return self._database.run(text, values, check_timeout(timeout, self._database.timeout))

    def _values(self, key: str, **values: Any) -> dict[str, Any]:
        values["key"] = self._prefix + check_key(key)
        return values

    def acquire(
        self, key: str, owner: str, ttl_ms: int, meta: str = "", *, timeout: float | None = None
    ) -> Granted | Held:
        """Take the lock where it is free, expired, or already this owner's."""
        values = self._values(key, owner=check_owner(owner), ttl=check_ms(ttl_ms), meta=check_meta(meta))
        deadline = SYSTEM.monotonic() + check_timeout(timeout, self._database.timeout)
        # A refused upsert locks the row and writes to the log: who was refused looks first the next time.
        look_first = key in self._contended
        while True:
            if look_first:
                rows = self._run(_READ, values, max(deadline - SYSTEM.monotonic(), 0.001))
                if rows and rows[0][1] != owner:
                    info = self._info(rows[0])
                    return Held(info.remaining_ms, info.token, info.meta)
            rows = self._run(_ACQUIRE, values, max(deadline - SYSTEM.monotonic(), 0.001))
            if rows:
                self._contended.discard(key)
                self._prune_now_and_then()
                return Granted(self._token(rows[0][0], key))
            if look_first:
                # Refused though nobody else was seen: somebody was faster, or the token is none that can grow.
                for (token,) in self._run(_TOKEN, values, max(deadline - SYSTEM.monotonic(), 0.001)):
                    self._token(token if token != MAX_TOKEN else token + 1, key)
            look_first = True
            if len(self._contended) >= _MAX_CONTENDED:
                self._contended.clear()
            self._contended.add(key)

    def renew(self, key: str, owner: str, ttl_ms: int, *, timeout: float | None = None) -> bool:
        """Let the lock expire ``ttl_ms`` from now, where it still is this owner's."""
        values = self._values(key, owner=check_owner(owner), ttl=check_ms(ttl_ms))
        return bool(self._run(_RENEW, values, timeout))

    def release(self, key: str, owner: str, min_hold_ms: int = 0, *, timeout: float | None = None) -> bool:
        """Give the lock back, where it still is this owner's."""
        values = self._values(key, owner=check_owner(owner), hold=check_ms(min_hold_ms, "min_hold_ms", 0))
        return bool(self._run(_RELEASE, values, timeout))

    def force_release(self, key: str, *, timeout: float | None = None) -> bool:
        """Open the lock whoever holds it."""
        return bool(self._run(_FORCE, self._values(key), timeout))

    def inspect(self, key: str, *, timeout: float | None = None) -> LockInfo | None:
        """What is known of the lock, or None where it is free."""
        rows = self._run(_READ, self._values(key), timeout)
        return self._info(rows[0]) if rows else None

    def scan(self, prefix: str = "", *, timeout: float | None = None) -> list[LockInfo]:
        """All closed locks whose keys start with ``prefix``, sorted by key."""
        values = {"prefix": self._prefix + check_scan_prefix(prefix)}
        return [self._info(row) for row in self._run(_SCAN, values, timeout)]

    def diagnose(self, *, timeout: float | None = None) -> list[tuple[str, str, str]]:
        """Version, durability and replication of the server."""
        ((version, durable, replicas),) = self._run(_SETTINGS, {}, timeout)
        found = [("ok", "server", f"PostgreSQL {version}")]
        if durable == "off":
            text = "synchronous_commit is off: a crash of the server may forget leases that were granted, and two may run"
            found.append(("warning", "durability", text))
        else:
            found.append(("ok", "durability", f"synchronous_commit {durable}"))
        if replicas == "":
            text = "no synchronous standby: a failover can lose a lease that was just granted (its token still grows)"
            found.append(("ok", "replicas", text))
        return found

    def prune(self, *, timeout: float | None = None) -> int:
        """Delete free rows that nobody used for 7 days, at most 1,000; it also happens by itself now and then.

        Returns:
            How many rows were deleted.
        """
        return len(self._run(_PRUNE, {}, timeout))

    def _prune_now_and_then(self) -> None:
        self._until_prune -= 1
        if self._until_prune < 0:
            self._until_prune = _PRUNE_EVERY
            try:
                self.prune(timeout=1.0)
            except StoreError:
                pass  # housekeeping: the next one does it

    def _info(self, row: tuple[Any, ...]) -> LockInfo:
        name, owner, token, left, meta = row
        key = name[len(self._prefix) :]
        return LockInfo(key, owner, self._token(token, key), left, meta)

    def _token(self, token: object, key: str) -> int:
        return check_token(token, key, self._database.where)

    def close(self) -> None:
        """Close own idle connections; a pool or an engine stays open. The store opens new ones when used again."""
        self._database.close()

    def __repr__(self) -> str:
        return f"<PostgresLockStore {self._database.where} prefix={self._prefix!r}>"


def _check_table(table: object) -> str:
    """A plain name, or ``schema.table``, as it stands in a statement without quotes."""
    parts = table.split(".") if isinstance(table, str) else []
    plain = all(
        0 < len(part) <= 63 and part.isascii() and part.isidentifier() and part == part.lower()
        for part in parts
    )
    if not isinstance(table, str) or not plain or not 1 <= len(parts) <= 2:
        raise ConfigurationError(
            "PostgreSQL store: table must be a name of small letters, digits and underscores, or schema.table, got "
            f"{table!r}"
        )
    return table
