"""`pyresil-lock` under test: started as people start it, with every process that comes of it known by a mark."""

from __future__ import annotations

import atexit
import functools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

from tests.support.processes import environment, state_of, wait_until

COMMAND = [sys.executable, "-m", "pyresil.cli"]


@functools.cache
def bytecode_folder() -> str:
    """A folder for compiled modules, removed at the end of the run."""
    folder = tempfile.mkdtemp(prefix="pyresil-test-bytecode-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class LockCommand:
    """Runs the command on a SQLite file of its own.

    Args:
        folder: Where the file, outputs and marker files go.
    """

    command = tuple(COMMAND)

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.file = folder / "locks.db"
        self.url = f"sqlite:///{self.file}"
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.started = []

    def env(self, extra=None) -> dict[str, str]:
        env = environment({"PYRESIL_STORE": self.url, "PYRESIL_TEST_MARK": self.mark, **(extra or {})})
        # Compiled once for all starts of this run, outside the source tree.
        del env["PYTHONDONTWRITEBYTECODE"]
        env["PYTHONPYCACHEPREFIX"] = bytecode_folder()
        return env

    def __call__(self, *words, env=None, timeout=30, **options):
        """Runs it to its end; a `CompletedProcess` with text."""
        return subprocess.run(
            [*self.command, *map(str, words)],
            env=self.env(env),
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
            cwd=options.pop("cwd", self.folder),
            stdin=options.pop("stdin", subprocess.DEVNULL),
            **options,
        )

    def run(self, *words, key="k", **options):
        """`run --key KEY WORDS…`."""
        return self("run", "--key", key, *words, **options)

    def start(self, *words, key="k", env=None, **options):
        """Starts `run --key KEY WORDS…` in the background."""
        return self.spawn("run", "--key", key, *words, env=env, **options)

    def spawn(self, *words, env=None, **options):
        process = subprocess.Popen(
            [*self.command, *map(str, words)],
            env=self.env(env),
            cwd=self.folder,
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            text=True,
            **options,
        )
        self.started.append(process)
        return process

    def token(self, key="k"):
        """Token of who holds the key, or None."""
        from pyresil.stores.sqlite import SQLiteLockStore

        with SQLiteLockStore(self.file) as store:
            info = store.inspect(key)
        return info.token if info and info.owner else None

    def steal(self, key="k"):
        """Takes the key away from its holder; the new token."""
        from pyresil.stores.sqlite import SQLiteLockStore

        with SQLiteLockStore(self.file) as store:
            store.force_release(key)
            return store.acquire(key, "thief", 60_000).token

    def processes(self) -> set[int]:
        """Every process that came of it and still runs, ended ones that nobody reaped not counted."""
        needle = self.mark.encode()
        found = set()
        for path in pathlib.Path("/proc").iterdir():
            if path.name.isdecimal():
                try:
                    inside = needle in (path / "environ").read_bytes()
                except OSError:
                    continue
                if inside and state_of(int(path.name)) not in (None, "Z", "X"):
                    found.add(int(path.name))
        return found

    def wait_gone(self, timeout=10.0):
        """Waits until no process is left."""
        wait_until(lambda: not self.processes(), timeout, "the end of all processes", interval=0.05)

    def guard_of(self, wrapper: int) -> int:
        """Process id of the wrapper's guard."""

        def find():
            for pid in self.processes():
                try:
                    comm = pathlib.Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()
                    stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
                except OSError:  # it ended meanwhile
                    continue
                if comm == "pyresil-guard" and int(stat.rpartition(")")[2].split()[1]) == wrapper:
                    return pid
            return None

        return wait_until(find, 20, "the guard")

    def file_written(self, name, timeout=20.0) -> str:
        """Waits until a file in the folder has text; the text."""
        path = self.folder / name

        def read():
            return path.read_text(encoding="utf-8") if path.exists() else ""

        try:
            return wait_until(read, timeout, f"text in {name}")
        except AssertionError as error:
            for process in self.started:
                if process.poll() is None:
                    error.add_note(f"still runs: {process.args[3:]}")
                else:
                    error.add_note(
                        f"ended with {process.returncode}: {process.args[3:]}, {process.communicate()}"
                    )
            raise

    def close(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        end = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < end:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.05)
