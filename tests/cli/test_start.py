"""What starting the command costs: what it imports, and how much memory it takes."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

from tests.support.command import COMMAND


def imported(lock, *words):
    """Names of all modules that one run of the command imports, and a bare interpreter here does not."""
    return modules_of(lock, *COMMAND[1:], *words) - modules_of(lock, "-c", "pass")


def modules_of(lock, *words):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words],
        env=lock.env(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^import time:[^|]*\|[^|]*\| +(\S+)$", done.stderr, re.MULTILINE))


@pytest.mark.parametrize("words", [("run", "--key", "k", "--", "true"), ("status", "k"), ("list",)])
def test_nothing_costly_is_imported_on_the_way_to_the_command(lock, words):
    modules = imported(lock, *words)
    costly = {
        "asyncio", "concurrent", "dataclasses", "datetime", "email", "hashlib", "http", "importlib.metadata", "inspect",
        "json", "logging", "pathlib", "random", "shutil", "socket", "ssl", "subprocess", "tempfile", "urllib", "uuid",
    }  # fmt: skip
    assert modules & costly == set()
    assert not any(
        name.startswith(("redis", "psycopg", "pyresil.policy", "pyresil.strateg")) for name in modules
    )


def test_a_start_whose_key_is_taken_loads_nothing_that_only_a_command_needs(lock):
    holder = lock.start("--", "sh", "-c", "echo yes > ready; sleep 60")
    lock.file_written("ready")
    modules = imported(lock, "run", "--key", "k", "--busy-ok", "--quiet", "--", "touch", "ran")
    heavy = {
        "ctypes",
        "datetime",
        "select",
        "signal",
        "sqlite3",
        "typing",
        "pyresil.stores.base",
        "pyresil.stores.sqlite",
    }
    assert modules & heavy == set()
    assert {name for name in modules if name.startswith("pyresil.cli.")} <= {
        f"pyresil.cli.{name}" for name in ("__main__", "_glance", "_options", "_report", "_store", "_text")
    }
    assert not (lock.folder / "ran").exists()
    assert holder.poll() is None


def test_redis_brings_nothing_of_postgresql_or_sqlite(lock, valkey):
    modules = imported(lock, "run", "--key", lock.mark, "--store", valkey.url, "--", "true")
    assert "redis" in modules
    assert not any(
        name.startswith(("psycopg", "sqlite3", "_sqlite3", "pyresil.stores.sqlite")) for name in modules
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_wrapper_and_guard_are_small_while_the_command_runs(lock):
    job = lock.start("--", "sh", "-c", "echo yes > ready; sleep 60")
    lock.file_written("ready")
    for pid in (job.pid, lock.guard_of(job.pid)):
        status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])
        assert peak < 25_000
    # What both have in memory together, shared pages counted once.
    proportional = 0
    for pid in (job.pid, lock.guard_of(job.pid)):
        rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        proportional += int(re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)[1])
    assert proportional < 25_000
