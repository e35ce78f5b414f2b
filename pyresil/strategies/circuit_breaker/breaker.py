"""The options of a circuit breaker, and the calls that go through it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil._engine.circuit import HALF_OPEN, OPEN, Circuit, Ticket
from pyresil._engine.windows import FAILED, SLOW, Rules
from pyresil._functions import describe_function
from pyresil._validate import Checker
from pyresil.clock import Clock
from pyresil.context import is_cancellation
from pyresil.errors import CircuitOpenError, report_exception
from pyresil.events import CircuitRejected, emit
from pyresil.outcome import Failure, Judge, Success
from pyresil.strategies.circuit_breaker.control import CircuitControl
from pyresil.strategies.circuit_breaker.paths import inlined

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil._engine.circuit import Origin
    from pyresil._engine.windows import Window
    from pyresil._flat import Inline
    from pyresil.context import Context
    from pyresil.durations import Duration
    from pyresil.outcome import Outcome
    from pyresil.stores.circuits import CircuitStateStore
    from pyresil.strategies.circuit_breaker.shared import Share
    from pyresil.strategy import Run

__all__ = ["CircuitBreaker"]

#: The most calls of a count window, a byte each.
_MOST_CALLS = 1_000_000
#: The length of a break where ``open_for`` is a function that has not given one yet, in seconds.
_FIRST_BREAK = 30.0
#: So many health checks that do not end may be at work, each in its thread; then none is started until one of them ends.
MOST_CHECKS = 32

#: The default verdicts, shared by all breakers without rules of their own.
_JUDGE = Judge(None, None, Checker("circuit breaker"))


class _Default(int):
    """The default of ``minimum_calls``, which a smaller window lowers; a given number is never changed."""

    __slots__ = ()


_MINIMUM_CALLS = _Default(10)


def _window(check: Checker, value: object) -> tuple[int | None, float | None]:
    """The calls or the seconds of a window; a second where it is neither."""
    of_kind = isinstance(value, (int, str)) or hasattr(value, "total_seconds")
    if isinstance(value, bool) or not of_kind:
        check.fault("window", 'a number of calls (an int) or a duration such as "30s"', value)
        return None, 1.0
    if isinstance(value, int):
        return check.integer("window", value, 1, _MOST_CALLS), None
    return None, check.duration("window", value)  # type: ignore[arg-type]  # what is no duration is refused there


class CircuitBreaker(CircuitControl):
    """Rejects calls at once while the dependency is failing, and lets probes find out when it is back.

    Closed, it counts calls in a window and opens with the recorded call that makes a rate reach its limit. Open, it rejects
    until the break is over; the next call after that (there is no timer) makes it half-open. Half-open, ``half_open_calls``
    probes are admitted in all: when ``half_open_successes`` of them succeeded it closes with an empty window, and as soon as
    that can no longer be reached it opens again. A probe that ends unjudged gives its permit back; one that takes longer
    than ``probe_timeout`` loses it, and its result counts no more; a slow one counts as failed. A result counts in the era
    that admitted it: one that comes late changes nothing.

    Args:
        name: Shown in errors, events and logs.
        failure_rate: The share of failures in the window that opens it, above 0 and at most 1. Default: 0.5.
        minimum_calls: No rate is judged with fewer calls in the window. Default: 10, or a smaller ``window``.
        window: An int is the last so many calls; a string or timedelta the calls of the last so much time, in ten segments
            (a call counts for 90 to 100 % of it). Default: 20 calls.
        slow_call: A call that takes longer is slow (a duration). Default: None, none is.
        slow_call_rate: The share of slow calls in the window that opens it, above 0 and at most 1. Default: 1.
        open_for: The length of a break (a duration), or a function that gives it for the number of openings in a row, from
            1. What that raises, or returns wrongly, is logged and the length before, or 30 s, is used. A ``Retry-After`` of
            the outcome that opens it lengthens that break, to one hour at most. Default: 30 s.
        half_open_calls: How many probes are admitted in all. Default: 1.
        half_open_successes: How many of them must succeed. Default: all.
        probe_timeout: How long a probe keeps its permit (a duration). Default: the length of the break.
        share: A `CircuitStateStore`: the state (not the counts) is shared by all breakers of this name there. What others
            decided is looked up once a second, at the next call. A store that fails is told (`CircuitStoreError`, a warning), and
            the breaker goes on by itself.
        health_check: Called without arguments in a thread of the library, in place of probes, when a call comes after the
            break is over; callers are rejected until it returns something true (closes) or fails (opens again). At most 32 that hang.
        handle: Exception type, tuple of them, or predicate of the error: what counts as failure. Default: the default
            verdicts.
        handle_result: Predicate of the value: what counts as failure. Default: a ``status_code`` of 408, 425, 429, 500 and
            above.
        clock: Default: the policy's.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type.

    A rejected execution raises `CircuitOpenError`. Its ``last_failure`` is the last error that was counted: that object while
    somebody else keeps it; later, and always where the type takes no weak references (as most built-in ones), a copy without
    traceback, cause and context, so that the breaker keeps nothing of the failed call alive.

    Events: `CircuitOpened`, `CircuitHalfOpened`, `CircuitClosed`, `CircuitIsolated`, `CircuitRejected`, in the order in which
    things happened. Transitions are logged as warnings.
    """

    _dropped = (*CircuitControl._dropped, "_checks")

    def __init__(
        self,
        name: str | None = None,
        *,
        failure_rate: float = 0.5,
        minimum_calls: int = _MINIMUM_CALLS,
        window: int | str | Duration = 20,
        slow_call: Duration | None = None,
        slow_call_rate: float = 1.0,
        open_for: Duration | Callable[[int], Duration] = "30s",
        half_open_calls: int = 1,
        half_open_successes: int | None = None,
        probe_timeout: Duration | None = None,
        share: CircuitStateStore | None = None,
        health_check: Callable[[], object] | None = None,
        handle: type[BaseException] | tuple[type[BaseException], ...] | Callable[[Any], object] | None = None,
        handle_result: Callable[[Any], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        check = Checker(self.kind, name)
        check.name(name)
        calls, span = _window(check, window)
        minimum = check.integer("minimum_calls", minimum_calls)
        if calls is not None and minimum > calls:
            if minimum_calls is not _MINIMUM_CALLS:
                check.fault(
                    "minimum_calls", f"at most window ({calls}), or it would never open", minimum_calls
                )
            minimum = calls
        rules = Rules.of(
            calls,
            span,
            int(minimum),
            check.number("failure_rate", failure_rate, 0.0, 1.0, open_low=True),
            check.number("slow_call_rate", slow_call_rate, 0.0, 1.0, open_low=True),
        )
        self._slow_call = check.optional_duration("slow_call", slow_call)
        computed = check.function("open_for", open_for) if callable(open_for) else None
        break_for = _FIRST_BREAK if callable(open_for) else check.duration("open_for", open_for)
        permits = needed = check.integer("half_open_calls", half_open_calls)
        if half_open_successes is not None:
            needed = check.integer("half_open_successes", half_open_successes)
            if needed > permits:
                check.fault(
                    "half_open_successes", f"at most half_open_calls ({permits})", half_open_successes
                )
        timeout = check.optional_duration("probe_timeout", probe_timeout)
        shared = None if share is None else self._shared(check, share, name)
        self._health_check = check.function("health_check", health_check)
        default = handle is None and handle_result is None
        self._judge = _JUDGE if default else Judge(handle, handle_result, check)
        check.instance("clock", clock, Clock, "a Clock or None")
        check.done()
        if health_check is not None:
            permits = needed = 1
        super().__init__(name, Circuit(rules, permits, needed, break_for, timeout), computed, clock)
        self._share = shared
        if health_check is not None:
            self._checks: dict[Ticket, None] = {}

    def _after_fork(self) -> None:
        super()._after_fork()
        if self._health_check is not None:
            self._checks = {}

    @staticmethod
    def _shared(check: Checker, store: object, name: str | None) -> Share | None:
        from pyresil.stores.circuits import CircuitStateStore
        from pyresil.strategies.circuit_breaker.shared import Share

        if not isinstance(store, CircuitStateStore):
            check.fault("share", "a CircuitStateStore or None", store)
        elif name is None:
            check.fault("name", "given with share: it is the key under which processes share the state", None)
        else:
            return Share(store, name)
        return None

    def inline(self, inner: Run, clock: Clock) -> Inline:
        """See `Strategy.inline`: the closed circuit inline, everything else is `_guarded`."""
        return inlined(self, inner)

    def enter(self, ctx: Context) -> Ticket:
        """Admit the execution.

        Raises:
            CircuitOpenError: The circuit is open or isolated, or all probes are taken.
        """
        if self._share is not None:
            self._share.refresh(self, (ctx.policy, ctx.source))
        ticket = Ticket()
        entered = False
        try:
            self._admit(ctx, ticket)
            entered = True
            return ticket
        finally:
            # `Circuit.give_back`, inline: its start would be a gap in which a signal handler could raise. So below.
            turn = ticket.round
            if not entered and turn is not None:
                ticket.round = None
                turn.free += 1
                del turn.probes[ticket]

    def exit(self, ctx: Context, token: Ticket, outcome: Outcome[Any]) -> Outcome[Any]:
        """Count how it ended; a ``BaseException`` is not judged."""
        try:
            if token.window is not None or token.round is not None:
                now = self._now()
                verdict: bool | None
                if isinstance(outcome, Failure):
                    verdict = self._verdict(ctx, outcome.error)
                else:
                    verdict = self._judge.value(outcome.value)
                self._judged((ctx.policy, ctx.source), token, verdict, now, outcome)
        finally:
            turn = token.round
            if turn is not None:
                token.round = None
                turn.free += 1
                del turn.probes[token]
        return outcome

    def _guarded(self, inner: Run, ctx: Context) -> Any:
        """A call that did not find the circuit closed."""
        circuit, now = self._circuit, self._now()
        if circuit.state is OPEN and now < circuit.until:
            raise self._rejection(ctx, circuit.until - now)
        ticket = Ticket()
        try:
            self._admit(ctx, ticket)
            try:
                value = inner(ctx)
            except Exception as error:
                self.exit(ctx, ticket, Failure(error))
                raise
            self.exit(ctx, ticket, Success(value))
            return value
        finally:
            turn = ticket.round
            if turn is not None:
                ticket.round = None
                turn.free += 1
                del turn.probes[ticket]

    def _admit(self, ctx: Context, ticket: Ticket) -> None:
        circuit, now = self._circuit, self._now()
        ticket.begun = now
        over = circuit.is_over(now)
        if over and self._share is not None:
            lease = circuit.break_for if circuit.probe_timeout is None else circuit.probe_timeout
            over = self._share.claim(self, (ctx.policy, ctx.source), lease * circuit.permits)
        # The permit of a health check is not the caller's, who is rejected and would give it back.
        permit = ticket if self._health_check is None else Ticket()
        admitted = circuit.admit(permit, now, self._post((ctx.policy, ctx.source)) if over else None)
        if over:
            self._announce()
        if admitted and (permit is ticket or permit.round is None):
            ticket.window = permit.window
            return
        retry_after = circuit.retry_after(now)
        if admitted:
            self._start_check((ctx.policy, ctx.source), permit)
        raise self._rejection(ctx, retry_after)

    def _rejection(self, ctx: Context, retry_after: float | None) -> CircuitOpenError:
        policy = ctx.policy
        if CircuitRejected.listeners:
            source, at = self.name or ctx.source, self.clock.wall()
            emit(CircuitRejected(policy=policy, source=source, at=at, retry_after=retry_after))
        last = self._last
        return CircuitOpenError(retry_after, None if last is None else last.get(), self.name, policy)

    def _verdict(self, ctx: Context, error: BaseException) -> bool | None:
        verdict = self._judge.error(error)
        # The exception that the execution was cancelled with says nothing of the dependency.
        return None if verdict and self._judge.default_errors and is_cancellation(ctx, error) else verdict

    def _raised(self, ctx: Context, window: Window, error: Exception, begun: float) -> None:
        """A call that was admitted by a closed circuit raised."""
        now = self._now()
        verdict = self._verdict(ctx, error)
        if verdict is not None:
            self._record((ctx.policy, ctx.source), window, verdict, now - begun, now, Failure(error))

    def _returned(self, ctx: Context, window: Window, value: Any, begun: float) -> None:
        """A call that was admitted by a closed circuit returned."""
        now = self._now()
        self._record(
            (ctx.policy, ctx.source), window, self._judge.value(value), now - begun, now, Success(value)
        )

    def _record(
        self,
        origin: Origin,
        window: Window,
        failed: bool,
        elapsed: float,
        now: float,
        outcome: Outcome[Any],
    ) -> None:
        bits = FAILED if failed else 0
        if self._slow_call is not None and elapsed > self._slow_call:
            bits |= SLOW
        if failed and self._circuit.window is window:
            self._remember(outcome)
        if window.record(bits, now) and self._circuit.opens(window, now, self._post(origin)):
            self._measure_break(now, outcome)
            if self._share is not None:
                self._share.publish(self, origin)
            self._announce()

    def _judged(
        self, origin: Origin, ticket: Ticket, verdict: bool | None, now: float, outcome: Outcome[Any]
    ) -> None:
        """A call with a ticket ended at ``now`` with this verdict: True failure, False success, None unjudged."""
        if verdict is None:
            return
        if ticket.window is not None:
            self._record(origin, ticket.window, verdict, now - ticket.begun, now, outcome)
        elif ticket.round is not None:
            slow = self._slow_call is not None and now - ticket.begun > self._slow_call
            if verdict and self._circuit.round is ticket.round:
                self._remember(outcome)
            decided = self._circuit.state is HALF_OPEN
            if self._circuit.judge(ticket, verdict or slow, now, self._post(origin)):
                self._measure_break(now, outcome)
            if self._share is not None and decided and self._circuit.state is not HALF_OPEN:
                self._share.publish(self, origin)
            self._announce()

    def _start_check(self, origin: Origin, ticket: Ticket) -> None:
        """Have the health check run with this permit, in a thread."""
        checks = self._checks
        if len(checks) >= MOST_CHECKS:
            self._log().error(
                "%s: %d health checks hang: no further one is started", self._label(), len(checks)
            )
            return  # the permit is held as by a check that runs: after its time somebody looks again

        def check() -> None:
            ticket.begun = self._now()
            try:
                try:
                    healthy = self._health_check is not None and bool(self._health_check())
                except Exception as error:
                    self._judged(origin, ticket, True, self._now(), Failure(error))
                else:
                    self._judged(origin, ticket, not healthy, self._now(), Success(healthy))
            finally:
                checks.pop(ticket, None)
                if ticket.round is not None:
                    self._circuit.give_back(ticket)

        started = False
        try:
            checks[ticket] = None
            self.clock.spawn(check, "pyresil-health-check")
            started = True
        except RuntimeError:  # no thread can be started
            report_exception(f"the health check of {self._label()} could not be started")
        finally:
            if not started:
                checks.pop(ticket, None)
                self._circuit.give_back(ticket)

    def describe(self) -> dict[str, Any]:
        """Plain data: the effective options."""
        circuit, rules = self._circuit, self._circuit.rules
        check, computed = self._health_check, self._open_for
        return {
            **super().describe(),
            "failure_rate": rules.failure_rate,
            "minimum_calls": rules.minimum_calls,
            "window": rules.calls if rules.span is None else f"{rules.span:g}s",
            "slow_call": self._slow_call,
            "slow_call_rate": rules.slow_rate,
            "open_for": circuit.break_for if computed is None else describe_function(computed),
            "half_open_calls": circuit.permits,
            "half_open_successes": circuit.successes,
            "probe_timeout": circuit.break_for if circuit.probe_timeout is None else circuit.probe_timeout,
            "share": None if self._share is None else "shared",
            "health_check": None if check is None else describe_function(check),
            **self._judge.describe(),
        }
