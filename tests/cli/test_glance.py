"""A start of `pyresil-lock run` whose key is plainly taken: the same words and statuses as after asking the store."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sqlite3
import time

import pytest

from pyresil.cli._glance import Glance
from pyresil.cli._options import read_settings
from pyresil.cli._text import RUN
from pyresil.stores import _sqlite_layout
from pyresil.stores.sqlite import SQLiteLockStore
from tests.support.processes import run_python

RAN = ("--", "touch", "ran")
SAID = r"'k' is taken by host=there pid=7, for \d\d\.\d s more unless renewed; the command did not run"


@pytest.fixture
def held(lock):
    """The key, held by somebody whose connection stays open."""
    with SQLiteLockStore(lock.file) as store:
        assert store.acquire("k", "somebody", 60_000, "host=there pid=7").token
        yield store
    assert not (lock.folder / "ran").exists()


def test_the_line_the_json_and_the_statuses(lock, held):
    done = lock.run(*RAN)
    assert (done.returncode, done.stdout) == (75, "")
    assert re.fullmatch(f"pyresil-lock: {SAID}\n", done.stderr)
    said = json.loads(lock.run("--log-format", "json", *RAN).stderr)
    assert (said["level"], said["event"], said["key"]) == ("note", "busy", "k")
    assert re.fullmatch(SAID, said["message"])
    assert lock.run("--busy-exit", "9", "--quiet", *RAN).returncode == 9
    silent = lock.run("--busy-ok", "--quiet", *RAN)
    assert (silent.returncode, silent.stderr) == (0, "")


def test_a_wrong_option_is_told_first(lock, held):
    assert lock.run("--ttl", "abc", *RAN).returncode == 2


def test_a_taken_key_is_told_while_another_process_has_the_write_lock(lock, held):
    with contextlib.closing(sqlite3.connect(lock.file, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        done = lock.run(*RAN)
    assert done.returncode == 75
    assert "'k' is taken by host=there" in done.stderr


def test_another_key_runs(lock, held):
    assert lock.run("--", "true", key="other").returncode == 0


def test_who_waits_gets_it(lock):
    holder = lock.start("--", "sh", "-c", "echo yes > ready; sleep 1")
    lock.file_written("ready")
    assert lock.run("--wait", "30s", "--", "true").returncode == 0
    assert holder.wait(10) == 0


@pytest.mark.parametrize("url", ["SQLite:///{}", " sqlite:///{}"])
def test_however_the_url_is_written(lock, held, url):
    assert lock.run("--store", url.format(lock.file), *RAN).returncode == 75


def test_a_relative_url(lock, held):
    assert lock.run("--store", f"sqlite:///{lock.file.name}", *RAN).returncode == 75


def test_another_glance_sees_what_was_taken_since(lock, held, monkeypatch, capfd):
    monkeypatch.setenv("PYRESIL_STORE", lock.url)
    look = Glance(read_settings(RUN, ["--key", "later", *RAN]))
    assert look.busy() is None
    read = []
    real = _sqlite_layout.glance
    monkeypatch.setattr(_sqlite_layout, "glance", lambda *args: read.append(args) or real(*args))
    assert look.busy() is None
    assert read == [], "nothing was written since"
    time.sleep(0.05)  # more than a tick of the file system's clock
    held.acquire("later", "somebody", 60_000)
    assert look.busy() == 75
    assert "'later' is taken, for" in capfd.readouterr().err


def test_a_passing_glance_leaves_no_file_open_for_guard_and_command(lock, held):
    done = lock.run("--", "sh", "-c", "ls -l /proc/$$/fd /proc/$PPID/fd", key="other")
    assert done.returncode == 0
    assert "->" in done.stdout
    assert "locks.db" not in done.stdout


def test_ctrl_c_at_the_very_start_ends_it_as_any_program():
    code = """
        import signal
        from pyresil import cli
        def interrupted(*args, **options):
            signal.raise_signal(signal.SIGINT)
        cli._main = interrupted
        cli.main()
    """
    done = run_python(code, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
