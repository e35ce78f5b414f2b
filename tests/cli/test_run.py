"""`pyresil-lock run` on SQLite: what the command sees, what its status becomes, and how the lease goes on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.support.command import COMMAND
from tests.support.processes import state_of, wait_until


def test_the_command_gets_the_lease_in_its_environment_and_never_the_store(lock):
    done = lock.run("--ttl", "12.5s", "--", "env")
    names = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert names["PYRESIL_LOCK_KEY"] == "k"
    assert int(names["PYRESIL_LOCK_TOKEN"]) > 0
    assert names["PYRESIL_LOCK_OWNER"].isalnum()
    assert names["PYRESIL_LOCK_TTL"] == "12.5"
    assert lock.url not in done.stdout
    assert "PYRESIL_STORE" not in names
    assert done.stderr == "", "silent on success"


def test_the_store_of_the_option_is_not_shown_to_the_command_either(lock):
    url = f"sqlite:///{lock.folder}/other.db"
    done = lock.run("--store", url, "--", "env")
    assert done.returncode == 0
    assert url not in done.stdout
    assert (lock.folder / "other.db").exists()


def test_arguments_and_standard_streams_pass_through_unchanged(lock):
    words = ["", " a  b ", "--", "--key", "é\udcff", "$HOME", "*"]
    done = subprocess.run(
        [*COMMAND, "run", "--key", "k", "--", "sh", "-c", 'cat; printf "%s|" "$@"; echo err >&2', "sh", *words],
        env=lock.env(), input=b"in", capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.stdout == b"in" + b"".join(os.fsencode(word) + b"|" for word in words)
    assert done.stderr == b"err\n"


def test_a_key_of_any_script_arrives_whole(lock):
    key = "zażółć/鍵 {x}}\n" * 20
    done = lock.run("--", "sh", "-c", 'printf %s "$PYRESIL_LOCK_KEY"', key=key)
    assert done.stdout == key


def test_a_script_without_a_first_line_runs_as_it_would_from_a_shell(lock):
    script = lock.folder / "plain"
    script.write_text('echo "plain $1"\n', encoding="utf-8")
    script.chmod(0o755)
    assert lock.run("--", "./plain", "x").stdout == "plain x\n"


def masks(status):
    """Signal masks by their names in /proc, without the C library's own signals, which it ignores in what it spawns."""
    known = sum(1 << (number - 1) for number in signal.valid_signals())
    return {name: int(mask, 16) & known for name, mask in map(str.split, status.splitlines())}


def test_the_command_has_default_signals(lock):
    done = lock.run("--", "grep", "-E", "Sig(Blk|Ign)", "/proc/self/status")
    assert masks(done.stdout) == {"SigBlk:": 0, "SigIgn:": 0}


def test_signals_that_the_caller_ignores_stay_ignored(lock):
    done = subprocess.run(
        ["sh", "-c", 'trap "" HUP QUIT; exec "$@"', "sh", *COMMAND, "run", "--key", "k", "--",
         "grep", "SigIgn", "/proc/self/status"],
        env=lock.env(), capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert masks(done.stdout) == {"SigIgn:": 1 << (signal.SIGHUP - 1) | 1 << (signal.SIGQUIT - 1)}


def test_no_descriptor_of_ours_reaches_the_command(lock):
    done = lock.run("--", "sh", "-c", "ls /proc/self/fd")
    # 0, 1, 2, and the folder that ls itself reads.
    assert len(done.stdout.split()) == 4, done.stdout


def test_a_descriptor_that_the_caller_hands_down_reaches_the_command(lock):
    reader, writer = os.pipe()
    try:
        done = lock.run("--", "sh", "-c", f"echo over {writer} > /proc/self/fd/{writer}", pass_fds=[writer])
        assert done.returncode == 0, done.stderr
        assert os.read(reader, 100) == f"over {writer}\n".encode()
    finally:
        os.close(reader)
        os.close(writer)


def test_busy_is_75_and_one_line_that_names_the_holder(lock):
    holder = lock.start("--", "sh", "-c", "echo yes > ready; sleep 60")
    lock.file_written("ready")
    done = lock.run("--", "touch", "ran")
    assert done.returncode == 75
    assert done.stderr.count("\n") == 1
    assert f"pid={holder.pid}" in done.stderr
    assert lock.run("--quiet", "--", "true").stderr == ""
    assert lock.run("--busy-exit", "9", "--", "true").returncode == 9
    assert lock.run("--busy-ok", "--", "true").returncode == 0
    as_json = json.loads(lock.run("--log-format", "json", "--", "true").stderr)
    assert (as_json["event"], as_json["key"]) == ("busy", "k")
    assert not (lock.folder / "ran").exists()


def test_two_starts_from_a_crontab_one_runs_and_one_exits_75(lock):
    def start():
        script = "echo ran >> log; until [ -e done ]; do sleep 0.1; done"
        # What cron gives: an empty environment, no terminal, sh.
        line = f"{' '.join(COMMAND)} run --key export --store {lock.url} -- sh -c '{script}'"
        bare = [
            "env",
            "-i",
            "HOME=" + str(lock.folder),
            f"PYTHONPATH={lock.env()['PYTHONPATH']}",
            "/bin/sh",
            "-c",
            line,
        ]
        return subprocess.Popen(bare, cwd=lock.folder, stdin=subprocess.DEVNULL, start_new_session=True)

    both = [start(), start()]
    try:
        wait_until(lambda: any(process.poll() is not None for process in both), 20, "the end of one")
    finally:
        (lock.folder / "done").touch()
    assert sorted(process.wait(20) for process in both) == [0, 75]
    assert (lock.folder / "log").read_text(encoding="utf-8") == "ran\n"


def test_waiting_gets_the_key_when_it_is_released(lock):
    holder = lock.start("--", "sh", "-c", "echo yes > ready; read line", stdin=subprocess.PIPE)
    lock.file_written("ready")
    waiter = lock.start("--wait", "30s", "--", "sh", "-c", "echo second")
    time.sleep(0.7)
    assert waiter.poll() is None
    began = time.monotonic()
    holder.communicate("go\n", timeout=10)
    out, err = waiter.communicate(timeout=10)
    assert (waiter.returncode, out, err) == (0, "second\n", "")
    assert time.monotonic() - began < 5.0


def test_waiting_ends_after_its_time(lock):
    lock.start("--", "sh", "-c", "echo yes > ready; sleep 60")
    lock.file_written("ready")
    began = time.monotonic()
    assert lock.run("--wait", "1s", "--", "true").returncode == 75
    assert 1.0 <= time.monotonic() - began < 5.0


def test_kill_of_the_holder_frees_the_key_within_one_ttl_with_a_grown_token(lock):
    holder = lock.start("--ttl", "4s", "--", "sh", "-c", "echo yes > ready; sleep 60")
    lock.file_written("ready")
    token = lock.token()
    holder.kill()
    killed = time.monotonic()
    done = lock.run("--wait", "30s", "--", "sh", "-c", "echo $PYRESIL_LOCK_TOKEN", timeout=45)
    assert time.monotonic() - killed < 15.0
    assert int(done.stdout) > token
    lock.wait_gone()


@pytest.mark.slow
def test_a_job_longer_than_its_ttl_keeps_its_lease(lock):
    job = lock.start(
        "--ttl", "4s", "--", "sh", "-c", "echo yes > ready; until [ -e done ]; do sleep 0.1; done"
    )
    lock.file_written("ready")
    token = lock.token()
    for _ in range(6):
        time.sleep(1.0)
        assert lock.token() == token
        assert lock.run("--", "true").returncode == 75
    (lock.folder / "done").touch()
    assert job.wait(10) == 0
    assert lock.token() is None


def test_a_wrapper_paused_past_its_ttl_ends_the_command_with_76(lock):
    script = "trap 'echo told > told; exit 0' TERM; sleep 60 & echo yes > ready; wait"
    job = lock.start("--ttl", "1s", "--", "sh", "-c", script)
    lock.file_written("ready")
    job.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(job.pid) == "T", 5, "the pause")
    time.sleep(1.5)
    job.send_signal(signal.SIGCONT)
    assert job.wait(15) == 76
    assert lock.file_written("told") == "told\n"
    assert "lost" in job.stderr.read()
    assert lock.processes() == set()


def test_the_guard_ends_the_command_at_the_deadline_while_the_wrapper_is_paused(lock):
    job = lock.start("--ttl", "1s", "--", "sh", "-c", "echo $$ > ready; sleep 60")
    command = int(lock.file_written("ready"))
    job.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(command) is None, 10, "the end of the command")
    job.send_signal(signal.SIGCONT)
    assert job.wait(10) == 76


def test_timeout_ends_the_command_with_124(lock):
    began = time.monotonic()
    done = lock.run("--timeout", "0.5s", "--", "sleep", "60")
    assert done.returncode == 124
    assert time.monotonic() - began < 10.0
    assert "--timeout" in done.stderr
    assert lock.token() is None


def test_kill_comes_after_the_grace(lock):
    began = time.monotonic()
    done = lock.run("--timeout", "0.5s", "--grace", "1s", "--", "sh", "-c", "trap '' TERM; sleep 60")
    assert done.returncode == 124
    assert 1.5 <= time.monotonic() - began < 10.0
    assert lock.processes() == set()


def test_jitter_delays_the_start_and_a_signal_ends_it(lock):
    job = lock.start("--jitter", "1h", "--", "touch", "ran")
    lock.guard_of(job.pid)
    time.sleep(0.5)
    assert job.poll() is None
    assert lock.token() is None
    job.terminate()
    assert job.wait(5) == 143
    assert not (lock.folder / "ran").exists()


def test_user_signals_reach_the_command_and_not_its_children(lock):
    script = "trap 'echo usr1 >> got' USR1; trap 'echo usr2 >> got' USR2; sleep 60 & echo $! > ready; wait; wait; wait"
    job = lock.start("--", "sh", "-c", script)
    child = int(lock.file_written("ready"))
    job.send_signal(signal.SIGUSR1)
    wait_until(lambda: lock.file_written("got") == "usr1\n", 5)
    job.send_signal(signal.SIGUSR2)
    wait_until(lambda: lock.file_written("got") == "usr1\nusr2\n", 5)
    assert state_of(child) in ("S", "R")  # a busy machine may not have let it sleep yet
    job.terminate()
    assert job.wait(10) == 143


def test_verbose_says_what_goes_well(lock):
    done = lock.run("--verbose", "--", "true")
    assert [line.split()[1] for line in done.stderr.splitlines()] == ["acquired", "the", "released"]
    events = [
        json.loads(line)["event"]
        for line in lock.run("--verbose", "--log-format", "json", "--", "true").stderr.splitlines()
    ]
    assert events == ["acquired", "ended", "released"]


def test_lost_exit_replaces_76(lock):
    job = lock.start("--ttl", "1s", "--lost-exit", "9", "--", "sh", "-c", "echo yes > ready; sleep 60")
    lock.file_written("ready")
    lock.steal()
    assert job.wait(10) == 9


@pytest.mark.timeout(150)
def test_200_starts_at_once_on_one_key(lock):
    count = 200
    began = time.monotonic()
    jobs = []
    for _ in range(count):
        jobs.append(lock.start("--", "sh", "-c", "echo ran >> log; sleep 200", stdout=subprocess.DEVNULL))
        os.setpriority(os.PRIO_PROCESS, jobs[-1].pid, 10)  # tests that run beside this one keep their pace
    wait_until(lambda: sum(job.poll() is not None for job in jobs) == count - 1, 100, "all but one to end")
    ended = [job for job in jobs if job.poll() is not None]
    assert [job.returncode for job in ended] == [75] * (count - 1)
    assert (lock.folder / "log").read_text(encoding="utf-8") == "ran\n"
    assert time.monotonic() - began < 130
    (winner,) = [job for job in jobs if job.poll() is None]
    said = rf"pyresil-lock: 'k' is taken by host=\S+ pid={winner.pid}, for [\d.]+ s more unless renewed; the command did not run\n"
    for job in ended:
        assert re.fullmatch(said, job.stderr.read())


def test_the_command_gets_no_variable_that_the_interpreter_added(lock):
    home = f"HOME={lock.folder}"
    done = subprocess.run(
        ["env", "-i", home, f"PYTHONPATH={lock.env()['PYTHONPATH']}", *COMMAND, "run", "--key", "k",
         "--store", lock.url, "--", "/usr/bin/env"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    ours = {"PYRESIL_LOCK_KEY", "PYRESIL_LOCK_TOKEN", "PYRESIL_LOCK_OWNER", "PYRESIL_LOCK_TTL"}
    assert names == {"HOME", "PYTHONPATH"} | ours


def test_a_command_that_ended_after_its_lease_did_is_no_success(lock):
    # The wrapper sleeps through the lease's end and the command's: it wakes up to a command that ended well, too late.
    job = lock.start("--ttl", "1s", "--", "sh", "-c", "trap 'exit 0' TERM; sleep 60 & echo $$ > ready; wait")
    command = int(lock.file_written("ready"))
    job.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(command) is None, 10, "the end of the command")
    time.sleep(0.5)
    job.send_signal(signal.SIGCONT)
    assert job.wait(10) == 76


def test_a_command_that_moved_to_another_group_still_gets_the_signals(lock):
    # It joins the group of a child, while another child of its own stays in the first one.
    code = """
        import os, pathlib, signal, subprocess, time
        stays = subprocess.Popen(["sleep", "60"])
        leads = subprocess.Popen(["sleep", "60"], process_group=0)
        time.sleep(0.1)
        os.setpgid(0, leads.pid)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(6))
        pathlib.Path("ready").write_text("yes")
        for _ in range(600):
            time.sleep(0.1)  # not all at once: a signal just before a sleep is handled after it
    """
    job = lock.start("--", sys.executable, "-c", textwrap.dedent(code))
    lock.file_written("ready")
    job.terminate()
    assert job.wait(10) == 6
    assert lock.processes() == set()


def test_library_and_command_exclude_each_other_by_the_default_file(lock):
    code = """
        import subprocess, sys
        from pyresil import Locks
        with Locks().hold("export", ttl="10s"):
            sys.exit(subprocess.run([*sys.argv[1:], "run", "--key", "export", "--", "true"]).returncode)
    """
    env = lock.env({"XDG_STATE_HOME": str(lock.folder)})
    del env["PYRESIL_STORE"]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *COMMAND],
        env=env,
        timeout=30,
        check=False,
        capture_output=True,
    )
    assert done.returncode == 75, done.stderr
    assert (lock.folder / "pyresil" / "locks.db").exists()


def test_a_command_is_ended_although_nobody_reads_what_is_said(lock):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 512)
    os.set_blocking(writer, True)  # it waits now, as for a pager or a terminal that is paused
    words = ["--timeout", "0.5s", "--ttl", "60s", "--grace", "0.5s", "--"]
    job = lock.start(*words, "sh", "-c", "echo $$ > pid; sleep 60", stderr=writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        pid = int(lock.file_written("pid"))
        wait_until(lambda: state_of(pid) in (None, "Z"), 20, "the end of the command")
        assert b"--timeout" in said.read()
    assert job.wait(10) == 124
