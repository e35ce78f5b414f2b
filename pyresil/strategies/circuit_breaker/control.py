"""The state of a circuit breaker as users see and set it, and how its transitions are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Never

from pyresil._engine.circuit import NOBODY, CircuitState, Post, Transition
from pyresil._outbox import Outbox
from pyresil.clock import SYSTEM
from pyresil.durations import seconds
from pyresil.errors import report_exception
from pyresil.events import CircuitClosed, CircuitHalfOpened, CircuitIsolated, CircuitOpened, emit
from pyresil.outcome import Failure, retry_after_of
from pyresil.strategies.circuit_breaker.last_failure import LastFailure
from pyresil.strategy import Forkable, Guard

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from pyresil._engine.circuit import Circuit, Origin
    from pyresil.clock import Clock
    from pyresil.durations import Duration
    from pyresil.outcome import Outcome
    from pyresil.strategies.circuit_breaker.shared import Share

#: A ``Retry-After`` makes a break at most this long, in seconds.
_LONGEST_RETRY_AFTER = 3600.0

_EVENTS: dict[CircuitState, Any] = {
    CircuitState.OPEN: CircuitOpened,
    CircuitState.HALF_OPEN: CircuitHalfOpened,
    CircuitState.ISOLATED: CircuitIsolated,
}


class CircuitStats(NamedTuple):
    """A circuit breaker at one moment.

    Attributes:
        state: Its state.
        calls: Calls in the window (in the last one, while it does not count).
        failures: How many of them failed.
        slow_calls: How many of them were slow.
        failure_rate: ``failures / calls``, 0.0 without calls.
        slow_call_rate: ``slow_calls / calls``, 0.0 without calls.
        opened: How often it opened in a row without closing.
        retry_after: Seconds until the next call may be admitted; None where calls are admitted, or nothing is known.
    """

    state: CircuitState
    calls: int
    failures: int
    slow_calls: int
    failure_rate: float
    slow_call_rate: float
    opened: int
    retry_after: float | None


class CircuitControl(Guard[Never], Forkable):
    """Everything of a circuit breaker but its calls.

    Args:
        name: Shown in errors, events and logs.
        circuit: The state machine; the same object for the life of the breaker.
        open_for: Gives the length of a break, or None where it is fixed.
        clock: The clock that was given.
    """

    kind = "circuit breaker"
    _dropped: tuple[str, ...] = ("_outbox",)

    def __init__(
        self,
        name: str | None,
        circuit: Circuit,
        open_for: Callable[[int], Duration] | None,
        clock: Clock | None,
    ) -> None:
        self.name = name
        self._clock = clock
        self._now = (clock or SYSTEM).monotonic
        self._circuit = circuit
        self._open_for = open_for
        #: What is shared with other processes.
        self._share: Share | None = None
        self._outbox: Outbox | None = None
        self._last: LastFailure | None = None

    def _adopt(self, clock: Clock) -> None:
        super()._adopt(clock)
        self._now = self.clock.monotonic

    def _after_fork(self) -> None:
        # What the parent's threads were delivering is theirs to deliver.
        self._outbox = None
        self._circuit.forget_probes()
        if self._share is not None:
            self._share.forget(probing=self._circuit.state is CircuitState.HALF_OPEN)

    @property
    def state(self) -> CircuitState:
        """The state as it is. No timer changes it: a break that is over ends with the next call."""
        return self._circuit.state

    def trip(self) -> None:
        """Open it now, as if a rate had been reached; the break of an open one begins anew."""
        now = self._set(CircuitState.OPEN)
        if self._open_for is not None:
            self._measure_break(now, None)
        self._tell_by_hand()

    def reset(self) -> None:
        """Close it, with an empty window, whatever its state; calls that are running count no more."""
        self._last = None
        self._set(CircuitState.CLOSED)
        self._tell_by_hand()

    def isolate(self) -> None:
        """Reject all calls until `reset`."""
        self._set(CircuitState.ISOLATED)
        self._tell_by_hand()

    def disable(self) -> None:
        """Let all calls through and count nothing, until `reset`."""
        self._set(CircuitState.DISABLED)
        self._tell_by_hand()

    def metrics_only(self) -> None:
        """Let all calls through and count them, from an empty window, until `reset`; it never opens by itself."""
        self._set(CircuitState.METRICS_ONLY)
        self._tell_by_hand()

    def stats(self) -> CircuitStats:
        """The state and the counts at this moment."""
        circuit, now = self._circuit, self._now()
        window = circuit.counted
        if circuit.window is window:
            window.age(now)
        calls, failures, slow = window.calls, window.failures, window.slow
        return CircuitStats(
            circuit.state,
            calls,
            failures,
            slow,
            failures / calls if calls else 0.0,
            slow / calls if calls else 0.0,
            circuit.opened,
            circuit.retry_after(now),
        )

    def _set(self, state: CircuitState) -> float:
        now = self._now()
        self._circuit.set(state, now, self._post(NOBODY))
        return now

    def _tell_by_hand(self) -> None:
        if self._share is not None:
            self._share.publish(self, NOBODY, by_hand=True)
        self._announce()

    def _remember(self, outcome: Outcome[Any]) -> None:
        if isinstance(outcome, Failure) and isinstance(outcome.error, Exception):
            self._last = LastFailure(outcome.error)

    def _measure_break(self, now: float, outcome: Outcome[Any] | None) -> None:
        """The circuit opened at ``now`` for as long as last time: correct that where the length is to be computed.

        It is open already, so that a function that takes its time, or a signal handler that raises in it, keeps nothing
        closed that should be open.
        """
        circuit = self._circuit
        era, opened, break_for = circuit.era, circuit.opened, circuit.break_for
        if self._open_for is not None:
            try:
                given = seconds(self._open_for(opened))
                if given > 0.0:
                    break_for = given
                else:
                    self._log().error("%s: open_for returned 0: %g s are used", self._label(), break_for)
            except Exception:
                report_exception(
                    f"{self._label()}: open_for raised, or returned no duration: {break_for:g} s are used"
                )
        asked = None
        try:
            asked = None if outcome is None else retry_after_of(outcome, self.clock.wall)
        except Exception:
            report_exception(f"{self._label()}: reading a Retry-After raised")
        length = break_for if asked is None else max(break_for, min(asked, _LONGEST_RETRY_AFTER))
        circuit.lasts(era, now + length, break_for)

    def _post(self, origin: Origin) -> Post:
        """What a transition is handed over with; an outbox costs as much as a breaker, so it is made with the first one."""
        outbox = self._outbox
        if outbox is None:
            fresh = Outbox()
            # Test and assignment with no call in between: all threads use one.
            if self._outbox is None:
                self._outbox = fresh
            outbox = self._outbox
            # Until its first transition there is nothing in it that a forked child must drop.
            self._watch_forks()
        return Post(outbox.pending.append, (self._tell, Transition(origin)))

    def _announce(self) -> None:
        """Tell what happened, outside every stretch that changes state."""
        outbox = self._outbox
        if outbox is not None and outbox.pending:
            outbox.drain()

    def _tell(self, note: Transition) -> None:
        self._log().warning("%s: %s -> %s", self._label(), note.before.value, note.after.value)
        kind = _EVENTS.get(note.after, CircuitClosed)
        if kind.listeners:
            policy, source = note.origin
            at = self.clock.wall()
            emit(
                kind(
                    policy=policy,
                    source=self.name or source,
                    at=at,
                    from_state=note.before,
                    to_state=note.after,
                )
            )

    def _log(self) -> logging.Logger:
        from pyresil._logs import logger

        return logger()

    def _label(self) -> str:
        return f"{self.kind} {self.name!r}" if self.name else self.kind

    def __repr__(self) -> str:
        return f"CircuitBreaker(name={self.name!r}, state={self._circuit.state.value!r})"
