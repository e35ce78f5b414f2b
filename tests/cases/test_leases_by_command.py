"""Cases of leases through the real command: L12, L13, L14, L16, L17, L20."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests.support.command import COMMAND
from tests.support.processes import wait_until


def test_L12_min_hold_keeps_the_key_closed_after_a_short_run(lock):
    began = time.monotonic()
    assert lock.run("--min-hold", "8s", "--", "true").returncode == 0
    ended = time.monotonic()
    assert ended - began < 7.0, "the release waited for the minimum hold"
    time.sleep(max(0.0, began + 1.0 - time.monotonic()))
    skipped = lock.run("--", "touch", "ran")
    assert skipped.returncode == 75
    assert not (lock.folder / "ran").exists()
    time.sleep(max(0.0, ended + 8.1 - time.monotonic()))
    assert lock.run("--", "touch", "ran").returncode == 0
    assert (lock.folder / "ran").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_L13_a_signal_ends_the_whole_group_and_frees_the_lock(lock, number):
    process = lock.start("--", "sh", "-c", "sleep 60 & echo yes > ready; wait")
    lock.file_written("ready")
    process.send_signal(number)
    assert process.wait(10) == 128 + number
    assert lock.processes() == set()
    assert lock.run("--", "true").returncode == 0


def test_L13_term_while_waiting_exits_at_once_and_acquires_nothing(lock):
    holder = lock.start("--", "sh", "-c", "echo yes > ready; sleep 60")
    lock.file_written("ready")
    token = lock.token()
    waiter = lock.start("--wait", "60s", "--", "touch", "ran")
    wait_until(lambda: catches(waiter.pid, signal.SIGTERM), 20, "the waiter's handler")
    time.sleep(0.5)
    sent = time.monotonic()
    waiter.terminate()
    assert waiter.wait(10) == 143
    assert time.monotonic() - sent < 5.0
    assert lock.token() == token
    holder.terminate()
    holder.wait(10)
    assert not (lock.folder / "ran").exists()
    assert lock.token() is None


def catches(pid, number):
    """Whether the process has a handler for the signal."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return int(caught.split()[1], 16) >> (number - 1) & 1 == 1


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", "kill -15 $$"], 143),
        (["./missing"], 127),
        (["missing-from-path"], 127),
        (["./not-executable"], 126),
        (["."], 126),
    ],
)
def test_L14_the_status_is_the_commands(lock, command, status):
    (lock.folder / "not-executable").write_text("#!/bin/sh\n", encoding="utf-8")
    done = lock.run("--", *command)
    assert done.returncode == status, done.stderr
    assert lock.token() is None


def test_L14_a_parent_that_ignores_sigchld_changes_no_status(lock):
    code = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *COMMAND, "run", "--key", "k", "--", "sh", "-c", "exit 3"],
        env=lock.env(), timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 3


def test_L14_a_parent_that_blocks_all_signals_changes_no_status(lock):
    code = (
        "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *COMMAND, "run", "--key", "k", "--", "sh", "-c", "echo yes > ready; sleep 60"],
        env=lock.env(), cwd=lock.folder,
    )  # fmt: skip
    lock.started.append(process)
    lock.file_written("ready")
    process.terminate()
    assert process.wait(10) == 143


def test_L16_what_the_command_leaves_in_the_background_ends_with_it(lock):
    began = time.monotonic()
    done = lock.run("--", "sh", "-c", "sleep 60 & echo $!")
    assert done.returncode == 0
    assert time.monotonic() - began < 8.0
    assert lock.token() is None
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


@pytest.mark.parametrize(
    "ttl", ["0", "-1", "nan", "inf", "0.0004", "0.49s", "abc", "", "None", "1e3", "200y"]
)
def test_L17_a_ttl_that_no_lease_can_have_is_refused(lock, ttl):
    done = lock.run(f"--ttl={ttl}", "--", "touch", "ran")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "--ttl" in done.stderr
    assert repr(ttl) in done.stderr
    assert not (lock.folder / "ran").exists()


def test_L20_a_hung_job_loses_the_lease_at_max_hold(lock):
    began = time.monotonic()
    done = lock.run("--ttl", "3s", "--max-hold", "3.5s", "--", "sleep", "60")
    assert done.returncode == 76
    assert 3.5 <= time.monotonic() - began < 15.0
    assert "max-hold" in done.stderr
    assert lock.token() is None
    assert lock.processes() == set()
