"""`pyresil-lock lead`: a command that is kept running on one host of many."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from pyresil.cli import _report
from pyresil.cli._report import DETAIL, ERROR, NOTE
from pyresil.cli._run import opened
from pyresil.cli._signals import ENDING
from pyresil.cli._store import meaning
from pyresil.cli._terminal import Terminal
from pyresil.clock import SYSTEM

if TYPE_CHECKING:
    from pyresil.cli._options import Settings
    from pyresil.cli._supervisor import Supervisor

#: Between an end of the command and its next start, doubling.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
#: A command that ran so long is started again after the first pause.
_RAN_WELL = 30.0
#: Ends leading; HUP does where the command did not make a reload of it.
_STOPPING = ENDING - {signal.SIGHUP}


def lead(settings: Settings) -> int:
    """Wait to be the leader, run the command again and again, wait again when the lease is lost.

    Returns:
        The exit status: the command's, once a signal ended it or it cannot be started; 128+N after signal N as a follower.
    """
    supervisor = opened(settings)
    if supervisor is None:
        return _report.NOT_EXECUTABLE
    supervisor.keeps_terminal = True  # Ctrl-C ends this, not the command alone, which would be started again
    # Asked now: once the terminal hung up there is none any more.
    at_terminal = Terminal().present
    try:
        first = True
        while True:
            status = _follow(supervisor, first=first, at_terminal=at_terminal)
            if status is None:
                status = _Term(supervisor, at_terminal=at_terminal).serve()
            if status is not None:
                return status
            supervisor.claim = supervisor.fresh_claim()
            first = False
    finally:
        supervisor.close()


def _follow(supervisor: Supervisor, *, first: bool, at_terminal: bool) -> int | None:
    """Wait until we lead; the exit status where we never will."""
    claim, report = supervisor.claim, supervisor.report
    # A store that is down from the start is a mistake in the set-up; later it is weather.
    claim.ask(SYSTEM.boottime(), float("inf"), patient=not first)
    told = False
    while True:
        for number in supervisor.wait(None):
            if _is_an_end(number, at_terminal=at_terminal):
                supervisor.abandon()
                return 128 + number
            if number == signal.SIGTSTP:
                supervisor.stop_idle(waiting=True)
        if claim.state == "held":
            text = f"leads {claim.key!r} with token {claim.token}"
            report.say(DETAIL, "leads", text, key=claim.key, token=claim.token)
            return None
        if claim.state in ("failed", "done"):
            status, text = meaning(claim.error)
            report.say(ERROR, "store", f"{text}; the command did not run")
            return status
        if claim.state == "pausing" and claim.holder is not None and not told:
            told = True
            text = f"follows {claim.key!r}, held by {claim.holder.meta or 'somebody else'}"
            report.say(DETAIL, "follows", text, key=claim.key)


def _is_an_end(number: int, *, at_terminal: bool) -> bool:
    """What a signal means while no command runs: a reload that is sent to all hosts is nothing, a terminal that hung up is."""
    return number in _STOPPING or (number == signal.SIGHUP and at_terminal)


class _Term:
    """One term of office: from the acquisition to the lease's end."""

    def __init__(self, supervisor: Supervisor, *, at_terminal: bool) -> None:
        self._supervisor = supervisor
        self._at_terminal = at_terminal
        self._pause = _FIRST_PAUSE
        self._stopping: int | None = None
        self._loss_told = False

    def serve(self) -> int | None:
        """Keep the command running; the exit status, or None when the lease was lost."""
        supervisor, claim = self._supervisor, self._supervisor.claim
        while True:
            began = SYSTEM.boottime()
            supervisor.start()
            while supervisor.busy:
                self._watch(None)
            self._tell_loss()
            status = supervisor.status
            if self._is_over(status):
                supervisor.give_back()
                return _report.NOT_EXECUTABLE if status is None else status
            if claim.state == "held":
                self._sleep(status, SYSTEM.boottime() - began)
            if self._stopping is not None:
                supervisor.give_back()
                return 128 + self._stopping
            if claim.state != "held":
                supervisor.give_back()
                return None

    def _is_over(self, status: int | None) -> bool:
        supervisor = self._supervisor
        asked = self._stopping is not None or (
            status is not None and status - 128 in supervisor.passed_on
        )  # died of a signal that we passed on
        broken = status is None or not supervisor.chain.alive or supervisor.stuck
        return asked or broken or not supervisor.ran

    def _watch(self, until: float | None) -> None:
        supervisor = self._supervisor
        self._tell_loss()
        for number in supervisor.wait(until):
            ended = supervisor.status is not None
            if number in _STOPPING or (ended and _is_an_end(number, at_terminal=self._at_terminal)):
                self._stopping = number
            supervisor.pass_on(number)

    def _sleep(self, status: int | None, ran: float) -> None:
        """Between an end and the next start: signals are obeyed, and the lease is kept."""
        supervisor = self._supervisor
        if ran >= _RAN_WELL:
            self._pause = _FIRST_PAUSE
        text = f"the command ended with status {status} after {ran:.1f} s and is started again in {self._pause:g} s"
        supervisor.report.say(NOTE, "restarts", text, status=status)
        until = SYSTEM.boottime() + self._pause
        self._pause = min(self._pause * 2.0, _LONGEST_PAUSE)
        while SYSTEM.boottime() < until and self._stopping is None and supervisor.claim.state == "held":
            self._watch(until)
        self._tell_loss()

    def _tell_loss(self) -> None:
        supervisor = self._supervisor
        if supervisor.claim.state == "lost" and not self._loss_told:
            self._loss_told = True
            if supervisor.busy:
                supervisor.chain.end()  # before it is said: whoever reads that may be slow
            supervisor.tell_loss()
