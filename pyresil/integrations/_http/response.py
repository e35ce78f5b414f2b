"""Responses whose every read stays within the budget of the call that got them, for as long as they are read."""

from __future__ import annotations

import http.client
import io
import socket
from typing import TYPE_CHECKING, Any, NoReturn

from urllib3.response import HTTPResponse

from pyresil.clock import SYSTEM
from pyresil.integrations._http.budget import Stop
from pyresil.integrations._http.call import active

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyresil.integrations._http.call import Call

#: Bytes asked of the socket at a time. The stock file's 8 KiB make a large body many more system calls.
_BUFFER = 65536
#: Under gevent, others have their turn after so many receipts.
_TURN = 16


class BoundFile(io.RawIOBase):
    """The receiving side of a connection as a raw file."""

    def __init__(self, sock: Any, call: Call) -> None:
        super().__init__()
        self._call = call
        self._sock = sock
        self._receive = sock.recv_into
        self._cut = call.cut
        # gevent runs nobody else, a canceller neither, while there is always something to receive.
        self._shares = socket.socket.__module__.startswith("gevent")
        self._reads = 0
        if self._cut is not None:
            self._cut.hold()
        # Keeps the socket open while we are, also when the connection is closed meanwhile.
        self._keeper = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Receive what there is, at most the buffer's size; 0 at the end."""
        if self._shares:
            self._reads += 1
            if self._reads % _TURN == 0:
                SYSTEM.sleep(1e-6)
        return self._call.operate(self._sock, self._receive, buffer)

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return int(self._sock.fileno())

    def close(self) -> None:
        """Let go of the socket."""
        if not self.closed:
            try:
                super().close()
            finally:
                self._keeper.close()
                if self._cut is not None:
                    self._cut.release()


class _Source:
    """What `http.client.HTTPResponse` takes for a socket: all it does is ask for a file."""

    __slots__ = ("_call", "_sock")

    def __init__(self, sock: Any, call: Call) -> None:
        self._sock = sock
        self._call = call

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(BoundFile(self._sock, self._call), _BUFFER)


class BoundRawResponse(http.client.HTTPResponse):
    """The ``response_class`` of our connections: where a call is bounded, it reads through a `BoundFile`."""

    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        call = active.get()
        super().__init__(sock if call is None else _Source(sock, call), *args, **kwargs)  # type: ignore[arg-type]  # see _Source

    def flush(self) -> None:
        """Nothing. The stock method, which closing calls, raises ``ValueError`` where the response was closed meanwhile.

        urllib3 closes a response after its connection went back to the pool. Who has that connection by then closes the response
        too, in another thread, where it has to close the connection.
        """


class BoundResponse(HTTPResponse):
    """urllib3's response: every public way to read raises our error, and raises it again when it is read further.

    After an error the stock class says that the body is at its end, so that a second reader would take what there is for
    the whole.
    """

    _call: Call
    _stopped: bool

    def _stop(self) -> NoReturn:
        self._stopped = True
        raise self._call.error() from None

    def read(self, *args: Any, **kwargs: Any) -> bytes:
        """As the stock method."""
        if self._stopped:
            self._stop()
        try:
            return super().read(*args, **kwargs)
        except Stop:
            self._stop()

    def read1(self, *args: Any, **kwargs: Any) -> bytes:
        """As the stock method."""
        if self._stopped:
            self._stop()
        try:
            return super().read1(*args, **kwargs)
        except Stop:
            self._stop()

    def readinto(self, b: Any) -> int:
        """As the stock method."""
        data = self.read(len(b))
        b[: len(data)] = data
        return len(data)

    def stream(self, *args: Any, **kwargs: Any) -> Generator[bytes, None, None]:
        """As the stock method."""
        if self._stopped:
            self._stop()
        try:
            yield from super().stream(*args, **kwargs)
        except Stop:
            self._stop()

    def read_chunked(self, *args: Any, **kwargs: Any) -> Generator[bytes, None, None]:
        """As the stock method."""
        if self._stopped:
            self._stop()
        try:
            yield from super().read_chunked(*args, **kwargs)
        except Stop:
            self._stop()

    def drain_conn(self) -> None:
        """As the stock method."""
        try:
            super().drain_conn()
        except Stop:
            self._stop()

    def release_conn(self) -> None:
        """As the stock method, but the connection is let go of first.

        Were a signal handler to raise in between, the pool would have a connection that is ours as well: we would close it under
        whoever has it then, and put it back another time.
        """
        pool, connection = self._pool, self._connection
        self._connection = None
        if pool is not None and connection is not None:
            pool._put_conn(connection)


if not hasattr(HTTPResponse, "read1"):  # urllib3 2.0
    delattr(BoundResponse, "read1")


def bind_response(response: HTTPResponse, call: Call) -> None:
    """Make a response that urllib3 built one of ours; it says itself which class it builds."""
    response.__class__ = BoundResponse
    response._call = call  # type: ignore[attr-defined]  # it is a BoundResponse now
    response._stopped = False  # type: ignore[attr-defined]  # as above
    call.phase = "while reading the body"
