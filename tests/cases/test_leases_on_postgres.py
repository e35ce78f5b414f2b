"""Cases about leases that concern PostgreSQL."""

from __future__ import annotations

import threading

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from pyresil.clock import SYSTEM
from pyresil.errors import StoreError
from pyresil.stores.base import MAX_TOKEN
from pyresil.stores.postgres import PostgresLockStore

pytestmark = pytest.mark.server


@pytest.fixture
def store(postgres_store):
    return postgres_store


def backend_of(store):
    ((_, connection),) = store._database._idle
    return connection.info.backend_pid


@pytest.mark.parametrize("token", [0, -5, MAX_TOKEN, 2**60])
@pytest.mark.parametrize("expired", [False, True])
def test_L18_a_token_written_by_a_foreign_program_on_postgres(store, raw, token, expired):
    store.acquire("k", "a", 60_000)
    raw("UPDATE pyresil_locks SET token = %s", token)
    if expired:
        raw("UPDATE pyresil_locks SET expires_at = now() - interval '1 second'")
    if expired or token != MAX_TOKEN:
        with pytest.raises(StoreError, match="fencing token of lock 'k'"):
            store.acquire("k", "b", 1_000)
    if not expired and token != MAX_TOKEN:
        with pytest.raises(StoreError, match="fencing token of lock 'k'"):
            store.inspect("k")
    assert raw("SELECT token FROM pyresil_locks") == [(token,)]


def test_L19_our_backend_is_terminated_in_mid_hold(store, raw):
    token = store.acquire("k", "a", 60_000).token
    raw("SELECT pg_terminate_backend(%s)", backend_of(store))
    assert store.renew("k", "a", 60_000) is True
    assert store.acquire("k", "a", 60_000).token == token
    raw("SELECT pg_terminate_backend(%s)", backend_of(store))
    assert store.release("k", "a") is True


def test_L19_all_our_backends_are_terminated(store, raw):
    store.acquire("k", "a", 60_000)
    barrier = threading.Barrier(8)

    def work():
        barrier.wait(10)
        for _ in range(10):
            store.inspect("k")

    while len(store._database._idle) < 4:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    raw(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pyresil' AND datname = current_database()"
    )
    assert store.renew("k", "a", 60_000, timeout=20) is True
    assert len(store._database._idle) == 1, "the dead ones went together"


def test_L19_all_connections_of_a_pool_are_terminated(store, raw, postgres_url):
    with ConnectionPool(postgres_url, min_size=4, max_size=4, open=True) as pool:
        pool.wait(10)
        pooled = PostgresLockStore(pool)
        pooled.acquire("k", "a", 60_000)
        raw(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
        assert pooled.renew("k", "a", 60_000) is True


def test_L19_all_connections_of_an_engine_are_terminated(store, raw, postgres_url):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"), pool_size=3)
    lent = PostgresLockStore(engine)
    lent.acquire("k", "a", 60_000)
    with engine.connect(), engine.connect(), engine.connect():
        pass
    raw(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
    )
    assert lent.renew("k", "a", 60_000) is True
    engine.dispose()


def test_L19_a_statement_timeout_hits_a_renewal(store, raw, postgres_url):
    """The renewal is retried, and is ours still once the row can be had."""
    database = postgres_url.rpartition("/")[2]
    raw(f"ALTER DATABASE {database} SET statement_timeout = '200ms'")
    impatient = PostgresLockStore(postgres_url)
    impatient.acquire("k", "a", 60_000)
    answers = []
    with psycopg.connect(postgres_url, options="-c statement_timeout=0") as blocker:
        blocker.execute("SELECT * FROM pyresil_locks FOR UPDATE")
        thread = SYSTEM.spawn(lambda: answers.append(impatient.renew("k", "a", 60_000)), "renew")
        thread.join(0.7)
        assert thread.is_alive()
    thread.join(5)
    assert answers == [True]
    impatient.close()


@pytest.mark.parametrize("cut", [True, False], ids=["reset", "silent"])
@pytest.mark.parametrize("call", ["acquire", "release", "renew"])
def test_L5_the_first_reply_is_lost_on_postgres(store, postgres, new_proxy, postgres_url, call, cut):
    proxy = new_proxy(postgres)
    with PostgresLockStore(postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/")) as far:
        far.release("k", "nobody")
        if call == "acquire":
            proxy.drop_replies(1, cut=cut)
            token = far.acquire("k", "a", 60_000, timeout=6).token
            assert store.acquire("k", "b", 60_000).token == token
            assert store.inspect("k").remaining_ms <= 60_000
        else:
            far.acquire("k", "a", 20_000)
            proxy.drop_replies(1, cut=cut)
        if call == "release":
            far.release("k", "a", timeout=6)
            assert store.inspect("k") is None
        if call == "renew":
            assert far.renew("k", "a", 10_000, timeout=6) is True
            assert 0 < store.inspect("k").remaining_ms <= 10_000
        assert proxy.replies_dropped == 1
