"""The guard: the process between the wrapper and the command, which leaves nothing behind whatever happens to either.

It is forked from the wrapper before any thread exists and before a store is opened, so it holds no connection. It starts
the command in a process group of its own, adopts whatever loses its parent (a subreaper), enforces the lease's deadline
while the wrapper is stopped, and ends every process of the command when the wrapper is gone, also by SIGKILL. The command
in turn is killed when the guard is.

Both sides write lines of words to a pipe. To the guard: ``start FOREGROUND KEY=VALUE…`` (values in hexadecimal),
``signal N``, ``continue``, ``end``, ``kill``, ``until MILLISECONDS``. From it: ``started PID`` (forked),
``failed ERRNO PHASE`` (also after ``started``: it did not become the command), ``stopped N``,
``ended exit|signal N``, ``expired``, ``gone``, ``stuck PID…``.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from pyresil.cli import _kernel
from pyresil.cli._signals import ENDING
from pyresil.cli._sweep import Sweep
from pyresil.clock import SYSTEM

if TYPE_CHECKING:
    from pyresil.cli._signals import Signals

#: The wrapper is to act at the lease's deadline; so many seconds later the guard does.
_AFTER_WRAPPER = 0.25
#: The longest sleep while a deadline runs: the poll's clock does not count suspend, the lease's does.
NAP = 1.0
#: Sent by the kernel to the guard when the wrapper ends.
_WAKE = signal.SIGTERM


class Plan(NamedTuple):
    """What the guard needs to know from the start.

    Attributes:
        command: The command and its arguments.
        grace: Seconds between TERM and KILL.
        wrapper: Process id of the wrapper.
    """

    command: list[str]
    grace: float
    wrapper: int


def run_guard(plan: Plan, signals: Signals, commands: int, events: int) -> NoReturn:
    """The forked child's whole life. Never returns, and never runs anything of the wrapper's."""
    status = 70
    try:
        _Guard(plan, signals, commands, events).serve()
        status = 0
    except BaseException:  # a fault of ours: shown, and the wrapper ends everything
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


class _Guard:
    def __init__(self, plan: Plan, signals: Signals, commands: int, events: int) -> None:
        gc.disable()  # collecting would copy the pages that are shared with the wrapper
        self._plan = plan
        self._signals = signals
        self._commands = commands
        self._events = events
        self._pending = b""
        self._pid: int | None = None
        #: Where the forked child says why it could not become the command.
        self._report = -1
        self._group = 0
        self._sweep: Sweep | None = None
        self._until: float | None = None
        self._orphaned = False
        # A group of its own: what kills the wrapper's group leaves the guard to clean up.
        os.setpgid(0, 0)
        signals.watch_in_child(_WAKE)
        _kernel.set_name("pyresil-guard")
        self._complete = _kernel.become_subreaper()
        _kernel.die_with_parent(_WAKE, plan.wrapper)

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self._commands, select.POLLIN)
        poll.register(self._signals.reader, select.POLLIN)
        due: float | None = None
        while True:
            now = SYSTEM.boottime()
            timeout = None if due is None else max(0, round(min(due - now, NAP) * 1000) + 1)
            ready = {fd for fd, _ in poll.poll(timeout)}
            self._signals.take()
            self._reap()
            if not self._orphaned and not self._has_wrapper(self._commands in ready):
                self._orphaned = True
                poll.unregister(self._commands)
                self._end(0.0)
            due = self._next(SYSTEM.boottime())
            if self._orphaned and self._sweep is None:
                return

    def _has_wrapper(self, wrote: bool) -> bool:
        return os.getppid() == self._plan.wrapper and (not wrote or self._obey())

    def _next(self, now: float) -> float | None:
        """Do what is due; returns when something is due next."""
        due = None
        if self._until is not None and self._pid is not None:
            due = self._until + _AFTER_WRAPPER
            if now >= due:
                self._until = due = None
                self._tell("expired")
                self._end(self._plan.grace)
        if self._sweep is not None:
            again = self._sweep.step(now)
            if again is None:
                stuck, self._sweep = self._sweep.stuck, None
                self._tell(*(["stuck", *map(str, stuck)] if stuck is not None else ["gone"]))
            else:
                due = again if due is None else min(due, again)
        return due

    def _tell(self, *words: str) -> None:
        try:
            os.write(self._events, (" ".join(words) + "\n").encode())
        except BrokenPipeError:
            pass  # the wrapper is gone, which the next poll shows

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid != self._pid:
                continue  # an orphan that we adopted
            if os.WIFSTOPPED(status):
                self._tell("stopped", str(os.WSTOPSIG(status)))
            else:
                self._ended(status)

    def _ended(self, status: int) -> None:
        self._pid = None
        # It ended, so that there is no waiting: an error number, or nothing since it was closed when it became the command.
        failure = os.read(self._report, 100)
        os.close(self._report)
        if failure:
            self._tell("failed", failure.decode(), "exec")
            return
        self._tell("ended", *how_it_ended(status))
        # Whatever the command left in the background ends with it, before the lease is released.
        self._end(self._plan.grace)

    def _end(self, grace: float) -> None:
        now = SYSTEM.boottime()
        if self._sweep is None:
            self._sweep = Sweep(now, grace, self._group, complete=self._complete)
        elif grace == 0.0:
            self._sweep.hasten(now)

    def _obey(self) -> bool:
        """Do what the wrapper wrote; False when it is gone."""
        data = os.read(self._commands, 65536)
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            word, *rest = line.decode("ascii").split()
            if word == "start":
                self._start(rest)
            elif word == "signal":
                self._pass_on(int(rest[0]))
            elif word == "continue":
                self._signal_group(signal.SIGCONT)
            elif word == "end":
                self._end(self._plan.grace)
            elif word == "kill":
                self._end(0.0)
            elif word == "until":
                self._until = int(rest[0]) / 1000.0
        return bool(data)

    def _pass_on(self, number: int) -> None:
        if self._pid is None:
            # Only what the command left behind is still here: it was told already, now the user insists.
            if self._sweep is not None and number in ENDING:
                self._sweep.hasten(SYSTEM.boottime())
        elif number in (signal.SIGUSR1, signal.SIGUSR2):
            # Private to the command: it would end the command's own children.
            try:
                os.kill(self._pid, number)
            except (ProcessLookupError, PermissionError):
                pass
        else:
            self._signal_group(number)
            if number in ENDING:
                self._signal_group(signal.SIGCONT)  # a stopped one would not notice

    def _signal_group(self, number: int) -> None:
        if self._pid is None:
            return
        try:
            os.killpg(self._group, number)
        except (ProcessLookupError, PermissionError):
            pass  # everything in it became another user's, or the command left it
        try:
            if os.getpgid(self._pid) != self._group:
                os.kill(self._pid, number)  # it moved to a group of its own
        except (ProcessLookupError, PermissionError):
            pass

    def _start(self, words: list[str]) -> None:
        foreground = words[0] == "1"
        environment = dict(os.environb)
        environment.pop(b"PYRESIL_STORE", None)  # may carry a password
        environment.pop(b"", None)  # "=x", which Python reads and refuses to hand on
        if b"LC_CTYPE" in environment and _added_by_python(b"LC_CTYPE"):
            del environment[b"LC_CTYPE"]
        for word in words[1:]:
            name, _, value = word.partition("=")
            environment[name.encode()] = bytes.fromhex(value)
        self._report, writer = os.pipe()
        guard = os.getpid()
        # In the child a signal stays pending until it is set up as the command is to have it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _become(self._plan.command, environment, writer, self._signals, guard, foreground=foreground)
        except OSError as error:
            os.close(self._report)
            self._tell("failed", str(error.errno), "fork")
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(writer)
        try:
            os.setpgid(pid, pid)  # both do it, so that it is done whoever runs first
        except OSError:
            pass  # the child did it, and was executed or ended
        # Nobody waits until it was executed: it may be stopped before, or its file be on a disk that hangs.
        self._pid = self._group = pid
        self._tell("started", str(pid))


def _added_by_python(name: bytes) -> bool:
    """Whether the interpreter put a variable into our environment: it sets LC_CTYPE where it is started in the C locale."""
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - pathlib costs 5 ms of import
            return not any(entry.startswith(name + b"=") for entry in file.read().split(b"\0"))
    except OSError:
        return False


def how_it_ended(status: int) -> tuple[str, str]:
    """A wait status as two words: how (``exit`` or ``signal``) and the number."""
    if os.WIFSIGNALED(status):
        return "signal", str(os.WTERMSIG(status))
    return "exit", str(os.WEXITSTATUS(status))


def _become(
    command: list[str],
    environment: dict[bytes, bytes],
    report: int,
    signals: Signals,
    guard: int,
    *,
    foreground: bool,
) -> NoReturn:
    """In the forked child: turn into the command, or report the error number."""
    try:
        os.setpgid(0, 0)
        _kernel.die_with_parent(signal.SIGKILL, guard)
        if os.getppid() != guard:
            os._exit(127)  # killed before that was arranged
        if foreground:
            _take_terminal()
        signals.restore_for_command()
        _execute(command, environment)
    except OSError as error:
        os.write(report, str(error.errno).encode())
    finally:
        os._exit(127)


def _take_terminal() -> None:
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        os.tcsetpgrp(fd, os.getpid())
        os.close(fd)
    except OSError:
        pass  # it hung up meanwhile: the command will notice by itself


def _execute(command: list[str], environment: dict[bytes, bytes]) -> None:
    """As execvp(3), with its fallback: a text file without ``#!`` is a script for /bin/sh."""
    if os.sep in command[0]:
        candidates = [os.fsencode(command[0])]
    else:
        path = environment.get(b"PATH", os.fsencode(os.defpath))
        candidates = [os.path.join(part, os.fsencode(command[0])) for part in path.split(b":")]  # noqa: PTH118
    kept = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for candidate in candidates:
        try:
            os.execve(candidate, command, environment)  # noqa: S606 - it is what we are for
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                script = ["/bin/sh", os.fsdecode(candidate), *command[1:]]
                os.execve(b"/bin/sh", script, environment)  # noqa: S606 - as above
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                kept = error
    raise kept
