"""The matrix of lock stores, as data: what the contracts, the cases and the benchmarks run over."""

from __future__ import annotations

import pathlib

from pyresil.stores.memory import MemoryLockStore
from pyresil.stores.postgres import PostgresLockStore
from pyresil.stores.redis import RedisLockStore
from pyresil.stores.sqlite import SQLiteLockStore
from pyresil.testing import ManualClock
from tests.support.postgres import PostgresServer, postgres_versions
from tests.support.valkey import redis_binaries


class Harness:
    """One kind of store: makes an empty one, further ones on the same data, and moves its time.

    Args:
        request: pytest's request, through which servers are asked for.
    """

    can_advance = False
    can_restart = False

    def __init__(self, request):
        self.request = request
        self.opened = []

    def make(self):
        """A store object on this harness's data; each call gives another one."""
        raise NotImplementedError

    def store(self):
        made = self.make()
        self.opened.append(made)
        return made

    def advance(self, seconds):
        raise NotImplementedError

    def restart(self):
        raise NotImplementedError

    def close(self):
        for store in self.opened:
            store.close()


class Memory(Harness):
    """One object; its clock is moved by hand."""

    can_advance = True

    def __init__(self, request):
        super().__init__(request)
        self.clock = ManualClock()

    def make(self):
        return self.opened[0] if self.opened else MemoryLockStore(clock=self.clock)

    def advance(self, seconds):
        self.clock.advance(seconds)


class MemoryRealTime(Harness):
    """One object on the system's clock."""

    def make(self):
        return self.opened[0] if self.opened else MemoryLockStore()


class SQLite(Harness):
    """A file in the test's own folder."""

    can_restart = True

    def __init__(self, request):
        super().__init__(request)
        self.path = pathlib.Path(request.getfixturevalue("tmp_path")) / "state" / "locks.db"

    def make(self):
        return SQLiteLockStore(self.path)

    def restart(self):
        self.close()
        return self.store()


class SQLiteManualTime(SQLite):
    """The same, on a clock that is moved by hand."""

    can_advance = True

    def __init__(self, request):
        super().__init__(request)
        self.clock = ManualClock()

    def make(self):
        return SQLiteLockStore(self.path, clock=self.clock)

    def advance(self, seconds):
        self.clock.advance(seconds)


class Redis(Harness):
    """The shared server, by a client of the application's with its defaults."""

    options = {}

    def __init__(self, request):
        super().__init__(request)
        self.prefix = request.getfixturevalue("prefix")
        self.server = self.get_server()

    def get_server(self):
        return self.request.getfixturevalue("valkey")

    def client(self):
        import redis

        return redis.Redis.from_url(self.server.url, **self.options)

    def make(self):
        return RedisLockStore(self.client(), prefix=self.prefix)


class SystemRedis(Redis):
    """The system's own Redis, where it is installed."""

    def get_server(self):
        return self.request.getfixturevalue("system_redis")


class RedisByUrl(Redis):
    """The shared server, by URL."""

    def client(self):
        return self.server.url


class RedisDecoded(Redis):
    """A decoding client that speaks the older protocol."""

    options = {"decode_responses": True, "protocol": 2}


class RedisDecodedNew(Redis):
    """A decoding client that speaks the newer protocol."""

    options = {"decode_responses": True, "protocol": 3}


class ValkeyClient(Redis):
    """A client of valkey-py."""

    def client(self):
        import pytest

        valkey = pytest.importorskip("valkey")
        return valkey.Valkey.from_url(self.server.url)


class RedisCluster(Redis):
    """A cluster of three nodes, by a client of the application's."""

    def get_server(self):
        return self.request.getfixturevalue("valkey_cluster")

    def client(self):
        import redis

        return redis.RedisCluster(host="127.0.0.1", port=self.server.port)


class RedisClusterByUrl(RedisCluster):
    """The cluster, by URL."""

    def client(self):
        return self.server.url


class RedisDurable(Redis):
    """A server of the test's own that writes every command to its file."""

    can_restart = True

    def get_server(self):
        return self.request.getfixturevalue("new_valkey")(durable=True)

    def restart(self):
        self.server.restart()
        return self.opened[0]


class RedisForgetful(RedisDurable):
    """The same, and what a server keeps of scripts and connections is gone too."""

    def restart(self):
        self.server.send("SCRIPT", "FLUSH")
        self.server.kill()
        self.server.start()
        return self.opened[0]


class Postgres(Harness):
    """The shared server, by DSN: own connections."""

    def __init__(self, request):
        super().__init__(request)
        self.prefix = request.getfixturevalue("prefix")
        self.url = self.get_url()
        self.make_once()
        store = self.store()
        store.create_tables()

    def get_url(self):
        return self.request.getfixturevalue("postgres").url

    def make_once(self):
        pass

    def make(self):
        return PostgresLockStore(self.url, prefix=self.prefix)


class PostgresOld(Postgres):
    """The oldest packaged version."""

    def get_url(self):
        pool = self.request.getfixturevalue("_session_servers")
        return pool.get("postgres-16", lambda folder: PostgresServer(folder, "16")).url


class PostgresOfTheSystem(Postgres):
    """The system's own, where it is installed."""

    def get_url(self):
        pool = self.request.getfixturevalue("_session_servers")
        return pool.get("postgres-system", lambda folder: PostgresServer(folder, "system")).url


class PostgresPool(Postgres):
    """An application's pool with its defaults."""

    def make_once(self):
        from psycopg_pool import ConnectionPool

        self.pool = ConnectionPool(self.url, min_size=1, max_size=10, open=True)

    def make(self):
        return PostgresLockStore(self.pool, prefix=self.prefix)

    def close(self):
        super().close()
        self.pool.close()


class PostgresEngine(Postgres):
    """An application's SQLAlchemy engine on psycopg."""

    def make_once(self):
        import pytest

        sqlalchemy = pytest.importorskip("sqlalchemy")
        self.engine = sqlalchemy.create_engine(
            self.url.replace("postgresql:", "postgresql+psycopg:"), pool_size=10
        )

    def make(self):
        return PostgresLockStore(self.engine, prefix=self.prefix)

    def close(self):
        super().close()
        self.engine.dispose()


class PostgresDurable(Postgres):
    """A server of the test's own."""

    can_restart = True

    def get_url(self):
        self.server = self.request.getfixturevalue("new_postgres")()
        return self.server.url

    def restart(self):
        self.server.restart()
        return self.opened[0]


class PostgresTerminated(Postgres):
    """A database of the test's own, where every connection of ours is terminated."""

    can_restart = True

    def get_url(self):
        return self.request.getfixturevalue("postgres_url")

    def restart(self):
        self.request.getfixturevalue("postgres").execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
            self.url.rpartition("/")[2],
        )
        return self.opened[0]


#: Name to harness.
LOCK_STORES = {
    "memory": Memory,
    "memory-real-time": MemoryRealTime,
    "sqlite": SQLite,
    "sqlite-manual-time": SQLiteManualTime,
    "redis": Redis,
    "redis-cluster": RedisCluster,
    "postgres": Postgres,
    "postgres-pool": PostgresPool,
    "postgres-engine": PostgresEngine,
}

if "redis" in redis_binaries():
    LOCK_STORES["redis-of-the-system"] = SystemRedis

#: Further clients of the same servers, for what depends on the client.
MORE_CLIENTS = {
    "redis-by-url": RedisByUrl,
    "redis-decoded": RedisDecoded,
    "redis-decoded-resp3": RedisDecodedNew,
    "redis-cluster-by-url": RedisClusterByUrl,
    "valkey-py": ValkeyClient,
    "postgres-16": PostgresOld,
}

if "system" in postgres_versions():
    MORE_CLIENTS["postgres-of-the-system"] = PostgresOfTheSystem

#: Stores whose server a test may restart.
DURABLE = {
    "sqlite": SQLite,
    "redis": RedisDurable,
    "redis-killed": RedisForgetful,
    "postgres": PostgresDurable,
    "postgres-terminated": PostgresTerminated,
}
