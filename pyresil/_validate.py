"""Checks of constructor options: every fault of one object is collected and raised in one `ConfigurationError`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pyresil._functions import is_async
from pyresil.durations import seconds
from pyresil.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from pyresil.durations import Duration

T = TypeVar("T")

#: Flags of a function's code: it takes any positional arguments, or any options.
_ANY_POSITIONS, _ANY_OPTIONS = 0x04, 0x08


class _UnknownOptionError(ConfigurationError, TypeError):
    """An option that there is none of; a ``TypeError`` as well, which is what Python raises for it."""


class Configured:
    """A mixin: an unknown option is refused with a `ConfigurationError`, together with all other faults of the object."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers go by ``__init__``, and so does `inspect.signature`

        def __new__(cls, *args: Any, **options: Any) -> Self:
            """Look at the names of the options before ``__init__`` is called with them."""
            if options or args:
                _refuse_unknown(cls, args, options)
            return super().__new__(cls)


def _refuse_unknown(cls: type[Any], args: tuple[Any, ...], options: dict[str, Any]) -> None:
    init = cls.__init__
    if init is object.__init__:
        if args:
            raise TypeError(f"{cls.__name__}() takes no arguments")
        known: tuple[str, ...] = ()
        flags = 0
    else:
        code = getattr(init, "__code__", None)
        if code is None or code.co_flags & _ANY_OPTIONS:
            return
        flags = code.co_flags
        known = code.co_varnames[max(1, code.co_posonlyargcount) : code.co_argcount + code.co_kwonlyargcount]
    unknown = [name for name in options if name not in known]
    if not unknown:
        return
    spaced = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in cls.__name__)
    subject = str(getattr(cls, "kind", spaced.strip()))
    if isinstance(options.get("name"), str):
        subject = f"{subject} {options['name']!r}"
    given = ", ".join(f"{name!r} (given {shown(options[name])})" for name in unknown)
    text = f"{subject}: no option {given}; known are {', '.join(known) or 'none'}"
    if not flags & _ANY_POSITIONS:
        try:  # what else is wrong with it
            cls(*args, **{name: value for name, value in options.items() if name in known})
        except ConfigurationError as error:
            text = f"{error}; {text.partition(': ')[2]}"
        except TypeError:
            pass  # an argument is missing as well: Python says which, once the names are right
    raise _UnknownOptionError(text)


def duration_of(what: str, value: Duration) -> float:
    """The seconds of a method's argument; ``what`` names the method and the argument.

    Raises:
        ConfigurationError: It is no duration.
    """
    try:
        return seconds(value)
    except ValueError as error:
        raise ConfigurationError(f"{what} {error}") from None


class Checker:
    """Collects faults of one object's options.

    Each method returns the cleaned value, or a harmless stand-in when the option is at fault; `done` then raises.

    Args:
        kind: What is being built, such as ``"bulkhead"``.
        name: Its name, if it has one.
    """

    def __init__(self, kind: str, name: object = None) -> None:
        self._subject = f"{kind} {name!r}" if isinstance(name, str) and name else kind
        self.faults: list[str] = []

    def fault(self, field: str, must: str, value: object) -> None:
        """Note that ``field`` must be something else than ``value``."""
        self.faults.append(f"{field} must be {must}, got {shown(value)}")

    def done(self) -> None:
        """Raise one `ConfigurationError` with all faults, if there are any."""
        if self.faults:
            raise ConfigurationError(f"{self._subject}: {'; '.join(self.faults)}")

    def name(self, value: object, field: str = "name") -> str | None:
        """A non-empty string, or None."""
        if value is None or (isinstance(value, str) and value):
            return value
        self.fault(field, "a non-empty string or None", value)
        return None

    def integer(self, field: str, value: object, minimum: int = 1, maximum: int | None = None) -> int:
        """A whole number that is not a bool, at least ``minimum``."""
        within = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
        if within and (maximum is None or value <= maximum):  # type: ignore[operator]  # narrowed by ``within``
            return value  # type: ignore[return-value]  # narrowed by ``within``
        words = {0: "an integer of 0 or more", 1: "a positive integer"}.get(
            minimum, f"an integer of {minimum} or more"
        )
        self.fault(field, words if maximum is None else f"an integer from {minimum} to {maximum}", value)
        return minimum

    def number(self, field: str, value: object, low: float, high: float, *, open_low: bool = False) -> float:
        """A finite number from ``low`` (itself excluded with ``open_low``) to ``high``, which may be infinity."""
        given = isinstance(value, (int, float)) and not isinstance(value, bool)
        if given and low <= value <= high and not (open_low and value == low):  # type: ignore[operator]  # a number
            try:
                result = float(value)  # type: ignore[arg-type]  # a number
            except OverflowError:
                result = float("inf")  # a whole number beyond every float
            if result != float("inf"):
                return result
        beyond = f"above {low:g}" if open_low else f"of {low:g} or more"
        limit = "" if high == float("inf") else f" and at most {high:g}"
        number = "a finite number" if high == float("inf") else "a number"
        self.fault(field, f"{number} {beyond}{limit}", value)
        return max(low, 1.0)

    def duration(self, field: str, value: Duration, *, positive: bool = True, minimum: float = 0.0) -> float:
        """A duration in seconds; above 0 unless ``positive`` is off, and at least ``minimum`` seconds."""
        try:
            return seconds(value, minimum, open_low=positive and not minimum)
        except ValueError as error:
            self.faults.append(f"{field} {error}")
            return max(minimum, 1.0)

    def optional_duration(
        self, field: str, value: Duration | None, *, positive: bool = True, minimum: float = 0.0
    ) -> float | None:
        """As `duration`, or None."""
        return None if value is None else self.duration(field, value, positive=positive, minimum=minimum)

    def boolean(self, field: str, value: object) -> bool:
        """True or False itself."""
        if isinstance(value, bool):
            return value
        self.fault(field, "True or False", value)
        return False

    def choice(self, field: str, value: object, options: Iterable[str]) -> str:
        """One of the given words."""
        known = list(options)
        if isinstance(value, str) and value in known:
            return value
        self.fault(field, "one of " + ", ".join(repr(option) for option in known), value)
        return known[0]

    def function(self, field: str, value: Any) -> Callable[..., Any] | None:
        """A callable, or None; not an async one, whose result nobody would await."""
        if value is None:
            return None
        if not callable(value):
            self.fault(field, "callable", value)
        elif is_async(value):
            self.fault(field, "a plain function (an async one would not be awaited)", value)
        else:
            return value  # type: ignore[no-any-return]  # a callable of any shape
        return None

    def required(self, field: str, value: Any) -> None:
        """Such a function, which may not be None."""
        if value is None:
            self.fault(field, "callable", value)
        self.function(field, value)

    def instead(self, has_value: bool, using: Any) -> Callable[..., Any] | None:
        """The function ``using``, which gives what stands in the place of a value: the one or the other must be given."""
        if has_value == (using is not None):
            given = "both" if has_value else "neither"
            self.faults.append(f"exactly one of a value and using= must be given, got {given}")
        return self.function("using", using)

    def instance(self, field: str, value: T | None, kind: type[Any], words: str) -> T | None:
        """An instance of ``kind``, or None."""
        if value is None or isinstance(value, kind):
            return value
        self.fault(field, words, value)
        return None
