"""The way to a PostgreSQL database: own connections, an application's pool, or its SQLAlchemy engine.

Every statement stands alone and is committed at once, so each may run on another connection (pgbouncer in transaction mode),
and may be repeated after a lost reply; nothing is prepared on the server. What fails for a while is retried until the call's
deadline, which also ends a wait for a server that does not answer.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyresil._validate import Checker
from pyresil.clock import SYSTEM
from pyresil.errors import ConfigurationError, StoreError, StoreUnavailableError
from pyresil.stores import _forks
from pyresil.stores._lent import from_engine, from_pool, is_lost, is_the_drivers
from pyresil.stores._opening import Opening
from pyresil.stores.base import SHORTEST_HALVED

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextlib import AbstractContextManager

_MAX_IDLE = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.25

#: States of SQL that pass: serialization, deadlock, locks, cancelled and timed out statements, restarts, lost connections,
#: too many connections.
_PASSING = ("08", "40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "57P05", "25P03", "53300")
_REFUSED = ("28", "42501")
_MISSING = ("42P01", "3F000")
_OTHERS_TABLE = ("42703", "42804", "42883", "42P10", "42809", "22P02", "23502", "23514")

#: What the server says where it refuses a connection; these come without a state.
_REFUSED_TEXTS = (
    "authentication failed",
    "no pg_hba.conf entry",
    "no password supplied",
    "does not exist",
    "is not permitted",
)

#: The state of a connection with a statement under way.
_ACTIVE = 1

#: What the driver says of settings that no server could make good; they may stand in the environment as well as in the DSN.
_MISCONFIGURED_TEXTS = (
    "invalid port number: ",
    "for connection option",
    "could not match ",
    *(
        f"invalid {name} value: "
        for name in ("sslmode", "target_session_attrs", "gssencmode", "channel_binding")
    ),
)
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")

#: Connections that a forked child found: kept, because dropping one would warn and could reach into the parent's.
_inherited: list[object] = []


def psycopg() -> Any:
    """The client library.

    Raises:
        ImportError: It is not installed; the text names the extra.
    """
    try:
        import psycopg as library
    except ImportError:
        raise ImportError(
            'psycopg is not installed: pip install "pyresil[postgres]"', name="psycopg"
        ) from None
    return library


class Database:
    """Runs single statements.

    Args:
        source: A DSN or URL, a psycopg pool, or a SQLAlchemy engine.
        timeout: Seconds for a call that does not say so itself.

    Raises:
        ConfigurationError: ``source`` is none of these.
        ImportError: psycopg is not installed and a DSN was given.
    """

    def __init__(self, source: Any, timeout: float) -> None:
        self._idle: list[tuple[int, Any]] = []
        self._checkout: Callable[[float], AbstractContextManager[Any]]
        self.timeout = timeout
        self._source = source
        if isinstance(source, str):
            self._checkout = self._own
            self.where = f"PostgreSQL store {_described(source)}"
        elif hasattr(source, "getconn") and hasattr(source, "putconn") and hasattr(source, "connection"):
            self._checkout = lambda deadline: from_pool(source, deadline)
            self.where = "PostgreSQL store (the application's pool)"
        elif hasattr(source, "raw_connection") and hasattr(source, "dialect"):
            if source.dialect.driver not in {"psycopg", "psycopg2"}:
                raise ConfigurationError(
                    f"PostgreSQL store: the engine's driver must be psycopg or psycopg2, got {source.dialect.driver!r}"
                )
            self._checkout = lambda deadline: from_engine(source, deadline)
            self.where = f"PostgreSQL store {source.url.host or ''}/{source.url.database or ''}"
        else:
            raise ConfigurationError(
                "PostgreSQL store: source must be a DSN, a psycopg_pool.ConnectionPool or a SQLAlchemy engine, got "
                f"{type(source).__name__}"
            )
        if "Async" in type(source).__name__:
            raise ConfigurationError("PostgreSQL store: source must be synchronous, got an asyncio one")

    def run(self, sql: str, values: dict[str, Any], timeout: float) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows; retried until the deadline where what failed passes.

        Raises:
            StoreUnavailableError: The server cannot be reached, or not in time.
            StoreError: It refuses for good.
        """
        deadline = SYSTEM.monotonic() + timeout
        pause = _FIRST_PAUSE
        while True:
            # An answer may be lost on a connection that stays open: half of the time is left for another try on another one.
            left = deadline - SYSTEM.monotonic()
            give_up = deadline if left <= SHORTEST_HALVED else deadline - left / 2.0
            try:
                with self._checkout(give_up) as connection:
                    return _execute(connection, sql, values, give_up)
            except Exception as error:
                if not is_the_drivers(error):
                    raise
                failure, passing = self._translated(error)
                if not passing or deadline - SYSTEM.monotonic() <= pause:
                    try:
                        raise failure from error
                    finally:
                        del failure  # its traceback has this frame
            SYSTEM.sleep(pause * (0.5 + SYSTEM.random() / 2.0))
            pause = min(pause * 2.0, _LONGEST_PAUSE)

    @contextmanager
    def _own(self, deadline: float) -> Iterator[Any]:
        connection = self._take(deadline)
        try:
            yield connection
        except BaseException as error:
            if is_lost(connection, error):
                connection.close()
                self.close()  # where one is dead the others are: they would fail one call after the other
            else:
                self._give_back(connection)
            raise
        self._give_back(connection)

    def _give_back(self, connection: Any) -> None:
        if not connection.closed and len(self._idle) < _MAX_IDLE:
            self._idle.append((_forks.generation, connection))
        else:
            connection.close()

    def _take(self, deadline: float) -> Any:
        generation = _forks.generation
        while self._idle:
            try:
                opened, connection = self._idle.pop()
            except IndexError:
                break  # another thread was faster
            if opened == generation:
                return connection
            _inherited.append(connection)
        opening = Opening(lambda: self._connect(deadline), self._give_back, "pyresil-postgres", self._source)
        return opening.wait(deadline)

    def _connect(self, deadline: float) -> Any:
        left = max(1, -int(-(deadline - SYSTEM.monotonic()) // 1))
        return psycopg().connect(
            self._source,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=left,
            fallback_application_name="pyresil",
            client_encoding="utf8",
        )

    def _translated(self, error: Exception) -> tuple[StoreError | ConfigurationError, bool]:
        """What the error means to a user in one line, and whether another try may help."""
        where, text = self.where, " ".join(str(error).split())
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
        if not state and any(words in text for words in _MISCONFIGURED_TEXTS):
            return ConfigurationError(f"{where}: {text}"), False
        if state.startswith(_REFUSED) or (not state and any(words in text for words in _REFUSED_TEXTS)):
            return (
                StoreError(f"{where} refused ({text}): check user, password, database and the user's rights"),
                False,
            )
        if isinstance(error, UnicodeError) or state == "22P05":
            return StoreError(
                f"{where}: the encoding of the database or the client cannot hold this key ({text})"
            ), False
        if state.startswith(_MISSING):
            return StoreError(
                f"{where} has no table for this: call create_tables() once, or run the SQL that pyresil-lock doctor shows ({text})"
            ), False
        if state == "25006":
            return StoreError(
                f"{where} is read-only: connect to the primary (target_session_attrs=read-write)"
            ), False
        if state.startswith(_OTHERS_TABLE):
            return StoreError(f"{where}: the table is another program's or another version's ({text})"), False
        if state.startswith("53") and not state.startswith(_PASSING):
            return StoreUnavailableError(f"{where} is out of disk or memory ({text}): make room"), False
        if state.startswith(_PASSING) or not state:
            return StoreUnavailableError(
                f"{where} cannot be reached ({text}): what it holds is unknown"
            ), True
        return StoreError(f"{where} answered: {text}"), False

    def close(self) -> None:
        """Close own idle connections; a pool or an engine is its owner's to close."""
        while self._idle:
            try:
                opened, connection = self._idle.pop()
            except IndexError:
                return  # another thread was faster
            if opened == _forks.generation:
                connection.close()
            else:
                _inherited.append(connection)

    def __del__(self) -> None:
        self.close()


def _described(dsn: str) -> str:
    """Host and database of a DSN, which never has the password.

    Raises:
        ConfigurationError: The DSN does not parse, or its port or sslmode is none.
    """
    library = psycopg()
    from psycopg.conninfo import conninfo_to_dict

    if dsn.startswith(("postgresql://", "postgres://")):
        authority, _, path = dsn.partition("?")[0].partition("://")[2].partition("/")
        if authority.count("@") > 1 or "@" in path:
            # Parts of a password would be taken for a port, a host or a database, and be shown.
            raise ConfigurationError(
                "PostgreSQL store: the DSN has an @ too many: write / and @ in a password as %2F and %40"
            )
    try:
        parts = conninfo_to_dict(dsn)
    except library.Error:
        raise ConfigurationError(
            "PostgreSQL store: the DSN does not parse; write postgresql://user@host:5432/database or 'host=… dbname=…'"
        ) from None
    check = Checker("PostgreSQL store")
    ports, mode = str(parts.get("port") or ""), parts.get("sslmode")
    if not all(_is_port(port.strip()) for port in ports.split(",")):
        check.fault("port", "a number from 1 to 65535, or one for each host", ports)
    if mode is not None and mode not in _SSL_MODES:
        check.fault("sslmode", f"one of {', '.join(_SSL_MODES)}", mode)
    check.done()
    return f"{parts.get('host', 'localhost')}/{parts.get('dbname', '')}"


def _is_port(text: str) -> bool:
    """Whether it is a port, or empty: then it is the usual one."""
    return not text or (text.isascii() and text.isdecimal() and len(text) < 6 and 0 < int(text) < 65536)


def _execute(connection: Any, sql: str, values: dict[str, Any], deadline: float) -> list[tuple[Any, ...]]:
    """Run the statement, unprepared; no longer than until the deadline where the driver can be interrupted."""
    with connection.cursor() as cursor:
        if not hasattr(connection, "wait"):  # psycopg2: bounded by the server's statement_timeout alone
            cursor.execute(sql, values)
            return list(cursor.fetchall()) if cursor.description else []

        def limited(generator: Any, *_: Any, **__: Any) -> Any:
            return _converse(connection, generator, deadline)

        connection.wait = limited
        try:
            cursor.execute(sql, values, prepare=False)
            return list(cursor.fetchall()) if cursor.description else []
        finally:
            del connection.wait


def _converse(connection: Any, generator: Generator[int, int, Any], deadline: float) -> Any:
    """The driver's own conversation with the server, given up at the deadline; the connection is then of no use.

    The driver's `Connection.wait` has no limit, and not every version of it tells its generator that time passed.
    """
    import select

    poll = select.poll()  # looked up at use: gevent replaces it
    file = connection.pgconn.socket
    poll.register(file, 0)
    try:
        state = next(generator)
        while True:
            poll.modify(file, (select.POLLIN if state & 1 else 0) | (select.POLLOUT if state & 2 else 0))
            events = 0
            left = deadline - SYSTEM.monotonic()
            for _, found in poll.poll(max(0, int(left * 1000))):
                events = found
            if not events:
                raise TimeoutError("no answer in time")
            failed = events & ~(select.POLLIN | select.POLLOUT)  # the driver finds out what, when it reads
            state = generator.send(
                state
                if failed
                else (1 if events & select.POLLIN else 0) | (2 if events & select.POLLOUT else 0)
            )
    except StopIteration as end:
        return end.value
    except BaseException:
        # Also what a signal handler raised, here or in the driver: the answer would be the next call's.
        if connection.pgconn.transaction_status == _ACTIVE:
            generator.close()
            connection.close()
        raise
