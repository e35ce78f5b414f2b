"""Processes that tests start, and stop by their own id."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
#: What this process of the suite gives out: no two of them the same, since a server takes its port a while after it was given.
#: They are below those that the system gives to connections, so that none of these takes one before its server does.
_PORTS = range(20_000, 32_768)[_WORKER % _WORKERS :: _WORKERS]
_given: collections.deque[int] = collections.deque(maxlen=100)


def free_port() -> int:
    """A TCP port on 127.0.0.1 that was free a moment ago, and that was not given out lately."""
    while True:
        port = secrets.choice(_PORTS)  # not `random`, which begins anew with each test
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.append(port)
                return port


def wait_until(check, timeout=20.0, what="the condition", interval=0.01):
    """Calls `check` until it returns something true, which is returned; AssertionError after `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true within {timeout} s")
        time.sleep(interval)


@contextlib.contextmanager
def between_writes(file):
    """No process writes to the SQLite file meanwhile: one that is stopped in a transaction would keep it from all others."""
    with contextlib.closing(sqlite3.connect(file, timeout=20, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


def accepts(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def state_of(pid: int) -> str | None:
    """The kernel's letter for what a process does (T stopped, Z ended and not reaped, …), None when there is no such one."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # gone, or going between opening and reading
        return None


def children_of(parent: int) -> list[int]:
    """Process ids of the children, ended ones that nobody reaped included."""
    found = []
    for path in pathlib.Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                stat = (path / "stat").read_text(encoding="utf-8")
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.name))
    return found


def environment(extra=None) -> dict[str, str]:
    """The environment for a fresh interpreter: it finds pyresil and tests of this checkout, and no other Python's settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYRESIL"))}
    env["PYTHONPATH"] = str(ROOT)
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env.update(extra or {})
    return env


def python_command(code: str, *args: str, flags=()) -> list[str]:
    """The command line that runs a snippet (its common indentation removed) in a fresh interpreter."""
    return [sys.executable, *flags, "-c", textwrap.dedent(code), *map(str, args)]


def run_python(code, *args, timeout=40.0, env=None, cwd=None, flags=(), check=True, stdin=""):
    """Runs a snippet in a fresh interpreter and waits for its end.

    Args:
        code: Python source; its common indentation is removed.
        *args: `sys.argv[1:]` of the snippet.
        timeout: Seconds after which the process is killed and `subprocess.TimeoutExpired` raised.
        env: Variables on top of the inherited ones.
        cwd: Working directory.
        flags: Interpreter flags, such as `-I`.
        check: Fail with the snippet's stderr when its status is not 0.
        stdin: Text for its standard input.

    Returns:
        The `CompletedProcess` with `stdout` and `stderr` as text.
    """
    done = subprocess.run(
        python_command(code, *args, flags=flags),
        timeout=timeout,
        env=environment(env),
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    if check and done.returncode:
        raise AssertionError(f"the snippet ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def with_parent_death_signal(command):
    """The command, killed when the test process dies without cleaning up (Linux; elsewhere unchanged)."""
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    return [setpriv, "--pdeathsig", "KILL", *command] if setpriv else list(command)


class Process:
    """A running process with its output in a file; stopped by id, also when it is paused.

    Args:
        command: The command line.
        log: File that gets stdout and stderr.
        **popen: Further arguments of `subprocess.Popen`.
    """

    def __init__(self, command, log, **popen):
        self.log = pathlib.Path(log)
        popen.setdefault("stdin", subprocess.DEVNULL)
        with self.log.open("ab") as out:
            self._popen = subprocess.Popen(
                with_parent_death_signal([str(part) for part in command]),
                stdout=out,
                stderr=subprocess.STDOUT,
                **popen,
            )
        self.pid = self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def returncode(self):
        return self._popen.poll()

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def send_signal(self, number) -> None:
        if self.running:
            os.kill(self.pid, number)

    def pause(self) -> None:
        """SIGSTOP: it exists, keeps its connections and answers nothing."""
        self.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.send_signal(signal.SIGCONT)

    def wait(self, timeout=10.0):
        """Its status once it ended by itself."""
        return self._popen.wait(timeout)

    def kill(self) -> None:
        """SIGKILL, and reaped."""
        self.send_signal(signal.SIGKILL)
        self._popen.wait(10)

    def stop(self, number=signal.SIGTERM, timeout=10.0):
        """Asks with `number`, insists with SIGKILL after `timeout` seconds. Returns the status."""
        self.send_signal(number)
        self.resume()
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
        return self._popen.returncode


def forked(check) -> Callable[[], bool]:
    """Forks, and runs `check()` in the child, which is killed where that hangs.

    Returns:
        Waits for the child's end: whether `check()` returned something true there.
    """
    pid = os.fork()
    if pid == 0:
        good = False
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            good = check()
        finally:
            os._exit(0 if good else 1)
    return lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class Server:
    """What all servers of the tests share: a port, a data folder, start, stop, pause.

    A subclass gives `command()`, and may give `prepare()` (once, before the first start), `ready()` and `popen_options()`.
    """

    name = "server"
    stop_signal = signal.SIGTERM

    def __init__(self, folder: pathlib.Path, port: int | None = None):
        self.folder = pathlib.Path(folder)
        self.port = port or free_port()
        self.process: Process | None = None
        self._prepared = False

    def prepare(self) -> None:
        """Makes what has to be there before the first start."""

    def command(self) -> list[str]:
        raise AssertionError("a subclass says which command")

    def popen_options(self) -> dict:
        return {}

    def ready(self) -> bool:
        return accepts(self.port)

    @property
    def log(self) -> pathlib.Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> Server:
        """Starts it on the same port and data, and waits until it serves."""
        if not self._prepared:
            self.prepare()
            self._prepared = True
        self.process = Process(self.command(), self.log, cwd=self.folder, **self.popen_options())

        def up():
            if not self.process.running:
                raise AssertionError(f"{self.name} did not start:\n{self.process.output()[-3000:]}")
            return self.ready()

        try:
            wait_until(up, 20, f"{self.name} on port {self.port}")
        except BaseException:
            self.process.kill()
            raise
        return self

    def stop(self) -> None:
        """Orderly end; the data folder stays, so that `start()` continues from it."""
        if self.process is not None:
            self.process.stop(self.stop_signal)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self.process is not None:
            self.process.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()
