"""Fixtures for all tests.

Servers start when a test first asks for them, serve the whole run, and are stopped by their own id at its end:

- `valkey`, `postgres`: one server (the newest version), shared by all tests; `redis_server`, `postgres_server`: the same
  over the matrix of versions, for contracts. Tests keep apart by `prefix` (Valkey) and `postgres_url` (a database each).
- `new_valkey`, `new_postgres`, `new_cluster`, `new_sentinel`, `new_proxy`, `new_gunicorn`, `spawn`: factories of a test's own
  servers and processes, which it may pause, kill and restart; gone at the test's end.
- `valkey_cluster`: three nodes, shared.
- `postgres_store`, `raw`: a lock store, and plain SQL, on a test's own database.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import uuid

import hypothesis
import pytest

from tests.support.command import LockCommand
from tests.support.depth import times
from tests.support.gunicorn import Gunicorn
from tests.support.postgres import PostgresServer, postgres_versions
from tests.support.processes import Process, environment, python_command
from tests.support.proxy import TcpProxy
from tests.support.valkey import ValkeyCluster, ValkeySentinel, ValkeyServer, redis_binaries


def pytest_configure(config):
    """`TEST_SWITCH_INTERVAL=1e-6` makes threads change places as often as they can, to bring races to light."""
    # A shell starts what runs in the background, or under nohup, with these signals ignored. That would be inherited by all
    # processes of the tests, for whom an ignored signal is one that nobody sent. A handler that does nothing is not inherited.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    interval = os.environ.get("TEST_SWITCH_INTERVAL")
    if interval:
        sys.setswitchinterval(float(interval))
    # A busy machine is slow now and then: no example has a deadline.
    hypothesis.settings.register_profile("tests", max_examples=times(60), deadline=None)
    hypothesis.settings.load_profile("tests")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A worker that has nothing left takes over what another one has not begun."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """What takes long begins first, spread over the workers, so that nobody waits for it at the end. Else the order is random."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.get_closest_marker("slow")]
    other = [item for item in items if not item.get_closest_marker("slow")]
    total, items[:] = len(items), []
    for worker in range(workers):  # each begins with one stretch of the list
        mine = slow[worker::workers]
        rest = (total - len(items)) // (workers - worker) - len(mine)
        items += mine + other[:rest]
        del other[:rest]


def pytest_collection_finish(session):
    """The thousands of tests live to the end: the garbage collector need not walk over them in each collection."""
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def server_folder():
    """A folder below /tmp that every user can enter: pytest's own is closed to the user that PostgreSQL runs as."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pyresil-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Pool:
    """Starts servers by name once, and stops all of them at the end."""

    def __init__(self, stack: contextlib.ExitStack):
        self.stack = stack
        self.running = {}

    def get(self, name, make):
        if name not in self.running:
            folder = self.stack.enter_context(server_folder())
            server = make(folder)
            self.stack.callback(server.stop)
            self.running[name] = server.start()
        return self.running[name]

    def new(self, make):
        return self.get(uuid.uuid4().hex, make)


@pytest.fixture(scope="session")
def _session_servers():
    with contextlib.ExitStack() as stack:
        yield Pool(stack)


@pytest.fixture
def _test_servers():
    with contextlib.ExitStack() as stack:
        yield Pool(stack)


@pytest.fixture(scope="session", params=sorted(redis_binaries(), reverse=True))
def redis_server(request, _session_servers):
    """A `ValkeyServer`, over the matrix: Valkey, and the system's Redis where it is installed."""
    binary = redis_binaries()[request.param]
    return _session_servers.get(request.param, lambda folder: ValkeyServer(folder, binary=binary))


@pytest.fixture(scope="session")
def valkey(_session_servers):
    """The shared `ValkeyServer`."""
    return _session_servers.get("valkey", ValkeyServer)


@pytest.fixture(scope="session")
def system_redis(_session_servers):
    """The shared `ValkeyServer` that runs the system's Redis."""
    binary = redis_binaries()["redis"]
    return _session_servers.get("redis", lambda folder: ValkeyServer(folder, binary=binary))


@pytest.fixture(scope="session")
def valkey_cluster(_session_servers):
    """The shared `ValkeyCluster` of three nodes."""
    return _session_servers.get("cluster", ValkeyCluster)


@pytest.fixture(scope="session", params=postgres_versions())
def postgres_server(request, _session_servers):
    """A `PostgresServer`, over the matrix of versions."""
    return _session_servers.get(
        f"postgres-{request.param}", lambda folder: PostgresServer(folder, request.param)
    )


@pytest.fixture(scope="session")
def postgres(_session_servers):
    """The shared `PostgresServer` of the newest version."""
    return _session_servers.get("postgres-18", PostgresServer)


@pytest.fixture
def postgres_url(postgres):
    """URL of an empty database of the test's own on the shared server."""
    name = postgres.create_database()
    yield postgres.url_of(name)
    postgres.drop_database(name)


@pytest.fixture
def postgres_store(postgres_url):
    """A `PostgresLockStore` with its tables on `postgres_url`."""
    from pyresil.stores.postgres import PostgresLockStore

    with PostgresLockStore(postgres_url) as store:
        store.create_tables()
        yield store


@pytest.fixture
def raw(postgres_url):
    """`raw(sql, *values)`: runs a statement on `postgres_url` and returns its rows, if it has any."""
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:

        def execute(sql, *values):
            cursor = connection.execute(sql, values)
            return cursor.fetchall() if cursor.description else []

        yield execute


@pytest.fixture
def prefix():
    """A key prefix that no other test uses."""
    return f"t{uuid.uuid4().hex[:10]}:"


@pytest.fixture
def new_valkey(_test_servers):
    """`new_valkey(durable=…, options=…)`: a `ValkeyServer` of the test's own."""
    return lambda **options: _test_servers.new(lambda folder: ValkeyServer(folder, **options))


@pytest.fixture
def new_cluster(_test_servers):
    """`new_cluster()`: a `ValkeyCluster` of the test's own."""
    return lambda **options: _test_servers.new(lambda folder: ValkeyCluster(folder, **options))


@pytest.fixture
def new_sentinel(_test_servers):
    """`new_sentinel()`: a `ValkeySentinel` of the test's own."""
    return lambda **options: _test_servers.new(lambda folder: ValkeySentinel(folder, **options))


@pytest.fixture
def new_postgres(_test_servers):
    """`new_postgres(version="18", options=…)`: a `PostgresServer` of the test's own."""
    return lambda version="18", **options: _test_servers.new(
        lambda folder: PostgresServer(folder, version, **options)
    )


@pytest.fixture
def new_gunicorn(_test_servers):
    """`new_gunicorn(source, worker_class=…, workers=…, threads=…, options=…, env=…)`: a running `Gunicorn`."""
    return lambda source, **options: _test_servers.new(lambda folder: Gunicorn(folder, source, **options))


@pytest.fixture
def new_proxy(_test_servers):
    """`new_proxy(server)` or `new_proxy(port)`: a `TcpProxy` in front of it."""

    def make(target):
        proxy = TcpProxy(getattr(target, "port", target))
        _test_servers.stack.callback(proxy.close)
        return proxy

    return make


@pytest.fixture
def spawn(tmp_path, _test_servers):
    """Starts a `Process` in the background, killed at the test's end.

    `spawn(code, *args, env=…, flags=…)` runs a snippet in a fresh interpreter, `spawn(command=[…], env=…)` a command.
    """

    def start(code=None, *args, command=None, env=None, flags=(), **popen):
        command = command or python_command(code, *args, flags=flags)
        popen.setdefault("cwd", tmp_path)
        process = Process(
            command, tmp_path / f"process-{uuid.uuid4().hex[:8]}.log", env=environment(env), **popen
        )
        _test_servers.stack.callback(process.kill)
        return process

    return start


@pytest.fixture
def clock():
    """A `ManualClock`."""
    from pyresil.testing import ManualClock

    return ManualClock()


@pytest.fixture
def lock(tmp_path):
    """`pyresil-lock` on a SQLite file of the test's own (`LockCommand`); whatever it left behind is gone at the test's end."""
    command = LockCommand(tmp_path)
    yield command
    command.close()


@pytest.fixture(autouse=True)
def _no_lease_outlives_its_test():
    """What a test leaves held is renewed no more: its loss would be an event in the middle of another test."""
    yield
    closing = sys.modules.get("pyresil.locks._closing")
    for locks in [] if closing is None else list(closing._live):
        for lease in list(locks._leases):
            lease._abandon()
    dispatch = sys.modules.get("pyresil._dispatch")
    if dispatch is not None and dispatch._dispatcher is not None:
        dispatch._dispatcher.flush(1.0)  # what was lost at the test's end is told by now
