"""`BoundPolicy`: a policy with options for its executions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from pyresil._execution import Execution
from pyresil._functions import require_plain_function, wrap_like
from pyresil._observe import observed
from pyresil._validate import Checker
from pyresil.cancel import CancelToken
from pyresil.errors import PolicyUsageError
from pyresil.events import Executed
from pyresil.outcome import Failure, Success
from pyresil.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Unpack

    from pyresil.clock import Clock
    from pyresil.context import Context
    from pyresil.durations import Duration
    from pyresil.outcome import Outcome
    from pyresil.policy import Policy
    from pyresil.strategy import Call, Run

__all__ = ["BoundPolicy", "Options"]

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
            return observed(ctx, self.policy._run)  # type: ignore[no-any-return]  # as below
        try:
            return ctx._enter(self.policy._run)  # type: ignore[no-any-return]  # compiled closures are untyped
        finally:
            ctx._close()

    def __call__(self, fn: Callable[P, T], /) -> Callable[P, T | F_co]:
        """As decorating with the policy, with the options."""
        if isinstance(fn, (classmethod, staticmethod)):
            return type(fn)(self(fn.__func__))
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
        return self.compile(call, self.policy._owner.clock)(ctx)  # type: ignore[no-any-return]  # untyped closures

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
