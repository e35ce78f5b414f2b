"""The wrapper's end of the chain wrapper, guard, command."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from pyresil.cli import _kernel
from pyresil.cli._guard import Plan, how_it_ended, run_guard
from pyresil.cli._sweep import Sweep

if TYPE_CHECKING:
    from pyresil.cli._signals import Signals


class Chain:
    """Starts the guard, talks to it, and takes over its duty should it be killed.

    Args:
        command: The command and its arguments.
        grace: Seconds between TERM and KILL.
        signals: The wrapper's signals.
    """

    def __init__(self, command: list[str], grace: float, signals: Signals) -> None:
        self._signals = signals
        self._plan = Plan(command, grace, os.getpid())
        self._to_guard = -1
        self._from_guard = -1
        self._guard: int | None = None
        self._pending = b""
        self._sweep: Sweep | None = None
        #: Process id of the command while it runs.
        self.pid: int | None = None
        #: Its process group, also after it ended.
        self.group = 0
        #: Whether descendants that leave the group can be found and ended, too.
        self.complete = False

    @property
    def reader(self) -> int:
        """The descriptor to poll for the guard's events."""
        return self._from_guard

    def fork(self) -> None:
        """Start the guard: from the main thread, before any other thread exists and before a store is opened.

        Raises:
            OSError: The system refuses another process.
        """
        _kernel.load()
        # Should the guard be killed, its descendants come to us.
        self.complete = _kernel.become_subreaper()
        command_reader, self._to_guard = os.pipe()
        self._from_guard, event_writer = os.pipe()
        self._guard = os.fork()
        if self._guard == 0:
            os.close(self._to_guard)
            os.close(self._from_guard)
            run_guard(self._plan, self._signals, command_reader, event_writer)
        os.close(command_reader)
        os.close(event_writer)

    def start(self, environment: dict[str, str], *, foreground: bool) -> None:
        """Start the command with ``environment`` on top of ours, in the terminal's foreground or not."""
        values = (f"{name}={os.fsencode(value).hex()}" for name, value in environment.items())
        self._send("start", "1" if foreground else "0", *values)

    def signal(self, number: int) -> None:
        """Pass a signal on to the command."""
        self._send("signal", str(int(number)))

    def resume(self) -> None:
        """Let a stopped command continue."""
        self._send("continue")

    def end(self) -> None:
        """Tell everything to end: TERM, and KILL after the grace."""
        self._send("end")
        self._wake()

    def kill(self, now: float) -> None:
        """KILL everything now."""
        if self._sweep is not None:
            self._sweep.hasten(now)
        self._send("kill")
        self._wake()

    def until(self, deadline: float) -> None:
        """The lease's deadline: the guard ends the command then, should we be stopped ourselves."""
        self._send("until", str(int(deadline * 1000)))

    def _send(self, *words: str) -> None:
        if self._guard is None:
            return
        try:
            os.write(self._to_guard, (" ".join(words) + "\n").encode("ascii"))
        except BrokenPipeError:
            pass  # killed: its pipe says so at the next poll

    def _wake(self) -> None:
        if self._guard is not None:
            os.kill(self._guard, signal.SIGCONT)  # in case somebody stopped it

    def take(self, now: float) -> list[list[str]]:
        """The guard's events since the last call; call it when `reader` is readable.

        Should the guard have been killed, ``["killed"]`` comes once, and `step` carries on in its place.
        """
        data = os.read(self._from_guard, 65536) if self._guard is not None else b""
        *lines, self._pending = (self._pending + data).split(b"\n")
        events = [line.decode("ascii").split() for line in lines]
        for event in events:
            if event[0] == "started":
                self.pid = self.group = int(event[1])
            elif event[0] in ("ended", "failed"):
                self.pid = None
        if not data and self._guard is not None:
            os.waitpid(self._guard, 0)
            self._guard = None
            # Nobody enforces anything any more: everything ends at once.
            self._sweep = Sweep(now, 0.0, self.group, complete=self.complete)
            events.append(["killed"])
        return events

    @property
    def alive(self) -> bool:
        """Whether the guard is there, as far as is known."""
        return self._guard is not None

    def step(self, now: float) -> tuple[list[list[str]], float | None]:
        """In place of a guard that was killed: reap, and end what is left.

        Returns:
            Events as of `take`, and when to call again.
        """
        events: list[list[str]] = []
        if self._sweep is None:
            return events, None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self.pid:
                self.pid = None
                events.append(["ended", *how_it_ended(status)])
        again = self._sweep.step(now)
        if again is None:
            stuck, self._sweep = self._sweep.stuck, None
            events.append(["stuck", *map(str, stuck)] if stuck is not None else ["gone"])
        return events, again

    def reap_strangers(self) -> None:
        """As the first process of a container: collect what other people's processes there left behind.

        What descends from the command is the guard's; but whoever is started beside us (`docker exec`) has orphans, too.
        """
        while os.getpid() == 1:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid == self._guard:
                return
            os.waitpid(found.si_pid, 0)

    def close(self) -> None:
        """Let the guard go, and wait until it did."""
        os.close(self._to_guard)
        if self._guard is not None:
            os.kill(self._guard, signal.SIGCONT)
            os.waitpid(self._guard, 0)
            self._guard = None
        os.close(self._from_guard)
