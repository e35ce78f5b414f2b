"""The windows in which a circuit breaker counts: the last so many calls, or the last so many seconds.

A call is recorded as two bits, `FAILED` and `SLOW`; 0 is a good one. Every window takes each call in one straight stretch
of code without call or loop, so that neither another thread nor a signal handler finds it half done; whether the rates were
reached is computed in the same stretch. A window belongs to one closed spell of its circuit: when the circuit opens it is
left behind, and what is recorded in it later counts nowhere.
"""

from __future__ import annotations

from typing import Final, TypeAlias

#: The bits of a recorded call.
FAILED: Final = 1
SLOW: Final = 2

#: Parts of a time window.
SEGMENTS: Final = 10

_BIRTH: Final = float("-inf")


class Rules:
    """When the calls in a window open the circuit.

    Attributes:
        calls: The size of a count window, or None.
        span: The length of a time window in seconds, or None.
        minimum_calls: No rate is judged with fewer calls than this.
        failure_rate: The share of failures that opens, in (0, 1].
        slow_rate: The share of slow calls that opens, in (0, 1].
    """

    __slots__ = ("calls", "failure_rate", "minimum_calls", "slow_rate", "span")

    def __init__(
        self,
        calls: int | None,
        span: float | None,
        minimum_calls: int,
        failure_rate: float,
        slow_rate: float,
    ) -> None:
        self.calls = calls
        self.span = span
        self.minimum_calls = minimum_calls
        self.failure_rate = failure_rate
        self.slow_rate = slow_rate

    @classmethod
    def of(
        cls,
        calls: int | None,
        span: float | None,
        minimum_calls: int,
        failure_rate: float,
        slow_rate: float,
    ) -> Rules:
        """The rules made last, where they are the same: breakers of one kind, one for each host say, share them."""
        global _latest
        given = (calls, span, minimum_calls, failure_rate, slow_rate)
        rules = _latest
        if rules is None or given != (
            rules.calls, rules.span, rules.minimum_calls, rules.failure_rate, rules.slow_rate,
        ):  # fmt: skip
            rules = _latest = cls(*given)
        return rules

    def window(self) -> Window:
        """An empty window."""
        return CountWindow(self) if self.span is None else TimeWindow(self)


_latest: Rules | None = None


class CountWindow:
    """The last ``rules.calls`` calls, a byte each; the bytes are made with the first call.

    Attributes:
        calls: How many calls are in it.
        failures: How many of them failed.
        slow: How many of them were slow.
        calm: It is full of good calls: recording one more would change nothing, so a hot path leaves it out.
    """

    __slots__ = ("calls", "calm", "failures", "position", "ring", "rules", "slow")

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.ring: bytearray | None = None
        self.position = 0
        self.calls = 0
        self.failures = 0
        self.slow = 0
        self.calm = False

    def record(self, bits: int, now: float) -> bool:
        """Add a call.

        Returns:
            Whether a rate is reached with it.
        """
        rules = self.rules
        size = rules.calls or 1
        if self.ring is None:
            fresh = bytearray(size)
            # Two threads make one each; only the first is kept.
            if self.ring is None:
                self.ring = fresh
        ring = self.ring
        # From here on nothing is called. A byte that was never written is 0 and counts nowhere.
        position = self.position
        old = ring[position]
        ring[position] = bits
        failures = self.failures + (bits & FAILED) - (old & FAILED)
        slow = self.slow + (bits >> 1) - (old >> 1)
        self.failures = failures
        self.slow = slow
        calls = self.calls
        if calls < size:
            calls += 1
            self.calls = calls
        position += 1
        self.position = 0 if position == size else position
        self.calm = calls == size and not failures and not slow
        # A quotient is compared, since 0.07 * 100 is more than 7.
        return calls >= rules.minimum_calls and (
            failures / calls >= rules.failure_rate or slow / calls >= rules.slow_rate
        )

    def age(self, now: float) -> None:
        """Nothing: calls leave it when others come."""


class TimeWindow:
    """The calls of the last ``rules.span`` seconds, in ten segments of which the youngest is still filling.

    A segment leaves as a whole, with the start of the tenth one after it: a call counts for at least nine tenths of the
    span, and never once it is older than the span.

    Attributes:
        calls: How many calls are in it.
        failures: How many of them failed.
        slow: How many of them were slow.
        end: When the youngest segment ends.
        own: How many calls are in the youngest segment.
        calm: No call in it failed or was slow: one more good one is only added up, which a hot path does by itself.
    """

    __slots__ = (
        "calls", "calm", "end", "failures", "number", "own", "own_failures", "own_slow", "past", "rules", "slow", "width",
    )  # fmt: skip

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.width = (rules.span or 1.0) / SEGMENTS
        self.number = 0
        self.end = _BIRTH
        self.calls = self.failures = self.slow = 0
        self.calm = True
        self.own = self.own_failures = self.own_slow = 0
        #: The older segments: (number, calls, failures, slow).
        self.past: tuple[tuple[int, int, int, int], ...] = ()

    def record(self, bits: int, now: float) -> bool:
        """Add a call that ended at ``now``.

        Returns:
            Whether a rate is reached with it.
        """
        if now >= self.end:
            self.age(now)
        rules = self.rules
        # From here on nothing is called.
        calls = self.calls + 1
        self.calls = calls
        self.own += 1
        if bits:
            self.calm = False
            failed = bits & FAILED
            slow = bits >> 1
            self.failures += failed
            self.own_failures += failed
            self.slow += slow
            self.own_slow += slow
        return calls >= rules.minimum_calls and (
            self.failures / calls >= rules.failure_rate or self.slow / calls >= rules.slow_rate
        )

    def age(self, now: float) -> None:
        """Begin the segment that ``now`` lies in, and let go of those that are too old.

        What comes next is built aside and put in place in one stretch without a call, if nobody recorded a call or did the
        same meanwhile; else it is built again.
        """
        while True:
            end = self.end
            number = self.number
            own = self.own
            failed = self.own_failures
            slow = self.own_slow
            past = self.past
            if now < end:
                return
            current = int(now // self.width)
            after = (current + 1) * self.width
            if after <= now:  # a rounded quotient
                current += 1
                after = (current + 1) * self.width
            if end != _BIRTH and own:
                past = (*past, (number, own, failed, slow))
            past = tuple([segment for segment in past if segment[0] > current - SEGMENTS])
            calls = failures = slows = 0
            for segment in past:
                calls += segment[1]
                failures += segment[2]
                slows += segment[3]
            if self.end == end and self.own == own:
                self.past = past
                self.number = current
                self.end = after
                self.own = self.own_failures = self.own_slow = 0
                self.calls = calls
                self.failures = failures
                self.slow = slows
                self.calm = not failures and not slows
                return


Window: TypeAlias = CountWindow | TimeWindow
