"""`CancelToken`: how work is told to stop.

Deadlines are computed when somebody looks, not timed: a thread takes part only once somebody asks for a callback or a
`threading.Event`. A token is safe to cancel from a signal handler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil._dispatch import post
from pyresil._validate import Checker, Configured
from pyresil._watchdog import call_later
from pyresil.clock import SYSTEM, Clock, Parker, SignalSafeEvent
from pyresil.errors import CancelledError, TimeoutExceededError, report_exception

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from pyresil.clock import TimerHandle
    from pyresil.durations import Duration

__all__ = ["CancelToken"]


class _Callback:
    """A function that is called at most once, however many tokens and timers call `fire`.

    A ``quick`` one is the library's own, wakes somebody and never blocks: the watchdog may call it. It may be called again where
    a signal handler raised in it.
    """

    __slots__ = ("function", "quick")

    def __init__(self, function: Callable[[], object], *, quick: bool = False) -> None:
        self.function: Callable[[], object] | None = function
        self.quick = quick

    def fire(self) -> None:
        function, self.function = self.function, None
        if function is None:
            return
        try:
            function()
        except BaseException as error:
            if self.quick:
                function()  # nobody else calls it now, and who waits has to be woken
            if not isinstance(error, Exception):
                raise
            report_exception("a cancel callback raised")


class CancelToken(Configured):
    """Tells work to stop: by `cancel`, by its deadline, or because a token it descends from is set.

    Args:
        timeout: The token is set this long from now (seconds, timedelta, or ``"1.5s"``); None for no deadline.
        clock: The clock of the deadline. Default: the system's.

    Raises:
        ConfigurationError: ``timeout`` is not a duration, or ``clock`` no clock.
    """

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_cancelled",
        "_clock",
        "_deadline",
        "_event",
        "_limit",
        "_parents",
        "_policy",
        "_reason",
        "_target",
        "_timer",
        "_trace",
    )

    _clock: Clock
    _parents: tuple[CancelToken, ...]
    _deadline: float | None
    _limit: float | None
    _policy: str | None
    _target: CancelToken | None
    _cancelled: bool
    _reason: object
    _callbacks: dict[_Callback, None]
    _timer: TimerHandle | None
    _event: SignalSafeEvent | None
    _trace: Any

    def __init__(self, *, timeout: Duration | None = None, clock: Clock | None = None) -> None:
        check = Checker("cancel token")
        limit = check.optional_duration("timeout", timeout, positive=False)
        check.instance("clock", clock, Clock, "a Clock or None")
        check.done()
        self._setup(clock or SYSTEM)
        if limit is not None:
            self._limit, self._deadline = limit, self._clock.monotonic() + limit

    def _setup(self, clock: Clock) -> None:
        self._clock = clock
        self._parents, self._policy = (), None
        self._deadline = self._limit = None
        self._target = None  # what `cancel` cancels instead, for a view
        self._cancelled = False
        self._reason = self._trace = None
        self._callbacks = {}
        self._timer = self._event = None

    @classmethod
    def _make(cls, clock: Clock, parents: tuple[CancelToken, ...], policy: str | None) -> CancelToken:
        """The token of an execution of ``policy``."""
        token = object.__new__(cls)
        token._setup(clock)
        token._parents, token._policy = parents, policy
        return token

    @classmethod
    def _view(cls, of: CancelToken, deadline: float, limit: float | None) -> CancelToken:
        """A token with a deadline of its own whose `cancel` cancels ``of``: the scope of a timeout."""
        token = cls._make(of._clock, (of,), of._policy)
        token._target, token._deadline, token._limit = of, deadline, limit
        return token

    def child(self, timeout: Duration | None = None) -> CancelToken:
        """A token that is set when this one is, by its own `cancel`, or after ``timeout`` (a duration). It never sets this one.

        Raises:
            ConfigurationError: ``timeout`` is not a duration.
        """
        token = CancelToken(timeout=timeout, clock=self._clock)
        token._parents, token._policy = (self,), self._policy
        return token

    def _chain(self) -> list[CancelToken]:
        """This token and all above it, each once: who hands his token on at every level would double them each time."""
        found, seen = [self], {self}
        for token in found:
            for above in token._parents:
                if above not in seen:
                    seen.add(above)
                    found.append(above)
        return found

    def cancel(self, reason: object = None) -> bool:
        """Set the token. Callbacks run here and now, in order; waiting threads wake. May be called from anywhere.

        Args:
            reason: What `raise_if_cancelled` raises, where it is an exception; else the reason of its `CancelledError`.

        Returns:
            True where this call set it, False where it was cancelled already (the first reason stays).
        """
        if self._target is not None:
            return self._target.cancel(reason)
        first, trace = False, getattr(reason, "__traceback__", None)
        if not self._cancelled:
            self._reason, self._trace = reason, trace
            self._cancelled = first = True
        try:
            self._fire()
        except BaseException:
            self._fire()  # a signal handler may have raised at its start, and a second `cancel` need not come
            raise
        return first

    def _fire(self) -> None:
        while self._callbacks:
            try:
                callback = next(iter(self._callbacks))
                del self._callbacks[callback]
            except (StopIteration, KeyError, RuntimeError):
                continue  # somebody else took it, or registered one
            try:
                callback.fire()
                _Registration(self, callback).remove()  # a token above may live as long as the process
            except BaseException:
                self._callbacks[callback] = None  # it may not have been fired yet, and fires only once
                self._fire()  # those who wait are woken all the same
                raise

    def _cancel_soon(self, reason: object) -> None:
        """`cancel` for the watchdog: who waits is woken here and now, the user's callbacks run on the dispatch thread."""
        if not self._cancelled:
            self._reason = reason
            self._cancelled = True
        self._fire_soon()

    def _fire_soon(self) -> None:
        for callback in list(self._callbacks):
            if callback.quick:
                callback.fire()
                _Registration(self, callback).remove()
        if self._callbacks:
            post(self._fire)

    def _cause(self) -> CancelToken | None:
        """The token of the chain that is set, or None; one that was cancelled goes before one whose time is up."""
        late: CancelToken | None = None
        for token in self._chain():
            if token._cancelled:
                return token
            if late is None and token._deadline is not None and token._clock.monotonic() >= token._deadline:
                late = token
        return late

    def is_set(self) -> bool:
        """Whether work should stop."""
        return self._cause() is not None

    @property
    def reason(self) -> object:
        """What was given to `cancel`; a `TimeoutExceededError` where the deadline passed; None while not set."""
        cause = self._cause()
        if cause is None:
            return None
        return cause._reason if cause._cancelled else cause._expired()

    def _expired(self) -> TimeoutExceededError:
        error = TimeoutExceededError(self._limit, self._policy)
        error.deadline = self._deadline
        return error

    def raise_if_cancelled(self) -> None:
        """Raise where the token is set.

        Raises:
            BaseException: The reason itself, where it is an exception.
            CancelledError: It was cancelled with another reason, or none.
            TimeoutExceededError: Its deadline passed.
        """
        cause = self._cause()
        if cause is None:
            return
        if not cause._cancelled:
            raise cause._expired()
        if isinstance(cause._reason, BaseException):
            # With its traceback as it was: one that grew each time would keep the frames of all who were ever told to stop.
            raise cause._reason.with_traceback(cause._trace)
        raise CancelledError(cause._reason, self._policy)

    def remaining(self) -> float | None:
        """Seconds until the earliest deadline of this token and those above it, 0 or more; None without one."""
        left = [
            max(0.0, token._deadline - token._clock.monotonic())
            for token in self._chain()
            if token._deadline is not None
        ]
        return min(left, default=None)

    def park(self, parker: Parker, timeout: float | None = None, *, for_work: bool = False) -> bool:
        """Wait on ``parker`` until it is woken, the token is set, or ``timeout`` seconds passed.

        Args:
            parker: Where to wait.
            timeout: Seconds, or None for no limit but the token's.
            for_work: It is work in another thread that is waited for (`Clock.park_for_work`).

        Returns:
            True where something woke it (which may be the token), False where the time was up.
        """
        left = self.remaining()
        if left is not None:
            timeout = left if timeout is None else min(timeout, left)
        park = self._clock.park_for_work if for_work else self._clock.park
        with _Registration(self, _Callback(parker.unpark, quick=True)):
            return park(parker, timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the token is set, at most ``timeout`` seconds; returns whether it is."""
        if not self.is_set() and (timeout is None or timeout > 0.0):
            self.park(Parker(), timeout)
        return self.is_set()

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call ``callback()`` once when the token is set; at once where it is already.

        It runs in the thread that cancels, or on the library's dispatch thread where a deadline passed; what it raises is
        logged.

        Returns:
            A function that takes the callback back.

        Raises:
            ConfigurationError: It cannot be called, or is async.
        """
        check = Checker("cancel token")
        check.required("callback", callback)
        check.done()
        registration = _Registration(self, _Callback(callback))
        registration.add()
        self._arm()
        return registration.remove

    def _notify(self, callback: Callable[[], object]) -> None:
        """`on_cancel` for a token without a deadline and with nothing above it that is never taken back."""
        self._callbacks[_Callback(callback, quick=True)] = None

    def as_event(self) -> threading.Event:
        """A real `threading.Event` that is set with the token; the same object every time."""
        event = self._event
        if event is None:
            event = SignalSafeEvent()
            registration = _Registration(self, _Callback(event.set, quick=True))
            # Before anybody else finds it: a signal handler may raise in here, and what is found is not registered again.
            registration.add()
            other = self._event
            if other is None:
                self._event = event
            else:
                registration.remove()
                event = other
        if not event.is_set():
            self._arm()
        return event

    def _arm(self) -> None:
        left = self.remaining()
        if left is not None and self._timer is None:
            self._timer = call_later(self._clock, left, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        if not self.is_set():  # a clock's rounding: look again
            self._arm()
            return
        self._fire_soon()

    def _close(self) -> None:
        """The work is over: callbacks are let go, and a deadline that passes later fires nothing."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        for callback in list(self._callbacks):
            _Registration(self, callback).remove()
        self._event = None

    def _close_view(self) -> None:
        """`_close`, for a view; a token that outlives the scope is left alone."""
        if self._target is not None:
            self._close()

    def __repr__(self) -> str:
        cause = self._cause()
        state = "not set" if cause is None else "cancelled" if cause._cancelled else "deadline passed"
        return f"<CancelToken {state}>"


class _Registration:
    """One callback, listed on a token and on all above it, since each of them may be the one that is cancelled."""

    __slots__ = ("_callback", "_token")

    def __init__(self, token: CancelToken, callback: _Callback) -> None:
        self._token = token
        self._callback = callback

    def add(self) -> None:
        for token in self._token._chain():
            token._callbacks[self._callback] = None
        # Looked at once it is listed, so that no `cancel` falls in between; the callback itself runs only once.
        if self._token.is_set():
            self.remove()
            self._callback.fire()

    def remove(self) -> None:
        for token in self._token._chain():
            token._callbacks.pop(self._callback, None)

    def __enter__(self) -> None:
        self.add()

    def __exit__(self, *exc_info: object) -> None:
        self.remove()
