"""Connections that an application lends: of its psycopg pool, or of its SQLAlchemy engine.

They come and go as its other threads have them: with its setting of autocommit, out of every transaction, and back to where they
came from, also where the caller has left by then.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyresil.clock import SYSTEM
from pyresil.stores._opening import MOST, Opening
from pyresil.strategy import never_began

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Where the exceptions of a driver and of an application's pool are defined.
_DRIVERS = {"psycopg", "psycopg2", "psycopg_pool", "sqlalchemy"}


@contextmanager
def from_pool(pool: Any, deadline: float) -> Iterator[Any]:
    """A connection of a psycopg pool.

    Args:
        pool: Has ``getconn(timeout=)`` and ``putconn``.
        deadline: On the system's monotonic clock.

    Raises:
        TimeoutError: There is none in time; also the pool's own.
    """
    left = max(deadline - SYSTEM.monotonic(), 0.001)
    # It keeps nothing: it connects for whom it lends to, in whole seconds, under a lock that giving back waits for.
    connects = any(cls.__name__ == "NullConnectionPool" for cls in type(pool).__mro__)

    def borrow() -> Any:
        return pool.getconn(timeout=left)

    def in_a_thread(connection: Any) -> None:
        held = [connection]

        def put() -> None:
            try:
                taken = held.pop()
            except IndexError:
                return  # another one has it
            pool.putconn(taken)

        def start() -> None:
            try:
                SYSTEM.spawn(put, "pyresil-pool")
            except RuntimeError:  # no further thread, at the end of the interpreter for one
                put()

        try:
            start()
        except BaseException:
            start()  # a signal handler raised in the start, and that thread may live or not
            raise

    give_back = in_a_thread if connects else pool.putconn
    if getattr(pool, "_check", None) is None and not connects:
        connection = borrow()
    else:
        # It asks the server of an idle connection, and waits for the answer of one that hangs.
        connection = Opening(
            borrow, give_back, "pyresil-pool", pool, _most_left(getattr(pool, "max_size", 0))
        ).wait(deadline)
    # No call before the try: a signal handler that raised after it would lose the connection.
    owner = None
    try:
        owner = getattr(connection, "_pool", None)
        if getattr(owner, "close_returns", False):
            # Else closing one that is of no use gave it back, and it would be given back again.
            connection._pool = None
        with _autocommitting(connection):
            yield connection
    finally:
        if owner is not None and connection._pool is None:
            connection._pool = owner
        try:
            give_back(connection)
        except BaseException as error:
            # A signal handler raised at its start: the pool would miss the connection for good. Later, the pool may have it.
            if never_began(give_back, error):
                give_back(connection)
            raise


@contextmanager
def from_engine(engine: Any, deadline: float) -> Iterator[Any]:
    """The driver's connection of an engine.

    Args:
        engine: SQLAlchemy's.
        deadline: On the system's monotonic clock.

    Raises:
        TimeoutError: There is none in time.
    """
    # The pool may wait for a free connection, ask the server of an idle one, or make a new one for one that was lost: for as long
    # as the engine's options say, 30 s or minutes.
    borrow: Callable[[], Any] = engine.raw_connection
    # The pool, not the engine: `dispose` gives the engine another one, and several engines may have the same.
    pool = engine.pool
    overflow = getattr(pool, "_max_overflow", -1)
    most_left = _most_left(pool.size() + overflow if overflow >= 0 else 0)
    lent = Opening(borrow, lambda lent: lent.close(), "pyresil-engine", pool, most_left).wait(deadline)
    try:
        connection = lent.driver_connection
        with _autocommitting(connection):
            yield connection
    except BaseException as error:
        if is_lost(lent.driver_connection, error):
            lent.invalidate()
        raise
    finally:
        lent.close()


def _most_left(size: int) -> int:
    """How many connections calls that gave up may keep of a pool of that size (0: without a limit).

    All but one, which the application keeps, where there are more than two. Fewer would not do: where some that are idle are
    dead, the others are still to be tried, and in an engine all that are idle, before a new one is made. Of two the other one may
    be the one that lives.
    """
    return size - 1 if size > 2 else size or MOST


@contextmanager
def _autocommitting(connection: Any) -> Iterator[None]:
    """Each statement is a transaction of its own meanwhile, whatever the application's setting is."""
    before = connection.autocommit
    try:
        if not before:
            connection.autocommit = True
        yield
    finally:
        try:
            _restore(connection, before)
        finally:  # also where a signal handler raised in the restoring: it is the application's connection
            _restore(connection, before)


def _restore(connection: Any, autocommit: bool) -> None:
    if not connection.closed and connection.autocommit != autocommit:
        connection.autocommit = autocommit


def is_the_drivers(error: BaseException) -> bool:
    """Whether the driver, the pool or the network failed; what a signal handler raised (a job's time is up) goes to the caller."""
    roots = {cls.__module__.partition(".")[0] for cls in type(error).__mro__}
    return isinstance(error, (OSError, UnicodeError)) or not roots.isdisjoint(_DRIVERS)


def is_lost(connection: Any, error: BaseException) -> bool:
    """Whether an error left the connection unusable, or at a server that is not the primary any more."""
    if connection is None or connection.closed or not is_the_drivers(error):
        return True
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
    return state.startswith(("08", "57P", "25006")) or (
        not state and type(error).__name__ == "OperationalError"
    )
