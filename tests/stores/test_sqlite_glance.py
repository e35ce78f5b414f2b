"""A glance at one lock in a SQLite file: only what is held for sure is seen, and nothing is touched."""

from __future__ import annotations

import os
import pathlib
import sqlite3

import pytest

from pyresil.stores import _sqlite_layout
from pyresil.stores._sqlite_layout import glance
from pyresil.stores.sqlite import SQLiteLockStore
from tests.support.processes import run_python


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "100% locks?#.db")


@pytest.fixture
def store(path):
    """The key "k" is held, "other" was released."""
    with SQLiteLockStore(path) as made:
        made.acquire("other", "a", 60_000)
        made.release("other", "a")
        made.acquire("k", "a", 60_000, "host=h pid=1")
        yield made


def change(path, sql):
    db = sqlite3.connect(path)
    with db:
        db.execute(sql)
    return db


def test_a_held_key(path, store):
    remaining, meta = glance(path, "k")
    assert 0 < remaining <= store.inspect("k").remaining_ms + 1_000
    assert remaining <= 60_000
    assert meta == "host=h pid=1"


def test_a_key_under_its_minimum_hold(path, store):
    store.release("k", "a", 60_000)
    assert glance(path, "k")[0] <= 60_000


def test_what_looks_free(path, store):
    assert glance(path, "other") is None
    assert glance(path, "never") is None
    store.force_release("k")
    assert glance(path, "k") is None


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE pyresil_locks SET boot = 'another'",
        "UPDATE pyresil_locks SET expires = acquired",
        "UPDATE pyresil_locks SET expires = 'x'",
        "UPDATE pyresil_locks SET token = 'x'",
        "UPDATE pyresil_locks SET token = 0",
        "UPDATE pyresil_locks SET meta = x'00'",
        "ALTER TABLE pyresil_locks ADD COLUMN more TEXT",
        "ALTER TABLE pyresil_locks RENAME TO others",
        "PRAGMA user_version = 2",
        "PRAGMA application_id = 0",
    ],
)
def test_what_is_expired_or_amiss_is_left_to_the_store(path, store, sql):
    assert glance(path, "k") is not None
    change(path, sql).close()
    assert glance(path, "k") is None


def test_a_missing_or_damaged_file_and_a_folder(tmp_path, path):
    assert glance(path, "k") is None
    assert glance(str(tmp_path), "k") is None
    assert list(tmp_path.iterdir()) == []
    for name in (path, f"{path}-wal"):
        pathlib.Path(name).write_bytes(b"not a database, " * 100)
    assert glance(path, "k") is None


def test_a_network_file_system_is_not_even_opened(path, store, monkeypatch):
    monkeypatch.setattr(_sqlite_layout, "unfit_for_sqlite", lambda path: "is on NFS")
    monkeypatch.setattr(_sqlite_layout, "driver", lambda: pytest.fail("opened"))
    assert glance(path, "k") is None


def test_a_file_that_cannot_be_written_is_left_to_the_store(path, store, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert glance(path, "k") is None


def test_it_needs_no_write_lock(path, store):
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    assert glance(path, "k") is not None
    db.close()


def test_it_closes_what_it_opened_and_does_not_write_the_log_back(path):
    code = """
        import os, sys
        from pyresil.stores.sqlite import SQLiteLockStore
        store = SQLiteLockStore(sys.argv[1])
        store.acquire("k", "a", 60_000)
        os._exit(0)  # as the command ends: without closing
    """
    run_python(code, path)
    log = pathlib.Path(f"{path}-wal").read_bytes()
    file = pathlib.Path(path).read_bytes()
    before = open_files(path)
    assert glance(path, "k") is not None
    assert open_files(path) == before
    assert pathlib.Path(f"{path}-wal").read_bytes() == log
    assert pathlib.Path(path).read_bytes() == file


def open_files(path):
    """The files of the database that this process has open; other threads may open and close other ones."""
    found, beginning = [], os.path.realpath(path)
    for name in pathlib.Path("/proc/self/fd").iterdir():
        try:
            found.append(str(name.readlink()))
        except FileNotFoundError:
            pass  # the folder itself, which was open to be listed
    return sorted(file for file in found if file.startswith(beginning))
