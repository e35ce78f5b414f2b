"""Chaos strategies: faults, latency and results put in the place of the real ones, for a share of the executions.

They go innermost into a policy, where the dependency is called, so that everything around them meets what they inject as if
the dependency had done it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar, overload

from pyresil._functions import described
from pyresil._validate import Checker
from pyresil.clock import Clock
from pyresil.context import UNSET
from pyresil.errors import shown
from pyresil.strategy import Guard, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.context import Context
    from pyresil.durations import Duration
    from pyresil.outcome import Outcome
    from pyresil.strategy import Call, Run

__all__ = ["InjectFault", "InjectLatency", "InjectResult"]

T = TypeVar("T")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


def _switch(check: Checker, enabled: Any) -> Any:
    if callable(enabled):
        check.function("enabled", enabled)
    elif not isinstance(enabled, bool):
        check.fault("enabled", "True, False, or a function of the context", enabled)
    return enabled


class _Dice:
    """Whether an execution is hit: the ``rate``, ``enabled`` and ``seed`` of all three.

    Attributes:
        enabled: May be set at any time; a function is asked for each execution, with the context.
    """

    def __init__(self, check: Checker, rate: float, enabled: Any, seed: Any) -> None:
        self.rate = check.number("rate", rate, 0.0, 1.0)
        self.enabled: bool | Callable[[Context], object] = _switch(check, enabled)
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, str))):
            check.fault("seed", "an int, a string or None", seed)
            seed = None
        self.seed: int | str | None = seed
        self._draw: Callable[[], float] | None = None
        if seed is not None:
            import random

            self._draw = random.Random(seed).random  # noqa: TID251 - the seed is what the caller wants

    def hits(self, ctx: Context) -> bool:
        """One draw where it is switched on; with a seed the draws are the same in every run."""
        if not (self.enabled(ctx) if callable(self.enabled) else self.enabled):
            return False
        draw = self._draw or ctx.clock.random
        return draw() < self.rate

    def describe(self) -> dict[str, Any]:
        """Plain data: the options."""
        return {"rate": self.rate, "enabled": described(self.enabled), "seed": self.seed}


class _Chaos:
    """What the three have in common."""

    kind: str
    name: str | None
    _dice: _Dice

    @property
    def enabled(self) -> bool | Callable[[Context], object]:
        """Whether anything is injected; may be set at any time."""
        return self._dice.enabled

    @enabled.setter
    def enabled(self, value: bool | Callable[[Context], object]) -> None:
        check = Checker(self.kind, self.name)
        enabled = _switch(check, value)
        check.done()
        self._dice.enabled = enabled


class InjectFault(_Chaos, Guard[Never]):
    """Raise an error in the place of the work.

    Args:
        error: The error, its class, or a function of the context that gives one (None: the work runs after all).
        rate: The share of executions that is hit, from 0 to 1. Default: 1.
        enabled: False switches it off; a function of the context decides for each execution. Default: True.
        seed: Makes the draws the same in every run; None takes the randomness of the clock.
        name: Shown in `describe`.
        clock: Default: the policy's.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type.
    """

    kind = "inject fault"

    def __init__(
        self,
        error: BaseException | type[BaseException] | Callable[[Context], BaseException | None],
        rate: float = 1.0,
        *,
        enabled: bool | Callable[[Context], object] = True,
        seed: int | str | None = None,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        check = Checker("inject fault", name)
        self.name = check.name(name)
        given: Any = error
        fits = issubclass(given, BaseException) if isinstance(given, type) else callable(given)
        if not fits and not isinstance(given, BaseException):
            check.fault("error", "an exception, its class, or a function of the context", error)
        self._error = error
        self._dice = _Dice(check, rate, enabled, seed)
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        check.done()

    def enter(self, ctx: Context) -> None:
        """Raise the error, or let the execution pass."""
        if not self._dice.hits(ctx):
            return
        given: Any = self._error
        if isinstance(given, type):
            given = given()
        elif not isinstance(given, BaseException):
            given = given(ctx)
        if given is not None:
            try:
                raise given.with_traceback(None)  # an instance is raised many times
            finally:
                given = None

    def exit(self, ctx: Context, token: Any, outcome: Outcome[Any]) -> Outcome[Any]:
        """Nothing to do."""
        return outcome

    def describe(self) -> dict[str, Any]:
        """Plain data: the effective options."""
        return {**super().describe(), "error": described(self._error), **self._dice.describe()}

    def __repr__(self) -> str:
        return f"InjectFault({shown(self._error)}, rate={self._dice.rate!r})"


class InjectLatency(_Chaos, Guard[Never]):
    """Wait before the work runs. The wait is one of the library: deadlines and cancellations end it.

    Args:
        delay: How long (a duration), or a function of the context that gives one.
        rate: The share of executions that is hit, from 0 to 1. Default: 1.
        enabled: False switches it off; a function of the context decides for each execution. Default: True.
        seed: Makes the draws the same in every run; None takes the randomness of the clock.
        name: Shown in `describe`.
        clock: Default: the policy's.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type.
    """

    kind = "inject latency"

    def __init__(
        self,
        delay: Duration | Callable[[Context], Duration],
        rate: float = 1.0,
        *,
        enabled: bool | Callable[[Context], object] = True,
        seed: int | str | None = None,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        check = Checker("inject latency", name)
        self.name = check.name(name)
        self._delay = delay if callable(delay) else check.duration("delay", delay, positive=False)
        self._dice = _Dice(check, rate, enabled, seed)
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        check.done()

    def enter(self, ctx: Context) -> None:
        """Wait, or let the execution pass at once."""
        if self._dice.hits(ctx):
            ctx.sleep(self._delay(ctx) if callable(self._delay) else self._delay)

    def exit(self, ctx: Context, token: Any, outcome: Outcome[Any]) -> Outcome[Any]:
        """Nothing to do."""
        return outcome

    def describe(self) -> dict[str, Any]:
        """Plain data: the effective options."""
        delay = described(self._delay)
        return {**super().describe(), "delay": delay, **self._dice.describe()}

    def __repr__(self) -> str:
        delay = shown(self._delay) if callable(self._delay) else repr(self._delay)
        return f"InjectLatency({delay}, rate={self._dice.rate!r})"


class InjectResult(_Chaos, Strategy[V_co], Generic[V_co]):
    """Return something in the place of the work, which does not run.

    Args:
        value: What is returned; the same object every time.
        rate: The share of executions that is hit, from 0 to 1. Default: 1.
        using: Instead of a value: a function of the context that gives one.
        enabled: False switches it off; a function of the context decides for each execution. Default: True.
        seed: Makes the draws the same in every run; None takes the randomness of the clock.
        name: Shown in `describe`.
        clock: Default: the policy's.

    Raises:
        ConfigurationError: Neither or both of ``value`` and ``using``, or an option out of range or of the wrong type.
    """

    kind = "inject result"

    @overload
    def __init__(
        self: InjectResult[V],
        value: V,
        rate: float = 1.0,
        *,
        enabled: bool | Callable[[Context], object] = True,
        seed: int | str | None = None,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: InjectResult[V],
        *,
        rate: float = 1.0,
        using: Callable[[Context], V],
        enabled: bool | Callable[[Context], object] = True,
        seed: int | str | None = None,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None: ...

    def __init__(
        self,
        value: Any = UNSET,
        rate: float = 1.0,
        *,
        using: Callable[[Context], Any] | None = None,
        enabled: bool | Callable[[Context], object] = True,
        seed: int | str | None = None,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        check = Checker("inject result", name)
        self.name = check.name(name)
        self._using = check.instead(value is not UNSET, using)
        self._value = value
        self._dice = _Dice(check, rate, enabled, seed)
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        check.done()

    def run(self, call: Call[T], ctx: Context) -> T | V_co:
        """See `Strategy.run`."""
        return self.compile(call, ctx.clock)(ctx)  # type: ignore[no-any-return]  # compiled closures are untyped

    def compile(self, inner: Run, clock: Clock) -> Run:
        """See `Strategy.compile`."""
        dice = self._dice

        def run(ctx: Context) -> Any:
            if dice.hits(ctx):
                return self._value if self._using is None else self._using(ctx)
            return inner(ctx)

        return run

    def describe(self) -> dict[str, Any]:
        """Plain data: the effective options."""
        what = {"value": described(self._value)} if self._using is None else {"using": described(self._using)}
        return {**super().describe(), **what, **self._dice.describe()}

    def __repr__(self) -> str:
        what = shown(self._value) if self._using is None else f"using={shown(self._using)}"
        return f"InjectResult({what}, rate={self._dice.rate!r})"
