"""`pyresil-lock lead`: one host runs the command, the others wait, and it goes on there."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time

import pytest

from tests.support.command import COMMAND
from tests.support.processes import wait_until
from tests.support.terminal import Terminal

# Says which of the leaders runs it, and waits without starting a process.
SCRIPT = 'echo "$NAME $PYRESIL_LOCK_TOKEN" >> log; read line < pipe'


@pytest.fixture
def leads(lock):
    """`leads(name, *words, script=…)` starts one contender."""

    def start(name, *words, script=SCRIPT):
        return lock.spawn(
            "lead",
            "--key",
            "k",
            "--ttl",
            "3s",
            "--grace",
            "0.5s",
            *words,
            "--",
            "sh",
            "-c",
            script,
            env={"NAME": name},
        )

    os.mkfifo(lock.folder / "pipe")
    return start


def log(lock):
    path = lock.folder / "log"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [(line.split()[0], int(line.split()[1])) for line in lines]


def test_one_leads_and_the_next_takes_over_with_a_grown_token(lock, leads):
    first = leads("a")
    wait_until(lambda: log(lock), 20, "the first leader")
    second = leads("b")
    time.sleep(3.5)
    assert [name for name, _ in log(lock)] == ["a"]
    first.terminate()
    assert first.wait(20) == 143
    wait_until(lambda: len(log(lock)) == 2, 20, "the second leader")
    (_, old), (name, new) = log(lock)
    assert name == "b"
    assert new > old
    second.terminate()
    assert second.wait(20) == 143
    assert lock.processes() == set()
    assert lock.token() is None


def test_a_killed_leader_is_replaced_within_its_ttl(lock, leads):
    first = leads("a")
    wait_until(lambda: log(lock), 20, "the first leader")
    leads("b")
    time.sleep(0.5)
    first.kill()
    killed = time.monotonic()
    wait_until(lambda: len(log(lock)) == 2, 20, "the second leader")
    assert time.monotonic() - killed < 12.0


def test_a_command_that_ends_is_started_again_under_the_same_lease(lock, leads):
    leader = leads("a", script='echo "$NAME $PYRESIL_LOCK_TOKEN" >> log; exit 3')
    for seconds in (1, 2, 4):
        line = leader.stderr.readline()
        assert "ended with status 3" in line
        assert f"is started again in {seconds} s" in line
    leader.terminate()  # while it waits for the next start: a command that ran would give its own status
    assert leader.wait(20) == 143
    assert [name for name, _ in log(lock)] == ["a"] * 3
    assert len({token for _, token in log(lock)}) == 1


def test_a_leader_that_loses_the_lease_ends_the_command_and_follows(lock, leads):
    leader = leads("a")
    wait_until(lambda: log(lock), 20, "the leader")
    token = lock.steal()
    wait_until(lambda: len(lock.processes()) == 2, 20, "the end of the command: wrapper and guard stay")
    assert leader.poll() is None
    from pyresil.stores.sqlite import SQLiteLockStore

    with SQLiteLockStore(lock.file) as store:
        assert store.release("k", "thief")
    wait_until(lambda: len(log(lock)) == 2, 20, "the leader's return")
    assert log(lock)[1][1] > token
    leader.send_signal(signal.SIGINT)
    assert leader.wait(20) == 130


def test_a_store_that_fails_later_is_waited_for(lock, leads):
    leader = leads("a")
    wait_until(lambda: log(lock), 20, "the leader")
    with contextlib.closing(sqlite3.connect(lock.file, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        wait_until(lambda: len(lock.processes()) == 2, 20, "the end of the command")
        time.sleep(1.0)
        assert leader.poll() is None
        db.execute("ROLLBACK")
    wait_until(lambda: len(log(lock)) == 2, 20, "the leader's return")


def test_a_leader_that_is_told_to_end_while_it_gives_back_a_lost_lease_ends(lock, leads):
    leader = leads("a")
    wait_until(lambda: log(lock), 20, "the leader")
    with contextlib.closing(sqlite3.connect(lock.file, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        wait_until(lambda: len(lock.processes()) == 2, 20, "the end of the command")
        leader.terminate()
        assert leader.wait(15) == 143
        db.execute("ROLLBACK")


def test_a_store_that_fails_from_the_start_is_69(lock, leads):
    lock.file.mkdir()
    leader = leads("a")
    assert leader.wait(20) == 69
    assert log(lock) == []


def test_a_command_that_cannot_be_started_ends_it(lock):
    done = lock("lead", "--key", "k", "--", "./missing")
    assert done.returncode == 127
    assert lock.token() is None


def test_the_commands_own_status_after_term_is_passed_on(lock, leads):
    leader = leads("a", script="trap 'exit 0' TERM; echo a 1 >> log; read line < pipe")
    wait_until(lambda: log(lock), 20, "the leader")
    leader.terminate()
    assert leader.wait(20) == 0
    assert lock.token() is None


def test_hup_is_a_reload_for_a_command_that_takes_it_and_an_end_for_another(lock, leads):
    script = "trap 'echo a 2 >> log' HUP; sleep 60 & echo a 1 >> log; wait; wait"
    leader = leads("a", script=script)
    wait_until(lambda: log(lock), 20, "the leader")
    leader.send_signal(signal.SIGUSR1)  # ends the shell, which does not take it: it is started again
    wait_until(lambda: len(log(lock)) == 2, 15, "the restart")
    leader.terminate()
    assert leader.wait(20) == 143
    other = leads("b")
    wait_until(lambda: len(log(lock)) == 3, 15, "the other leader")
    other.send_signal(signal.SIGHUP)
    assert other.wait(20) == 129


def test_a_follower_ends_at_once_when_told(lock, leads):
    leads("a")
    wait_until(lambda: log(lock), 20, "the leader")
    follower = leads("b", "--verbose")
    assert any("follows 'k'" in line for line in follower.stderr)
    follower.send_signal(signal.SIGUSR1)
    follower.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert follower.poll() is None, "a reload is not for a follower"
    follower.terminate()
    assert follower.wait(15) == 143
    assert [name for name, _ in log(lock)] == ["a"]


def ended(terminal):
    """The status of the command at a terminal, in a list; None while it runs."""
    pid, status = os.waitpid(terminal.pid, os.WNOHANG)
    return [os.waitstatus_to_exitcode(status)] if pid else None


def test_a_leader_whose_command_ended_ends_with_its_terminal(lock):
    lead = ["lead", "--key", "k", "--", "false"]
    terminal = Terminal(lock.env(), lock.folder, [*COMMAND, *lead])
    terminal.expect("started again in 2 s")
    os.close(terminal.fd)  # the window is closed
    assert wait_until(lambda: ended(terminal), 20, "the leader's end") == [129]
    assert lock.token() is None


def test_a_follower_ends_with_its_terminal(lock, leads):
    leads("a")
    wait_until(lambda: log(lock), 20, "the leader")
    lead = ["lead", "--key", "k", "--verbose", "--", "true"]
    terminal = Terminal(lock.env(), lock.folder, [*COMMAND, *lead])
    terminal.expect("follows 'k'")
    os.close(terminal.fd)  # the window is closed
    assert wait_until(lambda: ended(terminal), 20, "the follower's end") == [129]
