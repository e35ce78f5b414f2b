"""Back-off formulas: how long to wait before the next attempt.

Each is an immutable object that is called with the number of the attempt that failed (from 1) and its outcome, and gives
seconds: finite, and from 0 to its cap for any attempt number. Jitter spreads the callers that failed together: ``"full"``
draws from [0, d], ``"equal"`` from [d/2, d] (both as in "Exponential Backoff And Jitter", AWS Architecture Blog, 2015),
``"none"`` takes d itself, and a duration j draws from [d - j, d + j].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

from pyresil._validate import Checker, Configured
from pyresil.clock import SYSTEM
from pyresil.durations import LONGEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.durations import Duration

__all__ = ["Backoff", "BackoffFunction", "Constant", "Decorrelated", "Exponential", "Linear"]

BackoffFunction: TypeAlias = "Callable[[int, Any], float]"

_JITTERS = ("full", "equal", "none")


class Backoff(Configured, ABC):
    """A back-off formula.

    Attributes:
        cap: The longest delay in seconds.
    """

    cap: float

    @abstractmethod
    def seconds_after(self, attempt: int, draw: Callable[[], float], previous: float | None = None) -> float:
        """Seconds to wait after ``attempt`` (from 1) failed.

        Args:
            attempt: Its number.
            draw: Gives a random number in [0, 1).
            previous: The delay before it, or None after the first.
        """

    def __call__(self, attempt: int, outcome: Any = None) -> float:
        """As `seconds_after`, with the process's own randomness."""
        return self.seconds_after(attempt, SYSTEM.random)

    def describe(self) -> dict[str, Any]:
        """Plain data: the formula and its options."""
        return {"backoff": type(self).__name__.lower(), **vars(self)}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
        )

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), tuple(vars(self).values())))


class _Jittered(Backoff):
    """A formula whose delay is spread by its ``jitter``."""

    jitter: str | float

    def _spread(self, delay: float, draw: Callable[[], float]) -> float:
        if self.jitter == "full":
            delay *= draw()
        elif self.jitter == "equal":
            delay *= 0.5 + 0.5 * draw()
        elif isinstance(self.jitter, float):
            delay += self.jitter * (2.0 * draw() - 1.0)
        return min(max(delay, 0.0), self.cap)


def _jitter(check: Checker, value: object) -> str | float:
    """One of the three words, or a duration."""
    if isinstance(value, str) and (value in _JITTERS or not value[:1].isdigit()):
        return check.choice("jitter", value, _JITTERS)
    return check.duration("jitter", value, positive=False)  # type: ignore[arg-type]  # checked there


class Exponential(_Jittered):
    """``delay * factor ** (attempt - 1)``, at most ``cap``, then jitter.

    Args:
        delay: The delay after the first attempt (a duration). Default: 200 ms.
        factor: What each further delay is multiplied by; 1 or more. Default: 2.
        cap: The longest delay (a duration). Default: 30 s.
        jitter: ``"full"`` (the default), ``"equal"``, ``"none"``, or a duration.

    Raises:
        ConfigurationError: An option is out of range.
    """

    def __init__(
        self,
        delay: Duration = "200ms",
        factor: float = 2,
        cap: Duration = "30s",
        jitter: str | Duration = "full",
    ) -> None:
        check = Checker("exponential back-off")
        self.delay = check.duration("delay", delay, positive=False)
        self.factor = check.number("factor", factor, 1.0, float("inf"))
        self.cap = check.duration("cap", cap, positive=False)
        self.jitter = _jitter(check, jitter)
        check.done()

    def seconds_after(self, attempt: int, draw: Callable[[], float], previous: float | None = None) -> float:
        """See `Backoff.seconds_after`."""
        try:
            grown = self.delay * self.factor ** (attempt - 1) if self.delay else 0.0
        except OverflowError:
            grown = self.cap
        return self._spread(min(grown, self.cap), draw)


class Constant(_Jittered):
    """The same ``delay`` every time, then jitter.

    Args:
        delay: The delay (a duration).
        jitter: ``"none"`` (the default), ``"full"``, ``"equal"``, or a duration.
        cap: The longest delay (a duration); None, the default, for no other bound than the formula's own.

    Raises:
        ConfigurationError: An option is out of range.
    """

    def __init__(self, delay: Duration, jitter: str | Duration = "none", cap: Duration | None = None) -> None:
        check = Checker("constant back-off")
        self.delay = check.duration("delay", delay, positive=False)
        self.jitter = _jitter(check, jitter)
        own = check.optional_duration("cap", cap, positive=False)
        self.cap = LONGEST if own is None else own
        check.done()

    def seconds_after(self, attempt: int, draw: Callable[[], float], previous: float | None = None) -> float:
        """See `Backoff.seconds_after`."""
        return self._spread(min(self.delay, self.cap), draw)


class Linear(_Jittered):
    """``delay + step * (attempt - 1)``, at most ``cap``, then jitter.

    Args:
        delay: The delay after the first attempt (a duration). Default: 200 ms.
        step: What is added each time (a duration); None, the default, for ``delay`` again.
        cap: The longest delay (a duration). Default: 30 s.
        jitter: ``"none"`` (the default), ``"full"``, ``"equal"``, or a duration.

    Raises:
        ConfigurationError: An option is out of range.
    """

    def __init__(
        self,
        delay: Duration = "200ms",
        step: Duration | None = None,
        cap: Duration = "30s",
        jitter: str | Duration = "none",
    ) -> None:
        check = Checker("linear back-off")
        self.delay = check.duration("delay", delay, positive=False)
        own = check.optional_duration("step", step, positive=False)
        self.step = self.delay if own is None else own
        self.cap = check.duration("cap", cap, positive=False)
        self.jitter = _jitter(check, jitter)
        check.done()

    def seconds_after(self, attempt: int, draw: Callable[[], float], previous: float | None = None) -> float:
        """See `Backoff.seconds_after`."""
        try:
            grown = self.delay + self.step * (attempt - 1)
        except OverflowError:
            grown = self.cap
        return self._spread(min(grown, self.cap), draw)


class Decorrelated(Backoff):
    """A random delay from ``base`` to three times the one before, at most ``cap``.

    The "decorrelated jitter" of the AWS Architecture Blog (2015). Where the delay before is not known, the largest it could
    have been is taken.

    Args:
        base: The shortest delay (a duration). Default: 200 ms.
        cap: The longest delay (a duration). Default: 30 s.

    Raises:
        ConfigurationError: An option is out of range.
    """

    def __init__(self, base: Duration = "200ms", cap: Duration = "30s") -> None:
        check = Checker("decorrelated back-off")
        self.base = check.duration("base", base, positive=False)
        self.cap = check.duration("cap", cap, positive=False)
        check.done()

    def seconds_after(self, attempt: int, draw: Callable[[], float], previous: float | None = None) -> float:
        """See `Backoff.seconds_after`."""
        if previous is None:
            try:
                previous = self.base * 3.0 ** (attempt - 1) if self.base else 0.0
            except OverflowError:
                previous = self.cap
        high = min(max(previous, self.base) * 3.0, self.cap)
        low = min(self.base, self.cap)
        return min(low + (high - low) * draw(), self.cap)
