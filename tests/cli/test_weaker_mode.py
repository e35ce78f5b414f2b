"""Where the kernel has no subreaper: the process group is what is ended."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.support.command import LockCommand

#: The command, in a system without prctl.
WITHOUT = (
    "import pyresil.cli._kernel as kernel; kernel.load = lambda: None; from pyresil.cli import main; main()"
)


class WeakCommand(LockCommand):
    """The command without what Linux adds."""

    command = (sys.executable, "-c", WITHOUT)


@pytest.fixture
def weak(tmp_path):
    command = WeakCommand(tmp_path)
    yield command
    command.close()


def test_the_group_is_ended_with_the_command(weak):
    done = weak.run("--", "sh", "-c", "sleep 60 & echo $!; exit 4")
    assert done.returncode == 4
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
    assert weak.token() is None


def test_a_command_that_ignores_term_is_killed_after_the_grace(weak):
    done = weak.run("--timeout", "0.5s", "--grace", "0.5s", "--", "sh", "-c", "trap '' TERM; sleep 60")
    assert done.returncode == 124
    assert weak.processes() == set()


def test_kill_of_the_wrapper_ends_the_group(weak):
    job = weak.start("--ttl", "1s", "--", "sh", "-c", "sleep 60 & echo yes > ready; sleep 60")
    weak.file_written("ready")
    job.kill()
    weak.wait_gone()


def test_a_lost_lease_ends_the_group(weak):
    job = weak.start("--ttl", "1s", "--", "sh", "-c", "sleep 60 & echo yes > ready; sleep 60")
    weak.file_written("ready")
    weak.steal()
    assert job.wait(10) == 76
    assert weak.processes() == set()


def test_what_left_the_group_survives_and_verbose_says_that_it_may(weak):
    left = 'until [ "$(cut -d " " -f 6 /proc/$!/stat)" = $! ]; do sleep 0.05; done'  # it leads a session of its own
    script = f"setsid sleep 60 > /dev/null 2>&1 & echo $!; {left}"
    done = weak.run("--verbose", "--", "sh", "-c", script)
    assert done.returncode == 0
    assert "no subreaper" in done.stderr
    os.kill(int(done.stdout), signal.SIGKILL)  # it is there


def test_doctor_says_so(weak):
    assert "no subreaper" in weak("doctor").stdout
