"""One SQLite file that belongs to pyresil: opening and checking it, connections, and being patient with its lock.

A connection serves one call at a time and never crosses a fork. Statements are single and autocommitted. While another
process writes, the call retries after a random wait of up to a millisecond on its own: the driver's back-off is unfair under
eight processes and blocks every greenlet of the process.
"""

from __future__ import annotations

import os
import threading
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

from pyresil.clock import SYSTEM, Parker
from pyresil.errors import ConfigurationError, StoreError, StoreUnavailableError
from pyresil.stores import _forks
from pyresil.stores._host import boot_id, boottime_offset, unfit_for_sqlite
from pyresil.stores._sqlite_layout import APPLICATION_ID, FORMAT, close_without_checkpoint, driver

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from pyresil.clock import Clock

_MAX_IDLE = 8
#: Bytes of a page of a new file.
_PAGE = 1024
_TABLES = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"

# SQLite's primary result codes.
_PERM, _BUSY, _LOCKED, _READONLY, _IOERR, _CORRUPT, _FULL, _CANTOPEN, _NOTADB = 3, 5, 6, 8, 10, 11, 13, 14, 26

#: All idle connections of this process.
_everywhere: dict[Connection, None] = {}
#: Connections that were in use when a fork came: kept, because closing one in the child could hang.
_inherited: list[object] = []


class Connection:
    """An open connection, and the file that it has open."""

    __slots__ = ("closing", "db", "file", "generation")

    def __init__(self, db: sqlite3.Connection, file: tuple[int, int], generation: int) -> None:
        self.db = db
        self.file = file
        self.generation = generation
        #: The generation and the thread that close it, after a fork.
        self.closing: tuple[int, int] | None = None

    def rows(self, sql: str, values: dict[str, Any]) -> list[Any]:
        """Run one statement and return its rows."""
        # Execute and fetch in one call into C: between two, a signal handler could run while the statement still holds the
        # write lock, and wait for it in vain.
        return list(chain.from_iterable(map(self.db.execute, (sql,), (values,))))

    def changed(self, sql: str, values: dict[str, Any]) -> bool:
        """Run one statement that returns no rows, and tell whether it changed any."""
        return self.db.execute(sql, values).rowcount > 0


class SQLiteFile:
    """Connections to one file, opened when they are first needed.

    Args:
        path: The file; missing folders are made with mode 0700, a missing file with 0600.
        schema: Tables of this store: name to the statement that creates it.
        clock: The clock that rows expire on.
        what: What to call it in messages.

    Raises:
        ConfigurationError: ``path`` is no path.
        StoreError: ``path`` is relative to a folder that was deleted.
    """

    def __init__(self, path: str | os.PathLike[str], schema: dict[str, str], clock: Clock | None) -> None:
        self._idle: list[Connection] = []
        try:
            text: object = os.fspath(path)
            os.fsencode(path)
        except (TypeError, UnicodeError):
            text = None
        if not isinstance(text, str) or not text or "\0" in text or text == ":memory:":
            raise ConfigurationError(f"SQLite store: path must be the path of a file, got {path!r}")
        try:
            self.path = os.path.abspath(text)  # noqa: PTH100 - a later chdir must not move it; pathlib costs 5 ms
        except FileNotFoundError:
            raise StoreError(
                f"SQLite store {text}: the current folder was deleted: name the file by its absolute path"
            ) from None
        self.where = f"SQLite store {self.path}"
        self._schema = schema
        self._given_clock = clock
        self._clock = clock or SYSTEM
        self._boot: str | None = None
        self._offset_us = 0

    @property
    def boot(self) -> str:
        """Id of this boot; rows of another one are free."""
        if self._boot is None:
            if self._given_clock is None:
                self._offset_us = round(boottime_offset() * 1e6)
            self._boot = boot_id()
        return self._boot

    @property
    def offset_us(self) -> int:
        """What to take off the clock so that all processes of the host agree, in microseconds."""
        return self._offset_us if self.boot else 0

    def run(self, statements: Callable[[Connection], Any], timeout: float) -> Any:
        """Call ``statements(connection)`` until the file is not busy.

        Args:
            statements: Runs one autocommitted statement, or only reads; may be called again.
            timeout: Seconds until it gives up.

        Returns:
            What ``statements`` returned.
        """
        deadline = SYSTEM.monotonic() + timeout
        while True:
            connection: Connection | None = None
            stretch = object()
            try:
                _forks.begin(stretch, deadline)
                connection = self._take()
                answer = statements(connection)
            except Exception as error:
                if not _is_busy(error):
                    broken, connection = connection, None
                    if broken is not None:
                        self._discard(broken)
                    if not isinstance(error, driver().Error):
                        raise  # told already, or not ours: a signal handler's, say
                    self._translate(error)
                if SYSTEM.monotonic() >= deadline:
                    raise StoreUnavailableError(
                        f"{self.where} is busy: another process held its write lock for {timeout:g} s"
                    ) from error
            else:
                return answer
            finally:
                try:
                    if connection is not None:
                        self._give_back(connection)
                finally:
                    _forks.stretches.pop(stretch, None)
            SYSTEM.sleep(SYSTEM.random() * 0.001)

    def _take(self) -> Connection:
        generation = _forks.generation
        file = self._identity()
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break  # another thread was faster
            if connection.generation != generation:
                continue  # `_close_inherited` closes it
            _everywhere.pop(connection, None)
            if connection.file != file:
                connection.db.close()  # somebody removed or replaced the file
            else:
                return connection
        return self._open(generation)

    def _give_back(self, connection: Connection) -> None:
        if connection.generation != _forks.generation:
            _inherited.append(connection)
        elif len(self._idle) < _MAX_IDLE:
            _everywhere[connection] = None
            self._idle.append(connection)
        else:
            connection.db.close()

    def _discard(self, connection: Connection) -> None:
        if connection.generation == _forks.generation:
            connection.db.close()
        else:
            _inherited.append(connection)

    def close(self, patience: float = 1.0) -> None:
        """Close idle connections; a fork that is about to happen is waited for, for so many seconds at most."""
        stretch = object()
        while self._idle:
            try:
                _forks.begin(stretch, SYSTEM.monotonic() + patience)
                connection = self._idle.pop()
                if connection.generation == _forks.generation:
                    _everywhere.pop(connection, None)
                    connection.db.close()
            except IndexError:
                return  # another thread was faster
            finally:
                _forks.stretches.pop(stretch, None)

    def __del__(self) -> None:
        self.close(0.0)  # in whatever thread: it must not wait

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)  # noqa: PTH116 - on every call, and pathlib costs 5 ms of import
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _open(self, generation: int) -> Connection:
        sqlite = driver()
        if tuple(map(int, sqlite.sqlite_version.split("."))) < (3, 35):
            raise StoreError(
                f"{self.where}: SQLite 3.35 or later is needed, this Python has {sqlite.sqlite_version}"
            )
        _close_inherited()
        self._make_file()
        file = self._identity()
        # No statement waits in the driver (timeout=0); a connection moves between threads, one at a time.
        db = sqlite.connect(self.path, timeout=0.0, isolation_level=None, check_same_thread=False)
        try:
            db.create_function("pyresil_now", 0, self._clock.boottime)
            connection = Connection(db, file or (0, 0), generation)  # of no file, where it vanished meanwhile
            self._prepare(connection)
        except BaseException:
            db.close()
            raise
        if connection.file != self._identity():
            db.close()
            raise StoreUnavailableError(f"{self.where}: the file was replaced while it was opened; try again")
        return connection

    def _make_file(self) -> None:
        if self._identity() is not None:
            if os.path.isdir(self.path):  # noqa: PTH112 - pathlib costs 5 ms of import
                raise StoreError(f"{self.where} is a folder: name a file in it, such as {self.path}/locks.db")
        else:
            self._make_folder(os.path.dirname(self.path))  # noqa: PTH120 - as above
            self._create()
        unfit = unfit_for_sqlite(self.path)
        if unfit is not None:
            raise StoreError(f"{self.where} {unfit}")

    def _create(self) -> None:
        path = os.path.realpath(self.path)  # a link to a file that is not there, too
        try:
            # Not opened, where that can be had: closing it would take all locks of this process off a file that another thread
            # made and opened meanwhile.
            os.mknod(path, 0o600)
        except FileExistsError:
            pass
        except OSError:
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                pass
            except OSError as error:
                self._translate(error)

    def _make_folder(self, folder: str) -> None:
        if os.path.isdir(folder):  # noqa: PTH112 - as above
            return
        self._make_folder(os.path.dirname(folder))  # noqa: PTH120 - as above
        try:
            os.mkdir(folder, 0o700)  # noqa: PTH102 - as above
        except FileExistsError:
            pass
        except OSError as error:
            self._translate(error)

    def _prepare(self, connection: Connection) -> None:
        """Check that the file is ours, and make what is missing."""
        execute = connection.rows
        execute("BEGIN", {})  # one snapshot: another process may be making the tables just now
        ((application,),) = execute("PRAGMA application_id", {})
        ((version,),) = execute("PRAGMA user_version", {})
        tables = dict(execute(_TABLES, {}))
        execute("COMMIT", {})
        if application != APPLICATION_ID and (application or version or tables):
            raise StoreError(
                f"{self.where} is another application's SQLite file: give pyresil a file of its own (--store, PYRESIL_STORE)"
            )
        if application == APPLICATION_ID and version != FORMAT:
            raise StoreError(
                f"{self.where} has another version's layout ({version}, this is {FORMAT}): use one version of pyresil on a "
                "file, or name another file"
            )
        if not tables:
            # A commit writes whole pages, and a row is some 200 bytes.
            execute(f"PRAGMA page_size={_PAGE}", {})
        ((mode,),) = execute("PRAGMA journal_mode=WAL", {})
        if mode != "wal":
            raise StoreError(f"{self.where}: the file system does not support SQLite's WAL: use a local path")
        execute("PRAGMA synchronous=FULL", {})
        if application == APPLICATION_ID and self._schema.keys() <= tables.keys():
            self._check_tables(tables)
            return
        execute("BEGIN IMMEDIATE", {})
        try:
            for name, sql in self._schema.items():
                if name not in tables:
                    execute(sql.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"), {})
            execute(f"PRAGMA application_id={APPLICATION_ID}", {})
            execute(f"PRAGMA user_version={FORMAT}", {})
            execute("COMMIT", {})
        except BaseException:
            if connection.db.in_transaction:
                connection.db.rollback()
            raise
        self._check_tables(dict(execute(_TABLES, {})))

    def _check_tables(self, tables: dict[str, str]) -> None:
        for name, sql in self._schema.items():
            if tables.get(name) != sql:
                raise StoreError(
                    f"{self.where}: table {name!r} is another version's table: use one version of pyresil on a file, or "
                    "name another file"
                )

    def _translate(self, error: Exception) -> NoReturn:
        """Raise what the error means to a user, in one line that says what to do."""
        if isinstance(error, OSError):
            raise StoreError(
                f"{self.where} cannot be created ({error.strerror}): name a file in a folder that this user can write to"
            ) from error
        primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if primary in {_NOTADB, _CORRUPT}:
            raise StoreError(
                f"{self.where} is no SQLite database, or damaged ({error}): move it away and a new one is made; tokens go on "
                "growing"
            ) from error
        if primary in {_READONLY, _PERM}:
            raise StoreError(
                f"{self.where} cannot be written ({error}): give this user write access to the file and its folder"
            ) from error
        if primary == _CANTOPEN:
            raise StoreError(
                f"{self.where} cannot be opened ({error}): give this user access to the file and write access to its folder"
            ) from error
        if primary == _FULL:
            raise StoreUnavailableError(f"{self.where}: the disk is full: make room") from error
        if primary == _IOERR:
            raise StoreUnavailableError(
                f"{self.where}: the disk failed ({error}): is it full or gone?"
            ) from error
        raise StoreError(f"{self.where}: {error}") from error


def _close_inherited() -> None:
    """Close what a fork's child found open.

    SQLite remembers in the process's memory which locks it has on a file. A fork copies that and not the locks: where anything
    of the parent's is open, the child's own connections take none, and once the parent has closed its own, others take the
    log away from under them, and nobody sees any more what the child writes.
    """
    me = _forks.generation, threading.get_ident()
    while True:
        others = False
        for connection in [found for found in list(_everywhere) if found.generation != _forks.generation]:
            mine = False
            try:
                # No call in between: one thread closes it, and the others wait.
                closing = connection.closing
                if closing is None:
                    connection.closing = me
                    mine = True
                elif closing[0] != me[0]:
                    # This process was forked in the middle of that.
                    _inherited.append(connection)
                    _everywhere.pop(connection, None)
                elif closing != me:  # else in a signal handler: what it interrupted goes on after it
                    others = True
                if mine:
                    try:
                        close_without_checkpoint(connection.db)
                    except BaseException:
                        close_without_checkpoint(connection.db)  # of a signal handler: it may be open
                        raise
            finally:
                if mine:
                    _everywhere.pop(connection, None)
        if not others:
            return
        SYSTEM.park_for_work(Parker(), 0.001)


def _is_busy(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in {_BUSY, _LOCKED}
