"""How a piece of work ended, and what that says of the dependency.

An outcome is `Success` or `Failure`. A judging strategy turns it into a verdict: failure, success or unjudged. The default
verdicts: every ``Exception`` is a failure, except client errors (the dependency is up: success), rejections and
cancellations (unjudged). A value is a failure where its ``status_code`` is an int that is 408, 425, 429 or 500 and above.
A ``BaseException`` that is no ``Exception`` is unjudged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from pyresil._functions import described
from pyresil.durations import LONGEST
from pyresil.errors import CancelledError, ConfigurationError, RejectedError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil._validate import Checker

__all__ = ["Failure", "Outcome", "Success", "caused_by", "status_of"]

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


#: Stands where nothing was given, since None is a value.
UNSET: Any = _Unset()


class Success(Generic[T_co]):
    """The work returned ``value``. Made for ``match``: ``case Success(value)``."""

    __slots__ = ("value",)
    __match_args__ = ("value",)

    def __init__(self, value: T_co) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Success) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash((Success, self.value))

    def __repr__(self) -> str:
        return f"Success({self.value!r})"

    def unwrap(self) -> T_co:
        """The value."""
        return self.value


class Failure:
    """The work raised ``error``. Made for ``match``: ``case Failure(error)``.

    A guard may also see a ``BaseException`` here (``GeneratorExit`` where a retry loop was left early): it is unjudged.
    """

    __slots__ = ("error",)
    __match_args__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Failure) and self.error is other.error

    def __hash__(self) -> int:
        return hash((Failure, id(self.error)))

    def __repr__(self) -> str:
        return f"Failure({self.error!r})"

    def unwrap(self) -> Any:
        """Raise the error."""
        try:
            raise self.error
        finally:
            del self  # the traceback holds this frame, and must not hold the error through it


Outcome: TypeAlias = "Success[T] | Failure"

#: Statuses that are a failure of the dependency (or a request to come back later), although they are below 500.
RETRYABLE_STATUSES: Final = frozenset((408, 425, 429))

#: Types whose values have no status: the common case is one set lookup.
PLAIN: Final = frozenset((type(None), bool, int, float, str, bytes, dict, list, tuple, set, frozenset))


def _peek(holder: object, name: str) -> Any:
    """An attribute of somebody else's object, or None: what judges an outcome must never be what changes it."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None  # a property that raises, a proxy that is bound to nothing


def _whole(value: object) -> int | None:
    """An int that is no bool; not by ``isinstance``, which asks somebody else's object for its class."""
    kind = type(value)
    return int(value) if issubclass(kind, int) and kind is not bool else None  # type: ignore[call-overload]  # an int


def _as_status(value: object) -> int | None:
    status = _whole(value)
    return status if status is not None and 100 <= status <= 599 else None


def status_of(error: BaseException) -> int | None:
    """The HTTP status an error carries, or None.

    The first int from 100 to 599 of ``.response.status_code``, ``.status_code``, ``.code`` and ``.status``.
    """
    for holder, name in (
        (_peek(error, "response"), "status_code"),
        (error, "status_code"),
        (error, "code"),
        (error, "status"),
    ):
        status = _as_status(_peek(holder, name)) if holder is not None else None
        if status is not None:
            return status
    return None


def is_client_error(error: BaseException) -> bool:
    """Whether the error's status is 400-499 but not 408, 425 or 429."""
    status = status_of(error)
    return status is not None and 400 <= status <= 499 and status not in RETRYABLE_STATUSES


def error_verdict(error: BaseException) -> bool | None:
    """The default verdict of an error: True failure, False success, None unjudged."""
    if not isinstance(error, Exception) or isinstance(error, (RejectedError, CancelledError)):
        return None
    return not is_client_error(error)


def value_is_failure(value: object) -> bool:
    """The default verdict of a value."""
    if type(value) in PLAIN:
        return False
    status = _whole(_peek(value, "status_code"))
    return status is not None and (status >= 500 or status in RETRYABLE_STATUSES)


def caused_by(*types: Any) -> Callable[[BaseException], bool]:
    """A predicate for ``handle=``: the error, or one it was raised from, is one of ``types``.

    Follows ``__cause__``, then ``__context__`` where that is not suppressed; a chain that is a cycle ends.

    Raises:
        ConfigurationError: One of ``types`` is no exception type.
    """
    faults = [kind for kind in types if not (isinstance(kind, type) and issubclass(kind, BaseException))]
    if faults or not types:
        raise ConfigurationError(f"caused_by: types must be exception types, got {shown(faults or types)}")

    def matches(error: BaseException) -> bool:
        seen: set[int] = set()
        link: BaseException | None = error
        while link is not None and id(link) not in seen:
            if isinstance(link, types):
                return True
            seen.add(id(link))
            if link.__cause__ is not None or link.__suppress_context__:
                link = link.__cause__
            else:
                link = link.__context__
        return False

    return matches


class Judge:
    """The verdicts of one strategy: its ``handle=`` and ``handle_result=`` over the defaults.

    Args:
        handle: Exception type, tuple of them, or predicate of the error: what counts as failure. None for the default.
            Errors it does not cover are unjudged.
        handle_result: Predicate of the value, or None for the default.
        check: Collects faults of these options.
    """

    __slots__ = ("_predicate", "_result", "_types", "default_errors", "default_values")

    def __init__(self, handle: Any, handle_result: Any, check: Checker) -> None:
        self._types: tuple[type[BaseException], ...] | None = None
        self._predicate: Callable[[Exception], object] | None = None
        types = handle if isinstance(handle, tuple) else (handle,)
        if handle is not None:
            if types and all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in types):
                self._types = types
            elif callable(handle) and not isinstance(handle, type):
                self._predicate = check.function("handle", handle)
            else:
                check.fault(
                    "handle", "an exception type, a tuple of them, or a function of the error", handle
                )
        self._result: Callable[[Any], object] | None = check.function("handle_result", handle_result)
        self.default_errors = handle is None
        #: True where values are judged by `value_is_failure`, so that a hot path can look at the type first.
        self.default_values = self._result is None

    def error(self, error: BaseException) -> bool | None:
        """True failure, False success, None unjudged."""
        if not isinstance(error, Exception):
            return None
        if self._types is not None:
            return True if isinstance(error, self._types) else None
        if self._predicate is not None:
            return True if self._predicate(error) else None
        return error_verdict(error)

    def value(self, value: object) -> bool:
        """True where the value is a failure."""
        return value_is_failure(value) if self._result is None else bool(self._result(value))

    def outcome(self, outcome: Outcome[Any]) -> bool | None:
        """The verdict of either kind of outcome."""
        return self.value(outcome.value) if isinstance(outcome, Success) else self.error(outcome.error)

    def describe(self) -> dict[str, Any]:
        """Plain data: what counts as failure; ``"default"`` for the default verdicts."""
        if self._types is not None:
            handle: Any = [f"{kind.__module__}.{kind.__qualname__}" for kind in self._types]
        else:
            handle = "default" if self._predicate is None else described(self._predicate)
        return {
            "handle": handle,
            "handle_result": "default" if self._result is None else described(self._result),
        }


def retry_after_of(outcome: Outcome[Any], wall: Callable[[], float]) -> float | None:
    """The ``Retry-After`` that an outcome carries, in seconds from now, or None.

    Looked for on a rejection's ``retry_after``, then in the ``headers`` of the error, its ``response``, or the value: a
    number of seconds or an HTTP date (RFC 9110, section 10.2.3). Garbage and negative numbers are ignored; what is longer than
    the longest duration counts as that.

    Args:
        outcome: The outcome.
        wall: Reads seconds since the epoch, for dates.
    """
    if isinstance(outcome, Failure):
        given = _peek(outcome.error, "retry_after")
        if issubclass(type(given), (int, float)) and type(given) is not bool and 0 <= given < float("inf"):
            return float(min(given, LONGEST))
        holders = (outcome.error, _peek(outcome.error, "response"))
    else:
        holders = (outcome.value, None)
    for holder in holders:
        header = _header(holder)
        if header is not None:
            return _parse_retry_after(header, wall)
    return None


def _header(holder: object) -> str | None:
    if holder is None or type(holder) in PLAIN:
        return None
    get = _peek(_peek(holder, "headers"), "get")
    if get is None:
        return None
    try:
        value = get("Retry-After")
        if value is None:
            value = get("retry-after")
    except Exception:
        return None  # somebody's own ``headers``: no header
    if type(value) is int:
        return f"{min(value, LONGEST):.0f}"
    return value if issubclass(type(value), str) else None


def _parse_retry_after(text: str, wall: Callable[[], float]) -> float | None:
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST)
    from datetime import UTC
    from email.utils import parsedate_to_datetime

    try:
        when = parsedate_to_datetime(text)
        if when.tzinfo is None:  # "-0000": the sender says nothing of its zone, HTTP dates are UTC
            when = when.replace(tzinfo=UTC)
        return min(max(0.0, when.timestamp() - wall()), LONGEST)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
