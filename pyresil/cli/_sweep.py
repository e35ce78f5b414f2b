"""Ending every process below this one, and knowing when none is left."""

from __future__ import annotations

import os
import signal

from pyresil.cli import _kernel

#: How often the tree is looked at again while processes have time to end, and while they are being killed; in seconds.
_PATIENT = 0.1
_BUSY = 0.02
#: After KILL, this many seconds until what is still there counts as beyond our power (another user's, or in the kernel).
_STUCK = 5.0


class Sweep:
    """Tells all processes below this one to end: TERM (and CONT, for a stopped one), then KILL after the grace.

    Each process gets TERM once, those that appear meanwhile too. With a subreaper the tree is complete: whoever leaves its
    group or session, or loses its parent, is still below us, and having no children means that nothing is left. Without
    one the process group is all that can be known.

    Args:
        now: The time, in seconds since boot.
        grace: Seconds between TERM and KILL.
        group: Process group of the command, which stands for the tree where there is no subreaper.
        complete: Whether this process is a subreaper.
    """

    def __init__(self, now: float, grace: float, group: int, *, complete: bool) -> None:
        self._group = group
        self._complete = complete
        self._kill_at = now + grace
        self._killed_at: float | None = None
        self._told: set[tuple[int, int]] = set()
        self._group_told = False
        #: Processes that KILL did not end in time, or None. Empty: there are some, and /proc does not show which.
        self.stuck: list[int] | None = None

    def hasten(self, at: float) -> None:
        """KILL at ``at`` at the latest."""
        self._kill_at = min(self._kill_at, at)

    def step(self, now: float) -> float | None:
        """Do what is due; ended children must have been reaped before.

        Returns:
            When to call again, or None when nothing is left (or nothing more can be done: see `stuck`).
        """
        killing = now >= self._kill_at
        if killing and self._killed_at is None:
            self._killed_at = now  # may be long after it was due: the host was suspended
        left = self._tree(killing=killing) if self._complete else self._by_group(killing=killing)
        if left is not None and self._killed_at is not None and now >= self._killed_at + _STUCK:
            self.stuck = left
            left = None
        if left is None:
            return None
        return now + _BUSY if killing else min(now + _PATIENT, self._kill_at)

    def _tree(self, *, killing: bool) -> list[int] | None:
        try:
            # Looks, and reaps nothing.
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        processes = _kernel.descendants(os.getpid())
        if processes is None:
            return self._by_group(killing=killing) or []
        alive = [process for process in processes if process.state not in "ZX"]
        for process in alive:
            identity = (process.pid, process.started)
            if killing:
                _send(process.pid, signal.SIGKILL)
            elif identity not in self._told:
                self._told.add(identity)
                _send(process.pid, signal.SIGTERM)
                _send(process.pid, signal.SIGCONT)
        return [process.pid for process in alive]

    def _by_group(self, *, killing: bool) -> list[int] | None:
        if not self._group:
            return None  # nothing was ever started; and 0 would be our own group
        try:
            if killing:
                os.killpg(self._group, signal.SIGKILL)
            elif not self._group_told:
                self._group_told = True
                os.killpg(self._group, signal.SIGTERM)
                os.killpg(self._group, signal.SIGCONT)
            else:
                os.killpg(self._group, 0)
        except (ProcessLookupError, PermissionError):
            # Some systems answer "not permitted" for a group of which only ended processes are left.
            return None
        return [self._group]


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it just ended; or it is another user's, and will be reported as stuck
