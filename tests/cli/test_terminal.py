"""Job control: the command as a person at a terminal knows it."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import sys
import textwrap
import time

import pytest

from tests.support.command import COMMAND
from tests.support.processes import state_of, wait_until
from tests.support.terminal import PROMPT, Terminal

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")

RUN = " ".join(COMMAND) + " run --key k"


@pytest.fixture
def terminal(lock):
    made = Terminal(lock.env(), lock.folder)
    # Short lines: a terminal breaks long ones.
    made.run(f"run='{RUN}'")
    yield made
    made.close()


def script(lock, name, code):
    """A Python script in the folder; how to start it."""
    (lock.folder / name).write_text(textwrap.dedent(code), encoding="utf-8")
    return f"{sys.executable} {name}"


def test_the_command_reads_the_terminal(terminal):
    terminal.type("$run -- sh -c 'echo ask; read x; echo got:$x'\n")
    terminal.expect(r"\r\nask\r\n")
    terminal.type("hello\n")
    terminal.expect(r"got:hello\r\n")
    terminal.expect(PROMPT)
    assert "rc=0" in terminal.run("echo rc=$?")


def test_the_shell_has_the_terminal_back_afterwards(terminal):
    terminal.run("$run -- true")
    terminal.type("read answer; echo read:$answer\n")
    time.sleep(0.2)
    terminal.type("again\n")
    terminal.expect(r"read:again\r\n")


def counter(lock):
    """A command that counts its interrupts for half a second after the first, and writes the number to ``count``."""
    return script(
        lock,
        "counter.py",
        """
        import signal, sys, time
        got = []
        signal.signal(signal.SIGINT, lambda *_: got.append(1))
        print("counting", flush=True)
        end = time.monotonic() + 30
        while not got and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)
        open("count", "w").write(str(len(got)))
        sys.exit(7)
        """,
    )


def test_ctrl_c_reaches_the_command_once(lock, terminal):
    terminal.type(f"$run -- {counter(lock)}\n")
    terminal.expect(r"\r\ncounting")
    terminal.type("\x03")
    terminal.expect(PROMPT)
    assert lock.file_written("count") == "1"
    assert "rc=7" in terminal.run("echo rc=$?")


def test_ctrl_c_ends_a_command_that_does_not_care(lock, terminal):
    # It starts no process: a shell in the middle of a vfork() loses the signal, under any parent.
    terminal.type("$run -- sh -c 'echo here; read x'\n")
    terminal.expect(r"here\r\n")
    terminal.type("\x03")
    terminal.expect(PROMPT)
    assert "rc=130" in terminal.run("echo rc=$?")
    assert lock.token() is None


def test_ctrl_z_stops_the_job_and_fg_continues_it_under_a_renewed_lease(lock, terminal):
    terminal.type("$run --ttl 30s -- sh -c 'echo $$ > pid; echo here; read x; echo got:$x'\n")
    terminal.expect(r"here\r\n")
    token = lock.token()
    before = terminal.stop_job()
    assert "Stopped" in before
    command = int((lock.folder / "pid").read_text(encoding="utf-8"))
    assert state_of(command) == "T"
    left = remaining(lock)
    time.sleep(1.0)
    assert remaining(lock) < left - 0.8, "a stopped wrapper renews nothing"
    terminal.type("fg\n")
    time.sleep(0.5)
    terminal.type("more\n")
    terminal.expect(r"got:more\r\n")
    terminal.expect(PROMPT)
    assert "rc=0" in terminal.run("echo rc=$?")
    assert token is not None


def remaining(lock):
    from pyresil.stores.sqlite import SQLiteLockStore

    with SQLiteLockStore(lock.file) as store:
        return store.inspect("k").remaining_ms / 1000.0


def test_the_lease_is_renewed_before_the_command_continues(lock, terminal):
    looker = script(
        lock,
        "looker.py",
        f"""
        import os, signal, sys, time
        sys.path.insert(0, {str(pathlib.Path(lock.env()["PYTHONPATH"]))!r})
        from pyresil.stores.sqlite import SQLiteLockStore
        store = SQLiteLockStore({str(lock.file)!r})
        print("here", flush=True)
        before = time.monotonic()
        while time.monotonic() - before < 2.0:   # notices a pause
            before = time.monotonic()
            time.sleep(0.01)
        print("left:", store.inspect("k").remaining_ms, flush=True)
        """,
    )
    terminal.type(f"$run --ttl 20s -- {looker}\n")
    terminal.expect(r"\r\nhere")
    terminal.stop_job()
    time.sleep(4.0)
    terminal.type("fg\n")
    _, match = terminal.expect(r"left: (\d+)\r\n")
    assert int(match[1]) > 17_000, "at most 16 s would be left of the lease from before the stop"


def test_a_job_that_was_stopped_past_its_ttl_has_lost_the_lease(lock, terminal):
    terminal.type("$run --ttl 2s -- sh -c 'echo here; sleep 60'\n")
    terminal.expect(r"here\r\n")
    terminal.stop_job()
    time.sleep(2.6)
    assert lock.run("--", "true").returncode == 0, "the key is free"
    out = terminal.run("fg")
    assert "lost" in out
    assert "rc=76" in terminal.run("echo rc=$?")


@pytest.mark.parametrize("words", ["run --key k --wait 60s", "lead --key k"])
def test_ctrl_z_stops_a_job_that_waits_for_its_turn(lock, terminal, words):
    os.mkfifo(lock.folder / "go")
    holder = lock.start("--", "sh", "-c", "echo yes > ready; read x < go")
    lock.file_written("ready")
    terminal.type(f"{' '.join(COMMAND)} {words} -- sh -c 'echo mine; read x; exit 5'\n")
    time.sleep(1.0)
    assert "Stopped" in terminal.stop_job()
    (lock.folder / "go").write_text("\n", encoding="ascii")
    assert holder.wait(10) == 0
    assert lock.run("--", "true").returncode == 0, "a stopped job takes nothing"
    terminal.type("fg\n")
    terminal.expect(r"\r\nmine\r\n")
    terminal.type("\x03")
    terminal.expect(PROMPT)
    assert "rc=130" in terminal.run("echo rc=$?")


def test_a_leader_that_is_stopped_between_two_runs_of_its_command_leads_no_more(lock, terminal):
    terminal.type(f"{' '.join(COMMAND)} lead --key k --ttl 1s -- sh -c 'echo $PYRESIL_LOCK_TOKEN >> log'\n")
    first = lock.file_written("log").split()[0]
    terminal.expect("started again")
    assert "Stopped" in terminal.stop_job()
    time.sleep(1.5)
    assert lock.run("--", "true").returncode == 0, "the key is free"
    terminal.type("fg\n")
    terminal.expect("was lost")
    wait_until(lambda: lock.file_written("log").split()[-1] != first, 10, "another term")
    terminal.type("\x03")
    terminal.expect(PROMPT)


def test_ctrl_c_ends_lead_and_not_its_command_alone(lock, terminal):
    code = """
        import signal, sys, time
        signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
        print("serving", flush=True)
        for _ in range(600):
            time.sleep(0.1)  # not all at once: a signal just before a sleep is handled after it
    """
    terminal.type(f"{' '.join(COMMAND)} lead --key k -- {script(lock, 'server.py', code)}\n")
    terminal.expect(r"\r\nserving")
    terminal.type("\x03")
    terminal.expect(PROMPT)
    assert "rc=0" in terminal.run("echo rc=$?")
    assert lock.token() is None


def test_a_background_start_runs_and_may_be_brought_to_the_foreground(terminal):
    terminal.type("$run -- sh -c 'echo here; read x; echo got:$x' &\n")
    terminal.expect(r"here\r\n")
    wait_until(lambda: re.search(r"Stopped|tty", terminal.run("jobs")), 15, "the stop", interval=0.2)
    terminal.type("fg\n")
    time.sleep(0.5)
    terminal.type("front\n")
    terminal.expect(r"got:front\r\n")
    terminal.expect(PROMPT)
    assert "rc=0" in terminal.run("echo rc=$?")


def test_a_background_job_that_needs_no_terminal_ends_by_itself(terminal):
    terminal.run("$run -- sh -c 'sleep 0.3; exit 4' &")
    assert "rc=4" in terminal.run("wait $!; echo rc=$?")


def test_bg_lets_a_stopped_job_go_on_in_the_background(lock, terminal):
    os.mkfifo(lock.folder / "go")
    terminal.type("$run --ttl 20s -- sh -c 'echo here; read x < go; echo done > done'\n")
    terminal.expect(r"here\r\n")
    terminal.stop_job()
    terminal.run("bg")
    (lock.folder / "go").write_text("\n", encoding="ascii")  # once it reads: it waits until then
    assert lock.file_written("done") == "done\n"


def test_a_pipeline_shares_the_terminal(terminal):
    terminal.type("$run -- sh -c 'echo here; read x < /dev/tty; echo got:$x' | tr a-z A-Z\n")
    terminal.expect(r"\r\nHERE\r\n")
    time.sleep(0.3)
    terminal.type("piped\n")
    terminal.expect(r"GOT:PIPED\r\n")
    terminal.expect(PROMPT)
    assert "rc=0" in terminal.run("echo rc=${PIPESTATUS[0]}")


def test_ctrl_c_in_a_pipeline_reaches_the_command_once(lock, terminal):
    terminal.type(f"$run -- {counter(lock)} | cat\n")
    terminal.expect(r"\r\ncounting")
    terminal.type("\x03")
    terminal.expect(PROMPT)
    assert lock.file_written("count") == "1"


def test_ctrl_z_in_a_pipeline_stops_and_fg_continues_it(lock, terminal):
    os.mkfifo(lock.folder / "go")
    terminal.type("$run -- sh -c 'echo $$ > pid; echo here; read x < go; echo on' | cat\n")
    terminal.expect(r"here\r\n")
    before = terminal.stop_job()
    assert "Stopped" in before
    assert state_of(int((lock.folder / "pid").read_text(encoding="utf-8"))) == "T"
    terminal.type("fg\n")
    (lock.folder / "go").write_text("\n", encoding="ascii")  # once it reads: it waits until then
    terminal.expect(r"\r\non\r\n")
    terminal.expect(PROMPT)


def test_inside_a_script_at_a_terminal(lock, terminal):
    (lock.folder / "job.sh").write_text(
        f"{RUN} -- sh -c 'echo ask; read x; echo got:$x'\necho rc=$?\n", encoding="utf-8"
    )
    terminal.type("sh job.sh\n")
    terminal.expect(r"\r\nask\r\n")
    before = terminal.stop_job()
    assert "Stopped" in before
    terminal.type("fg\n")
    time.sleep(0.5)
    terminal.type("script\n")
    terminal.expect(r"got:script\r\nrc=0\r\n")


def test_a_script_has_the_terminal_back_from_a_command_that_cannot_be_started(lock, terminal):
    (lock.folder / "job.sh").write_text(
        f"{RUN} -- ./missing\necho rc=$?; read x; echo got:$x\n", encoding="utf-8"
    )
    terminal.type("sh job.sh\n")
    terminal.expect(r"\r\nrc=127\r\n")
    terminal.type("it\n")
    terminal.expect(r"got:it\r\n")


def test_a_terminal_that_hangs_up_leaves_nothing(lock):
    made = Terminal(lock.env(), lock.folder)
    made.run(f"run='{RUN}'")
    made.type("$run --ttl 1s -- sh -c 'echo here; sleep 60 & sleep 60'\n")
    made.expect(r"\r\nhere\r\n")
    made.close()
    lock.wait_gone(10)


def test_as_leader_of_its_session_a_stop_is_not_for_ever(lock):
    """As in `docker run -it`: there is no shell that could continue us."""
    made = Terminal(
        lock.env(),
        lock.folder,
        [*COMMAND, "run", "--key", "k", "--", "sh", "-c", "echo here; read x; echo got:$x"],
    )
    made.expect(r"here\r\n")
    time.sleep(0.3)
    made.type("\x1a")
    time.sleep(0.3)
    made.type("on\n")
    made.expect(r"got:on\r\n")
    assert made.status() == 0


def test_a_command_that_wants_a_terminal_that_nobody_can_give_is_hung_up_on(lock):
    # A job in the background whose shell has gone: its process group is orphaned.
    job = f"{RUN} -- sh -c 'read x < /dev/tty; echo got' 2> err; echo $? > rc"
    line = f"(set -m; ({job}) & ); while [ ! -s rc ]; do sleep 0.1; done; cat rc err"
    made = Terminal(lock.env(), lock.folder, ["bash", "--norc", "-c", line])
    made.expect(r"129\r\n")
    made.expect(r"needs the terminal")
    made.close()
    lock.wait_gone()
