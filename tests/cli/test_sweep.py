"""Ending every process, and what is said of those that cannot be ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pyresil.cli import _kernel
from pyresil.cli._sweep import Sweep
from tests.support.processes import environment


@pytest.fixture
def sleeper():
    """A child in a process group of its own."""
    child = subprocess.Popen(["sleep", "60"], process_group=0)
    yield child
    child.kill()
    child.wait()


def test_a_child_that_proc_does_not_show_is_not_gone(sleeper, monkeypatch):
    """Another user's, under hidepid: it cannot be told to end, and the lease must not be given back beside it."""
    monkeypatch.setattr(_kernel, "descendants", lambda root: [])
    sweep = Sweep(0.0, 1.0, sleeper.pid, complete=True)
    assert sweep.stuck is None, "which is how nothing is left"
    now = 0.0
    while (again := sweep.step(now)) is not None:
        now = again
    assert now >= 6.0
    assert sweep.stuck == []
    assert sleeper.poll() is None


def test_what_is_killed_late_still_has_time_to_end(sleeper):
    """The host was suspended between TERM and KILL."""
    sleeper.send_signal(signal.SIGSTOP)  # TERM alone does not end it before CONT
    sweep = Sweep(0.0, 1.0, sleeper.pid, complete=False)
    assert sweep.step(100.0) is not None
    assert sleeper.wait(10) == -signal.SIGKILL
    assert sweep.step(100.1) is None
    assert sweep.stuck is None


def test_the_numbers_of_another_namespaces_proc_are_not_ours():
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespaces can be made here")
    code = "import os; from pyresil.cli import _kernel; print(os.getpid(), _kernel.descendants(os.getpid()))"
    done = subprocess.run(
        [*unshare, sys.executable, "-c", code],
        env=environment({}),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout == "1 None\n"
    assert _kernel.descendants(os.getpid()) is not None
