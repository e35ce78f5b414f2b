"""The state machine of a circuit breaker; ``now`` is an argument.

There is no lock in it. Every change of state is one straight stretch of code between whose first read and last write nothing
is called and nothing loops, so that under the GIL neither another thread nor a signal handler can come in between: what a
stretch needs (a fresh window, a note of the transition) is made before it, and thrown away where the stretch finds that
the state is another one by now. The last step of a stretch that changes the state appends its note to the outbox, so notes
are in the order of the transitions.

A result counts in the era that admitted it: a call brings back the very window that was current when it began, or the round
of probes that it belongs to; where the circuit has another one by then, nothing changes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil._engine.windows import Rules, Window

__all__ = ["CircuitState"]


class CircuitState(StrEnum):
    """What a circuit breaker does with calls."""

    #: Calls go through and are counted.
    CLOSED = "closed"
    #: Calls are rejected until the break is over.
    OPEN = "open"
    #: A few calls go through as probes, all others are rejected.
    HALF_OPEN = "half-open"
    #: Opened by hand: calls are rejected until `reset`.
    ISOLATED = "isolated"
    #: Switched off: calls go through and nothing is counted.
    DISABLED = "disabled"
    #: Calls go through and are counted, and the circuit never opens.
    METRICS_ONLY = "metrics-only"


CLOSED: Final = CircuitState.CLOSED
OPEN: Final = CircuitState.OPEN
HALF_OPEN: Final = CircuitState.HALF_OPEN
ISOLATED: Final = CircuitState.ISOLATED
DISABLED: Final = CircuitState.DISABLED
METRICS_ONLY: Final = CircuitState.METRICS_ONLY

#: The states in which calls are recorded in the window.
_COUNTING: Final = (CLOSED, METRICS_ONLY)


#: Under which policy, and for which ``source=`` of a caller, something happened.
Origin: TypeAlias = "tuple[str | None, str | None]"
NOBODY: Final[Origin] = (None, None)


class Transition:
    """A note of one change of state, filled in where it happens."""

    __slots__ = ("after", "before", "origin")

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.before = self.after = CLOSED


class Post:
    """How a transition is handed over: ``append(entry)``, where ``entry`` is (a function, the `Transition`)."""

    __slots__ = ("append", "entry")

    def __init__(
        self, append: Callable[[Any], object], entry: tuple[Callable[[Any], object], Transition]
    ) -> None:
        self.append = append
        self.entry = entry


class Ticket:
    """What one call was admitted with.

    Attributes:
        window: Where it is recorded: it was admitted by a closed circuit. Else None.
        round: The round of probes in which it holds a permit, else None; also None once it lost it.
        deadline: When it loses its permit.
        begun: When the work began.
    """

    __slots__ = ("begun", "deadline", "round", "window")

    def __init__(self) -> None:
        self.window: Window | None = None
        self.round: Round | None = None
        self.deadline = 0.0
        self.begun = 0.0


class Round:
    """One half-open spell: so many permits, of which so many must succeed.

    Attributes:
        free: Permits that nobody holds and that led to no verdict.
        needed: Successes that are still missing.
        spare: Failures that can still be borne.
        probes: Who holds a permit.
    """

    __slots__ = ("free", "needed", "probes", "spare")

    def __init__(self, permits: int, successes: int) -> None:
        self.free = permits
        self.needed = successes
        self.spare = permits - successes
        self.probes: dict[Ticket, None] = {}


class Circuit:
    """The state of one circuit breaker.

    Args:
        rules: When it opens.
        permits: The probes of a round.
        successes: How many of them must succeed.
        break_for: The length of a break in seconds, and of the first one where the caller computes it.
        probe_timeout: Seconds after which a probe loses its permit; None for the length of the break.

    Attributes:
        state: The `CircuitState`.
        window: Where calls are recorded; None in the other states. The hot path reads only this.
        counted: The current window, or the last one.
        round: The current round of probes, or None.
        until: When the break is over.
        opened: How often it opened in a row.
        era: Grows with every break.
    """

    __slots__ = (
        "break_for", "counted", "era", "opened", "permits", "probe_timeout", "round", "rules", "state", "successes",
        "until", "window",
    )  # fmt: skip

    def __init__(
        self, rules: Rules, permits: int, successes: int, break_for: float, probe_timeout: float | None
    ) -> None:
        self.rules = rules
        self.permits = permits
        self.successes = successes
        self.break_for = break_for
        self.probe_timeout = probe_timeout
        self.state = CLOSED
        self.counted = rules.window()
        self.window: Window | None = self.counted
        self.round: Round | None = None
        self.until = 0.0
        self.opened = 0
        self.era = 0

    # -- calls -----------------------------------------------------------------------------------------------------------

    def admit(self, ticket: Ticket, now: float, post: Post | None) -> bool:
        """Admit a call.

        Args:
            ticket: Filled in where the call is admitted: a window, or a permit, or neither while disabled.
            now: The time.
            post: Needed where the break is over, see `is_over`; without it such a circuit rejects.

        Returns:
            False where the call is rejected.
        """
        fresh = None if post is None else Round(self.permits, self.successes)
        expired = self._expired(now) if self.state is HALF_OPEN else None
        timeout = self.break_for if self.probe_timeout is None else self.probe_timeout
        append, entry, note = (None, None, None) if post is None else (post.append, post.entry, post.entry[1])
        # From here on nothing is called.
        window = self.window
        if window is not None:
            ticket.window = window
            return True
        state = self.state
        if state is DISABLED:
            return True
        if state is HALF_OPEN:
            turn = self.round
            if turn is None:
                return False
            if turn.free > 0:
                turn.free -= 1
            elif expired is not None and expired.round is turn:
                expired.round = None
                del turn.probes[expired]
            else:
                return False
        elif state is OPEN and now >= self.until and fresh is not None:
            turn = fresh
            turn.free -= 1
            self.state = HALF_OPEN
            self.round = turn
        else:
            return False
        ticket.round = turn
        ticket.deadline = now + timeout
        turn.probes[ticket] = None
        if state is OPEN and append is not None and note is not None:
            note.before = OPEN
            note.after = HALF_OPEN
            append(entry)
        return True

    def is_over(self, now: float) -> bool:
        """Whether the circuit is open and its break is over."""
        return self.state is OPEN and now >= self.until

    def _expired(self, now: float) -> Ticket | None:
        """A probe whose time is up."""
        turn = self.round
        if turn is not None:
            for ticket in list(turn.probes):
                if now >= ticket.deadline:
                    return ticket
        return None

    def opens(self, window: Window, now: float, post: Post) -> bool:
        """A rate was reached in ``window``: open, unless that is no longer the window of a closed circuit."""
        append, entry, note = post.append, post.entry, post.entry[1]
        # From here on nothing is called.
        if self.window is not window or self.state is not CLOSED:
            return False
        self.window = None
        self.state = OPEN
        self.opened += 1
        self.era += 1
        self.until = now + self.break_for
        note.before = CLOSED
        note.after = OPEN
        append(entry)
        return True

    def judge(self, ticket: Ticket, failed: bool, now: float, post: Post) -> bool:
        """A probe ended with a verdict.

        Returns:
            True where the circuit opened again.
        """
        append, entry, note = post.append, post.entry, post.entry[1]
        fresh = self.rules.window()
        # From here on nothing is called.
        turn = ticket.round
        if turn is None:
            return False  # its permit was given to another one
        ticket.round = None
        del turn.probes[ticket]
        if self.round is not turn:
            return False  # of an earlier spell
        if now >= ticket.deadline:
            turn.free += 1
            return False
        if not failed:
            turn.needed -= 1
            if turn.needed > 0:
                return False
            self.round = None
            self.counted = self.window = fresh
            self.opened = 0
            self.state = CLOSED
            note.before = HALF_OPEN
            note.after = CLOSED
            append(entry)
            return False
        turn.spare -= 1
        if turn.spare >= 0:
            return False
        self.round = None
        self.state = OPEN
        self.opened += 1
        self.era += 1
        self.until = now + self.break_for
        note.before = HALF_OPEN
        note.after = OPEN
        append(entry)
        return True

    def give_back(self, ticket: Ticket) -> None:
        """A probe ended without a verdict: its permit is free again."""
        turn = ticket.round
        if turn is not None:
            ticket.round = None
            turn.free += 1
            del turn.probes[ticket]

    def lasts(self, era: int, until: float, break_for: float) -> None:
        """The break of ``era`` ends at ``until`` after all; ``break_for`` is the length of those that follow."""
        if self.era == era and self.state is OPEN:
            self.until = until
            self.break_for = break_for

    # -- by hand ---------------------------------------------------------------------------------------------------------

    def set(self, state: CircuitState, now: float, post: Post) -> bool:
        """Go to a state by hand.

        To closed and metrics-only with an empty window. A break that is in force begins anew.

        Returns:
            Whether the state changed.
        """
        append, entry, note = post.append, post.entry, post.entry[1]
        counting = state in _COUNTING
        fresh = self.rules.window() if counting else None
        # From here on nothing is called.
        before = self.state
        self.round = None
        self.window = fresh
        self.state = state
        if fresh is not None:
            self.counted = fresh
        if state is OPEN:
            self.era += 1
            self.until = now + self.break_for
            if before is not OPEN:
                self.opened += 1
        elif before is not state:
            self.opened = 0
        if before is state:
            return False
        note.before = before
        note.after = state
        append(entry)
        return True

    def follow(self, state: CircuitState, until: float, opened: int, post: Post) -> bool:
        """Take over the state that another process decided; a circuit that stays closed keeps its window.

        Returns:
            Whether the state changed.
        """
        append, entry, note = post.append, post.entry, post.entry[1]
        fresh = self.rules.window() if state in _COUNTING else None
        # From here on nothing is called.
        before = self.state
        self.opened = opened
        if state is OPEN:
            self.until = until
            self.era += 1
        if before is state:
            return False
        self.round = None
        self.state = state
        self.window = fresh
        if fresh is not None:
            self.counted = fresh
        note.before = before
        note.after = state
        append(entry)
        return True

    def retry_after(self, now: float) -> float | None:
        """Seconds until the next call may be admitted; None where nothing is known."""
        if self.state is OPEN:
            return max(0.0, self.until - now)
        turn = self.round
        if turn is not None and self.state is HALF_OPEN:
            if turn.free > 0:
                return 0.0
            return max(0.0, min([ticket.deadline for ticket in list(turn.probes)], default=now) - now)
        return None

    def forget_probes(self) -> None:
        """In a forked child: those who hold permits are in the parent."""
        if self.state is HALF_OPEN:
            self.round = Round(self.permits, self.successes)
