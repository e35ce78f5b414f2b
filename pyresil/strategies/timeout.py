"""`Timeout`: how long the work may take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never, TypeVar

from pyresil._flat import Inline
from pyresil._validate import Checker
from pyresil._workers import Handed, submit
from pyresil.cancel import CancelToken
from pyresil.clock import Clock, Parker
from pyresil.errors import CancelledError, RejectedError, TimeoutExceededError, TimeoutSaturatedError
from pyresil.events import TimedOut, emit
from pyresil.outcome import Failure, is_client_error
from pyresil.strategy import Forkable, Guard, Strategy

if TYPE_CHECKING:
    from typing import Self

    from pyresil._scope import Scope
    from pyresil.context import Context
    from pyresil.durations import Duration
    from pyresil.outcome import Outcome
    from pyresil.strategy import Call, Run

__all__ = ["Timeout"]

T = TypeVar("T")

#: `Context._narrow` and `_widen` inline; two readings of the clock.
_INLINE = """\
$ctx = context(cell)
$own = $now() + $limit
$outer = $ctx._deadline
$outer_limit = $ctx._limit
$token = $ctx._token
try:
    if $token is not None:
        del $ctx._token
    if $outer is None or $own < $outer:
        $ctx._deadline = $own
        $ctx._limit = $limit
    WORK
except Exception as error:
    if $now() >= $own and $replaces($ctx, error, $own, $outer):
        raise $exceeded($ctx, $own) from error
    raise
finally:
    $inside = $ctx._token
    $ctx._deadline = $outer
    $ctx._limit = $outer_limit
    if $token is not None:
        $ctx._token = $token
    elif $inside is not None:
        del $ctx._token
    if $inside is not None and $inside is not $token:
        $inside._close_view()
if $now() >= $own:
    $late($ctx, $own)
"""


class _ByMode(Strategy[Never]):
    """Makes a guard, or a strategy that decides where the work runs: which one depends on the mode."""

    if not TYPE_CHECKING:  # type checkers go by ``__init__``

        def __new__(cls, *args: Any, **options: Any) -> Self:
            """One of the two kinds, unless the class is of one already."""
            if issubclass(cls, (_Cooperative, _Abandon)):
                return super().__new__(cls, *args, **options)
            mode = options.get("mode", args[1] if len(args) > 1 else "cooperative")
            kind = _mixed(cls, _Abandon if mode == "abandon" else _Cooperative)
            return super().__new__(kind, *args, **options)


class Timeout(_ByMode):
    """The work may take ``limit`` seconds.

    ``mode="cooperative"``: the work runs in the caller's thread. ``ctx.remaining()`` and ``ctx.timeout()`` shrink,
    ``ctx.cancel`` is set when the time is up, and waits of the library end. Nothing interrupts code that looks at none of
    these. When the work ends after the deadline, an ``Exception`` becomes `TimeoutExceededError` (raised from it), except
    client errors (the server did answer), rejections, cancellations and the error of an enclosing deadline. A result that
    comes late is returned, or refused with ``strict=True``.

    ``mode="abandon"``: the work runs in a daemon worker thread, with the context copied, and the caller leaves at the
    deadline or on cancel; the work goes on in vain and what it returns or raises is dropped. The worker's ``ctx.cancel`` is
    set then. With ``max_abandoned`` workers stuck in this way further calls raise `TimeoutSaturatedError`. The exit of the
    interpreter is not held up. Neither mode kills a thread.

    An exception that the work raises before the deadline, its own ``TimeoutError`` too, is left alone, and a
    ``BaseException`` always.

    Args:
        limit: The longest time (a duration above 0).
        mode: ``"cooperative"`` (the default) or ``"abandon"``.
        strict: Raise `TimeoutExceededError` in place of a late result. Default: False.
        max_abandoned: How many workers may be stuck; 1 or more. Default: 32.
        name: Shown in events as ``source``.
        clock: Default: the policy's. Deadlines are on the clock of the policy.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type.

    Events: `TimedOut`, with ``late=True`` where the work succeeded after the deadline.
    """

    kind = "timeout"

    def __init__(
        self,
        limit: Duration,
        mode: str = "cooperative",
        *,
        strict: bool = False,
        max_abandoned: int = 32,
        name: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        check = Checker("timeout", name)
        self.name = check.name(name)
        self.limit = check.duration("limit", limit)
        self.mode = check.choice("mode", mode, ("cooperative", "abandon"))
        if (self.mode == "abandon") is not isinstance(self, _Abandon):
            check.fault("mode", "given to the class itself, which decides by it what to make", mode)
        self.strict = check.boolean("strict", strict)
        self.max_abandoned = check.integer("max_abandoned", max_abandoned)
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        check.done()

    @property
    def abandoned(self) -> int:
        """How many workers are stuck in abandoned work; always 0 in cooperative mode."""
        return 0

    def run(self, call: Call[T], ctx: Context) -> T:
        """See `Strategy.run`."""
        return self.compile(call, ctx.clock)(ctx)  # type: ignore[no-any-return]  # compiled closures are untyped

    def describe(self) -> dict[str, Any]:
        """Plain data: the effective options."""
        return {
            **super().describe(),
            "limit": self.limit,
            "mode": self.mode,
            "strict": self.strict,
            "max_abandoned": self.max_abandoned,
        }

    def __repr__(self) -> str:
        return f"Timeout(limit={self.limit!r}, mode={self.mode!r}, strict={self.strict!r})"

    # -- what both modes share: the deadline has passed ----------------------------------------------------------------

    def _replaces(self, ctx: Context, error: Exception, own: float, outer: float | None) -> bool:
        """Whether a `TimeoutExceededError` takes the place of an error that left after the deadline ``own``.

        ``outer`` is the deadline that was in force around this one.
        """
        if isinstance(error, (CancelledError, RejectedError)) or is_client_error(error):
            return False
        if isinstance(error, TimeoutExceededError):
            if error.deadline == own:
                self._tell(ctx, late=False)  # a wait of the library noticed our deadline
                return False
            if outer is not None and outer <= own and error.deadline == outer:
                return False
        elif ctx.cancel.reason is error:
            return False  # a cancellation whose reason is an exception raises that
        self._tell(ctx, late=False)
        return True

    def _exceeded(self, ctx: Context, own: float) -> TimeoutExceededError:
        error = TimeoutExceededError(self.limit, ctx.policy)
        error.deadline = own
        return error

    def _late(self, ctx: Context, own: float) -> None:
        """The work succeeded after the deadline."""
        self._tell(ctx, late=True)
        if self.strict:
            raise self._exceeded(ctx, own)

    def _tell(self, ctx: Context, *, late: bool) -> None:
        if TimedOut.listeners:
            at = ctx.clock.wall()
            emit(
                TimedOut(
                    policy=ctx.policy, source=self.name or ctx.source, at=at, limit=self.limit, late=late
                )
            )


_kinds: dict[tuple[type[Any], type[Any]], type[Any]] = {}


def _mixed(cls: type[Timeout], kind: type[Any]) -> type[Any]:
    """The class of a `Timeout` of one of the two kinds: for a user's subclass of `Timeout` itself, one that is both."""
    if issubclass(kind, cls) or issubclass(cls, kind):
        return kind if cls is Timeout else cls
    found = _kinds.get((cls, kind))
    if found is None:
        fresh = type(
            cls.__name__, (cls, kind), {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        )
        found = _kinds.setdefault((cls, kind), fresh)
    return found


class _Cooperative(Timeout, Guard[Never]):
    """In the caller's thread."""

    def run(self, call: Call[T], ctx: Context) -> T:
        """See `Guard.run`."""
        return Guard.run(self, call, ctx)

    def inline(self, inner: Run, clock: Clock) -> Inline:
        """See `Strategy.inline`."""
        names = {"replaces": self._replaces, "exceeded": self._exceeded, "late": self._late}
        return Inline(_INLINE, {"now": clock.monotonic, "limit": self.limit, **names})

    def enter(self, ctx: Context) -> tuple[float, Any]:
        """The time begins."""
        own = ctx.clock.monotonic() + self.limit
        return own, ctx._narrow(self.limit, own)

    def exit(self, ctx: Context, token: tuple[float, Any], outcome: Outcome[Any]) -> Outcome[Any]:
        """The time ends."""
        own, saved = token
        try:
            if ctx.clock.monotonic() < own:
                return outcome
            if not isinstance(outcome, Failure):
                self._late(ctx, own)
            elif isinstance(outcome.error, Exception) and self._replaces(ctx, outcome.error, own, saved[0]):
                return Failure(self._exceeded(ctx, own))
            return outcome
        except TimeoutExceededError as error:
            return Failure(error)
        finally:
            ctx._widen(saved)


class _Abandon(Timeout, Forkable):
    """In a worker thread, whom the caller leaves at the deadline."""

    _dropped = ("_stuck",)

    def __init__(self, limit: Duration, mode: str = "abandon", **options: Any) -> None:
        # Not at the top, since it loads logging, and not when it is needed: an import is nothing for a signal handler.
        from pyresil._logs import logger

        super().__init__(limit, mode, **options)
        self._logger = logger()
        self._stuck: dict[Handed, None] = {}
        self._watch_forks()

    def _after_fork(self) -> None:
        self._stuck = {}

    @property
    def abandoned(self) -> int:
        """How many workers are stuck in abandoned work."""
        return len(self._stuck)

    def compile(self, inner: Run, clock: Clock) -> Run:
        """Hand the work over and wait."""
        limit, monotonic, park = self.limit, clock.monotonic, clock.park_for_work

        def run(ctx: Context) -> Any:
            stuck = self._stuck
            if len(stuck) >= self.max_abandoned:
                raise self._saturated(ctx)
            own = monotonic() + limit
            outer = ctx._deadline
            copy = ctx._copy()
            if outer is None or own < outer:
                copy._deadline = own
                copy._limit = limit
            until: float = copy._deadline  # type: ignore[assignment]  # one of the two
            parker = Parker()
            handed = Handed(inner, copy, clock.waker(parker), stuck)
            first = ctx._origin or ctx
            # With no token anywhere there is nothing to wait on but the time: making one costs a third of the whole call.
            # Should somebody ask for one meanwhile, it is told to wake us.
            alone = (
                first._base is None
                and first._given is None
                and first._waker is None
                and ctx.parent is None
                and ctx._scope is None
            )
            # All this before the worker has the context, which is narrowed for the scope of every timeout inside.
            within = copy._limit
            scope: Scope = copy._scope  # type: ignore[assignment]  # of every copy
            token = None if alone else copy.cancel
            sent = False
            try:
                if alone:
                    first._waker = parker.unpark
                try:
                    submit(clock, handed)
                except RuntimeError as error:
                    raise self._no_thread(ctx) from error
                sent = True
                if token is None:
                    while not handed.done and not (first._base is not None and scope.token().is_set()):
                        left = until - monotonic()
                        if left <= 0.0:
                            break
                        park(parker, left)
                else:
                    while not handed.done and not token.is_set():
                        token.park(parker, for_work=True)
            except BaseException:
                scope.token().cancel("abandoned")  # the copy alone: somebody may try again
                raise
            finally:
                if alone:
                    first._waker = None
                if not handed.done:
                    handed.abandoned = scope.left = True
                    if sent:
                        stuck[handed] = None
            if handed.abandoned:
                if own == until and monotonic() >= own:
                    self._tell(ctx, late=False)
                (token or CancelToken._view(scope.token(), until, within)).raise_if_cancelled()
            try:
                value = handed.result()
            except Exception as error:
                if monotonic() >= own and self._replaces(copy, error, own, outer):
                    raise self._exceeded(ctx, own) from error
                raise
            if monotonic() >= own:
                self._late(ctx, own)
            return value

        return run

    def _saturated(self, ctx: Context) -> TimeoutSaturatedError:
        self._logger.warning(
            "timeout %r of policy %r rejected a call: %d abandoned calls still run",
            self.name,
            ctx.policy,
            self.max_abandoned,
        )
        return TimeoutSaturatedError(self.max_abandoned, ctx.policy)

    def _no_thread(self, ctx: Context) -> RejectedError:
        return RejectedError(
            "timeout: no worker thread can be started (the interpreter is shutting down, or the system has no more threads)",
            None,
            ctx.policy,
        )
