"""`Policy`: strategies composed into one, the first outermost, and the forms in which work runs under it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from pyresil._execution import Execution
from pyresil._functions import require_plain_function, wrap_like
from pyresil._validate import Checker
from pyresil.cancel import CancelToken
from pyresil.clock import SYSTEM, Clock
from pyresil.context import Context, Owner, _current
from pyresil.errors import PolicyUsageError
from pyresil.events import Executed, emit
from pyresil.outcome import Failure, Success
from pyresil.strategy import Strategy, require_strategies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Unpack

    from pyresil.durations import Duration
    from pyresil.outcome import Outcome
    from pyresil.strategy import Call, Run

__all__ = ["BoundPolicy", "Policy"]

P = ParamSpec("P")
T = TypeVar("T")
F_co = TypeVar("F_co", covariant=True)


class Options(TypedDict, total=False):
    """What `Policy.options` takes."""

    key: Any
    source: str | None
    cancel: CancelToken | None
    deadline: Duration | None
    properties: Mapping[str, Any] | None


def _work(ctx: Context) -> Any:
    """The innermost step: the caller's function itself."""
    function, args, kwargs = ctx._work
    return function(*args, **kwargs)  # type: ignore[misc]  # a block never comes here


class Policy(Strategy[F_co], Owner):
    """Strategies composed, the first is the outermost.

    A policy is thread-safe, and itself a strategy: it can stand inside another one.

    Args:
        *strategies: Strategies from the outermost to the innermost; none at all runs the work as it is.
        name: Shown in errors, events and logs.
        clock: The clock of deadlines and waits; strategies without a clock of their own take it over. Default: that of the
            first strategy that has one, else the system's.

    Raises:
        ConfigurationError: An argument is no strategy, or one instance stands twice.
    """

    kind = "policy"

    def __init__(
        self, *strategies: Strategy[F_co], name: str | None = None, clock: Clock | None = None
    ) -> None:
        require_strategies(strategies, name)
        check = Checker("policy", name)
        check.instance("clock", clock, Clock, "a Clock or None")
        check.done()
        self.name = name
        self.strategies = strategies
        given = (strategy._clock for strategy in strategies if strategy._clock is not None)
        self._clock = clock or next(given, None)
        self._clock_used = self._clock or SYSTEM
        if self._clock is not None:
            for strategy in strategies:
                strategy._adopt(self._clock)
        self._run = self._compose(_work)

    def _compose(self, inner: Run) -> Run:
        for strategy in reversed(self.strategies):
            inner = strategy.compile(inner, self._clock_used)
        return inner

    # -- forms -----------------------------------------------------------------------------------------------------------

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | F_co:
        """Run ``fn(*args, **kwargs)`` under the policy.

        Returns:
            Its result, or what a strategy yields in its place.

        Raises:
            BaseException: What ``fn`` raised, the same object; or an error of a strategy.
        """
        ctx = Context()
        ctx._owner = self
        ctx._work = (fn, args, kwargs)
        outer = _current.get()
        if outer is not None:
            ctx._inherit(outer)
        if Executed.listeners:
            return self._observed(ctx)  # type: ignore[no-any-return]  # as below
        try:
            _current.set(ctx)
            return self._run(ctx)  # type: ignore[no-any-return]  # compiled closures are untyped
        finally:
            _current.set(outer)
            if ctx._base is not None:
                ctx._close()

    def __call__(self, fn: Callable[P, T], /) -> Callable[P, T | F_co]:
        """Decorate ``fn``: every call of it runs under the policy.

        Raises:
            TypeError: ``fn`` is an ``async def`` or a generator function, or cannot be called.
        """
        require_plain_function(fn, self.name)
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
        return self.compile(call, self._clock_used)(ctx)  # type: ignore[no-any-return]  # compiled closures are untyped

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
        ctx._owner = self
        ctx._work = outer._work
        ctx.key = outer.key
        ctx.source = outer.source
        ctx.__dict__["_properties"] = outer.properties
        ctx._inherit(outer)
        return ctx

    def _adopt(self, clock: Clock) -> None:
        if self._clock is None:
            self._clock = self._clock_used = clock
            for strategy in self.strategies:
                strategy._adopt(clock)
            self._run = self._compose(_work)

    def _context(self) -> Context:
        """A fresh context of this policy, inside the current one."""
        ctx = Context()
        ctx._owner = self
        outer = _current.get()
        if outer is not None:
            ctx._inherit(outer)
        return ctx

    def _observed(self, ctx: Context) -> Any:
        """Run a context that is ready, and tell how it ended."""
        begun = self._clock_used.monotonic()
        outcome: Outcome[Any] | None = None
        try:
            value = ctx._enter(self._run)
            outcome = Success(value)
            return value
        except Exception as error:
            outcome = Failure(error)
            raise
        finally:
            ctx._close()
            duration = self._clock_used.monotonic() - begun
            if outcome is not None and Executed.listeners:
                at = self._clock_used.wall()
                emit(Executed(policy=self.name, source=ctx.source, at=at, duration=duration, outcome=outcome))
            outcome = None  # an error whose traceback holds this frame must not be held by it

    def __repr__(self) -> str:
        inside = ", ".join(repr(strategy) for strategy in self.strategies)
        return f"Policy({inside}{', ' if inside else ''}name={self.name!r})"


class BoundPolicy(Strategy[F_co]):
    """A policy with options for its executions; made by `Policy.options`. It has the same forms, and is immutable."""

    kind = "policy"

    def __init__(
        self,
        policy: Policy[F_co],
        *,
        key: Any = None,
        source: str | None = None,
        cancel: CancelToken | None = None,
        deadline: Duration | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        check = Checker("policy options", policy.name)
        self.policy = policy
        self.name = policy.name
        self._clock = policy._clock
        self._key = key
        self._source = check.name(source, "source")
        self._cancel = check.instance("cancel", cancel, CancelToken, "a CancelToken or None")
        self._limit = check.optional_duration("deadline", deadline, positive=False)
        self._properties: dict[str, Any] | None = None
        try:
            self._properties = None if properties is None else dict(properties)
        except (TypeError, ValueError):
            check.fault("properties", "a mapping or None", properties)
        check.done()

    def _context(self) -> Context:
        return self._apply(self.policy._context())

    def _apply(self, ctx: Context) -> Context:
        """Put the options on a fresh context; raises where the token is set or no time is left."""
        if self._key is not None:
            ctx.key = self._key
        if self._source is not None:
            ctx.source = self._source
        if self._properties is not None:
            # Those of a policy around this one stay as they are.
            ctx.__dict__["_properties"] = {**ctx.__dict__.get("_properties", {}), **self._properties}
        limit = self._limit
        if self._cancel is not None:
            ctx._given = self._cancel
            left = self._cancel.remaining()
            if left is not None and (limit is None or left < limit):
                limit = left
        if limit is not None:
            ctx._narrow(limit, ctx.clock.monotonic() + limit)
        if (limit is not None and limit <= 0.0) or (self._cancel is not None and self._cancel.is_set()):
            ctx.cancel.raise_if_cancelled()
        return ctx

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | F_co:
        """As `Policy.call`, with the options; raises at once where the token is set or no time is left."""
        ctx = self._context()
        ctx._work = (fn, args, kwargs)
        if Executed.listeners:
            return self.policy._observed(ctx)  # type: ignore[no-any-return]  # as below
        try:
            return ctx._enter(self.policy._run)  # type: ignore[no-any-return]  # compiled closures are untyped
        finally:
            ctx._close()

    def __call__(self, fn: Callable[P, T], /) -> Callable[P, T | F_co]:
        """As decorating with the policy, with the options."""
        require_plain_function(fn, self.name)
        call = self.call

        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T | F_co:
            return call(fn, *args, **kwargs)

        return wrap_like(wrapper, fn)

    def execute(self, **options: Unpack[Options]) -> Execution:
        """As `Policy.execute`; options given here win over those of this object."""
        bound = self.options(**options) if options else self
        return Execution(self.policy, bound._context)

    def settle(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T | F_co]:
        """As `Policy.settle`, with the options."""
        try:
            return Success(self.call(fn, *args, **kwargs))
        except Exception as error:
            return Failure(error)

    def options(self, **options: Unpack[Options]) -> BoundPolicy[F_co]:
        """These options with others over them."""
        mine: Options = {
            "key": self._key,
            "source": self._source,
            "cancel": self._cancel,
            "deadline": self._limit,
            "properties": self._properties,
        }
        mine.update(options)
        return self.policy.options(**mine)

    def describe(self) -> dict[str, Any]:
        """As `Policy.describe`."""
        return self.policy.describe()

    def run(self, call: Call[T], ctx: Context) -> T | F_co:
        """Run ``call`` under the policy with the options, inside another one."""
        return self.compile(call, self.policy._clock_used)(ctx)  # type: ignore[no-any-return]  # untyped closures

    def compile(self, inner: Run, clock: Clock) -> Run:
        """The policy around ``inner``, with the options."""
        composed = self.policy._compose(inner)

        def run(outer: Context) -> Any:
            ctx = self._apply(self.policy._inside(outer))
            try:
                return ctx._enter(composed)
            finally:
                ctx._close()

        return run

    def _flat(self) -> list[Strategy[Any]]:
        raise PolicyUsageError(
            "a policy with options inside another one cannot be used as a block or loop: give the options to the outer one, "
            "or use `policy.call(fn)`",
            self.name,
        )

    def _adopt(self, clock: Clock) -> None:
        self.policy._adopt(clock)
        self._clock = self.policy._clock

    def __repr__(self) -> str:
        return f"{self.policy!r}.options(key={self._key!r}, source={self._source!r})"
