"""Connections of urllib3 whose every operation stays within the budget of the call they serve.

Two names of urllib3 that are not public are used: `_new_conn`, which is overridden, and `_dns_host`, which is read.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

import urllib3.connection
import urllib3.util.connection
from urllib3.exceptions import LocationParseError, NameResolutionError, NewConnectionError
from urllib3.util.wait import wait_for_write

from pyresil.integrations._http import forks
from pyresil.integrations._http.budget import Stop
from pyresil.integrations._http.call import Cut, active
from pyresil.integrations._http.names import aside, resolve
from pyresil.integrations._http.response import BoundRawResponse, bind_response

if TYPE_CHECKING:
    from urllib3.response import HTTPResponse

    from pyresil.integrations._http.call import Call

_IN_PROGRESS = frozenset((0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY, errno.EINTR))


class BoundConnection(urllib3.connection.HTTPConnection):
    """Mixed into the connection classes of a pool by `bound`; without a bounded call it is what it was."""

    response_class = BoundRawResponse
    #: Whether ``_new_conn`` is urllib3's own, so that ours can take its place. Not so for SOCKS.
    _plain = True
    _cut: Cut | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.era = forks.era

    def _new_conn(self) -> socket.socket:
        call = active.get()
        if call is None:
            return super()._new_conn()
        call.budget.left()
        if not self._plain:
            return self._foreign_conn(call)
        try:
            sock = self._dial(call)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        except OSError as error:
            raise NewConnectionError(self, f"Failed to establish a new connection: {error}") from error
        sys.audit("http.client.connect", self, self.host, self.port)
        return sock

    def _foreign_conn(self, call: Call) -> socket.socket:
        """A connection by a library that we see nothing of, in a thread that can be left."""
        self.timeout = call.budget.left()
        sock: socket.socket = aside(object(), super()._new_conn, call.budget, lambda late: late.close())
        if call.cut is not None:
            call.cut.attach(sock)
        return sock

    def _dial(self, call: Call) -> socket.socket:
        """Resolve the name and try its addresses, each with a fair share of the time that is left."""
        host = self._dns_host
        if host.startswith("["):
            host = host.strip("[]")
        try:
            host.encode("idna")
        except UnicodeError:
            raise LocationParseError(f"{host!r}, label empty or too long") from None
        # Through the module: applications replace this function to switch IPv6 off.
        family = urllib3.util.connection.allowed_gai_family()
        found = resolve(host, self.port, family, call.budget)
        failed: OSError | None = None
        try:
            for position, (kind, socktype, proto, _, address) in enumerate(found):
                left = call.budget.left()
                share = None if left is None else left / (len(found) - position)
                sock = dialled_socket_class()(kind, socktype, proto)
                try:
                    for option in self.socket_options or ():
                        sock.setsockopt(*option)
                    if self.source_address:
                        sock.bind(self.source_address)
                    self._connect_to(sock, address, call, share)
                    return sock
                except OSError as error:
                    failed = error
                    sock.close()
                except BaseException:
                    sock.close()
                    raise
            raise failed or OSError("getaddrinfo returns an empty list")
        finally:
            failed = None  # its traceback holds this frame

    def _connect_to(self, sock: socket.socket, address: Any, call: Call, share: float | None) -> None:
        """Connect without blocking, and wait: a cancel that comes between a look at the token and the wait is not missed."""
        assert call.cut is not None
        call.cut.attach(sock)
        sock.setblocking(False)
        status = sock.connect_ex(address)
        if status not in _IN_PROGRESS:
            raise OSError(status, os.strerror(status))
        left = call.budget.left()
        if status != 0:
            given = left if share is None or left is None else min(share, left)
            writable = wait_for_write(sock, given)
            call.budget.left()
            if not writable:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            status = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if status:
                raise OSError(status, os.strerror(status))
        sock.settimeout(call.budget.left())

    def connect(self) -> None:
        """Connect, and whatever a proxy and TLS need."""
        call = active.get()
        if call is None:
            super().connect()
            return
        self._drop_cut()
        self._cut = cut = Cut()
        # TLS within the TLS of a proxy is done by urllib3 in many waits.
        timed = self.proxy is not None and self.proxy.scheme == "https"
        with call.connecting(cut, timed=timed):
            super().connect()

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Send a request; connects first where that was not done."""
        call = active.get()
        if call is not None:
            call.budget.left()
            if self.sock is None:
                self.connect()
            if self._cut is None:  # made by a call that nothing bounded
                self._cut = Cut()
                self._cut.attach(self.sock)
            call.begin(self.sock, self._cut)
        super().request(*args, **kwargs)

    def send(self, data: Any) -> None:
        """Send bytes; each wait for the other side is bounded."""
        call = active.get()
        if call is None or self.sock is None or not isinstance(data, (bytes, bytearray, memoryview)):
            super().send(data)
            return
        if self.debuglevel > 0:
            print("send:", repr(data))  # noqa: T201 - what http.client does when asked to
        sys.audit("http.client.send", self, data)
        sock = self.sock
        sent = call.operate(sock, sock.send, data)
        if sent < len(data):
            with memoryview(data) as view, view.cast("B") as rest:
                while sent < len(rest):
                    sent += call.operate(sock, sock.send, rest[sent:])

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as in urllib3 itself
        """The response, whose body is bounded by the same call."""
        call = active.get()
        if call is None:
            return super().getresponse()
        call.phase = "while waiting for the response"
        response = super().getresponse()
        bind_response(response, call)
        return response

    def close(self) -> None:
        """Close; the file of a response that is still read keeps the socket, and its own hold on the cut."""
        try:
            super().close()
        finally:
            self._drop_cut()

    def _drop_cut(self) -> None:
        cut, self._cut = self._cut, None
        if cut is not None:
            cut.release()


@functools.cache
def bound(cls: type[Any]) -> type[Any]:
    """The connection class of a pool with `BoundConnection` mixed in."""
    if issubclass(cls, BoundConnection):
        return cls
    stock = urllib3.connection.HTTPConnection._new_conn
    return type(f"Bound{cls.__name__}", (BoundConnection, cls), {"_plain": cls._new_conn is stock})


def dialled_socket_class() -> type[socket.socket]:
    """A class of sockets over the current ``socket.socket``, which gevent may have replaced."""
    return _dialled(socket.socket)


@functools.cache
def _dialled(base: type[socket.socket]) -> type[socket.socket]:
    class DialledSocket(base):  # type: ignore[misc, valid-type]  # the base is known at run time
        """A socket that says how much time is left when it is asked for its timeout.

        ``ssl`` asks just before the handshake, which may be long after the connection stood: a proxy was spoken to,
        certificates were loaded.
        """

        __slots__ = ()

        def gettimeout(self) -> float | None:
            call = active.get()
            if call is None or self.fileno() < 0:
                given: float | None = super().gettimeout()
                return given
            try:
                return call.budget.left()
            except Stop:
                return 0.001  # the handshake fails at once, and who asked for the connection sees why

    return DialledSocket
