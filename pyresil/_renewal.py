"""Keeping a claim alive: leases and idempotency claims are renewed by this.

A claim is ours until ``ttl`` after the last renewal that the store confirmed, counted from before the request was sent. It is
renewed every third of the ttl. The first renewal is a timer on the watchdog; a thread of the claim's own starts when that
comes due, so a short claim never has one, and a store that hangs delays nobody else. The watchdog ends the claim at its
deadline even while a renewal hangs. Being lost is final: a confirmation that comes later is handed to ``late``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyresil._watchdog import call_later
from pyresil.clock import Parker
from pyresil.errors import report_exception

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.clock import Clock, TimerHandle

#: No single renewal may take longer than this, in seconds, so that another one can be tried.
LONGEST_CALL = 5.0
#: A claim is given up this much before its deadline (at most 2 % of the ttl), in seconds: the thread that has to tell may be
#: late by some milliseconds, and nobody else should have the claim by then.
LEAD = 0.02
#: The first retry after an error of the store comes after a random time of up to this share of the ttl, the following ones
#: after twice as long each, at most a third of the ttl.
_RETRY_SHARE = 1.0 / 60.0
#: The thread of a claim looks at the clock this often, in seconds; where the ttl is long, four times between two renewals.
_NAP = 5.0


def _never(_timeout: float) -> bool:
    return False


def _nothing(_detected_by: str) -> None:
    pass


class Renewal:
    """One claim that is kept alive.

    All callbacks run without any lock held. ``lost`` may be called on the watchdog: it must be quick and run no user code.

    Args:
        clock: Deadlines are on its boot-time clock.
        ttl: Seconds that the claim is good for after a confirmed renewal.
        sent: The clock's boot time before the claim was requested.
        renew: ``renew(timeout)`` asks the store: True confirmed, False it is somebody else's; errors are tried again.
        lost: Called once with ``"refused"``, ``"deadline"`` or ``"max-hold"``; again where a signal handler raised in it.
        failed: Called with the error of a renewal that raised.
        late: Called where the store confirmed a renewal after the claim was over.
        max_hold: Seconds after ``sent`` when the claim ends whatever happens; None for never.
        every: Seconds between renewals; None for a third of the ttl; 0 for never.
        name: Of the thread.
    """

    __slots__ = (
        "_clock",
        "_due",
        "_ends",
        "_every",
        "_failed",
        "_late",
        "_lead",
        "_lost",
        "_name",
        "_parker",
        "_pid",
        "_renew",
        "_thread",
        "_timer",
        "_ttl",
        "deadline",
        "over",
    )

    def __init__(
        self,
        clock: Clock,
        ttl: float,
        sent: float,
        renew: Callable[[float], bool],
        lost: Callable[[str], object],
        *,
        failed: Callable[[Exception], object] | None = None,
        late: Callable[[], object] | None = None,
        max_hold: float | None = None,
        every: float | None = None,
        name: str = "pyresil-renewal",
    ) -> None:
        self._clock = clock
        self._ttl = ttl
        self._lead = min(LEAD, ttl * 0.02)
        self._renew = renew
        self._lost = lost
        self._failed = failed
        self._late = late
        self._name = name
        self._every = ttl / 3.0 if every is None else every
        self._pid = os.getpid()
        self._ends = float("inf") if max_hold is None else sent + max_hold
        self._due = sent + self._every if self._every > 0.0 else float("inf")
        self._parker: Parker | None = None
        self._thread = False
        self._timer: TimerHandle | None = None
        #: When the claim ends unless it is renewed, on the boot-time clock.
        self.deadline = sent + ttl
        #: Whether it has ended: lost, or stopped by its holder.
        self.over = False

    def start(self) -> None:
        """Begin; costs a timer."""
        self._arm(self._clock.boottime())

    def remaining(self) -> float:
        """Seconds until the claim ends unless it is renewed; 0 where it is over, and in a forked child."""
        if self.over or self._pid != os.getpid():
            return 0.0
        return max(0.0, min(self.deadline, self._ends) - self._clock.boottime())

    def alive(self) -> bool:
        """Whether the claim is ours right now; compares the clock, so it is right even before any thread noticed."""
        return self.remaining() > 0.0

    def foreign(self) -> bool:
        """Whether this is a forked child of the process that made the claim."""
        return self._pid != os.getpid()

    def expire(self) -> bool:
        """Tell ``lost`` now, where the time is up and nobody noticed yet. Returns whether the claim is over."""
        if not self.over and not self.foreign():
            now = self._clock.boottime()
            if now >= self._ends or now >= self.deadline - self._lead:
                self._lose("max-hold" if self._ends <= self.deadline else "deadline")
        return self.over

    def stop(self) -> bool:
        """End it by its holder's will. Returns True where it was not over before, which only one caller gets."""
        mine = False
        # Test and assignment with no call in between: the watchdog and the holder cannot both end it.
        if not self.over:
            self.over = mine = True
        self._let_go()
        return mine

    def _lose(self, detected_by: str) -> None:
        # Before it is over: a holder who stops it just then lets go of the callbacks, and this loss is told all the same.
        lost = self._lost
        mine = False
        if not self.over:
            self.over = mine = True
        if mine:
            try:
                lost(detected_by)
            except BaseException:
                lost(detected_by)  # a signal handler raised: nobody else tells it
                raise
            finally:
                self._let_go()

    def _forget_callbacks(self) -> None:
        """Break the circle between the claim and this, so that both die without the collector."""
        self._renew = _never
        self._lost = _nothing
        self._failed = self._late = None

    def _let_go(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        parker = self._parker
        if parker is not None:
            parker.unpark()
        if not self._thread:
            self._forget_callbacks()

    # -- on the watchdog -------------------------------------------------------------------------------------------------

    def _arm(self, now: float) -> None:
        ends = min(self.deadline - self._lead, self._ends)
        until = ends if self._thread else min(ends, self._due)
        timer = call_later(self._clock, until - now, self._look)
        self._timer = timer
        if self.over:  # it ended meanwhile, and whoever ended it did not see this timer
            timer.cancel()

    def _look(self) -> None:
        """A deadline, or the first renewal, has come; runs again when the next one does."""
        if self.over or self.foreign() or self.expire():
            return
        now = self._clock.boottime()
        if now >= self._due and not self._thread:
            self._thread = True
            try:
                self._clock.spawn(self._run, self._name)
            except RuntimeError:
                # Out of threads: look again soon, there is time until the deadline.
                self._thread = False
                self._due = now + self._every / 4.0
                report_exception("the renewal thread of a claim cannot be started")
        self._arm(now)

    # -- on the claim's own thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._keep_renewing()
        finally:
            self._thread = False
            if self.over:
                self._forget_callbacks()

    def _keep_renewing(self) -> None:
        failures = 0
        while not self.over:
            self._parker = parker = Parker()
            sent = self._clock.boottime()
            if sent < self._due:
                if not self.over:
                    # In parts: a wait does not count the time that the machine is suspended, and the deadline does.
                    self._clock.park(parker, min(self._due - sent, max(_NAP, self._every / 4.0)))
                continue
            if self.expire():
                return
            if self._ask(sent):
                failures = 0
                self._due = sent + self._every
            else:
                failures = min(failures + 1, 20)
                wait = min(self._every, self._ttl * _RETRY_SHARE * 2.0 ** (failures - 1))
                # Never quite at once, or a store that refuses connections is hammered.
                self._due = self._clock.boottime() + wait * (0.5 + self._clock.random() / 2.0)

    def _ask(self, sent: float) -> bool:
        """One renewal; False where the store raised."""
        call = max(
            0.001, min(self._every or self._ttl, LONGEST_CALL, self.deadline - sent, self._ends - sent)
        )
        try:
            confirmed = self._renew(call)
        except Exception as error:
            if not self.over and self._failed is not None:
                self._failed(error)
            return False
        if not confirmed:
            self._lose("refused")
            return True
        now = self._clock.boottime()
        extended = False
        # No call between the tests and the write: a claim that ended stays ended.
        if not self.over and now < self.deadline - self._lead:
            self.deadline = sent + self._ttl
            extended = True
        if not extended:
            self._lose("deadline")
            if self._late is not None:
                self._late()
        return True
