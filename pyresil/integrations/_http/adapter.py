"""The transport: an adapter of requests that keeps every call within its budget."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from requests.adapters import HTTPAdapter
from urllib3.exceptions import TimeoutStateError
from urllib3.util.timeout import Timeout as Urllib3Timeout

from pyresil.durations import seconds
from pyresil.errors import ConfigurationError, shown
from pyresil.integrations._http.budget import Budget, Stop, current_budget
from pyresil.integrations._http.call import Call, active
from pyresil.integrations._http.pools import bind_pools, close_idle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from requests import PreparedRequest, Response


class Attempt:
    """One attempt of a session: what bounds it, with its redirects and what its authentication sends."""

    __slots__ = ("budget", "session")

    def __init__(self, session: object, budget: Budget | None) -> None:
        self.session = session
        self.budget = budget


#: The attempt that this thread of control is in.
current_attempt: ContextVar[Attempt | None] = ContextVar("pyresil_http_attempt", default=None)


class Limits:
    """What a ``timeout=`` means: ``total`` for everything, ``connect`` until the connection stands, ``after`` from then on."""

    __slots__ = ("after", "connect", "total")

    def __init__(self, total: float | None, connect: float | None = None, after: float | None = None) -> None:
        self.total = total
        self.connect = connect
        self.after = after

    def whole(self) -> float | None:
        """The most seconds that all of it may take; None where a part has no limit."""
        if self.connect is None or self.after is None:
            return self.total
        both = self.connect + self.after
        return both if self.total is None else min(both, self.total)

    def plain(self) -> Any:
        """The same as a ``timeout=`` that any adapter takes."""
        if self.connect is None and self.after is None:
            return self.total
        if self.total is None:
            return (self.connect, self.after)
        return Urllib3Timeout(self.total, self.connect, self.after)


def limits_of(timeout: Any) -> Limits:
    """Read a ``timeout=``.

    Args:
        timeout: A duration for the whole call; a pair (connect, rest) of durations or None; a ``urllib3.Timeout``; or None.

    Raises:
        ConfigurationError: It is none of these.
    """
    if timeout is None:
        return _UNLIMITED
    if isinstance(timeout, Urllib3Timeout):
        try:
            after = timeout.read_timeout
        except TimeoutStateError:  # it has a total only, whose clock does not run yet
            after = None
        # A timeout that was not given is a default of the class here, and no number.
        parts = (timeout.total, timeout.connect_timeout, after)
        return Limits(*(part if isinstance(part, (int, float)) else None for part in parts))
    if isinstance(timeout, tuple):
        if len(timeout) != 2:
            raise ConfigurationError(
                f"request: timeout must be a duration, a pair (connect, rest) or None, got {shown(timeout)}"
            )
        connect, after = (None if part is None else _positive(part) for part in timeout)
        return Limits(None, connect, after)
    return Limits(_positive(timeout))


def _positive(value: Any) -> float:
    try:
        return seconds(value, open_low=True)
    except ValueError as error:
        raise ConfigurationError(f"request: timeout {error}") from None


_UNLIMITED = Limits(None)


class BoundAdapter(HTTPAdapter):
    """An ``HTTPAdapter`` whose ``timeout=`` is the time a call takes in all, and whose calls end when they are cancelled."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Make the pool manager, with our connections."""
        super().init_poolmanager(*args, **kwargs)
        bind_pools(self.poolmanager)

    def proxy_manager_for(self, proxy: Any, **proxy_kwargs: Any) -> Any:
        """The pool manager of a proxy, with our connections."""
        manager = super().proxy_manager_for(proxy, **proxy_kwargs)
        bind_pools(manager)
        return manager

    def close(self) -> None:
        """Close the idle connections; those in use close when they come back."""
        for manager in (self.poolmanager, *self.proxy_manager.values()):
            close_idle(manager)
        super().close()

    def _exchange(
        self,
        request: PreparedRequest,
        stream: bool,
        timeout: Any,
        verify: bool | str,
        cert: Any,
        proxies: Mapping[str, str] | None,
    ) -> Response:
        """Send one request, once, and return what the server answers."""
        limits = limits_of(timeout)
        around = current_attempt.get()
        budget = current_budget(limits.total, None if around is None else around.budget)
        if limits.connect is None and limits.after is None:
            call = None if budget is None else Call(budget, request)
        else:
            later = Budget((), None, budget)  # its own: it will be shortened
            first = Budget((), limits.connect, later)
            call = Call(first, request, later, limits.after)
        outer = active.get()
        active.set(call)
        try:
            if call is not None:
                call.budget.left()
            # No timeout for urllib3: ours are set before every operation.
            return super().send(request, stream, None, verify, cert, proxies)
        except Stop:
            pass
        finally:
            active.set(outer)  # not `reset`, see `active`
        # Outside the handlers, so that the error does not refer to what happened inside urllib3.
        assert call is not None
        raise call.error()
