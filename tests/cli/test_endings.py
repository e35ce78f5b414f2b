"""Every way that it can end, with every kind of command: what is left, whose the lock is, which status.

Each test starts all kinds side by side, each with a file of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
import time

import pytest

from tests.support.command import LockCommand
from tests.support.processes import children_of, state_of, wait_until

TTL = 1.5

#: What the command does before it waits for a line in the pipe `go`, on which it exits with 5. It waits without starting
#: processes: a shell that gets a signal in the middle of a vfork() loses it.
CHILDREN = {
    "plain": "",
    "ignores-term": "trap '' TERM",
    "setsid-grandchild": "setsid sleep 60 & until [ $(cut -d ' ' -f 6 /proc/$!/stat) = $! ]; do sleep 0.01; done",
    "stopped": "(sleep 0.3; echo $$ > ready) & kill -STOP $$",
    "daemonizes": "setsid sh -c 'sleep 60 & sleep 60 & exit 0'",
}


class Ending:
    """One run of one kind of command.

    Args:
        folder: A folder of its own.
        child: Its kind.
        *words: Further options.
        ttl: Seconds of its lease. Long where a loss is not what the test is about: a pause is none then.
    """

    def __init__(self, folder, child, *words, ttl):
        folder.mkdir()
        self.lock = LockCommand(folder)
        self.child = child
        os.mkfifo(folder / "go")
        script = f"{CHILDREN[child]}\necho $$ > ready; read line < go; exit 5"
        self.wrapper = self.lock.start("--ttl", ttl, "--grace", "0.5s", *words, "--", "sh", "-c", script)

    def wait_ready(self):
        self.pid = int(self.lock.file_written("ready", timeout=20))
        self.token = self.lock.token()
        assert self.token is not None, self.child

    def assert_ended(self, status, *, token=None):
        """The status, no process left at the moment at which the wrapper has ended, and the holder's token."""
        assert self.wrapper.wait(20) == status, self.child
        assert self.lock.processes() == set(), self.child
        assert self.lock.token() == token, self.child

    def errors(self):
        return self.wrapper.stderr.read()


@pytest.fixture
def start(tmp_path):
    """`start(*words, kinds=…, ttl=…)`: all kinds of commands, started and ready."""
    started = []

    def begin(*words, kinds=tuple(CHILDREN), ttl=TTL):
        endings = [Ending(tmp_path / f"{child}-{len(started)}", child, *words, ttl=ttl) for child in kinds]
        started.extend(endings)
        for ending in endings:
            ending.wait_ready()
        return endings

    yield begin
    for ending in started:
        ending.lock.close()


def test_the_command_ends(start):
    for ending in start(ttl=30.0):
        if ending.child == "stopped":
            wait_until(lambda pid=ending.pid: state_of(pid) == "T", 15, "the stop")
            os.kill(ending.pid, signal.SIGCONT)
        (ending.lock.folder / "go").write_text("now\n", encoding="utf-8")
        ending.assert_ended(5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_the_wrapper(start, number):
    ttl = 4.0
    endings = start(ttl=ttl)
    for ending in endings:
        ending.wrapper.send_signal(number)
    for ending in endings:
        if not (ending.child == "ignores-term" and number == signal.SIGTERM):
            ending.assert_ended(128 + number)
            continue
        # It is the command's right to go on, with its lease; KILL is there for whoever must.
        time.sleep(ttl * 1.3)
        assert ending.wrapper.poll() is None
        assert ending.lock.token() == ending.token
        ending.wrapper.kill()
        ending.lock.wait_gone()


def test_kill_to_the_wrapper(start):
    endings = start()
    killed = time.monotonic()
    for ending in endings:
        ending.wrapper.kill()
    for ending in endings:
        assert ending.wrapper.wait(15) == -signal.SIGKILL
        ending.lock.wait_gone()
    for ending in endings:
        wait_until(lambda lock=ending.lock: lock.token() is None, 15, "the lease's end")
    assert time.monotonic() - killed < TTL + 15


def test_kill_to_the_guard(start):
    for ending in start(ttl=30.0):
        os.kill(ending.lock.guard_of(ending.wrapper.pid), signal.SIGKILL)
        ending.assert_ended(128 + signal.SIGKILL)
        assert "guard" in ending.errors()


def test_the_lease_is_stolen(start):
    endings = start()
    stolen = [ending.lock.steal() for ending in endings]
    for ending, token in zip(endings, stolen, strict=True):
        assert token > ending.token
        ending.assert_ended(76, token=token)
        assert "lost" in ending.errors()


def test_the_store_is_gone_past_the_ttl(start):
    endings = start()
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        # Nobody else can write: every renewal is refused as busy.
        for ending in endings:
            db = stack.enter_context(
                contextlib.closing(sqlite3.connect(ending.lock.file, isolation_level=None))
            )
            wait_until(lambda db=db: writes(db), 5, "the write lock")
        for ending in endings:
            assert ending.wrapper.wait(20) == 76
    # They went on while their leases were valid.
    assert time.monotonic() - began > TTL / 3
    for ending in endings:
        ending.assert_ended(76)


def writes(db):
    try:
        db.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    return True


def test_the_store_comes_back_within_the_ttl(start):
    ttl = 6.0
    (ending,) = start(kinds=["plain"], ttl=ttl)
    with contextlib.closing(sqlite3.connect(ending.lock.file, isolation_level=None)) as db:
        wait_until(lambda: writes(db), 5, "the write lock")
        time.sleep(ttl * 0.37)  # a renewal falls into it: there is one each third
        db.execute("ROLLBACK")
    time.sleep(ttl * 0.75)  # past the end of what was granted before
    assert ending.lock.token() == ending.token
    assert ending.wrapper.poll() is None


def test_the_timeout(start):
    for ending in start("--timeout", "8s", ttl=30.0):
        ending.assert_ended(124)


def test_guard_and_wrapper_killed_together_leave_no_command(start):
    (ending,) = start(kinds=["plain"])
    guard = ending.lock.guard_of(ending.wrapper.pid)
    ending.wrapper.send_signal(signal.SIGSTOP)
    os.kill(guard, signal.SIGKILL)
    ending.wrapper.kill()
    wait_until(lambda: state_of(ending.pid) in (None, "Z"), 15, "the end of the command")


def test_a_stopped_guard_does_not_keep_a_lost_command_alive(start):
    (ending,) = start(kinds=["plain"])
    os.kill(ending.lock.guard_of(ending.wrapper.pid), signal.SIGSTOP)
    ending.assert_ended(76, token=ending.lock.steal())


def test_kill_of_the_wrappers_whole_group_leaves_nothing(lock):
    script = "setsid sleep 60 & echo $$ > ready; sleep 60"
    wrapper = lock.start("--ttl", TTL, "--", "sh", "-c", script, start_new_session=True)
    lock.file_written("ready")
    os.killpg(wrapper.pid, signal.SIGKILL)
    wrapper.wait(15)
    lock.wait_gone()


def test_many_orphans_are_reaped_while_the_command_runs(lock):
    script = "i=0; while [ $i -lt 30 ]; do (sleep 0.01 &) ; i=$((i+1)); done; sleep 0.5; echo yes > ready; sleep 60"
    wrapper = lock.start("--", "sh", "-c", script)
    lock.file_written("ready")
    guard = lock.guard_of(wrapper.pid)
    wait_until(lambda: not any(state_of(pid) == "Z" for pid in children_of(guard)), 10, "the reaping")
    assert wrapper.poll() is None


def test_a_renewal_that_the_guard_did_not_hear_of_in_time_is_a_loss(lock):
    """The wrapper was stopped just after the store's confirmation, say."""
    code = "from pyresil.cli import _chain, main; _chain.Chain.until = lambda self, deadline: self._send('until', '1'); main()"
    lock.command = (sys.executable, "-c", code)
    done = lock.run("--ttl", "60s", "--", "sh", "-c", "sleep 60")
    assert done.returncode == 76
    assert "was lost" in done.stderr
    assert lock.token() is None
