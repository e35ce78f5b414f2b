"""Every public error of pyresil.

All of them derive from `PyresilError` and carry a ``code`` (a stable, upper-case word for logs and HTTP bodies) and the
name of the ``policy`` that raised them, if any. They pickle and copy: fields are attributes, the text is built of them in
``__str__``, and unpickling restores the attributes without calling a constructor.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing it from typing would cost a start of the command 2.5 ms

if TYPE_CHECKING:
    from typing import Any, ClassVar

__all__ = [
    "BulkheadFullError",
    "CancelledError",
    "CircuitOpenError",
    "ConfigurationError",
    "LockError",
    "LockLostError",
    "LockNotAcquiredError",
    "PolicyUsageError",
    "PyresilError",
    "RateLimitedError",
    "RecursiveLoadError",
    "RejectedError",
    "StoreError",
    "StoreUnavailableError",
    "TimeoutExceededError",
    "TimeoutSaturatedError",
]


def _rebuild(cls: type[PyresilError], args: tuple[Any, ...], state: dict[str, Any]) -> PyresilError:
    """Make an error again from its attributes (notes included), whatever the constructor of its class asks for."""
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


def report_exception(what: str) -> None:
    """Log the exception that is being handled: a listener or a callback raised it, and no outcome may change."""
    try:
        from pyresil._logs import logger

        logger().error("%s", what, exc_info=True)
    except Exception as error:
        # A logging filter or handler of the application raised. Or a signal handler came in the middle of this very import, or of
        # the application's of `logging`, and has something to report as well: an ImportError, an AttributeError, a KeyError of the
        # import system.
        sys.__excepthook__(type(error), error, error.__traceback__)


def report_and_go_on(what: str) -> None:
    """As `report_exception`, for a thread that others depend on: whatever logging raises, ``sys.exit()`` of a filter too, goes to stderr."""
    try:
        report_exception(what)
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)


def shown(value: object) -> str:
    """``repr(value)`` for messages: short, on one line, and whatever ``__repr__`` does."""
    try:
        text = repr(value)
    except Exception:  # somebody's own ``__repr__``, or an int of thousands of digits
        return f"<{type(value).__name__}>"
    return text if len(text) <= 200 else f"{text[:200]}…"


def _picklable(value: object) -> Any:
    """The value itself where it pickles; else what can stand for it: None for an error, its text for anything else."""
    import pickle

    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes, made on this line
    except Exception:
        return None if isinstance(value, BaseException) else shown(value)
    return value


class PyresilError(Exception):
    """Base of every error that pyresil raises.

    Attributes:
        code: A stable upper-case word that names the kind.
        policy: The name of the policy it happened under, or None.
    """

    code: ClassVar[str] = "PYRESIL_ERROR"
    policy: str | None = None
    #: Attributes that are left out where it is pickled.
    _left_out: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str = "", policy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.policy = policy

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # What somebody hung on the error must not make it unpicklable.
        state = {
            name: _picklable(value) for name, value in self.__dict__.items() if name not in self._left_out
        }
        return _rebuild, (type(self), tuple(_picklable(value) for value in self.args), state)

    def __copy__(self) -> PyresilError:
        copied = _rebuild(type(self), self.args, self.__dict__)
        copied.__cause__, copied.__context__ = self.__cause__, self.__context__
        copied.__suppress_context__ = self.__suppress_context__
        return copied


class ConfigurationError(PyresilError, ValueError):
    """An option was refused. The text names the object, each field at fault and its value, all faults at once."""

    code = "CONFIGURATION"


class PolicyUsageError(PyresilError, TypeError):
    """A policy was used in a form that cannot work; the text names the form to use instead."""

    code = "POLICY_USAGE"


class TimeoutExceededError(PyresilError, TimeoutError):
    """The deadline passed.

    Attributes:
        limit: The limit in seconds that was exceeded, or None where only a deadline was known.
        deadline: The deadline on its clock's monotonic time, in this process only; None after unpickling.
    """

    code = "TIMEOUT"
    deadline: float | None = None
    _left_out: ClassVar[tuple[str, ...]] = ("deadline",)

    def __init__(self, limit: float | None = None, policy: str | None = None) -> None:
        # One argument only: OSError, a base, reads two as (errno, strerror).
        super().__init__("")
        self.limit = limit
        self.policy = policy

    def __str__(self) -> str:
        within = "the deadline passed" if self.limit is None else f"timed out after {self.limit:g} s"
        return f"{within} (policy {self.policy!r})" if self.policy else within


class CancelledError(PyresilError):
    """The execution was cancelled through its `CancelToken`.

    Attributes:
        reason: What was given to ``cancel()``, or None.
    """

    code = "CANCELLED"

    def __init__(self, reason: object = None, policy: str | None = None) -> None:
        super().__init__("", policy)
        self.reason = reason

    def __str__(self) -> str:
        if self.reason is None:
            return "cancelled"
        try:
            return f"cancelled: {self.reason}"
        except Exception:  # somebody's own ``__str__``
            return f"cancelled: {shown(self.reason)}"


class RecursiveLoadError(PyresilError):
    """A cached function waits for the very key that it is loading.

    Attributes:
        key: The key that loads itself.
    """

    code = "RECURSIVE_LOAD"

    def __init__(self, key: object = None, policy: str | None = None) -> None:
        super().__init__("", policy)
        self.key = key

    def __str__(self) -> str:
        return f"the load of cache key {shown(self.key)} asks for the same key"


class StoreError(PyresilError):
    """A store answered with something that cannot be right, or refused the request for good."""

    code = "STORE_ERROR"


class StoreUnavailableError(StoreError):
    """A store was busy or could not be reached: what it holds is unknown."""

    code = "STORE_UNAVAILABLE"


class LockError(PyresilError):
    """Base of the errors about leases."""

    code = "LOCK_ERROR"


class LockLostError(LockError):
    """A lease was lost while the work ran.

    Attributes:
        key: The key of the lease.
        token: Its fencing token.
        detected_by: ``"refused"``, ``"deadline"`` or ``"max-hold"``.
    """

    code = "LOCK_LOST"

    def __init__(
        self, key: str = "", token: int | None = None, detected_by: str = "refused", policy: str | None = None
    ) -> None:
        super().__init__("", policy)
        self.key = key
        self.token = token
        self.detected_by = detected_by

    def __str__(self) -> str:
        return f"the lease on {self.key!r} (token {self.token}) was lost, detected by {self.detected_by}"


class RejectedError(PyresilError):
    """The work never ran. Never retried and never counted, by default.

    Attributes:
        retry_after: Seconds after which another try may be admitted, or None where nothing is known.
    """

    code = "REJECTED"

    def __init__(
        self, message: str = "", retry_after: float | None = None, policy: str | None = None
    ) -> None:
        super().__init__(message, policy)
        self.retry_after = retry_after

    def _told(self, kind: str, name: str | None, what: str) -> str:
        """The message; what has no name of its own is known by its policy's."""
        text = f"{kind} {name!r} {what}" if name else f"{kind} {what}"
        where = f" (policy {self.policy!r})" if self.policy and not name else ""
        return f"{text}{where}{self._hint()}"

    def _hint(self) -> str:
        return "" if self.retry_after is None else f"; retry after {self.retry_after:.3g} s"


class CircuitOpenError(RejectedError):
    """The circuit breaker is open (or isolated, or its probes are taken).

    Attributes:
        retry_after: Seconds until the next call may be admitted; None while isolated.
        last_failure: The last error that was counted, or None.
        name: The name of the breaker.
    """

    code = "CIRCUIT_OPEN"

    def __init__(
        self,
        retry_after: float | None = None,
        last_failure: Exception | None = None,
        name: str | None = None,
        policy: str | None = None,
    ) -> None:
        super().__init__("", retry_after, policy)
        self.last_failure = last_failure
        self.name = name

    def __str__(self) -> str:
        return self._told("circuit", self.name, "is open")


class BulkheadFullError(RejectedError):
    """The bulkhead has no free slot.

    Attributes:
        reason: ``"full"`` or ``"queue-timeout"``.
        name: The name of the bulkhead.
    """

    code = "BULKHEAD_FULL"

    def __init__(self, reason: str = "full", name: str | None = None, policy: str | None = None) -> None:
        super().__init__("", None, policy)
        self.reason = reason
        self.name = name

    def __str__(self) -> str:
        why = "has no free slot" if self.reason == "full" else "had no free slot within the queue timeout"
        return self._told("bulkhead", self.name, why)


class RateLimitedError(RejectedError):
    """The rate limit is used up.

    Attributes:
        retry_after: Seconds until a call of the same weight is admitted, if nobody else comes first.
        name: The name of the limiter.
    """

    code = "RATE_LIMITED"

    def __init__(
        self, retry_after: float | None = None, name: str | None = None, policy: str | None = None
    ) -> None:
        super().__init__("", retry_after, policy)
        self.name = name

    def __str__(self) -> str:
        return self._told("rate limit", self.name, "is used up")


class TimeoutSaturatedError(RejectedError):
    """As many abandoned calls are still stuck as ``max_abandoned`` allows.

    Attributes:
        max_abandoned: That limit.
    """

    code = "TIMEOUT_SATURATED"

    def __init__(self, max_abandoned: int = 0, policy: str | None = None) -> None:
        super().__init__("", None, policy)
        self.max_abandoned = max_abandoned

    def __str__(self) -> str:
        return f"{self.max_abandoned} abandoned calls are still running: no further call is started"


class LockNotAcquiredError(LockError, RejectedError):
    """Somebody else holds the lease.

    Attributes:
        key: The key asked for.
        waited: Seconds spent waiting.
        retry_after: Seconds until the holder's lease ends unless it is renewed, or None.
    """

    code = "LOCK_NOT_ACQUIRED"

    def __init__(
        self, key: str = "", waited: float = 0.0, retry_after: float | None = None, policy: str | None = None
    ) -> None:
        RejectedError.__init__(self, "", retry_after, policy)
        self.key = key
        self.waited = waited

    def __str__(self) -> str:
        return f"the lock {self.key!r} is held by someone else (waited {round(self.waited, 3):g} s)"
