from __future__ import annotations

import os
import pathlib
import sqlite3
import stat
import sys
import threading
import weakref

import pytest

from pyresil.clock import SYSTEM
from pyresil.errors import ConfigurationError, StoreError, StoreUnavailableError
from pyresil.stores import _forks, _host, _sqlite
from pyresil.stores.backend import connect
from pyresil.stores.base import Granted, Held
from pyresil.stores.sqlite import SQLiteLockStore
from pyresil.testing import ManualClock
from tests.stores.helpers import EmptiedMeanwhile
from tests.support.processes import forked, run_python

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "locks.db"


@pytest.fixture
def store(path):
    with SQLiteLockStore(path) as made:
        yield made


def raw(path, sql, *args):
    db = sqlite3.connect(path)
    try:
        with db:
            return db.execute(sql, args).fetchall()
    finally:
        db.close()


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def test_nothing_is_opened_by_the_constructor(path):
    SQLiteLockStore(path / "deep" / "down")
    assert not path.exists()


def test_missing_folders_and_the_file_are_private(tmp_path):
    path = tmp_path / "a" / "b" / "locks.db"
    before = os.umask(0)
    try:
        SQLiteLockStore(path).acquire("k", "a", 1_000)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700


def test_a_file_that_was_made_for_a_group_stays_the_groups(store, path):
    path.touch()
    path.chmod(0o660)
    store.acquire("k", "a", 1_000)
    beside = sorted(path.parent.glob(f"{path.name}*"))
    assert len(beside) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in beside} == {0o660}


def test_it_writes_ahead_and_syncs_every_commit(store, path):
    store.acquire("k", "a", 1_000)
    assert raw(path, "PRAGMA journal_mode") == [("wal",)]
    (connection,) = store._file._idle
    assert connection.db.execute("PRAGMA synchronous").fetchall() == [(2,)]
    assert connection.db.execute("PRAGMA busy_timeout").fetchall() == [(0,)]


def test_a_new_file_has_small_pages_and_one_with_larger_pages_is_used_as_it_is(store, path):
    store.acquire("k", "a", 1_000)
    assert raw(path, "PRAGMA page_size") == [(1024,)]
    store.close()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=DELETE").fetchall()
    db.execute("PRAGMA page_size=4096")
    db.execute("VACUUM")
    db.close()
    assert isinstance(store.acquire("k", "b", 1_000), Held)
    assert raw(path, "PRAGMA page_size") == [(4096,)]


def test_the_longest_row_fits_and_comes_back(store):
    key, meta = "\U0001f600" * 500, "m" * 2_000
    assert isinstance(store.acquire(key, "o" * 100, 1_000, meta), Granted)
    assert store.inspect(key).meta == meta
    assert [info.key for info in store.scan()] == [key]
    assert store.release(key, "o" * 100)


@pytest.mark.parametrize("bad", [None, 5, "", b"x", "a\0b", ":memory:", "\ud800.db"])
def test_what_is_no_path_is_refused(bad):
    with pytest.raises(ConfigurationError, match="path must be"):
        SQLiteLockStore(bad)


def test_the_url_that_is_shown_names_the_file_whatever_is_in_its_name(tmp_path):
    url = f"sqlite:///{tmp_path}/for@me/locks.db"
    assert connect(url).url == url


def test_the_file_of_a_relative_url_is_that_of_the_folder_where_the_backend_was_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    backend = connect("sqlite:///locks.db")
    assert not list(tmp_path.iterdir())
    monkeypatch.chdir("/")
    assert backend.locks.path == str(tmp_path / "locks.db")


@pytest.mark.parametrize("bad", [0, -1, float("nan"), True, "x"])
def test_a_bad_timeout_is_refused(path, bad):
    with pytest.raises(ConfigurationError, match="SQLite store: timeout"):
        SQLiteLockStore(path, timeout=bad)


@pytest.mark.parametrize("bad", ["a{b", "}", None, "\n", "x" * 101])
def test_a_bad_prefix_is_refused(path, bad):
    with pytest.raises(ConfigurationError, match="prefix"):
        SQLiteLockStore(path, prefix=bad)


def test_prefixes_keep_services_apart(path):
    one, two = SQLiteLockStore(path, prefix="one:"), SQLiteLockStore(path, prefix="two:")
    assert isinstance(one.acquire("k", "a", 60_000), Granted)
    assert isinstance(two.acquire("k", "b", 60_000), Granted)
    assert [info.owner for info in one.scan()] == ["a"]
    assert [info.owner for info in two.scan("k")] == ["b"]


def test_a_relative_path_from_a_folder_that_was_deleted_says_so(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = """
import os, sys
from pyresil import SQLiteLockStore, StoreError
os.chdir(sys.argv[1])
os.rmdir(sys.argv[1])
try:
    SQLiteLockStore("locks.db")
except StoreError as error:
    print(error)
"""
    assert (
        "the current folder was deleted: name the file by its absolute path"
        in run_python(code, str(gone)).stdout
    )


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(StoreError, match="is a folder") as error:
        SQLiteLockStore(tmp_path).acquire("k", "a", 1_000)
    one_line(error)


def test_another_applications_file_is_refused_and_left_alone(path):
    raw(path, "CREATE TABLE theirs (a)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another application's SQLite file") as error:
        SQLiteLockStore(path).acquire("k", "a", 1_000)
    one_line(error)
    assert path.read_bytes() == before


def test_a_file_with_another_application_id_is_refused(path):
    raw(path, "PRAGMA application_id=1234")
    raw(path, "CREATE TABLE pyresil_locks (key)")
    with pytest.raises(StoreError, match="another application's"):
        SQLiteLockStore(path).inspect("k")


def test_another_versions_table_is_refused(store, path):
    store.acquire("k", "a", 1_000)
    store.close()
    raw(path, "ALTER TABLE pyresil_locks ADD COLUMN later TEXT")
    with pytest.raises(StoreError, match="another version's table") as error:
        store.acquire("k", "a", 1_000)
    one_line(error)


def test_another_versions_layout_is_refused(store, path):
    store.acquire("k", "a", 1_000)
    store.close()
    raw(path, "PRAGMA user_version=99")
    with pytest.raises(StoreError, match="another version's layout"):
        store.acquire("k", "a", 1_000)


@pytest.mark.parametrize("content", [b"this is a text file, " * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_file_that_is_no_database_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(StoreError, match="no SQLite database, or damaged") as error:
        SQLiteLockStore(path).acquire("k", "a", 1_000)
    one_line(error)
    assert path.read_bytes() == content


def test_a_database_that_was_damaged_is_an_error_and_never_a_free_lock(store, path):
    for number in range(200):
        store.acquire(f"k{number}", "a", 60_000)
    store.close()
    raw(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    with pytest.raises(StoreError):
        store.acquire("k5", "b", 1_000)


@pytest.mark.skipif(os.geteuid() != 0, reason="root drops its rights in a child")
def test_a_read_only_folder_and_file_are_refused(tmp_path):
    folder = tmp_path / "folder"
    SQLiteLockStore(folder / "locks.db").acquire("k", "a", 1_000)
    for part in [*tmp_path.parents, tmp_path]:
        if "pytest" in part.name:
            part.chmod(0o755)
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)
    done = run_python(
        """
        import os, sys
        from pyresil.errors import StoreError
        from pyresil.stores.sqlite import SQLiteLockStore
        import sqlite3, pyresil._validate
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        for path in sys.argv[1:]:
            try:
                print(SQLiteLockStore(path).acquire("k", "b", 1_000))
            except StoreError as error:
                print(type(error).__name__, error)
        """,
        folder / "locks.db",
        folder / "other.db",
        folder / "sub" / "other.db",
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout
    assert all(line.startswith("StoreError SQLite store") for line in lines), done.stdout
    assert "write" in lines[0]
    assert "cannot be created (Permission denied)" in lines[1]
    assert "cannot be created (Permission denied)" in lines[2]


def test_a_full_disk_is_told_and_never_a_held_lock(store):
    store.acquire("k", "a", 60_000)
    (connection,) = store._file._idle
    pages = connection.db.execute("PRAGMA page_count").fetchall()[0][0]
    connection.db.execute(f"PRAGMA max_page_count={pages}").fetchall()
    with pytest.raises(StoreUnavailableError, match="the disk is full: make room") as error:
        for number in range(500):
            store._file._idle[:] = [connection]
            store.acquire(f"{number}" + "x" * 400, "a", 60_000)
    one_line(error)


def test_a_network_file_system_is_refused(path, monkeypatch):
    info = "36 35 98:0 / / rw - ext4 /dev/root rw\n37 36 0:40 / %s rw - nfs4 server:/x rw\n"
    monkeypatch.setattr(_host, "_read", lambda name: info % str(path.parent).replace(" ", "\\040"))
    with pytest.raises(StoreError, match="network file system \\(nfs4\\)") as error:
        SQLiteLockStore(path).acquire("k", "a", 1_000)
    one_line(error)
    assert _host.unfit_for_sqlite("/") is None


def test_a_file_that_is_mounted_alone_is_refused(store, path, monkeypatch):
    """Two containers would write two logs beside it, and grant a lock twice."""
    store.acquire("k", "a", 60_000)
    info = "36 35 98:0 / / rw - ext4 /dev/root rw\n37 36 98:0 /locks.db %s rw - ext4 /dev/root rw\n"
    monkeypatch.setattr(_host, "_read", lambda name: info % str(path).replace(" ", "\\040"))
    with pytest.raises(StoreError, match="mount its folder") as error:
        SQLiteLockStore(path).acquire("k", "b", 1_000)
    one_line(error)
    assert _host.unfit_for_sqlite(str(path.parent)) is None


@pytest.mark.parametrize(
    ("mounts", "fit"),
    [
        pytest.param([("8:1", "/", "/")], True, id="ordinary"),
        pytest.param([("8:1", "/", "/"), ("8:2", "/", "FOLDER")], True, id="on a disk of its own"),
        pytest.param(
            [("0:50", "/", "/"), ("8:1", "/srv/a b.db", "FILE")], False, id="the file in a container"
        ),
        pytest.param(
            [("0:50", "/", "/"), ("8:1", "/srv", "FOLDER"), ("8:1", "/srv/a b.db", "FILE")],
            True,
            id="the folder and the file",
        ),
        pytest.param(
            [("0:50", "/", "/"), ("8:1", "/", "FOLDER"), ("8:1", "/a b.db", "FILE")],
            True,
            id="a whole disk and a file of it",
        ),
        pytest.param(
            [("0:50", "/", "/"), ("8:1", "/srv", "FOLDER"), ("8:1", "/other/a b.db", "FILE")],
            False,
            id="the file of another folder",
        ),
        pytest.param(
            [("0:50", "/", "/"), ("8:1", "/srv", "FOLDER"), ("8:2", "/srv/a b.db", "FILE")],
            False,
            id="the file of another disk",
        ),
        pytest.param([("8:1", "/", "/"), ("8:1", "FILE", "FILE")], True, id="onto itself"),
        pytest.param([("8:1", "/@", "/"), ("8:1", "/@FILE", "FILE")], True, id="onto itself, in a subvolume"),
    ],
)
def test_what_is_beside_a_mounted_file_decides(tmp_path, monkeypatch, mounts, fit):
    file = tmp_path.resolve() / "a b.db"
    file.touch()

    def escaped(text):
        named = text.replace("FOLDER", str(file.parent)).replace("FILE", str(file))
        return named.replace(" ", "\\040")

    table = "".join(
        f"{number} 1 {device} {escaped(root)} {escaped(mount)} rw - ext4 /dev/x rw\n"
        for number, (device, root, mount) in enumerate(mounts, 30)
    )
    monkeypatch.setattr(_host, "_read", lambda name: table)
    assert (_host.unfit_for_sqlite(str(file)) is None) is fit


def test_busy_is_unknown_within_the_timeout(store, path):
    store.acquire("k", "a", 60_000)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    began = SYSTEM.monotonic()
    with pytest.raises(StoreUnavailableError, match="is busy") as error:
        store.renew("k", "a", 60_000, timeout=0.2)
    one_line(error)
    assert 0.2 <= SYSTEM.monotonic() - began < 3
    assert store.inspect("k").owner == "a", "reading needs no write lock"
    blocker.execute("COMMIT")
    blocker.close()
    assert store.renew("k", "a", 60_000) is True


def test_a_call_goes_on_when_the_write_lock_is_given_back(store, path):
    store.acquire("k", "a", 60_000)
    blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    blocker.execute("BEGIN IMMEDIATE")
    timer = SYSTEM.spawn(lambda: (SYSTEM.sleep(0.1), blocker.execute("COMMIT")), "unblock")
    assert store.renew("k", "a", 60_000) is True
    timer.join(5)
    blocker.close()


def test_expiry_is_read_after_the_write_lock_is_held(store, path):
    """A call that waited does not shorten the lease it then writes."""
    store.acquire("k", "a", 60_000)
    blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    blocker.execute("BEGIN IMMEDIATE")
    let_go = []

    def unblock():
        SYSTEM.sleep(1.5)
        let_go.append(SYSTEM.monotonic())
        blocker.execute("COMMIT")

    timer = SYSTEM.spawn(unblock, "unblock")
    assert store.renew("k", "a", 30_000, timeout=20) is True
    remaining = store.inspect("k").remaining_ms
    since = (SYSTEM.monotonic() - let_go[0]) * 1000
    assert remaining > 30_000 - since - 500, "the 1.5 s before do not count"
    timer.join(5)
    blocker.close()


def test_a_row_of_another_boot_is_free(store, path, monkeypatch):
    token = store.acquire("k", "a", 60_000).token
    monkeypatch.setattr(_sqlite, "boot_id", lambda: "another")
    after = SQLiteLockStore(path)
    assert after.inspect("k") is None
    assert after.scan() == []
    assert after.renew("k", "a", 1_000) is False
    assert after.release("k", "a") is False
    assert after.force_release("k") is False
    assert after.acquire("k", "a", 60_000).token > token


@linux_only
def test_a_process_that_was_short_of_files_at_its_first_call_steals_nothing(store, path):
    store.acquire("k", "a", 60_000)
    done = run_python(
        """
        import resource, subprocess, sys
        from pyresil.errors import StoreError
        from pyresil.stores.sqlite import SQLiteLockStore

        store = SQLiteLockStore(sys.argv[1])
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            store.inspect("k")
        except StoreError as error:
            print(type(error).__name__, error)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        print(store.acquire("k", "b", 1_000))
        """,
        path,
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("StoreUnavailableError SQLite store"), first
    assert second.startswith("Held"), second


@linux_only
def test_a_process_in_a_time_namespace_does_not_steal_and_is_not_stolen_from(store, path, spawn):
    store.acquire("k", "a", 60_000)
    code = """
        import sys, time
        from pyresil.stores.sqlite import SQLiteLockStore
        store = SQLiteLockStore(sys.argv[1])
        print(time.clock_gettime(time.CLOCK_BOOTTIME) > 900_000, store.acquire("k", "b", 60_000), flush=True)
        print(store.acquire("inside", "b", 60_000), flush=True)
    """
    from tests.support.processes import python_command

    command = ["unshare", "--user", "--map-root-user", "--time", "--boottime", "1000000", "--fork"]
    probe = spawn(command=[*command, "true"])
    if probe.wait(20):
        pytest.skip(f"no time namespaces here: {probe.output()[-200:]}")
    inside = spawn(command=[*command, *python_command(code, path)])
    assert inside.wait(20) == 0, inside.output()
    first, second = inside.output().splitlines()
    assert first.startswith("True Held(remaining_ms=5"), first
    assert second.startswith("Granted"), second
    refused = store.acquire("inside", "c", 1_000)
    assert isinstance(refused, Held)
    assert 50_000 < refused.remaining_ms <= 60_000


def test_no_wall_clock_decides(path):
    clock = ManualClock()
    store = SQLiteLockStore(path, clock=clock)
    token = store.acquire("k", "a", 60_000).token
    clock.wall = lambda: 5.0
    assert isinstance(store.acquire("k", "b", 1_000), Held)
    clock.wall = lambda: 4e9
    assert isinstance(store.acquire("k", "b", 1_000), Held)
    clock.wall = lambda: 5.0
    store.release("k", "a")
    assert store.acquire("k", "b", 1_000).token > token


def test_tokens_grow_though_the_file_was_lost(path, store):
    token = store.acquire("k", "a", 60_000).token
    path.unlink()
    for suffix in ("-wal", "-shm"):
        pathlib.Path(f"{path}{suffix}").unlink(missing_ok=True)
    assert store.renew("k", "a", 60_000) is False, "a lease in a file that is gone is nobody's"
    assert store.acquire("k", "b", 60_000).token > token


def test_a_file_that_was_replaced_is_noticed(path, store):
    store.acquire("k", "a", 60_000)
    path.rename(path.with_suffix(".old"))
    for suffix in ("-wal", "-shm"):
        pathlib.Path(f"{path}{suffix}").unlink(missing_ok=True)
    SQLiteLockStore(path).acquire("k", "b", 60_000)
    assert store.renew("k", "a", 60_000) is False
    assert store.inspect("k").owner == "b"


def test_rows_are_pruned_seven_days_after_their_last_use(path):
    clock = ManualClock()
    store = SQLiteLockStore(path, clock=clock)
    store.acquire("old", "a", 1_000)
    store.acquire("held", "a", 20 * 86_400_000)
    clock.advance("6d")
    store.acquire("young", "a", 1_000)
    clock.advance("2d")
    assert store.prune() == 1
    assert raw(path, "SELECT key FROM pyresil_locks ORDER BY key") == [("pyresil:held",), ("pyresil:young",)]


def test_pruning_happens_by_itself(path):
    clock = ManualClock()
    SQLiteLockStore(path, clock=clock).acquire("old", "a", 1_000)
    clock.advance("8d")
    SQLiteLockStore(path, clock=clock).acquire("new", "a", 1_000)
    assert raw(path, "SELECT key FROM pyresil_locks") == [("pyresil:new",)]


@pytest.mark.parametrize("token", [2**53 - 1, 2**60])
def test_a_key_without_further_tokens_is_an_error(store, path, token):
    store.acquire("k", "a", 1_000)
    raw(path, "UPDATE pyresil_locks SET token = ?, expires = 0", token)
    with pytest.raises(StoreError, match="fencing token"):
        store.acquire("k", "b", 1_000)
    assert raw(path, "SELECT token FROM pyresil_locks") == [(token,)]


def test_a_forked_child_opens_its_own_connection(store, path):
    store.acquire("k", "a", 60_000)

    def child():
        seen = [store.acquire("k", "b", 1_000), store.acquire("child", "b", 60_000)]
        good = [type(answer) for answer in seen] == [Held, Granted] and len(_sqlite._everywhere) == 1
        store.close()
        return good

    assert forked(child)()
    assert store.renew("k", "a", 60_000) is True
    assert store.inspect("child").owner == "b"


def test_a_link_to_a_file_that_is_not_there_makes_it_private(tmp_path):
    there = tmp_path / "there.db"
    (tmp_path / "link.db").symlink_to(there)
    with SQLiteLockStore(tmp_path / "link.db") as store:
        store.acquire("k", "a", 1_000)
    assert stat.S_IMODE(there.stat().st_mode) == 0o600


USED_BY_ANOTHER = """
import sys
from pyresil.stores.sqlite import SQLiteLockStore

with SQLiteLockStore(sys.argv[1]) as store:
    print(store.inspect("k").remaining_ms)
"""


def test_what_a_forked_child_writes_is_seen_when_its_parent_is_gone(store, path):
    store.acquire("parent's", "a", 60_000)
    closed, tell = os.pipe()

    def child():
        os.read(closed, 1)  # nothing of the parent's is open any more
        store.acquire("k", "b", 60_000)
        run_python(USED_BY_ANOTHER, str(path))
        renewed = store.renew("k", "b", 3_600_000)
        return renewed and int(run_python(USED_BY_ANOTHER, str(path)).stdout) > 60_000

    went_well = forked(child)
    store.close()
    os.write(tell, b"x")
    assert went_well()


def test_a_fork_waits_until_no_other_thread_is_in_the_middle_of_a_statement(store):
    store.acquire("k", "a", 60_000)
    begun = threading.Event()

    def statements(connection):
        connection.rows("BEGIN IMMEDIATE", {})
        begun.set()
        SYSTEM.sleep(0.1)
        connection.rows("COMMIT", {})

    thread = threading.Thread(target=store._file.run, args=(statements, 30.0))
    thread.start()
    assert begun.wait(10)
    went_well = forked(lambda: isinstance(store.acquire("child", "b", 60_000), Granted))
    thread.join(10)
    assert went_well()


def test_a_fork_waits_until_no_other_thread_is_closing_the_store(store):
    store.acquire("k", "a", 60_000)
    (connection,) = store._file._idle
    begun, closed = threading.Event(), []

    class Slow:
        def close(self, db=connection.db):
            begun.set()
            SYSTEM.sleep(0.1)
            db.close()
            closed.append(os.getpid())

    connection.db = Slow()
    thread = threading.Thread(target=store.close)
    thread.start()
    assert begun.wait(10)
    went_well = forked(lambda: closed)
    thread.join(10)
    assert went_well()


def test_a_signal_handler_uses_the_store_while_a_forked_child_closes_what_it_found_open(store):
    store.acquire("k", "a", 60_000)

    def child():
        (connection,) = store._file._idle
        handled = []

        class Interrupted:
            def close(self, db=connection.db):
                db.close()
                handled.append(store.inspect("k"))

        connection.db = Interrupted()
        return isinstance(store.acquire("child", "b", 60_000), Granted) and handled[0].owner == "a"

    assert forked(child)()


def test_a_child_that_was_forked_while_another_thread_closed_what_it_found_is_not_kept(store):
    store.acquire("k", "a", 60_000)
    (connection,) = store._file._idle

    def child():
        closing, end = threading.Event(), threading.Event()

        class Slow:
            def close(self, db=connection.db):
                closing.set()
                end.wait(20)  # a fork waits for it for no longer than a second
                db.close()

        connection.db = Slow()
        threading.Thread(target=store.inspect, args=("k",), daemon=True).start()
        closing.wait(20)
        return forked(lambda: store.inspect("k").owner == "a")()

    assert forked(child)()


@pytest.mark.parametrize("cut", ["setconfig", "close", "close, just done"])
def test_a_signal_handler_that_raises_while_a_forked_child_closes_what_it_found_open_leaves_nothing_open(
    store, cut
):
    store.acquire("k", "a", 60_000)

    def child():
        (connection,) = store._file._idle
        db, armed = connection.db, [cut]

        class Interrupted:
            def _cut(self, where):
                if armed == [where]:
                    armed.clear()
                    raise KeyboardInterrupt

            def setconfig(self, *args):
                self._cut("setconfig")
                if hasattr(db, "setconfig"):
                    db.setconfig(*args)

            def close(self):
                self._cut("close")
                db.close()
                self._cut("close, just done")

        connection.db = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            store.inspect("k")
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            db.execute("SELECT 1")
        return connection not in _sqlite._everywhere and store.inspect("k").owner == "a"

    assert forked(child)()


@pytest.mark.parametrize("work", ["inspect", "close"])
def test_forks_wait_for_no_call_that_a_signal_handler_broke_off(store, work):
    calls = {"inspect": lambda: store.inspect("k"), "close": store.close}

    def cut(number):
        """Raises at the start of that many'th function about forks; returns whether there was one."""
        before, left = sys.getprofile(), [number]

        def profile(frame, event, arg):
            if event == "call" and frame.f_globals is vars(_forks):
                left[0] -= 1
                if not left[0]:
                    raise KeyboardInterrupt

        store.inspect("k")
        try:
            sys.setprofile(profile)
            calls[work]()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(before)
        return False

    number = 1
    while cut(number):
        assert not _forks.stretches
        number += 1
    assert number > 1


RAISES_AFTER_A_FORK = """
import ctypes, functools, os, signal, sys, threading, time

def handler(*args):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise KeyboardInterrupt

signal.signal(signal.SIGUSR1, handler)
sys.unraisablehook = lambda raised: print(raised.exc_type.__name__)
os.register_at_fork(after_in_parent=functools.partial(getattr(ctypes.CDLL(None), "raise"), signal.SIGUSR1))
from pyresil.stores.sqlite import SQLiteLockStore

store = SQLiteLockStore(sys.argv[1], timeout="20s")
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)

def timed():
    began = time.monotonic()
    store.inspect("k")
    print(time.monotonic() - began)

thread = threading.Thread(target=timed)
thread.start()
thread.join()
"""


def test_a_signal_handler_that_raises_after_a_fork_keeps_no_call(path):
    """Nothing of Python may be sure to run there, and other threads would wait for that fork to be over."""
    raised, elapsed = run_python(RAISES_AFTER_A_FORK, str(path)).stdout.split()
    assert (raised, float(elapsed) < 10.0) == ("KeyboardInterrupt", True)


def test_a_file_that_another_thread_made_meanwhile_keeps_its_locks(store, path):
    second = SQLiteLockStore(path)
    make_folder = second._file._make_folder

    def other_is_faster(folder):
        make_folder(folder)
        store.acquire("k", "a", 60_000)

    second._file._make_folder = other_is_faster
    second.acquire("other", "b", 60_000)
    run_python(USED_BY_ANOTHER, str(path))
    assert store.renew("k", "a", 3_600_000)
    assert int(run_python(USED_BY_ANOTHER, str(path)).stdout) > 60_000
    second.close()


def test_many_threads_leave_few_connections(store):
    barrier = threading.Barrier(20)

    def work(number):
        barrier.wait(10)
        for _ in range(3):
            store.acquire(f"k{number}", "a", 60_000)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(store.scan()) == 20
    assert len(store._file._idle) <= _sqlite._MAX_IDLE


def test_a_signal_handler_that_uses_the_store_never_waits_for_the_interrupted_call(path):
    done = run_python(
        """
        import signal, sys, time
        from pyresil.stores.sqlite import SQLiteLockStore
        store = SQLiteLockStore(sys.argv[1])
        store.acquire("mine", "a", 60_000)
        slowest = 0.0
        count = 0

        def handler(*_):
            global slowest, count
            count += 1
            began = time.monotonic()
            assert store.renew("mine", "a", 60_000, timeout=5.0)
            slowest = max(slowest, time.monotonic() - began)
            signal.setitimer(signal.ITIMER_REAL, 0.0007)

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0007)
        while count < 300:
            store.acquire("k", "m", 60_000)
            store.release("k", "m")
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # stopping the timer is not enough: a late handler starts it again
        print(slowest)
        """,
        path,
    )
    assert float(done.stdout) < 4.0


@pytest.mark.parametrize("kind", [TimeoutError, OSError, ValueError, KeyboardInterrupt])
def test_what_a_signal_handler_raises_comes_out(store, monkeypatch, kind):
    store.acquire("k", "a", 60_000)
    error = kind("time is up")

    def cut_short(self, sql, values):
        raise error

    with monkeypatch.context() as patched, pytest.raises(kind) as caught:
        patched.setattr(_sqlite.Connection, "rows", cut_short)
        store.inspect("k")
    assert caught.value is error
    assert store.inspect("k").owner == "a"


def test_idle_connections_that_another_thread_took_meanwhile(store):
    store._file._idle = EmptiedMeanwhile()
    store.close()
    store._file._idle = []


def test_an_error_dies_without_the_garbage_collector(path):
    path.mkdir()
    with pytest.raises(StoreError) as caught:
        SQLiteLockStore(path).inspect("k")
    error = weakref.ref(caught.value)
    del caught
    assert error() is None


def test_gevent_greenlets_go_on_while_one_waits_for_the_write_lock(path):
    done = run_python(
        """
        from gevent import monkey; monkey.patch_all()
        import gevent, sqlite3, sys, time
        from pyresil.stores.sqlite import SQLiteLockStore
        store = SQLiteLockStore(sys.argv[1])
        store.acquire("k", "a", 60_000)
        blocker = sqlite3.connect(sys.argv[1], isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        ticks = 0

        def tick():
            global ticks
            while True:
                ticks += 1
                gevent.sleep(0.005)

        gevent.spawn(tick)
        waiting = gevent.spawn(store.renew, "k", "a", 60_000, timeout=20)
        gevent.sleep(0.1)
        before = ticks
        while ticks < before + 10:
            gevent.sleep(0.005)
        assert not waiting.ready()
        blocker.execute("COMMIT")
        assert waiting.get(timeout=15) is True
        print("went on")
        """,
        path,
    )
    assert done.stdout == "went on\n"


def test_on_its_way_it_imports_little():
    done = run_python(
        """
        import sys
        before = set(sys.modules)  # an editable install has modules of its own loaded by now
        from pyresil.stores.sqlite import SQLiteLockStore
        print(*sorted((set(sys.modules) - before) & {"dataclasses", "logging", "inspect", "random", "json", "sqlite3", "pathlib"}))
        """
    )
    assert done.stdout.split() == []
