"""What bounds one HTTP call: the deadline and the cancel tokens in force when it began.

Deadlines are kept by socket timeouts, set anew before every operation, so no second thread takes part. A cancel shuts the
connection down: every operation lists a `Hook` on the tokens while it runs, and takes it back at its end, so that a cancel
that comes later finds nothing to cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil.cancel import _Callback
from pyresil.clock import SYSTEM
from pyresil.context import current_context
from pyresil.errors import CancelledError
from pyresil.integrations._http.errors import RequestCancelledError, RequestTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.cancel import CancelToken
    from pyresil.clock import Parker

_monotonic = SYSTEM.monotonic

#: The longest wait at a time, in seconds: ``poll`` counts milliseconds in 32 bits. Who waits looks again afterwards.
LONGEST_WAIT = 20 * 86400.0


class Stop(Exception):  # noqa: N818 - it never leaves the package
    """The budget of a call is spent. Not an ``OSError``, or urllib3 would wrap it as a fault of the connection."""


class Hook(_Callback):
    """What a cancel calls while one operation runs. Either the cancel takes the function out, or the operation's end does.

    The watchdog calls it itself where a lease is lost: a callback of somebody else on the dispatch thread may take its time.
    """

    __slots__ = ()

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__(function, quick=True)

    def taken_back(self) -> bool:
        """End the operation; False where a cancel took the function first, and the connection is being cut."""
        function, self.function = self.function, None
        return function is not None


class Budget:
    """The tokens and the deadline of one call.

    Attributes:
        tokens: Every token that can cancel the call.
        deadline: The earliest deadline on the system's monotonic clock, or None.
    """

    __slots__ = ("_by", "_limit", "_others", "deadline", "tokens")

    tokens: tuple[CancelToken, ...]
    deadline: float | None

    def __init__(
        self, leaves: tuple[CancelToken, ...] = (), limit: float | None = None, outer: Budget | None = None
    ) -> None:
        tokens: list[CancelToken] = [] if outer is None else [*outer.tokens]
        self.deadline = None if outer is None else outer.deadline
        #: Who set the deadline: a token, or None for a ``timeout=`` of ``_limit`` seconds.
        self._by: CancelToken | None = None if outer is None else outer._by
        self._limit: float | None = None if outer is None else outer._limit
        #: Tokens with a deadline on a clock of their own, which real time says nothing of.
        self._others: tuple[CancelToken, ...] = () if outer is None else outer._others
        for leaf in leaves:
            for token in leaf._chain():
                if token in tokens:
                    continue
                tokens.append(token)
                due = token._deadline
                if due is None:
                    continue
                if token._clock is not SYSTEM:
                    self._others = (*self._others, token)
                    token._arm()  # a clock that is moved by hand tells nobody else that the time is up
                elif self.deadline is None or due < self.deadline:
                    self.deadline = due
                    self._by = token
        self.tokens = tuple(tokens)
        if limit is not None:
            self.shorten(limit)

    def shorten(self, limit: float) -> None:
        """From now on at most ``limit`` seconds."""
        due = _monotonic() + limit
        if self.deadline is None or due < self.deadline:
            self.deadline = due
            self._by = None
            self._limit = limit

    def left(self) -> float | None:
        """Seconds left, above 0 and at most `LONGEST_WAIT`; None without a deadline.

        Raises:
            Stop: Nothing is left, or a token was cancelled.
        """
        for token in self.tokens:
            if token._cancelled:
                raise Stop
        left: float | None = None
        if self.deadline is not None:
            left = self.deadline - _monotonic()
            if left <= 0.0:
                raise Stop
        if self._others:
            for token in self._others:
                more = token.remaining() or 0.0
                if more <= 0.0:
                    raise Stop
                left = more if left is None else min(left, more)
        return left if left is None or left < LONGEST_WAIT else LONGEST_WAIT

    def spent(self) -> bool:
        """Whether nothing is left."""
        try:
            self.left()
        except Stop:
            return True
        return False

    def watch(self, hook: Hook) -> None:
        """Have ``hook`` called by a cancel, from now on."""
        for token in self.tokens:
            token._callbacks[hook] = None

    def unwatch(self, hook: Hook) -> bool:
        """The opposite of `watch`; False where the function is being called, or was."""
        for token in self.tokens:
            token._callbacks.pop(hook, None)
        return hook.taken_back()

    def park(self, parker: Parker) -> None:
        """Wait until ``parker`` is woken.

        Raises:
            Stop: The budget was spent meanwhile.
        """
        hook = Hook(parker.unpark)
        try:
            self.watch(hook)
            while not SYSTEM.park_for_work(parker, self.left()):
                pass  # the time was up, or nearly: `left` knows
        finally:
            self.unwatch(hook)
        self.left()

    def error(self, request: Any, phase: str) -> BaseException:
        """What a call raises in place of `Stop`: of a cancel its reason, where that is an exception."""
        subject = subject_of(request)
        failed: RequestTimeoutError | RequestCancelledError
        for token in self.tokens:
            if token._cancelled:
                reason = token._reason
                if isinstance(reason, CancelledError):
                    reason = reason.reason
                elif isinstance(reason, BaseException):
                    return reason.with_traceback(token._trace)
                failed = RequestCancelledError(reason, token._policy)
                break
        else:
            late = next((token for token in self._others if not token.remaining()), self._by)
            if late is None:
                failed = RequestTimeoutError(self._limit)
                failed.deadline = self.deadline
            else:
                expired = late._expired()
                failed = RequestTimeoutError(expired.limit, expired.policy)
                failed.deadline = expired.deadline
        failed.subject = subject
        failed.phase = phase
        failed.request = request
        return failed


def subject_of(request: Any) -> str:
    """Method and URL of a request, for messages: without user, password, query and fragment."""
    head, _, _ = str(request.url).partition("?")
    head, _, _ = head.partition("#")
    scheme, mark, rest = head.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{request.method} {scheme}{mark}{authority.rpartition('@')[2]}{slash}{path}"


def current_budget(limit: float | None, outer: Budget | None = None) -> Budget | None:
    """The budget of a call that begins now: of the current context, of ``limit`` seconds, of the call around it.

    None where nothing bounds it.
    """
    ctx = current_context()
    if ctx is None:
        if limit is None:
            return outer
        return Budget((), limit, outer)
    return Budget((ctx.cancel,), limit, outer)
