"""Connections to one Redis server, with a time limit on every exchange.

The client that an application hands over says where the server is and how to log in; the connections are our own. Its retries
(ten by default) would outlive a lease, and a client without a socket timeout would wait for a hung server for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil.clock import SYSTEM, Parker
from pyresil.stores import _forks
from pyresil.stores._opening import Opening
from pyresil.stores.base import SHORTEST_HALVED

if TYPE_CHECKING:
    from types import ModuleType

_MAX_IDLE = 8
#: The address of a master is asked for once more where an earlier request is not back after so many seconds.
_ALONE = 30.0

#: What belongs to the client's own pool and its retries.
_NOT_OURS = ("retry", "retry_on_error", "retry_on_timeout", "event_dispatcher", "himport_registry")
_NOT_OURS_PREFIXES = ("maint", "orig_", "oss_")


def pack(words: tuple[Any, ...]) -> bytes:
    """A command as it goes over the wire; in a third of the time that the client library's general way takes."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if type(word) is bytes else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class _Asking:
    """The address of a master while it is being asked for, and for how many seconds nobody asks beside it."""

    def __init__(self, pool: Any, alone: float) -> None:
        self.generation = _forks.generation
        self.alone = alone
        self.until = SYSTEM.monotonic() + alone
        self.done = False
        self.address: Any = None
        self.error: Exception | None = None
        self.waiting: list[Parker] = []
        self._pool = pool

    def run(self) -> None:
        try:
            self.address = self._pool.get_master_address()
        except Exception as error:
            # The frame of this method would hold the error, and its traceback the frame.
            self.error = error.with_traceback(None)
        finally:
            self.done = True
            for parker in list(self.waiting):
                parker.unpark()


class _Sentinels:
    """Stands in for the pool of a master behind Sentinel, and does not wait for its address beyond the time of a call.

    The client asks one sentinel after the other, each for as long as its own options say, which may be for ever. So it asks in
    a thread, one at a time; who comes meanwhile waits for the same answer. One that is not back after a while, as its sentinel's
    host went down, has another one start beside it, more and more seldom.
    """

    def __init__(self, pool: Any, errors: ModuleType) -> None:
        self._pool = pool
        self._errors = errors
        self._asking: _Asking | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def get_master_address(self, patience: float) -> Any:
        """Ask for the address for so many seconds."""
        asking = self._asking
        if asking is None or asking.done or asking.generation != _forks.generation:
            asking = self._ask(_ALONE)
        elif SYSTEM.monotonic() >= asking.until:
            asking = self._ask(asking.alone * 2.0)
        parker = Parker()
        asking.waiting.append(parker)
        try:
            if not asking.done:
                SYSTEM.park_for_work(parker, patience)
        finally:
            asking.waiting.remove(parker)
        if not asking.done:
            raise self._errors.TimeoutError("no sentinel answered in time")
        error = asking.error
        if error is not None:
            # One of its own for each who waited; that a sentinel refused is no loss of the connection.
            refused = isinstance(error, self._errors.ResponseError)
            kind = type(error) if refused else self._errors.ConnectionError
            raise kind(str(error)) from error
        return asking.address

    def _ask(self, alone: float) -> _Asking:
        asking = _Asking(self._pool, alone)
        try:
            SYSTEM.spawn(asking.run, "pyresil-sentinel")
        except RuntimeError:  # no further thread, at the end of the interpreter for one
            asking.run()
        self._asking = asking
        return asking


class _Found:
    """What a connection asks for its master's address, which was found out in the time of the call."""

    def __init__(self, sentinels: _Sentinels, address: Any) -> None:
        self._sentinels = sentinels
        self._address = address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sentinels, name)

    def get_master_address(self) -> Any:
        """The address."""
        return self._address


class Server:
    """One server: where it is, and the connections to it that are idle.

    Args:
        connection_class: Class of the client's connections.
        options: Its arguments, as the client's pool has them.
        errors: The module of the client library's exceptions.
    """

    def __init__(self, connection_class: Any, options: dict[str, Any], errors: ModuleType) -> None:
        self._class = connection_class
        self._options = {
            name: value
            for name, value in options.items()
            if name not in _NOT_OURS and not name.startswith(_NOT_OURS_PREFIXES)
        }
        # Replies are bytes whatever the client does with its own, and are read by us.
        self._options.update(decode_responses=False, health_check_interval=0)
        self._errors = errors
        self._idle: list[tuple[int, Any]] = []
        pool = options.get("connection_pool")
        self._sentinels: _Sentinels | None = None
        if pool is not None and hasattr(pool, "service_name"):
            self._sentinels = _Sentinels(pool, errors)
            self.name = f"{pool.service_name} (by Sentinel)"
        elif "path" in options:
            self.name = str(options["path"])
        else:
            self.name = f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"

    def at(self, host: str, port: int) -> Server:
        """The same with another address, for a redirection."""
        return Server(self._class, {**self._options, "host": host, "port": port}, self._errors)

    def exchange(
        self, words: tuple[Any, ...], deadline: float, *, asking: bool = False, once: bool = False
    ) -> Any:
        """Send one command and return its reply.

        A reply may be lost on a connection that stays open: half of the time is left for another try on another one.

        Args:
            words: The command.
            deadline: On the system's monotonic clock.
            asking: Whether the cluster said to ask this node.
            once: Wait for the reply until the deadline.

        Raises:
            Exception: What the client library raises; its TimeoutError where there was no reply in time.
        """
        left = deadline - SYSTEM.monotonic()
        if left <= 0.0:
            raise self._errors.TimeoutError("no reply in time")
        patience = left if once or left <= SHORTEST_HALVED else left / 2.0
        connection = self._take(patience)
        clean = False
        try:
            if asking:
                connection._sock.settimeout(patience)  # not what the call before had left, as below
                connection.send_command("ASKING")
                connection.read_response()
            connection.send_packed_command([pack(words)], check_health=False)
            # The patience counts from here: connecting may take most of the time, by slow sentinels for one.
            if not connection.can_read(timeout=max(min(deadline - SYSTEM.monotonic(), patience), 0.001)):
                raise self._errors.TimeoutError(f"no reply within {patience:.3g} s")
            # The rest of a reply is waited for until the deadline, not for as long as the call had that opened the connection.
            # Not every version of the client lets the caller of read_response say so.
            connection._sock.settimeout(max(deadline - SYSTEM.monotonic(), 0.001))
            reply = connection.read_response()
            clean = True
        except self._errors.ReadOnlyError:
            raise  # the next connection may find another server behind the name
        except self._errors.ResponseError:
            clean = True  # an answer as well: the connection is in step
            raise
        finally:
            if clean:
                self._give_back(connection)
            else:
                connection.disconnect()
                self.close()  # where one is dead the others are: they would fail one call after the other
        return reply

    def _take(self, left: float) -> Any:
        generation = _forks.generation
        while self._idle:
            try:
                opened, connection = self._idle.pop()
            except IndexError:
                break  # another thread was faster
            if opened == generation:
                return connection
        until = SYSTEM.monotonic() + left
        options = {**self._options, "socket_timeout": left, "socket_connect_timeout": left}
        if self._sentinels is not None:
            options["connection_pool"] = _Found(self._sentinels, self._sentinels.get_master_address(left))

        def connect() -> Any:
            connection = self._class(**options)
            connection.connect()
            return connection

        # Two masters behind different sentinels may have the same name.
        opening = Opening(connect, self._give_back, "pyresil-redis", self._sentinels or self.name)
        return opening.wait(until)

    def _give_back(self, connection: Any) -> None:
        if len(self._idle) < _MAX_IDLE:
            self._idle.append((_forks.generation, connection))
        else:
            connection.disconnect()

    def close(self) -> None:
        """Close what is idle; connections of a parent process are let go."""
        while self._idle:
            try:
                opened, connection = self._idle.pop()
            except IndexError:
                return  # another thread was faster
            if opened == _forks.generation:
                connection.disconnect()
