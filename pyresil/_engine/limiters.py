"""The algorithms of a rate limit, each a state of one key; ``now`` is an argument.

A hit is admitted now, or at a later time for which it then holds a reservation, or not at all. Times of admission never go
back, so whoever waits is served in the order of asking, and whoever comes while others wait stands behind them.

As in a circuit breaker there is no lock: state changes in straight stretches without call or loop. Where an algorithm has to
look at more than that allows, it computes the next state aside and puts it in place only if nobody else was faster.
"""

# ruff: noqa: FURB136, PLR1730 - min() and max() are calls, and within a stretch nothing may be called

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

#: A bucket that lacks no more than this share of a permit has it: what rounding takes away from ``(t / n) * n``.
_ROUNDING: Final = 1e-9

_LONG_AGO: Final = float("-inf")


class Verdict(NamedTuple):
    """What became of a hit.

    Attributes:
        allowed: It is admitted, after ``wait``.
        wait: Seconds until it is admitted, 0 for now; where it is not allowed, until it would have been.
        at: The time of its admission.
        remaining: Permits that are left after it.
    """

    allowed: bool
    wait: float
    at: float
    remaining: int


class Spec(NamedTuple):
    """What a limit is.

    Attributes:
        algorithm: ``"sliding-window"``, ``"fixed-window"``, ``"token-bucket"`` or ``"gcra"``.
        permits: Permits in a window, 1 or more.
        window: Seconds.
        burst: The size of a bucket: the most that is admitted at once. For windows, the permits.
        segments: Parts of a sliding window.
    """

    algorithm: str
    permits: int
    window: float
    burst: int
    segments: int = 10

    def state(self, phase: float = 0.0) -> Limiter:
        """A fresh state of one key.

        Args:
            phase: Added to the time to get one that is aligned with the epoch, for fixed windows.
        """
        if self.algorithm == "sliding-window":
            return SlidingWindow(self)
        if self.algorithm == "fixed-window":
            return FixedWindow(self, phase)
        return Bucket(self)


class SlidingWindow:
    """At most ``permits`` in any window, however it is laid.

    Hits that come close together, within a segment of ``window / segments``, are kept as one entry (start, time of the last
    of them, permits), which leaves as a whole when the last of them is a window old: permits come back at most a segment
    late, never early.
    """

    __slots__ = (
        "blocked",
        "booked",
        "last",
        "older",
        "past",
        "permits",
        "refusal",
        "span",
        "start",
        "total",
        "turn",
        "version",
        "window",
    )

    def __init__(self, spec: Spec) -> None:
        self.permits = spec.permits
        self.window = spec.window
        self.span = spec.window / spec.segments
        #: Nothing is admitted before this time, whatever the count.
        self.blocked = _LONG_AGO
        #: Grows with every change but those of `take`, which are seen by ``total``.
        self.version = 0
        #: The youngest entry, and until when `take` may add to it: not while somebody waits.
        self.start = self.last = self.turn = _LONG_AGO
        #: The older entries, the oldest first: (start, last, permits).
        self.past: tuple[tuple[float, float, int], ...] = ()
        #: Permits in all entries, and in the older ones; those that are too old are taken off when it matters.
        self.total = self.older = 0
        #: The latest time that somebody waits for.
        self.booked = _LONG_AGO
        #: The latest refusal: (version, total, weight, when it would be admitted). It holds while nothing changes.
        self.refusal = (-1, 0, 0, _LONG_AGO)

    def take(self, weight: int, now: float) -> bool:
        """The quick way: True where the hit is admitted now; False says that `hit` has to look closer."""
        if now < self.turn and self.total + weight <= self.permits:
            self.total += weight
            if now > self.last:
                self.last = now
            return True
        return False

    def _entries(self) -> tuple[int, int, list[tuple[float, float, int]]]:
        """The version, the total, and all entries."""
        version = self.version
        total = self.total
        start = self.start
        last = self.last
        count = total - self.older
        past = self.past
        return version, total, [*past, (start, last, count)] if count else list(past)

    def _put(
        self, version: int, total: int, entries: list[tuple[float, float, int]], booked: float, now: float
    ) -> bool:
        """Make these the entries, unless something changed since `_entries` gave the version and the total."""
        start, last, _ = entries[-1] if entries else (_LONG_AGO, _LONG_AGO, 0)
        past = tuple(entries[:-1])
        older = sum([entry[2] for entry in past])
        fresh = older + (entries[-1][2] if entries else 0)
        turn = start + self.span if booked <= now else _LONG_AGO
        # From here on nothing is called.
        if self.version != version or self.total != total:
            return False
        self.version = version + 1
        self.past = past
        self.older = older
        self.total = fresh
        self.start = start
        self.last = last
        self.turn = turn
        self.booked = booked
        return True

    def hit(self, weight: int, now: float, max_wait: float) -> Verdict:
        """Admit a hit of ``weight`` (at most ``permits``) now, or within ``max_wait`` seconds, or not."""
        version, before, known, at = self.refusal
        if now + max_wait < at and weight == known and self.version == version and self.total == before:
            left = self.remaining(now) if weight > 1 or self.booked > now else 0
            return Verdict(False, at - now, at, left)
        while True:
            version, before, entries = self._entries()
            booked = self.booked
            at = booked if booked > now else now
            entries = [entry for entry in entries if entry[1] + self.window > now]
            inside = [entry for entry in entries if entry[1] + self.window > at]
            total = sum([entry[2] for entry in inside])
            left = self.permits - total
            for entry in inside:
                if total + weight <= self.permits:
                    break
                total -= entry[2]
                at = entry[1] + self.window
            wait = at - now
            if wait > max_wait:
                self.refusal = (version, before, weight, at)
                return Verdict(False, wait, at, left if left > 0 else 0)
            start, last, count = entries[-1] if entries else (at, at, 0)
            if entries and at < start + self.span:
                # Of two threads the one that read the clock first may come second: `cancel` finds a hit by its time.
                entries[-1] = (start if start < at else at, last if last > at else at, count + weight)
            else:
                entries.append((at, at, weight))
            if self._put(version, before, entries, at if wait > 0.0 else booked, now):
                return Verdict(True, wait, at, self.permits - total - weight)

    def cancel(self, at: float, weight: int, now: float) -> None:
        """Give back a hit that was admitted for the time ``at``, as if it had never been."""
        while True:
            version, before, entries = self._entries()
            booked = self.booked
            found = next((n for n, entry in enumerate(entries) if entry[0] <= at <= entry[1]), None)
            if found is None or entries[found][2] < weight:
                return  # it is older than a window, or from before a reset
            start, last, count = entries[found]
            entries[found] = (start, last, count - weight)
            if count == weight:
                del entries[found]
            if booked > now:
                booked = entries[-1][1] if entries and entries[-1][1] > now else _LONG_AGO
            if self._put(version, before, entries, booked, now):
                return

    def drain(self, now: float) -> None:
        """Use up what is left."""
        for _ in range(3):
            left = self.remaining(now)
            if left <= 0 or self.hit(left, now, 0.0).allowed:
                return

    def remaining(self, now: float) -> int:
        """Permits that are left now."""
        entries = self._entries()[2]
        return max(0, self.permits - sum([entry[2] for entry in entries if entry[1] + self.window > now]))

    def used(self) -> float:
        """When it was last used, for finding out which state to let go."""
        return self.last

    def is_idle(self, now: float) -> bool:
        """Whether it is as good as a fresh one."""
        return self.last + self.window <= now and self.blocked <= now


class FixedWindow:
    """At most ``permits`` in each window of the clock, which are aligned with the epoch: a minute begins at its second 0."""

    __slots__ = ("blocked", "count", "number", "permits", "phase", "stamp", "window")

    def __init__(self, spec: Spec, phase: float) -> None:
        self.permits = spec.permits
        self.window = spec.window
        self.phase = phase
        self.blocked = _LONG_AGO
        #: The window in which the latest hit is or will be admitted, and the permits used in it.
        self.number = _LONG_AGO
        self.count = 0
        self.stamp = _LONG_AGO

    def take(self, weight: int, now: float) -> bool:
        """See `SlidingWindow.take`."""
        if (now + self.phase) // self.window == self.number and self.count + weight <= self.permits:
            self.count += weight
            self.stamp = now
            return True
        return False

    def hit(self, weight: int, now: float, max_wait: float) -> Verdict:
        """See `SlidingWindow.hit`."""
        # Nothing is called up to the return.
        current = number = (now + self.phase) // self.window
        count = 0
        if number <= self.number:
            number = self.number
            count = self.count
        left = self.permits - count if number == current else 0
        if count + weight > self.permits:
            number += 1.0
            count = 0
        at = now
        if number > current:
            start = number * self.window - self.phase
            if start > now:
                at = start
        if at - now <= max_wait:
            self.number = number
            self.count = count + weight
            self.stamp = at
            return Verdict(True, at - now, at, self.permits - count - weight)
        return Verdict(False, at - now, at, left)

    def cancel(self, at: float, weight: int, now: float) -> None:
        """See `SlidingWindow.cancel`; what was taken of a window behind which others wait already is lost."""
        # The very start of a window may be rounded into the one before: (3 * 0.1) // 0.1 is 2.
        begins = self.number * self.window - self.phase
        if (at == begins or (at + self.phase) // self.window == self.number) and self.count >= weight:
            self.count -= weight

    def drain(self, now: float) -> None:
        """Use up what is left of this window."""
        number = (now + self.phase) // self.window
        if number >= self.number:
            self.number = number
            self.count = self.permits
            self.stamp = now

    def remaining(self, now: float) -> int:
        """Permits that are left now."""
        number = (now + self.phase) // self.window
        left = 0 if number < self.number else self.permits - self.count
        return self.permits if number > self.number else left

    def used(self) -> float:
        """See `SlidingWindow.used`."""
        return self.stamp

    def is_idle(self, now: float) -> bool:
        """See `SlidingWindow.is_idle`."""
        return (now + self.phase) // self.window > self.number and self.blocked <= now


class Bucket:
    """A bucket of ``burst`` permits that fills at ``permits / window``: at most ``burst + rate * t`` in any time ``t``.

    Both the token bucket and GCRA, which are the same but for the size of the bucket: GCRA with a burst of 1 spreads hits
    evenly. Whoever waits has taken its permits already, so that the bucket holds less than nothing.
    """

    __slots__ = ("blocked", "burst", "event", "permits", "stamp", "tokens", "window")

    def __init__(self, spec: Spec) -> None:
        self.permits = spec.permits
        self.window = spec.window
        self.burst = float(spec.burst)
        self.blocked = _LONG_AGO
        self.tokens = self.burst
        #: The time up to which it was filled.
        self.stamp = _LONG_AGO
        #: The time of the latest admission.
        self.event = _LONG_AGO

    def take(self, weight: int, now: float) -> bool:
        """See `SlidingWindow.take`."""
        tokens = self.tokens
        if now > self.stamp:
            # Multiplied before it is divided: 49 * (1 / 49) is less than 1.
            tokens += (now - self.stamp) * self.permits / self.window
            if tokens > self.burst:
                tokens = self.burst
            self.stamp = now
        if tokens >= weight - _ROUNDING:
            self.tokens = tokens - weight
            if now > self.event:
                self.event = now
            return True
        self.tokens = tokens
        return False

    def hit(self, weight: int, now: float, max_wait: float) -> Verdict:
        """See `SlidingWindow.hit`; ``weight`` is at most ``burst``."""
        # Nothing is called up to the return.
        tokens = self.tokens
        base = self.stamp
        if now > base:
            tokens += (now - base) * self.permits / self.window
            if tokens > self.burst:
                tokens = self.burst
            base = now
        lacking = weight - tokens
        at = now
        if lacking > _ROUNDING:
            at = base + lacking * self.window / self.permits
        wait = at - now
        self.stamp = base
        if wait <= max_wait:
            self.tokens = tokens - weight
            if at > self.event:
                self.event = at
            return Verdict(True, wait, at, _whole(tokens - weight))
        self.tokens = tokens
        return Verdict(False, wait, at, _whole(tokens))

    def cancel(self, at: float, weight: int, now: float) -> None:
        """See `SlidingWindow.cancel`.

        What flowed in between ``at`` and the latest admission is not given back: had the hit never been, the bucket might have
        been full and lost it (as in Go's ``rate`` package).
        """
        # Nothing is called here.
        back = weight - (self.event - at) * self.permits / self.window
        if back > 0.0:
            tokens = self.tokens + (back if back < weight else weight)
            self.tokens = tokens if tokens < self.burst else self.burst

    def drain(self, now: float) -> None:
        """Empty it."""
        # Nothing is called here.
        if now > self.stamp:
            self.tokens += (now - self.stamp) * self.permits / self.window
            self.stamp = now
        if self.tokens > 0.0:
            self.tokens = 0.0

    def remaining(self, now: float) -> int:
        """Permits that are left now."""
        tokens = self.tokens + max(0.0, now - self.stamp) * self.permits / self.window
        return _whole(min(tokens, self.burst))

    def used(self) -> float:
        """See `SlidingWindow.used`."""
        return self.event

    def is_idle(self, now: float) -> bool:
        """See `SlidingWindow.is_idle`."""
        return self.remaining(now) >= self.burst and self.blocked <= now


def _whole(tokens: float) -> int:
    return int(tokens + _ROUNDING) if tokens > 0.0 else 0


Limiter: TypeAlias = SlidingWindow | FixedWindow | Bucket
