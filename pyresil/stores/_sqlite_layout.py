"""What the SQLite file of the locks looks like, what is asked of SQLite itself for it, and a glance at one lock in it.

The glance is for the command: a start that finds its key taken is told so by one read, before anything is imported, forked
or written that only a start which runs its command needs.
"""

from __future__ import annotations

import os

from pyresil.clock import SYSTEM
from pyresil.errors import StoreError
from pyresil.stores._checks import DEFAULT_PREFIX, check_token
from pyresil.stores._host import boot_id, boottime_offset, unfit_for_sqlite

TYPE_CHECKING = False  # importing it from typing would cost a start of the command 2.5 ms

if TYPE_CHECKING:
    from typing import Any

#: "pRsl", in the header of the file: what tells it from another application's.
APPLICATION_ID = 0x7052736C
#: Layout of the file as a whole.
FORMAT = 1
#: The option of a connection that leaves the log alone when it is closed.
_NO_CHECKPOINT = 1006

# Times are microseconds since boot, but for used_at: seconds since the epoch, which only pruning reads.
LOCKS = """CREATE TABLE pyresil_locks (
  key TEXT NOT NULL PRIMARY KEY,
  owner TEXT NOT NULL,
  token INTEGER NOT NULL,
  meta TEXT NOT NULL,
  boot TEXT NOT NULL,
  acquired INTEGER NOT NULL,
  expires INTEGER NOT NULL,
  used_at INTEGER NOT NULL
) WITHOUT ROWID"""

_LOOK = "SELECT owner, token, meta, boot, acquired, expires FROM pyresil_locks WHERE key = ?"


def driver() -> Any:
    """SQLite's driver: what the module `sqlite3` is made of, without the datetime that it imports for converters."""
    try:
        import _sqlite3 as found
    except ImportError:
        import sqlite3 as found  # type: ignore[no-redef]  # an interpreter that has its driver elsewhere
    return found


def close_without_checkpoint(db: Any) -> None:
    """Close a connection whose log others may have removed since, with a fork's parent. Twice is once."""
    try:
        if hasattr(db, "setconfig"):
            db.setconfig(_NO_CHECKPOINT, True)
    except driver().ProgrammingError:
        pass  # it is closed already
    db.close()


def glance(path: str, key: str) -> tuple[int, str] | None:
    """Who holds a lock, if that is plain to see.

    It reads one committed state of the file, so the lock was held at that moment. It takes no write lock, makes no file,
    waits for nothing, and leaves no connection behind.

    Args:
        path: The file.
        key: The lock's key, checked.

    Returns:
        Milliseconds until the lock opens unless it is renewed, and what its holder said of itself; None where it looks free,
        or where anything is amiss, which is for the store to find out and to name.
    """
    # Whoever holds a lock for long has the file open, and so there is a write-ahead log. And a file that cannot be written
    # is an error whether the lock is held or not.
    if not os.path.exists(f"{path}-wal") or not os.access(path, os.W_OK):  # noqa: PTH110 - pathlib costs 5 ms of import
        return None
    try:
        if unfit_for_sqlite(path) is not None:
            return None
        row = _read(path, DEFAULT_PREFIX + key)
        if row is None:
            return None
        now = int((SYSTEM.boottime() - boottime_offset()) * 1e6)
        left = remaining_ms(row, now, boot_id(), key, path)
        return None if left is None else (left, row[2])
    except Exception:  # the store meets the same fault, and says what to do
        return None


def _read(path: str, key: str) -> tuple[Any, ...] | None:
    quoted = os.path.abspath(path)  # noqa: PTH100 - as above
    for char in "%?#":
        quoted = quoted.replace(char, f"%{ord(char):02X}")
    # Read-only: it cannot make the file, and does not write the log back should it be the last to close.
    db = driver().connect(f"file:{quoted}?mode=ro", timeout=0.0, isolation_level=None, uri=True)
    try:
        ((application,),) = db.execute("PRAGMA application_id").fetchall()
        ((version,),) = db.execute("PRAGMA user_version").fetchall()
        tables = db.execute("SELECT sql FROM sqlite_master WHERE name = 'pyresil_locks'").fetchall()
        if (application, version, tables) != (APPLICATION_ID, FORMAT, [(LOCKS,)]):
            return None
        rows: list[tuple[Any, ...]] = db.execute(_LOOK, (key,)).fetchall()
        return rows[0] if rows else None
    finally:
        db.close()


def remaining_ms(row: tuple[Any, ...], now: int, this_boot: str, key: str, where: str) -> int | None:
    """How long a lock stays closed unless it is renewed.

    Args:
        row: Its owner, token, meta, boot, and the times at which it was acquired and expires.
        now: Microseconds since boot, as the row counts them.
        this_boot: Id of this boot.
        key: The lock's key, for messages.
        where: The store, for messages.

    Returns:
        Milliseconds, 1 or more; None where the lock is free.

    Raises:
        StoreError: Another program wrote the row.
    """
    owner, token, meta, boot, acquired, expires = row
    sound = isinstance(expires, int) and isinstance(acquired, int)
    if not (sound and isinstance(owner, str) and isinstance(meta, str) and isinstance(boot, str)):
        raise StoreError(
            f"{where}: the row of lock {key!r} was written by another program; it was left as it is. Delete it to use the key"
        )
    check_token(token, key, where)
    if boot != this_boot or expires <= now:
        return None
    return max(1, int(-(-(expires - now) // 1000)))
