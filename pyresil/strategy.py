"""The interfaces of strategies: what a policy is composed of, and what authors of their own strategies implement.

`Strategy.run` decides how often or where the work runs, or what it yields. A `Guard` surrounds one execution. A strategy
that repeats work also offers a `Stepper`, through which the loop form drives it. Strategies are shared between threads: state
that belongs to one call lives in locals or on the `Context`.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from pyresil._flat import nested
from pyresil._validate import Checker, Configured
from pyresil.clock import SYSTEM, Clock
from pyresil.errors import report_exception, shown
from pyresil.outcome import Failure, Success

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil._flat import Inline
    from pyresil.context import Context
    from pyresil.outcome import Outcome

__all__ = ["Call", "Guard", "Stepper", "Strategy"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
F_co = TypeVar("F_co", covariant=True)

#: The compiled form of the work and of everything around it.
Run: TypeAlias = "Callable[[Context], Any]"


class Call(Protocol[T_co]):
    """The rest of the policy and the work.

    ``call()`` runs it: the first time under the context that the strategy got, each further time under a fresh one with the
    next ``attempt``. ``call(ctx)`` runs it under the given context.
    """

    def __call__(self, ctx: Context | None = None, /) -> T_co:
        """Run it and return its result, or raise what it raises."""
        ...


class Stepper(ABC):
    """One execution of a retry-like strategy, step by step."""

    @abstractmethod
    def start(self, ctx: Context) -> None:
        """The execution begins; ``ctx`` is the context of the first attempt."""

    @abstractmethod
    def after(self, outcome: Outcome[Any]) -> float | None:
        """An attempt ended.

        Returns:
            Seconds to wait before the next attempt, or None where the outcome is final.
        """


class Strategy(Configured, ABC, Generic[F_co]):
    """One thread-safe object with one duty.

    ``F_co`` is the type of what it may yield in place of the work's result: ``Never`` for most, the value's type for a
    fallback, so that type checkers infer ``T | F`` for a call.
    """

    #: What it is called in messages and `describe`.
    kind: str = "strategy"
    #: The name of a shared instance, or None.
    name: str | None = None
    _clock: Clock | None = None

    @abstractmethod
    def run(self, call: Call[T], ctx: Context) -> T | F_co:
        """Run ``call`` and return its result or what takes its place.

        Args:
            call: The rest of the policy and the work; calling it again is another attempt.
            ctx: The context of this attempt.
        """

    def compile(self, inner: Run, clock: Clock) -> Run:
        """The strategy around ``inner`` as one function of the context; a policy does this once, when it is built.

        ``clock`` is the policy's. Strategies that offer their hot path as source are made of that.
        """
        inline = hot_path(self, inner, clock, changes=_FORMS)
        if inline is not None:
            return nested(inline, inner)

        def run(ctx: Context) -> Any:
            begun = 0

            def call(other: Context | None = None, /) -> Any:
                nonlocal begun
                if other is None and begun:
                    # The first one runs under the context that is there; each further one has its own.
                    other = ctx._next(begun + 1)
                begun += 1
                if other is None or other is ctx:
                    return inner(ctx)
                try:
                    return other._enter(inner)
                finally:
                    other._close()

            return self.run(call, ctx)

        return run

    def _flat(self) -> list[Strategy[Any]]:
        """What the block and loop forms see of it: itself, or in the place of a policy what is in that."""
        return [self]

    def inline(self, inner: Run, clock: Clock) -> Inline | None:
        """The hot path as source (see `pyresil._flat`); None where there is none.

        Args:
            inner: The compiled form of what is inside, for everything off the hot path.
            clock: The policy's.
        """
        return None

    def stepper(self) -> Stepper | None:
        """A fresh `Stepper` for one execution; None for strategies that do not repeat the work."""
        return None

    def describe(self) -> dict[str, Any]:
        """Plain data: the kind, the name and the effective options."""
        return {"strategy": self.kind, "name": self.name}

    @property
    def clock(self) -> Clock:
        """The clock it was given, else that of the policy it was first composed into, else the system's."""
        return self._clock or SYSTEM

    def _adopt(self, clock: Clock) -> None:
        """Take the policy's clock where none was given."""
        if self._clock is None:
            self._clock = clock


#: What a subclass changes when it does something else than the strategy whose compiled form it inherits.
_FORMS = ("run", "enter", "exit")


def _speaks_for(cls: type[Strategy[Any]], offers: tuple[str, ...], changes: tuple[str, ...]) -> bool:
    """Whether one of the methods ``offers`` still says what ``cls`` does: nothing below it has one of ``changes``."""
    nearest = next(vars(base) for base in cls.__mro__ if not vars(base).keys().isdisjoint(offers + changes))
    return any(method in nearest for method in offers)


def compiles(strategy: Strategy[Any]) -> bool:
    """Whether its `compile` stands for it; else the generic one does, around its `run`."""
    return _speaks_for(type(strategy), ("compile", "inline"), _FORMS)


def hot_path(
    strategy: Strategy[Any], inner: Run, clock: Clock, changes: tuple[str, ...] = ("compile", *_FORMS)
) -> Inline | None:
    """The hot path of a strategy as source, unless its class goes a way of its own: has one of ``changes``."""
    return strategy.inline(inner, clock) if _speaks_for(type(strategy), ("inline",), changes) else None


class Guard(Strategy[F_co]):
    """A strategy that surrounds one execution: it admits or rejects it, then sees how it ended.

    With nothing but guards a policy can surround a block: ``with policy.execute() as ctx``.
    """

    @abstractmethod
    def enter(self, ctx: Context) -> Any:
        """Admit the execution, or raise a `RejectedError`.

        Returns:
            Anything; `exit` gets it back.
        """

    @abstractmethod
    def exit(self, ctx: Context, token: Any, outcome: Outcome[Any]) -> Outcome[Any]:
        """The execution ended. Always called once after `enter` returned.

        Args:
            ctx: The context that was given to `enter`.
            token: What `enter` returned.
            outcome: A `Success`, or a `Failure` with an ``Exception`` or a ``BaseException`` (then it is unjudged, and what
                is returned is ignored).

        Returns:
            The same outcome, or a `Failure` with an error that takes its place; None is taken for the same outcome.
        """

    def run(self, call: Call[T], ctx: Context) -> T | F_co:
        """Enter, run the rest, exit."""
        token = self.enter(ctx)
        told = False
        after: Outcome[Any] | None = None
        try:
            try:
                value = call()
            except Exception as error:
                told = True
                after = self.exit(ctx, token, Failure(error))
                if not isinstance(after, Failure) or after.error is error:
                    raise
                raise after.error from error
            after = Success(value)
            told = True
            after = self.exit(ctx, token, after)
            if isinstance(after, Failure):
                raise after.error
            return getattr(after, "value", value)  # an ``exit`` that returns nothing changes nothing
        except BaseException as error:
            # Also where a signal handler raised between the end of the work and `exit`.
            if not told or never_began(self.exit, error):
                told = True
                leave_unjudged(self, ctx, token, error)
            raise
        finally:
            after = None  # an error whose traceback holds this frame must not be held by it


def never_began(method: Callable[..., Any], error: BaseException) -> bool:
    """Whether a signal handler raised ``error`` at the very start of ``method``, called by the frame that caught it.

    Python runs signal handlers where a function starts; what was called is then over before its first statement.
    """
    entry = None if error.__traceback__ is None else error.__traceback__.tb_next
    code = getattr(method, "__code__", None)
    if entry is None or entry.tb_frame.f_code is not code:
        return False
    import opcode

    start = code.co_code[::2].find(opcode.opmap["RESUME"])
    return entry.tb_lasti <= 2 * start


def leave_unjudged(guard: Guard[Any], ctx: Context, token: Any, error: BaseException) -> None:
    """Leave a guard while ``error`` is on its way out: an ``Exception`` of its own must not take the place of that."""
    try:
        guard.exit(ctx, token, Failure(error))
    except Exception:
        report_exception(f"exit() of a {guard.kind} raised")


#: Strategies that hold locks, permits or an era; weakly, for the child of a fork.
_forkable: weakref.WeakSet[Forkable] = weakref.WeakSet()


class Forkable:
    """A mixin for objects whose locks and permits must be dropped in a forked child.

    ``_after_fork`` only drops state; locks are made again at first use, because gevent may patch them later than the hook
    runs. Call `_watch_forks` once, at the end of the constructor.
    """

    __slots__ = ()

    #: The attributes that `_after_fork` makes anew: a deep copy leaves them out.
    _dropped: tuple[str, ...] = ()

    def _watch_forks(self) -> None:
        _forkable.add(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy is to its original what a forked child is to its parent, and is watched as well."""
        from copy import deepcopy

        copied: Any = object.__new__(type(self))
        memo[id(self)] = copied
        for name, value in list(self.__dict__.items()):
            if name not in self._dropped:
                copied.__dict__[name] = deepcopy(value, memo)
        copied._after_fork()
        copied._watch_forks()
        return copied

    def _after_fork(self) -> None:
        """Drop locks, permits and whatever belongs to threads of the parent."""


def _reset_in_child() -> None:
    for item in list(_forkable):
        item._after_fork()


os.register_at_fork(after_in_child=_reset_in_child)


def _instead_of(item: object) -> str:
    """What to write in the place of what is often given where a strategy should stand."""
    if isinstance(item, type) and issubclass(item, Strategy):
        return f"; write {item.__name__}(…)"
    if isinstance(item, (list, tuple)):
        return "; give the strategies one by one"
    if callable(item) and str(getattr(item, "__module__", "")).startswith("pyresil."):
        return "; a decorator goes above a function, a policy takes strategies such as Retry(…)"
    return ""


def require_strategies(strategies: tuple[object, ...], name: object, clock: object) -> None:
    """Refuse what is no strategy, one instance that stands twice, and a policy's other options where they are wrong."""
    faults = []
    seen: set[int] = set()
    for position, item in enumerate(strategies, 1):
        if not isinstance(item, Strategy):
            faults.append(f"argument {position} must be a strategy, got {shown(item)}{_instead_of(item)}")
        elif id(item) in seen:
            faults.append(f"argument {position} is the same {item.kind} as an earlier one")
        seen.add(id(item))
    check = Checker("policy", name)
    check.faults += faults
    check.name(name)
    check.instance("clock", clock, Clock, "a Clock or None")
    check.done()
