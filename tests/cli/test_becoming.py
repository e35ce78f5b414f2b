"""The moment between the fork of the command's process and its execution: what comes then is not lost, and nothing hangs on it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.command import LockCommand
from tests.support.processes import state_of, wait_until

#: The command, whose child does something to itself just before it is set up and executed.
BEFORE = """
import os, signal
from pyresil.cli import _guard, main
real = _guard._kernel.die_with_parent
def die_with_parent(number, parent):
    done = real(number, parent)
    if number == signal.SIGKILL:
        {}
    return done
_guard._kernel.die_with_parent = die_with_parent
main()
"""


@pytest.fixture
def before(tmp_path):
    """`before(code)` gives the command with that code."""
    made = []

    def make(code):
        command = LockCommand(tmp_path)
        command.command = (sys.executable, "-c", BEFORE.format(code))
        made.append(command)
        return command

    yield make
    for command in made:
        command.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_what_was_about_to_be_the_command(before, number):
    """Ctrl-C, say: the terminal is the command's by then."""
    lock = before(f"os.kill(os.getpid(), {int(number)})")
    done = lock.run("--", "touch", "ran")
    assert done.returncode == 128 + number
    assert not (lock.folder / "ran").exists()
    assert lock.token() is None


#: Nothing that a process which hangs could keep open.
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
STOPPED = "open('pid', 'w').write(str(os.getpid())); os.kill(os.getpid(), signal.SIGSTOP)"


def test_a_stop_hangs_nobody(before):
    lock = before(STOPPED)
    job = lock.start("--", "touch", "ran", **SILENT)
    pid = int(lock.file_written("pid"))
    wait_until(lambda: state_of(pid) == "T", 10, "the stop")
    job.terminate()
    assert job.wait(10) == 143
    assert not (lock.folder / "ran").exists()
    assert lock.processes() == set()


def test_a_lease_that_is_lost_meanwhile_ends_it(before):
    lock = before(STOPPED)
    job = lock.start("--ttl", "1s", "--", "touch", "ran", **SILENT)
    lock.file_written("pid")
    lock.steal()
    assert job.wait(10) == 76
    assert not (lock.folder / "ran").exists()


def test_a_stopped_one_goes_on(before):
    lock = before(STOPPED)
    job = lock.start("--", "sh", "-c", "echo yes > ran; exit 6", **SILENT)
    pid = int(lock.file_written("pid"))
    wait_until(lambda: state_of(pid) == "T", 10, "the stop")
    job.send_signal(signal.SIGCONT)
    assert job.wait(10) == 6
