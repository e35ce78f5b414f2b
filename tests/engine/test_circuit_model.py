"""The circuit breaker against a naive model: everything in lists, counted anew at every step."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyresil import CircuitBreaker, CircuitOpenError, CircuitState, Failure, Success
from pyresil._scope import Owner
from pyresil.context import Context
from pyresil.testing import ManualClock
from tests.support.depth import times

WIDTH = 1.0
SLOW = 3.0
PROBE_TIMEOUT = 7.0


class Call:
    """A call in flight: what the breaker gave it, and what the model knows of it."""

    def __init__(self, token, spell, kind, begun):
        self.token = token
        self.spell = spell
        self.kind = kind
        self.begun = begun


class BreakerMachine(RuleBasedStateMachine):
    @initialize(
        by_time=st.booleans(),
        minimum=st.integers(1, 4),
        rate=st.sampled_from([0.3, 0.5, 1.0]),
        permits=st.integers(1, 4),
        data=st.data(),
    )
    def begin(self, by_time, minimum, rate, permits, data):
        needed = data.draw(st.integers(1, permits))
        self.clock = ManualClock()
        self.by_time, self.minimum, self.rate = by_time, minimum, rate
        self.permits, self.needed = permits, needed
        self.breaker = CircuitBreaker(
            window="10s" if by_time else 5,
            minimum_calls=minimum,
            failure_rate=rate,
            slow_call=SLOW,
            slow_call_rate=0.6,
            open_for=lambda opened: 10.0 * opened,
            half_open_calls=permits,
            half_open_successes=needed,
            probe_timeout=PROBE_TIMEOUT,
            clock=self.clock,
        )
        self.ctx = Context()
        self.ctx._owner = Owner(None, self.clock)
        self.flying: list[Call] = []
        self.state, self.spell = "closed", 0
        self.recorded: list[tuple[float, bool, bool]] = []
        self.until, self.opened = 0.0, 0
        self.good = self.bad = 0

    # -- the model -------------------------------------------------------------------------------------------------------

    def enter_state(self, state):
        self.state = state
        self.spell += 1
        self.good = self.bad = 0
        if state in ("closed", "metrics-only"):
            self.recorded = []
        if state != "half-open" and state != "open":
            self.opened = 0

    def open(self):
        again = self.state == "open"
        self.enter_state("open")
        self.opened += not again
        self.until = self.clock.monotonic() + 10.0 * self.opened

    def probes(self):
        return [call for call in self.flying if call.kind == "probe" and call.spell == self.spell]

    def window(self):
        if not self.by_time:
            return self.recorded[-5:]
        return [call for call in self.recorded if call[0] // WIDTH > self.clock.monotonic() // WIDTH - 10]

    def admission(self):
        """What a call would be admitted as, or None."""
        now = self.clock.monotonic()
        if self.state in ("closed", "metrics-only"):
            return "counted"
        if self.state == "disabled":
            return "free"
        if self.state == "open" and now >= self.until:
            self.enter_state("half-open")
        if self.state == "half-open":
            live = [probe for probe in self.probes() if now < probe.begun + PROBE_TIMEOUT]
            if self.good + self.bad + len(live) < self.permits:
                if self.good + self.bad + len(self.probes()) >= self.permits:
                    late = next(probe for probe in self.probes() if probe not in live)
                    late.kind = "lost"
                return "probe"
        return None

    # -- what happens ----------------------------------------------------------------------------------------------------

    @rule()
    def start(self):
        kind = self.admission()
        if kind is None:
            with pytest.raises(CircuitOpenError) as rejected:
                self.breaker.enter(self.ctx)
            expected = None
            if self.state == "open":
                expected = self.until - self.clock.monotonic()
            elif self.state == "half-open":
                oldest = min(probe.begun for probe in self.probes())
                expected = oldest + PROBE_TIMEOUT - self.clock.monotonic()
            assert rejected.value.retry_after == (None if expected is None else pytest.approx(expected))
            return
        self.flying.append(Call(self.breaker.enter(self.ctx), self.spell, kind, self.clock.monotonic()))

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), how=st.sampled_from(["good", "good", "bad", "bad", "unjudged"]))
    def end(self, data, how):
        call = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        outcome = {"good": Success(1), "bad": Failure(OSError()), "unjudged": Failure(GeneratorExit())}[how]
        assert self.breaker.exit(self.ctx, call.token, outcome) is outcome
        now = self.clock.monotonic()
        if call.spell != self.spell or how == "unjudged" or call.kind in ("lost", "free"):
            return
        slow, bad = now - call.begun > SLOW, how == "bad"
        if call.kind == "counted":
            self.recorded.append((now, bad, slow))
            calls = self.window()
            failures, slows = sum(c[1] for c in calls), sum(c[2] for c in calls)
            reached = failures / len(calls) >= self.rate or slows / len(calls) >= 0.6
            if self.state == "closed" and len(calls) >= self.minimum and reached:
                self.open()
        elif now < call.begun + PROBE_TIMEOUT:
            if bad or slow:
                self.bad += 1
            else:
                self.good += 1
            if self.good >= self.needed:
                self.enter_state("closed")
            elif self.permits - self.bad < self.needed:
                self.open()

    @rule(duration=st.sampled_from([0.25, 1.0, 3.0, 3.25, 7.0, 10.0, 20.0]))
    def wait(self, duration):
        self.clock.advance(duration)

    @rule(how=st.sampled_from(["trip", "trip", "reset", "isolate", "disable", "metrics_only"]))
    def by_hand(self, how):
        getattr(self.breaker, how)()
        if how == "trip":
            self.open()
        else:
            self.enter_state(
                {
                    "reset": "closed",
                    "isolate": "isolated",
                    "disable": "disabled",
                    "metrics_only": "metrics-only",
                }[how]
            )

    @invariant()
    def same(self):
        if not hasattr(self, "breaker"):
            return
        stats = self.breaker.stats()
        assert stats.state is self.breaker.state is CircuitState(self.state)
        assert stats.opened == self.opened
        if self.state in ("closed", "metrics-only"):
            calls = self.window()
            assert stats[1:4] == (len(calls), sum(c[1] for c in calls), sum(c[2] for c in calls))


TestBreakerModel = BreakerMachine.TestCase
TestBreakerModel.settings = settings(max_examples=times(60), stateful_step_count=40)
