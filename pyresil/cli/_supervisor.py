"""One command under one lease: the part that `run` and `lead` share.

A single-threaded loop that waits in one poll for signals, for the store's answers, and for the guard's events. Store calls
are made in the worker's thread, so nothing that hangs there delays a signal or the lease's deadline; the guard is forked
before that thread exists.
"""

from __future__ import annotations

import os
import select
import signal
from errno import ENOENT, ENOTDIR, ESRCH
from typing import TYPE_CHECKING

from pyresil.cli import _report
from pyresil.cli._chain import Chain
from pyresil.cli._claim import Claim
from pyresil.cli._guard import NAP
from pyresil.cli._report import DETAIL, ERROR, NOTE
from pyresil.cli._signals import ENDING, FORWARDED, TERMINAL_STOPS, Signals
from pyresil.cli._store import open_store
from pyresil.cli._terminal import Terminal
from pyresil.cli._worker import Worker
from pyresil.clock import SYSTEM

if TYPE_CHECKING:
    from pyresil.cli._options import Settings
    from pyresil.cli._report import Reporter

#: How long an answer that is on its way is waited for when a signal ends the waiting.
_LAST_WORD = 0.15
#: How long the release may keep the exit waiting.
_RELEASE_LIMIT = 6.0


class Supervisor:
    """Keeps a command and its lease together.

    Args:
        settings: What was asked for.
        url: The store.
        report: Where messages go.
    """

    def __init__(self, settings: Settings, url: str, report: Reporter) -> None:
        self.settings = settings
        self.report = report
        self.signals = Signals()
        self.chain = Chain(settings.command, settings.grace, self.signals)
        self.worker = Worker(lambda: open_store(url))
        self.claim = self.fresh_claim()
        self._terminal: Terminal | None = None
        self._poll = select.poll()
        self._stop_passed_on = False
        self._resuming = False
        self._deadline_told = 0.0
        #: How the command ended: its status as a shell counts it, or None while it runs.
        self.status: int | None = None
        #: Whether a process of the command may still exist.
        self.busy = False
        #: Whether the keys of a terminal are for us first: then the command gets the terminal only when it asks for it.
        self.keeps_terminal = False
        #: Signals that asked for an end and were passed on to the command, or ended it by a key of the terminal that it had.
        self.passed_on: set[int] = set()
        #: Whether processes were left that KILL did not end.
        self.stuck = False
        #: Whether the command ended when its lease was over already: what it did last was not covered.
        self.uncovered = False
        #: Whether the command could be started.
        self.ran = False

    def fresh_claim(self) -> Claim:
        """A lease that was not asked for yet."""
        settings = self.settings
        return Claim(self.worker, settings.key, settings.ttl, settings.min_hold, settings.max_hold)

    def open(self) -> None:
        """Fork the guard and get ready to poll.

        Raises:
            OSError: The system refuses another process.
        """
        self.chain.fork()
        for fd in (self.signals.reader, self.worker.reader, self.chain.reader):
            self._poll.register(fd, select.POLLIN)
        if not self.chain.complete:
            text = (
                "this system has no subreaper: processes that leave the command's process group are not ended"
            )
            self.report.say(DETAIL, "weaker-mode", text)

    def wait(self, until: float | None) -> list[int]:
        """Wait for something to happen, at most until ``until``; take it in.

        Returns:
            The signals that came.
        """
        now = SYSTEM.boottime()
        before = (self.claim.state, self.busy)
        for due in (self.claim.tick(now), self._follow(self.chain.step(now))):
            if due is not None and (until is None or due < until):
                until = due
        if (self.claim.state, self.busy) != before:
            until = now  # something came due: the caller decides before anything is waited for
        timeout = None if until is None else max(0, round(min(until - now, NAP) * 1000 + 0.5))
        ready = {fd for fd, _ in self._poll.poll(timeout)}
        now = SYSTEM.boottime()
        # The deadline first: what the command did after it was not covered by the lease.
        self.claim.tick(now)
        if self.worker.reader in ready:
            for answer in self.worker.take():
                self.claim.answered(answer, now)
        if self.chain.alive and self.chain.reader in ready:
            events = self.chain.take(now)
            self._take_events(events)
            if ["killed"] in events:
                self._poll.unregister(self.chain.reader)
        if self.claim.state == "held" and self.claim.deadline != self._deadline_told:
            self._deadline_told = self.claim.deadline
            self.chain.until(self.claim.deadline)
        if self._resuming and not self.claim.renewing and self.claim.state == "held":
            self._resume()
        numbers = self.signals.take() if self.signals.reader in ready else []
        if signal.SIGCHLD in numbers and self.chain.alive:
            self.chain.reap_strangers()
        return numbers

    def _follow(self, step: tuple[list[list[str]], float | None]) -> float | None:
        self._take_events(step[0])
        return step[1]

    def _take_events(self, events: list[list[str]]) -> None:
        for word, *rest in events:
            if word == "failed":
                self._not_started(int(rest[0]), rest[1])
            elif word == "expired":
                self.claim.expired()
            elif word == "ended":
                self._ended(rest[0], int(rest[1]))
            elif word == "stopped":
                self._stop(int(rest[0]))
            elif word == "gone":
                self.busy = False
            elif word == "stuck":
                self.busy = False
                self.stuck = True
                pids = ", ".join(rest) or "that /proc does not show"
                text = f"processes {pids} survived KILL: the lease is left to expire"
                self.report.say(ERROR, "stuck", text, pids=rest)
            elif word == "killed" and self.busy:
                self.report.say(
                    ERROR, "guard-killed", "the guard process was killed: everything was ended at once"
                )

    # The command.

    def start(self) -> None:
        """Start the command; `status` and `busy` tell how it goes on."""
        self.status = None
        self.busy = True
        self.stuck = self.uncovered = False
        self.ran = True
        self.passed_on.clear()
        self._resuming = self._stop_passed_on = False
        self._terminal = Terminal() if self._terminal is None else self._terminal
        claim = self.claim
        foreground = self._terminal.whole() and not self.keeps_terminal
        self._terminal.given = foreground
        environment = {
            "PYRESIL_LOCK_KEY": claim.key,
            "PYRESIL_LOCK_TOKEN": str(claim.token),
            "PYRESIL_LOCK_OWNER": claim.owner,
            "PYRESIL_LOCK_TTL": f"{claim.ttl:.6f}".rstrip("0").rstrip("."),
        }
        if not self.chain.alive:
            self._not_started(ESRCH, "guard")
            return
        self.chain.until(claim.deadline)
        self._deadline_told = claim.deadline
        self.chain.start(environment, foreground=foreground)

    def _not_started(self, number: int, phase: str) -> None:
        self.busy = self.ran = False
        missing = phase == "exec" and number in (ENOENT, ENOTDIR)
        self.status = _report.NOT_FOUND if missing else _report.NOT_EXECUTABLE
        name = self.settings.command[0]
        what = "not found" if missing else "cannot be executed" if phase == "exec" else "cannot be started"
        text = f"{name!r} {what}: {os.strerror(number)}"
        self.report.say(ERROR, "not-started", text, command=name, status=self.status)

    def _ended(self, how: str, number: int) -> None:
        self.status = 128 + number if how == "signal" else number
        self.uncovered = self.claim.state == "lost"
        if self._terminal is not None:
            key = self.status - 128
            if self._terminal.given and key in (signal.SIGINT, signal.SIGQUIT):
                self.passed_on.add(key)
            self._terminal.take_back(self._group)
        words = f"was killed by signal {number}" if how == "signal" else f"ended with status {number}"
        self.report.say(DETAIL, "ended", f"the command {words}", status=self.status)

    @property
    def _group(self) -> int:
        return self.chain.group

    def pass_on(self, number: int) -> None:
        """What a signal to the wrapper means for a command that was started."""
        if number in FORWARDED:
            self.chain.signal(number)
            if number in ENDING:
                self.passed_on.add(number)
        elif number == signal.SIGTSTP and not self.busy:
            self.stop_idle(waiting=False)
        elif number == signal.SIGTSTP:
            self._stop_passed_on = True
            self.chain.signal(number)
        elif number == signal.SIGCONT and self.busy:
            # Whether or not we have heard by now that it was stopped.
            self._renew_then_resume()

    # Job control.

    def stop_idle(self, *, waiting: bool) -> None:
        """Ctrl-Z while no command runs: stop, as any program does.

        Args:
            waiting: Whether a lease is waited for. One that comes first has its command started, which is told to stop then.
        """
        claim = self.claim
        if claim.state == "asking" or claim.renewing:
            self.worker.rest(_STOP_PATIENCE)
            for answer in self.worker.take():
                claim.answered(answer, SYSTEM.boottime())
        if waiting and claim.state == "held":
            signal.raise_signal(signal.SIGTSTP)
            return
        self.signals.stop_self(alone=True)
        claim.tick(SYSTEM.boottime())

    def _stop(self, number: int) -> None:
        """The command was stopped: where a terminal's user did that, stop with it, so that the shell sees it."""
        terminal = self._terminal
        if terminal is None or not terminal.present or self.claim.state != "held":
            return
        wants_terminal = number in (signal.SIGTTIN, signal.SIGTTOU)
        if wants_terminal and terminal.ours():
            terminal.give(self._group)
            if terminal.given:
                self.chain.resume()
        elif wants_terminal or self._stop_passed_on or (terminal.given and number in _STOPS):
            self._stop_passed_on = False
            terminal.take_back(self._group)
            self.worker.rest(_STOP_PATIENCE)
            stopped = self.signals.stop_self()
            if wants_terminal and not stopped:
                # Nobody can ever bring us to the foreground: what the kernel does to such a group.
                text = "the command needs the terminal, which is not ours: it gets HUP"
                self.report.say(NOTE, "no-terminal", text)
                self.chain.signal(signal.SIGHUP)
            else:
                self._renew_then_resume()

    def _renew_then_resume(self) -> None:
        """We were continued: the command is, too, once the store confirmed that the lease is still ours."""
        now = SYSTEM.boottime()
        self.claim.tick(now)
        if self.claim.state == "held" and not self._resuming:
            self._resuming = True
            self.claim.renew(now)

    def _resume(self) -> None:
        self._resuming = False
        terminal = self._terminal
        if terminal is not None and terminal.whole() and not self.keeps_terminal:
            terminal.give(self._group)
        self.chain.resume()

    # The lease.

    def tell_loss(self) -> None:
        """Say why the lease was lost."""
        claim = self.claim
        why = {
            "refused": "the store gave it to somebody else, or it was released by force",
            "deadline": f"no renewal was confirmed within its ttl of {claim.ttl:g} s",
            "max-hold": f"--max-hold of {self.settings.max_hold or 0:g} s is over",
        }[claim.detected_by]
        if claim.error is not None:
            why += f" ({claim.error})"
        text = f"the lease on {claim.key!r} (token {claim.token}) was lost: {why}; the command is ended"
        self.report.say(ERROR, "lost", text, key=claim.key, token=claim.token, detected_by=claim.detected_by)

    def give_back(self, *, used: bool = True) -> None:
        """Release the lease, and wait for the answer, within limits; ``used`` as of `Claim.give_back`."""
        claim = self.claim
        if not claim.token or claim.detected_by == "refused" or self.stuck:
            return
        now = SYSTEM.boottime()
        lost = bool(claim.detected_by)
        limit = now + (1.5 if lost else _RELEASE_LIMIT)
        claim.give_back(now, used=used)
        came: list[int] = []
        while claim.state == "releasing" and SYSTEM.boottime() < limit:
            came += self.wait(limit)
        self.signals.put_back(came)  # whoever lost its lease follows on, and is to hear that it should end
        if lost:
            return
        if claim.state == "releasing" or claim.error is not None:
            why = claim.error or "the store does not answer"
            text = f"the lease on {claim.key!r} could not be released and ends by itself: {why}"
            self.report.say(NOTE, "not-released", text, key=claim.key)
        else:
            self.report.say(DETAIL, "released", f"released {claim.key!r}", key=claim.key, token=claim.token)

    def abandon(self) -> None:
        """Stop waiting for the key: what may be granted at the last moment is given back."""
        claim = self.claim
        limit = SYSTEM.boottime() + _LAST_WORD
        while claim.state == "asking" and SYSTEM.boottime() < limit:
            self.wait(limit)
        if claim.state == "held":
            self.give_back(used=False)

    def close(self) -> None:
        """Let the guard go; no process of ours is left afterwards, and the terminal is our job's."""
        if self._terminal is not None:
            self._terminal.take_back(self._group)
        self.chain.close()


_STOPS = (*TERMINAL_STOPS, signal.SIGSTOP)
#: How long Ctrl-Z waits for a renewal that is under way, in seconds.
_STOP_PATIENCE = 1.0
