"""`Context`: what one attempt knows, and how code below finds it.

A Context is made for every attempt and every hedge copy, and costs next to nothing until it is used: it has no constructor,
everything but who made it and what it runs is a default of the class, and tokens and properties are made when asked for.
Only the attempt's own thread writes it. The innermost one is found through a ``contextvars.ContextVar``, so it is right in
threads the library starts, under gevent, and where code copies the context.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pyresil._cache_keys import NoKey
from pyresil._scope import Scope as Scope
from pyresil._validate import duration_of
from pyresil.cancel import CancelToken
from pyresil.clock import Parker
from pyresil.errors import PolicyUsageError
from pyresil.outcome import UNSET as UNSET

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil._scope import Owner as Owner
    from pyresil.clock import Clock
    from pyresil.durations import Duration
    from pyresil.locks.lease import Lease

__all__ = ["Context", "current_context", "current_lease", "fencing_token"]

#: A cell: a list of a `Context`, or of what it is made from when somebody asks (see `pyresil._flat`); or None.
_current: ContextVar[Any] = ContextVar("pyresil_context", default=None)
_lease: ContextVar[Lease | None] = ContextVar("pyresil_lease", default=None)

#: The least that `Context.timeout` returns, in seconds: 0 means "do not block" to sockets.
LEAST_TIMEOUT = 0.001

#: What each attempt and copy has for itself.
_OWN = ("_token", "_base", "_waker", "_reported", "_properties")


class Context(NoKey):
    """What one attempt knows.

    Attributes:
        attempt: The number of the attempt, from 1.
        key: What was given as ``options(key=…)``, or None.
        source: What was given as ``options(source=…)``, or None.
        parent: The context of the execution around this one, or None.
    """

    attempt: int = 1
    key: Any = None
    source: str | None = None
    parent: Context | None = None

    _owner: Owner
    _work: tuple[Callable[..., Any] | None, tuple[Any, ...], dict[str, Any]] = (None, (), {})
    #: The execution's first context, from which those of later attempts and copies are made; None for that one itself.
    _origin: Context | None = None
    #: The deadline on the owner's clock, and the limit in seconds that set it.
    _deadline: float | None = None
    _limit: float | None = None
    #: The token given as an option.
    _given: CancelToken | None = None
    #: The execution's token, and the one in force, which a timeout narrows for its scope.
    _base: CancelToken | None = None
    _token: CancelToken | None = None
    #: Wakes a caller that waits for this execution without a token: there was none to wait on yet.
    _waker: Callable[[], object] | None = None
    #: What makes the token of a copy; its later attempts share it.
    _scope: Scope | None = None
    _reported: Any = UNSET
    _lease: Lease | None = None

    # -- what work reads -------------------------------------------------------------------------------------------------

    @property
    def policy(self) -> str | None:
        """The name of the policy."""
        return self._owner.name

    @property
    def clock(self) -> Clock:
        """The clock of the policy; deadlines are on its monotonic time."""
        return self._owner.clock

    @property
    def cancel(self) -> CancelToken:
        """The token that tells this work to stop: its deadline, a timeout around it, the caller's token, an outer policy's.

        Cancelling it cancels the execution (a hedge copy's: that copy).
        """
        token = self._token
        if token is None:
            token = self._base_token()
            if self._deadline is not None:
                token = CancelToken._view(token, self._deadline, self._limit)
            # Another thread may ask for the same token first.
            token = self.__dict__.setdefault("_token", token)
        return token

    def remaining(self) -> float | None:
        """Seconds left until the deadline, 0 or more; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - self.clock.monotonic())

    def timeout(self, cap: Duration | None = None) -> float | None:
        """The seconds left, made for ``timeout=`` arguments.

        Args:
            cap: Not more than this (a duration); None for no cap.

        Returns:
            Seconds, never below 1 ms; None where there is neither a deadline nor a cap.

        Raises:
            TimeoutExceededError: Nothing is left.
            CancelledError: The execution was cancelled.
            ConfigurationError: ``cap`` is no duration.
        """
        left = self.remaining()
        if (left is not None and left <= 0.0) or self._stoppable():
            self.cancel.raise_if_cancelled()
        if cap is not None:
            limit = duration_of("timeout: cap", cap)
            left = limit if left is None else min(left, limit)
        return None if left is None else max(left, LEAST_TIMEOUT)

    @property
    def properties(self) -> dict[str, Any]:
        """A dict that all attempts and copies of the execution share; starts with ``options(properties=…)``."""
        origin = self._origin or self
        found: dict[str, Any] = origin.__dict__.setdefault("_properties", {})
        return found

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments of the call; empty for a block."""
        return self._work[1]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments of the call; empty for a block."""
        return self._work[2]

    def arguments(self) -> dict[str, Any]:
        """The call's arguments by parameter name, defaults included.

        Raises:
            PolicyUsageError: A block has no arguments, and some builtin functions do not tell their parameters.
        """
        function, args, kwargs = self._work
        if function is None:
            raise PolicyUsageError("a block has no arguments: only a call and a decorated function have them")
        import inspect

        try:
            signature = inspect.signature(function)
        except ValueError as error:  # some builtins
            raise PolicyUsageError(f"arguments() cannot name them: {error}", self.policy) from None
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    @property
    def lease(self) -> Lease | None:
        """The innermost lease taken by this policy or one around it, or None."""
        ctx: Context | None = self
        while ctx is not None:
            if ctx._lease is not None:
                return ctx._lease
            ctx = ctx.parent
        return None

    @property
    def fencing_token(self) -> int | None:
        """The fencing token of `lease`, or None."""
        lease = self.lease
        return None if lease is None else lease.token

    def report(self, result: Any) -> None:
        """Let a block be judged by ``result``, as if it had returned it. The last report wins; an exception beats it."""
        self._reported = result

    def sleep(self, duration: Duration) -> None:
        """Wait for ``duration``, or until the work is told to stop.

        Raises:
            ConfigurationError: It is no duration.
            TimeoutExceededError: The deadline passed meanwhile.
            CancelledError: The execution was cancelled (or the token's own reason, where that is an exception).
        """
        length = duration_of("sleep: duration", duration)
        token = self.cancel
        if not token.is_set():
            if length <= 0.0:
                return
            clock = self.clock
            until = clock.monotonic() + length
            while not token.is_set():
                left = until - clock.monotonic()
                if left <= 0.0:
                    return
                if not token.park(Parker(), left) and not token.is_set():
                    return  # the time was up, also on a clock that skips waits
        token.raise_if_cancelled()

    # -- what policies and strategies do ---------------------------------------------------------------------------------

    def _inherit(self, parent: Context) -> None:
        """Take over the deadline of the execution around this one."""
        self.parent = parent
        deadline = parent._deadline
        if deadline is not None:
            clock, outer = self.clock, parent.clock
            if clock is not outer:
                deadline = clock.monotonic() + (deadline - outer.monotonic())
            self._deadline = deadline
            self._limit = parent._limit

    def _next(self, attempt: int) -> Context:
        """The context of a later attempt, or with the same number of a copy."""
        ctx = Context()
        # A copy in one step: a signal handler may ask for the token, and so add to ours, in the middle of a loop over it.
        values = self.__dict__.copy()
        for name in _OWN:
            values.pop(name, None)
        ctx.__dict__.update(values)
        ctx._origin = self._origin or self
        ctx.attempt = attempt
        return ctx

    def _copy(self) -> Context:
        """The context of a copy in another thread: its token is a child, so that it can be cancelled alone."""
        ctx = self._next(self.attempt)
        ctx._scope = Scope(self, away=True)
        return ctx

    def _stoppable(self) -> bool:
        """Whether there is a token that somebody may have cancelled; asking for `cancel` would make one."""
        ctx: Context | None = self
        while ctx is not None:
            origin = ctx._origin or ctx
            if ctx._base is not None or ctx._given is not None or origin._base is not None:
                return True
            scope = ctx._scope
            if scope is not None and (scope._token is not None or scope._above._stoppable()):
                return True
            ctx = ctx.parent
        return False

    def _base_token(self) -> CancelToken:
        if self._scope is not None:
            return self._scope.token()
        if self._base is None:
            if self._origin is not None:
                return self._origin._base_token()
            above = () if self._given is None else (self._given,)
            if self.parent is not None:
                above = (*above, self.parent.cancel)
            fresh = CancelToken._make(self.clock, above, self.policy)
            # Before anybody else finds it, who may cancel it at once.
            if self._waker is not None:
                fresh._notify(self._waker)
            made: CancelToken = self.__dict__.setdefault("_base", fresh)
            return made
        return self._base

    def _narrow(self, limit: float, deadline: float) -> tuple[float | None, float | None, CancelToken | None]:
        """A timeout begins: its deadline is in force where it is the earlier one. Returns what `_widen` takes."""
        saved = (self._deadline, self._limit, self.__dict__.pop("_token", None))
        if saved[0] is None or deadline < saved[0]:
            self._deadline = deadline
            self._limit = limit
        return saved

    def _widen(self, saved: tuple[float | None, float | None, CancelToken | None]) -> None:
        """The timeout's scope ends, and with it the token that was made in it."""
        self._close_token()
        self._deadline, self._limit, outer = saved
        if outer is not None:
            self._token = outer

    def _close(self) -> None:
        """The execution is over: its tokens fire no more."""
        if self._token is not None:
            self._token._close_view()
        if self._base is not None:
            self._base._close()

    def _close_token(self) -> None:
        """The attempt is over; the execution, whose first context this may be, perhaps not."""
        token = self.__dict__.pop("_token", None)
        if token is not None:
            token._close_view()

    def _enter(self, run: Callable[[Context], Any]) -> Any:
        """Run something with this context as the current one."""
        outer = _current.get()
        # Mostly without a call, which every attempt would pay for.
        cell = [self, (), None, outer] if outer is None or outer[0] else cell_in_current(self, ())
        try:
            _current.set(cell)
            return run(self)
        finally:
            cell[0] = None  # it may be copied, or an open generator may set it back: see `leave_cell`
            _current.set(cell[3])

    def __repr__(self) -> str:
        return f"<Context policy={self.policy!r} attempt={self.attempt}>"


def cell_in_current(ctx: Context, args: tuple[Any, ...] | None = None) -> list[Any]:
    """A cell for ``ctx`` inside what is current; who puts it into the variable takes it out with `leave_cell`."""
    # No `args` mean a block, which unlike a call may end at any time: a generator's does when that is closed.
    outer = _current.get()
    while outer is not None and outer[0] is None:  # those calls are over
        outer = outer[3]
    return [ctx, args, None, outer]


def leave_cell(cell: list[Any] | None) -> None:
    """A stretch of work is over: wherever its cell is still found, it stands for what is around it. Twice is once."""
    if cell is None:
        return
    cell[0] = None
    # In force it may be no more: a generator is closed in the middle of other work, or by the collector in another thread.
    current = _current.get()
    while current is not None and current is not cell:
        if current[0] is not None and current[1] is not None:
            return  # a call that runs in the middle of it: what is current there stays so
        current = current[3]
    if current is not None:
        _current.set(cell[3])


def current_context() -> Context | None:
    """The innermost `Context` of this thread of control, or None outside every policy."""
    return _resolve(_current.get())


def _resolve(current: Any) -> Context | None:
    """The context that something found in the variable stands for."""
    unmade, found = [], None  # no recursion: the work may be hundreds of calls deep
    while current is not None and found is None:
        if isinstance(owner := current[0], Context):
            found = owner
        elif owner is not None:  # else that call is over
            unmade.append(current)
        current = current[3]
    while unmade:
        found = _context_in(unmade.pop(), found) or found
    return found


def context_of(cell: list[Any]) -> Context:
    """The `Context` of a flat call that runs, made at first use."""
    found = _context_in(cell, None if cell[3] is None or isinstance(cell[0], Context) else _resolve(cell[3]))
    if found is None:
        raise RuntimeError("the call is over")
    return found


def _context_in(cell: list[Any], parent: Context | None) -> Context | None:
    owner = cell[0]
    if owner is None or isinstance(owner, Context):
        return owner
    ctx = Context()
    ctx._owner = owner
    ctx._work = (cell[4] if owner.fn is None else owner.fn, cell[1], cell[2] or {})
    if parent is not None:
        ctx._inherit(parent)
    # Code that copied the context may ask from another thread; no call stands between the look and the store.
    if cell[0] is owner:
        cell[0] = ctx
    made: Context | None = cell[0]
    return made


def is_cancellation(ctx: Context, error: BaseException) -> bool:
    """Whether ``error`` is what the execution was cancelled with: an exception of the caller's, or the loss of a lease."""
    if not ctx._stoppable():
        return False
    cause = ctx.cancel._cause()
    return cause is not None and cause._cancelled and cause._reason is error


def current_lease() -> Lease | None:
    """The innermost lease held by the code around this, or None."""
    return _lease.get()


def fencing_token() -> int | None:
    """The fencing token of `current_lease`, or None."""
    lease = _lease.get()
    return None if lease is None else lease.token
