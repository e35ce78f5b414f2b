"""Cases about leases that a store alone has to get right, over the matrix of stores."""

from __future__ import annotations

import json
import sqlite3

import pytest

from pyresil.errors import ConfigurationError, StoreError
from pyresil.stores.sqlite import SQLiteLockStore
from tests.support.stores import LOCK_STORES


@pytest.fixture(params=LOCK_STORES)
def store(request):
    harness = LOCK_STORES[request.param](request)
    yield harness.store()
    harness.close()


@pytest.mark.timeout(120)
def test_L15_six_processes_acquire_and_release_on_one_sqlite_file(tmp_path, spawn):
    code = """
        import json, sys
        from pyresil.stores.base import Granted
        from pyresil.stores.sqlite import SQLiteLockStore
        from pyresil.clock import SYSTEM
        store = SQLiteLockStore(sys.argv[1])
        found = []
        for turn in range(100):
            while True:
                answer = store.acquire("k", f"{sys.argv[2]}-{turn}", 30_000, timeout=30)
                if isinstance(answer, Granted):
                    break
                SYSTEM.sleep(SYSTEM.random() * 0.005)
            inside = store.inspect("k")
            assert inside.token == answer.token, "somebody else was let in"
            found.append(answer.token)
            assert store.release("k", f"{sys.argv[2]}-{turn}", timeout=30)
        print(json.dumps(found))
    """
    processes = [spawn(code, tmp_path / "locks.db", number) for number in range(6)]
    tokens = []
    for process in processes:
        assert process.wait(100) == 0, process.output()
        of_process = json.loads(process.output())
        assert len(of_process) == 100
        assert of_process == sorted(of_process)
        tokens += of_process
    assert len(set(tokens)) == 600


@pytest.mark.parametrize("ttl", [None, 0, -1, float("nan"), 0.0004])
def test_L17_a_ttl_that_is_none(store, ttl):
    with pytest.raises(ConfigurationError, match=r"ttl_ms must be whole milliseconds from 1 to \d+, got"):
        store.acquire("k", "a", ttl)
    with pytest.raises(ConfigurationError, match="ttl_ms"):
        store.renew("k", "a", ttl)
    assert store.inspect("k") is None


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("token", "a word"),
        ("token", b"\x00\x01"),
        ("token", 1.5),
        ("token", 0),
        ("token", -5),
        ("token", 2**60),
        ("expires", "soon"),
        ("acquired", "once"),
        ("owner", b"\xff"),
        ("meta", b"\xff"),
    ],
)
@pytest.mark.parametrize("expired", [False, True])
def test_L18_a_row_written_by_a_foreign_program_on_sqlite(tmp_path, column, value, expired):
    path = tmp_path / "locks.db"
    with SQLiteLockStore(path) as store:
        store.acquire("k", "a", 1 if expired else 60_000)
        store.acquire("fine", "a", 60_000)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"UPDATE pyresil_locks SET {column} = ? WHERE key LIKE '%k'", (value,))
    before = db.execute("SELECT * FROM pyresil_locks ORDER BY key").fetchall()
    with SQLiteLockStore(path) as store:
        with pytest.raises(StoreError, match="lock 'k'"):
            store.acquire("k", "b", 1_000)
        with pytest.raises(StoreError, match="lock 'k'"):
            store.inspect("k")
        if column not in {"token", "owner"}:
            with pytest.raises(StoreError, match="lock 'k'"):
                store.renew("k", "a", 1_000)
            with pytest.raises(StoreError, match="lock 'k'"):
                store.release("k", "a")
        assert store.renew("fine", "a", 60_000) is True
    after = db.execute("SELECT * FROM pyresil_locks ORDER BY key").fetchall()
    db.close()
    assert [row[:3] for row in after if "fine" not in row[0]] == [
        row[:3] for row in before if "fine" not in row[0]
    ]
