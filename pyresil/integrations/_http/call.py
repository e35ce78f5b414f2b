"""`Call`: one request on its way through urllib3, and the operations on its socket."""

from __future__ import annotations

import os
import socket
import sys
from _socket import socket as RawSocket  # noqa: N812 - beside the class over it
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pyresil._watchdog import call_later
from pyresil.clock import SYSTEM
from pyresil.integrations._http import forks
from pyresil.integrations._http.budget import LONGEST_WAIT, Hook, Stop
from pyresil.integrations._http.errors import UNSENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pyresil.clock import TimerHandle
    from pyresil.integrations._http.budget import Budget

#: The call that this thread of control is in, where it is bounded. urllib3 passes nothing of ours down to its connections.
#: Set back with `set`: where `reset` removes a value, CPython 3.11 may collect garbage in the middle, and a look at the variable by
#: a finalizer (urllib3's pools have one, which looks into our queue) leaves the removed value in a cache that does not own it.
active: ContextVar[Call | None] = ContextVar("pyresil_http_call", default=None)


class Cut:
    """A way to end whatever blocks on a connection, from any thread: a duplicate of its descriptor.

    Shutting the duplicate down shuts the connection down below TLS, whose state stays whole: shutting an ``SSLSocket`` itself
    down makes its reader return ciphertext. The raw socket of the interpreter is used, so that gevent's is not waited on.
    The connection and the file of its response each hold it, since either may outlive the other.
    """

    __slots__ = ("_era", "_holders", "_raw")

    def __init__(self) -> None:
        self._raw: RawSocket | None = None
        self._era = forks.era
        self._holders = 1

    def attach(self, sock: Any) -> None:
        """Duplicate the descriptor of ``sock``."""
        self.close()
        # What stands for a socket (TLS within TLS, pyOpenSSL) does not say; the descriptor does.
        known = (sock.family, sock.type, sock.proto) if isinstance(sock, socket.socket) else (-1, -1, -1)
        self._raw = RawSocket(*known, fileno=os.dup(sock.fileno()))

    def hold(self) -> None:
        """One more holder."""
        self._holders += 1

    def release(self) -> None:
        """A holder has gone; the last one closes the duplicate."""
        self._holders -= 1
        if self._holders <= 0:
            self.close()

    def close(self) -> None:
        """Close the duplicate, which leaves the connection alone."""
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()

    def shut(self) -> None:
        """End the connection. Called by a cancel, in any thread; whoever takes the socket out first closes it."""
        raw, self._raw = self._raw, None
        if raw is not None:
            try:
                # Not in a forked child: its parent speaks on the connection.
                if self._era is forks.era:
                    raw.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is gone already
            raw.close()


class Call:
    """One request on its way: its budget, its connection, and what it is doing.

    Args:
        budget: What bounds it; where ``later`` is given, until the connection stands.
        request: The prepared request.
        later: What bounds it from then on.
        after: At most so many seconds from then on, or None.

    Attributes:
        budget: What bounds it now.
        phase: What it is doing, for messages.
        cut: Ends its connection, once there is one.
    """

    __slots__ = ("_after", "_later", "_timed", "budget", "cut", "phase", "request")

    def __init__(
        self, budget: Budget, request: Any, later: Budget | None = None, after: float | None = None
    ) -> None:
        self.budget = budget
        self.request = request
        self.phase = UNSENT
        self.cut: Cut | None = None
        self._later = later
        self._after = after
        #: Whether the socket is none of the interpreter's: one operation on it may be many waits.
        self._timed = False

    def error(self) -> BaseException:
        """What is raised in place of `Stop`."""
        return self.budget.error(self.request, self.phase)

    def connecting(self, cut: Cut, *, timed: bool) -> Connecting:
        """A scope in which a connection is made, so that a cancel cuts it whatever it waits on.

        ``timed``: the watchdog cuts it at the deadline, since it waits on more than the interpreter's own sockets.
        """
        self.cut = cut
        self.phase = "while connecting"
        return Connecting(self, cut, timed=timed)

    def begin(self, sock: Any, cut: Cut) -> None:
        """The connection stands, and the request goes out on it."""
        self.cut = cut
        self.phase = "while sending the request"
        self._timed = not isinstance(sock, socket.socket)
        later, self._later = self._later, None
        if later is not None:
            self.budget = later
            if self._after is not None:
                later.shorten(self._after)

    def operate(self, sock: Any, operation: Callable[[Any], int], data: Any) -> int:
        """One operation on a socket, such as ``sock.recv_into``.

        Returns:
            What the operation returned: the bytes that were moved; 0 is a real end, never a cut.

        Raises:
            Stop: The budget was spent before or meanwhile.
            OSError: The connection failed by itself.
        """
        budget, cut = self.budget, self.cut
        assert cut is not None
        hook = Hook(cut.shut)
        timer = None
        moved = 0
        # A ``BaseException`` that comes meanwhile, such as a KeyboardInterrupt, goes its way whatever was cut.
        ours = False
        try:
            budget.watch(hook)
            if self._timed:
                timer = self._timer(hook)
            while True:
                sock.settimeout(budget.left())
                try:
                    moved = operation(data)
                    break
                except OSError as error:
                    if hook.function is None or budget.spent():
                        raise Stop from None
                    # The timeout that was set: `left` says whether the time is really up. A timeout with a number is the
                    # kernel's own, of a connection that is dead. gevent's TLS has no type for it.
                    if error.errno is not None or "timed out" not in str(error):
                        raise
            ours = True
        except Exception:
            ours = True
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if not budget.unwatch(hook) and ours:
                raise Stop  # the cut was begun: the connection is of no use, whatever came last
        if not moved:
            budget.left()  # where a body ends with the connection, a cut looks like its end
        return moved

    def _timer(self, hook: Hook) -> TimerHandle | None:
        """Have the watchdog cut the connection at the deadline, where socket timeouts bound single waits only."""
        left = self.budget.left()
        return None if left is None or left == LONGEST_WAIT else call_later(SYSTEM, left, hook.fire)


class Connecting:
    """See `Call.connecting`."""

    __slots__ = ("_call", "_hook", "_timed", "_timer")

    def __init__(self, call: Call, cut: Cut, *, timed: bool) -> None:
        self._call = call
        self._hook = Hook(cut.shut)
        self._timed = timed
        self._timer: TimerHandle | None = None

    def __enter__(self) -> None:
        call = self._call
        try:
            call.budget.watch(self._hook)
            if self._timed:
                self._timer = call._timer(self._hook)
        except BaseException:
            call.budget.unwatch(self._hook)
            raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if traceback is not None and sys.version_info < (3, 13):
            _close_unfinished(traceback)
        untouched = self._call.budget.unwatch(self._hook)
        if error is not None and not isinstance(error, Exception):
            return
        if not untouched or (error is not None and self._call.budget.spent()):
            raise Stop from None


def _close_unfinished(traceback: TracebackType) -> None:
    """Close the TLS socket of a handshake that never began.

    Where the connection was cut just before, ``ssl`` raises and leaves its new socket open; only that frame knows it.
    """
    step: TracebackType | None = traceback
    while step is not None:
        made = step.tb_frame.f_locals.get("self")
        if isinstance(made, socket.socket):
            made.close()
        step = step.tb_next
