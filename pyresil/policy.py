"""`Policy`: strategies composed into one, the first outermost, and the forms in which work runs under it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Never, ParamSpec, TypeVar, overload

from pyresil._bound import BoundPolicy as BoundPolicy
from pyresil._execution import Execution
from pyresil._flat import flatten
from pyresil._functions import require_plain_function, wrap_like
from pyresil._observe import fresh_context, observed
from pyresil._scope import Owner
from pyresil.clock import SYSTEM
from pyresil.context import Context
from pyresil.events import Executed
from pyresil.outcome import Failure, Success
from pyresil.strategy import Strategy, compiles, hot_path, require_strategies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Unpack

    from pyresil._bound import Options
    from pyresil._flat import Inline
    from pyresil.cancel import CancelToken
    from pyresil.clock import Clock
    from pyresil.durations import Duration
    from pyresil.outcome import Outcome
    from pyresil.strategy import Call, Run

__all__ = ["BoundPolicy", "Policy"]

P = ParamSpec("P")
T = TypeVar("T")
F_co = TypeVar("F_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")


#: What `Policy._build` makes of the strategies.
_COMPOSED = frozenset(("_owner", "_run", "_maker", "call"))


def _work(ctx: Context) -> Any:
    """The innermost step: the caller's function itself."""
    function, args, kwargs = ctx._work
    return function(*args, **kwargs)  # type: ignore[misc]  # a block never comes here


class Policy(Strategy[F_co]):
    """Strategies composed, the first is the outermost.

    A policy is thread-safe, and itself a strategy: it can stand inside another one.

    Args:
        *strategies: Strategies from the outermost to the innermost; none at all runs the work as it is.
        name: Shown in errors, events and logs.
        clock: The clock of deadlines and waits; strategies without a clock of their own take it over. Default: that of the
            first strategy that has one, else the system's.

    Raises:
        ConfigurationError: An argument is no strategy, one instance stands twice, or an option has the wrong type.

    Events: `Executed`, for each execution that an ``Exception`` or a result ended.
    """

    kind = "policy"
    #: It decorated a function, which keeps the clock that the policy had then.
    _settled = False

    @overload
    def __init__(
        self: Policy[Never], *strategies: Strategy[Never], name: str | None = None, clock: Clock | None = None
    ) -> None: ...
    @overload
    def __init__(
        self: Policy[A],
        a: Strategy[A],
        /,
        *,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Policy[A | B],
        a: Strategy[A],
        b: Strategy[B],
        /,
        *,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Policy[A | B | C],
        a: Strategy[A],
        b: Strategy[B],
        c: Strategy[C],
        /,
        *,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Policy[A | B | C | D],
        a: Strategy[A],
        b: Strategy[B],
        c: Strategy[C],
        d: Strategy[D],
        /,
        *,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Policy[A | B | C | D | E],
        a: Strategy[A],
        b: Strategy[B],
        c: Strategy[C],
        d: Strategy[D],
        e: Strategy[E],
        /,
        *,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Policy[A | B | C | D | E | F],
        a: Strategy[A],
        b: Strategy[B],
        c: Strategy[C],
        d: Strategy[D],
        e: Strategy[E],
        f: Strategy[F],
        /,
        *more: Strategy[F],
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None: ...
    def __init__(
        self, *strategies: Strategy[Any], name: str | None = None, clock: Clock | None = None
    ) -> None:
        require_strategies(strategies, name, clock)
        self.name = name
        self.strategies = strategies
        given = (strategy._clock for strategy in strategies if strategy._clock is not None)
        self._clock = clock or next(given, None)
        if self._clock is not None:
            for strategy in strategies:
                strategy._adopt(self._clock)
        self._build()

    def _build(self) -> None:
        """Compose the strategies around the work: as nested closures, and, where all of them can, as one flat function."""
        self._owner = Owner(self.name, self._clock or SYSTEM)
        repeating = [
            strategy for strategy in self.strategies if type(strategy).stepper is not Strategy.stepper
        ]
        self._owner.counting = tuple(getattr(strategy, "budget", None) for strategy in repeating)
        inlines: list[Inline | None] = []
        self._run = self._compose(_work, inlines)
        self._maker = flatten(self._owner, inlines[::-1], self._run)
        self.__dict__.pop("call", None)
        if self._maker is not None and type(self).call is Policy.call:
            # Stands before the method of that name, whose form is the general one.
            self.__dict__["call"] = self._maker.make()

    def _compose(self, inner: Run, inlines: list[Inline | None] | None = None) -> Run:
        for strategy in reversed(self.strategies):
            if inlines is not None:
                inlines.append(hot_path(strategy, inner, self._owner.clock))
            make = strategy.compile if compiles(strategy) else partial(Strategy.compile, strategy)
            inner = make(inner, self._owner.clock)
        return inner

    # -- forms -----------------------------------------------------------------------------------------------------------

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | F_co:
        """Run ``fn(*args, **kwargs)`` under the policy.

        Returns:
            Its result, or what a strategy yields in its place.

        Raises:
            BaseException: What ``fn`` raised, the same object; or an error of a strategy.
        """
        ctx = self._context()
        ctx._work = (fn, args, kwargs)
        if Executed.listeners:
            return observed(ctx, self._run)  # type: ignore[no-any-return]  # as below
        try:
            return ctx._enter(self._run)  # type: ignore[no-any-return]  # compiled closures are untyped
        finally:
            if ctx._base is not None:
                ctx._close()

    def __call__(self, fn: Callable[P, T], /) -> Callable[P, T | F_co]:
        """Decorate ``fn``: every call of it runs under the policy.

        Raises:
            TypeError: ``fn`` is an ``async def`` or a generator function, or cannot be called.
        """
        if isinstance(fn, (classmethod, staticmethod)):
            return type(fn)(self(fn.__func__))
        require_plain_function(fn, self.name)
        self._settled = True
        if self._maker is not None:
            flat: Callable[P, T | F_co] = self._maker.make(fn)
            return wrap_like(flat, fn)
        call = self.call

        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T | F_co:
            return call(fn, *args, **kwargs)

        return wrap_like(wrapper, fn)

    def execute(self, **options: Unpack[Options]) -> Execution:
        """One execution as a block (``with policy.execute() as ctx:``) or as a loop (``for attempt in policy.execute():``).

        Args:
            **options: As `options`.
        """
        return Execution(self, self.options(**options)._context if options else self._context)

    def settle(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T | F_co]:
        """As `call`, but an ``Exception`` is returned: `Success` or `Failure`. A ``BaseException`` passes through."""
        try:
            return Success(self.call(fn, *args, **kwargs))
        except Exception as error:
            return Failure(error)

    def options(
        self,
        *,
        key: Any = None,
        source: str | None = None,
        cancel: CancelToken | None = None,
        deadline: Duration | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> BoundPolicy[F_co]:
        """This policy with options for its executions.

        Args:
            key: What the execution is about; strategies with keyed state read ``ctx.key``.
            source: Where the call comes from; shown in events.
            cancel: A token that cancels the executions.
            deadline: The time each execution may take in all, from its start (a duration).
            properties: What ``ctx.properties`` starts with.

        Returns:
            A `BoundPolicy` with the same forms.

        Raises:
            ConfigurationError: An option has the wrong type.
        """
        return BoundPolicy(
            self, key=key, source=source, cancel=cancel, deadline=deadline, properties=properties
        )

    def describe(self) -> dict[str, Any]:
        """Plain data: the name and what is in it, the outermost first, with the effective options."""
        return {**super().describe(), "strategies": [strategy.describe() for strategy in self.strategies]}

    # -- as a strategy, and below ----------------------------------------------------------------------------------------

    def run(self, call: Call[T], ctx: Context) -> T | F_co:
        """Run ``call`` under this policy, inside another one."""
        return self.compile(call, self._owner.clock)(ctx)  # type: ignore[no-any-return]  # compiled closures are untyped

    def compile(self, inner: Run, clock: Clock) -> Run:
        """This policy around ``inner``, with a context of its own."""
        composed = self._compose(inner)

        def run(outer: Context) -> Any:
            ctx = self._inside(outer)
            try:
                return ctx._enter(composed)
            finally:
                ctx._close()

        return run

    def _flat(self) -> list[Strategy[Any]]:
        return [inside for strategy in self.strategies for inside in strategy._flat()]

    def _inside(self, outer: Context) -> Context:
        """A context of this policy where it stands in another one: the same execution, so it has the same options."""
        ctx = Context()
        ctx._owner = self._owner
        ctx._work = outer._work
        ctx.key = outer.key
        ctx.source = outer.source
        ctx.__dict__["_properties"] = outer.properties
        ctx._inherit(outer)
        return ctx

    def _adopt(self, clock: Clock) -> None:
        if self._clock is None and not self._settled:
            self._clock = clock
            for strategy in self.strategies:
                strategy._adopt(clock)
            self._build()

    def _context(self) -> Context:
        return fresh_context(self._owner)

    def __deepcopy__(self, memo: dict[int, Any]) -> Policy[F_co]:
        """A policy of copies of its strategies, which share nothing with these."""
        from copy import deepcopy

        copied = object.__new__(type(self))
        memo[id(self)] = copied
        for name, value in self.__dict__.items():
            if name not in _COMPOSED:
                copied.__dict__[name] = deepcopy(value, memo)
        copied._build()
        return copied

    def __repr__(self) -> str:
        inside = ", ".join(repr(strategy) for strategy in self.strategies)
        return f"Policy({inside}{', ' if inside else ''}name={self.name!r})"
