"""`Fallback`: a value, or a function's result, in the place of a failure or a rejection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from pyresil._flat import Inline, nested
from pyresil._functions import described
from pyresil._validate import Checker
from pyresil.clock import Clock
from pyresil.context import UNSET, is_cancellation
from pyresil.errors import RejectedError, shown
from pyresil.events import FellBack, emit
from pyresil.outcome import PLAIN, Judge
from pyresil.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from pyresil.context import Context
    from pyresil.strategy import Call, Run

    Handle: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[Any], object] | None

__all__ = ["Fallback"]

#: The fallback runs inside the handler, so that an error of ``using`` has this one as its context.
_INLINE = """\
try:
    WORK
except Exception as error:
    if not $handles(error, context(cell)):
        raise
    value = $instead(error, context(cell))
else:
    if type(value) not in $plain and $refuses(value):
        value = $instead(None, context(cell))
"""

T = TypeVar("T")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


class Fallback(Strategy[V_co], Generic[V_co]):
    """A value, or the result of a function, in the place of a failure or a rejection.

    Client errors and cancellations pass through. An error raised by ``using`` comes out with the original error as its
    ``__context__``.

    Args:
        value: What takes the failure's place. It is the same object every time.
        using: Instead: a function of (error, context); the error is None where a result was judged a failure.
        handle: Exception type, tuple of them, or predicate of the error. Default: failures, and rejections.
        handle_result: Predicate of the value. Default: a ``status_code`` of 408, 425, 429, 500 and above.
        name: Shown in events as ``source``.
        clock: Dates the events. Default: the policy's.

    Raises:
        ConfigurationError: Neither or both of ``value`` and ``using``, or an option of the wrong type.

    Events: `FellBack`.
    """

    kind = "fallback"

    @overload
    def __init__(
        self: Fallback[V],
        value: V,
        *,
        handle: Handle = None,
        handle_result: Callable[[Any], object] | None = None,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: Fallback[V],
        *,
        using: Callable[[Any, Context], V],
        handle: Handle = None,
        handle_result: Callable[[Any], object] | None = None,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None: ...

    def __init__(
        self,
        value: Any = UNSET,
        *,
        using: Callable[[Any, Context], Any] | None = None,
        handle: Any = None,
        handle_result: Callable[[Any], object] | None = None,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        from pyresil._logs import logger

        check = Checker("fallback", name)
        self.name = check.name(name)
        self._using = check.instead(value is not UNSET, using)
        self._value = value
        self._handles_rejections = handle is None
        self.judge = Judge(handle, handle_result, check)
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        check.done()
        # Loaded now: an import is nothing for a signal handler, and a fork in its middle leaves it locked for ever.
        self._logger = logger()

    def run(self, call: Call[T], ctx: Context) -> T | V_co:
        """See `Strategy.run`."""
        return nested(self.inline(call, ctx.clock), call)(ctx)  # type: ignore[no-any-return]  # compiled closures are untyped

    def inline(self, inner: Run, clock: Clock) -> Inline:
        """See `Strategy.inline`."""
        plain = PLAIN if self.judge.default_values else frozenset()
        names = {
            "handles": self._handles,
            "refuses": self.judge.value,
            "instead": self._instead,
            "plain": plain,
        }
        # A value that is there at once is looked at by a predicate of the user's, and by nothing else.
        return Inline(_INLINE, names, transparent=self.judge.default_values)

    def _handles(self, error: Exception, ctx: Context) -> bool:
        if not self._handles_rejections:
            return bool(self.judge.error(error))
        failed = isinstance(error, RejectedError) or self.judge.error(error)
        return bool(failed) and not is_cancellation(ctx, error)

    def _instead(self, error: Exception | None, ctx: Context) -> Any:
        called = "fallback" if self.name is None else f"fallback {self.name}"
        kind = "a result judged a failure" if error is None else type(error).__name__
        self._logger.info("%s of policy %s took the place of %s", called, ctx.policy, kind)
        if FellBack.listeners:
            emit(
                FellBack(policy=ctx.policy, source=self.name or ctx.source, at=ctx.clock.wall(), error=error)
            )
        return self._value if self._using is None else self._using(error, ctx)

    def describe(self) -> dict[str, Any]:
        """Plain data: the effective options."""
        what = {"value": described(self._value)} if self._using is None else {"using": described(self._using)}
        return {**super().describe(), **what, **self.judge.describe()}

    def __repr__(self) -> str:
        return (
            f"Fallback({shown(self._value)})"
            if self._using is None
            else f"Fallback(using={shown(self._using)})"
        )
