from __future__ import annotations

import gc
import os
import socket
import threading

import psycopg
import pytest
from psycopg_pool import ConnectionPool, NullConnectionPool

from pyresil.clock import SYSTEM
from pyresil.errors import ConfigurationError, StoreError, StoreUnavailableError
from pyresil.stores import _postgres
from pyresil.stores.backend import connect
from pyresil.stores.base import Granted, Held
from pyresil.stores.postgres import PostgresLockStore
from pyresil.testing import instant
from tests.locks.faults import Interrupt
from tests.stores.helpers import EmptiedMeanwhile, interrupted, used_by_threads_and_a_forked_child
from tests.support.processes import free_port, run_python, wait_until

pytestmark = pytest.mark.server


@pytest.fixture
def store(postgres_store):
    return postgres_store


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith("PostgreSQL store")
    return text


def test_nothing_is_opened_by_the_constructor():
    PostgresLockStore(f"postgresql://127.0.0.1:{free_port()}/x")


@pytest.mark.parametrize("bad", [None, 5, object(), b"postgresql://"])
def test_what_is_no_source_is_refused(bad):
    with pytest.raises(ConfigurationError, match="source must be a DSN"):
        PostgresLockStore(bad)


def test_a_dsn_that_does_not_parse_is_refused_without_its_password():
    with pytest.raises(ConfigurationError, match="does not parse") as error:
        PostgresLockStore("postgresql://u:secret@h:1/db?nonsense=secret")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("dsn", "says"),
    [
        (
            "postgresql://h:70000/db",
            "port must be a number from 1 to 65535, or one for each host, got '70000'",
        ),
        ("postgresql://h:0/db", "got '0'"),
        ("postgresql://h:5432,g:x/db", "got '5432,x'"),
        ("host=h port=-1", "got '-1'"),
        (f"host=h port={'9' * 5000}", "port must be"),
        ("postgresql://h/db?sslmode=of", "sslmode must be one of disable, .*verify-full, got 'of'"),
        ("host=h port=x sslmode=''", "got 'x'; sslmode must be one of .*, got ''"),
    ],
)
def test_a_bad_port_or_sslmode_is_refused(dsn, says):
    with pytest.raises(ConfigurationError, match=f"PostgreSQL store: .*{says}"):
        PostgresLockStore(dsn)


@pytest.mark.parametrize(
    ("name", "bad"),
    [("PGPORT", "70000"), ("PGPORT", "x"), ("PGSSLMODE", "of"), ("PGTARGETSESSIONATTRS", "x")],
)
def test_a_bad_setting_of_the_environment_is_told_at_once(monkeypatch, name, bad):
    monkeypatch.setenv(name, bad)
    began = SYSTEM.monotonic()
    with pytest.raises(ConfigurationError, match=f"PostgreSQL store 127.0.0.1/: .*{bad}"):
        PostgresLockStore("host=127.0.0.1").inspect("k", timeout=30)
    assert SYSTEM.monotonic() - began < 10


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:top/secret@h:5432/db",
        "postgresql://u:12/secret@h/db",
        "postgresql://u:top@secret@h/db",
        "postgres://u:top/secret@h",
    ],
)
def test_no_part_of_a_password_that_should_be_quoted_is_shown(url):
    with pytest.raises(ConfigurationError, match="write / and @ in a password as %2F and %40") as error:
        PostgresLockStore(url)
    assert "secret" not in str(error.value)
    assert "top" not in str(error.value)
    assert "secret" not in repr(connect(url))


@pytest.mark.parametrize("bad", ["", "a b", "a;drop", "a.b.c", 'a"b', "Big", None, "x" * 64, "{table}"])
def test_a_bad_table_is_refused(bad):
    with pytest.raises(ConfigurationError, match="table must be"):
        PostgresLockStore("postgresql://h/db", table=bad)


@pytest.mark.parametrize("bad", ["a{b", None])
def test_a_bad_prefix_is_refused(bad):
    with pytest.raises(ConfigurationError, match="prefix"):
        PostgresLockStore("postgresql://h/db", prefix=bad)


def test_a_missing_table_is_told(postgres_url):
    store = PostgresLockStore(postgres_url)
    with pytest.raises(StoreError, match=r"call create_tables\(\) once") as error:
        store.acquire("k", "a", 1_000)
    assert not isinstance(error.value, StoreUnavailableError)
    one_line(error)
    store.create_tables()
    store.create_tables()
    assert isinstance(store.acquire("k", "a", 1_000), Granted)
    store.close()


def test_the_table_can_be_made_by_a_migration_and_be_in_a_schema(postgres_url, raw):
    store = PostgresLockStore(postgres_url, table="app.locks")
    raw("CREATE SCHEMA app")
    raw(store.table_sql())
    assert isinstance(store.acquire("k", "a", 1_000), Granted)
    assert raw("SELECT count(*) FROM app.locks") == [(1,)]
    store.close()


def test_many_make_the_tables_at_once(postgres_url):
    errors = []
    barrier = threading.Barrier(8)

    def work():
        store = PostgresLockStore(postgres_url)
        barrier.wait(10)
        try:
            store.create_tables()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors == []


def test_a_backend_makes_its_tables(postgres_url):
    with connect(postgres_url, prefix="svc:") as backend:
        backend.create_tables()
        backend.create_tables()
        assert isinstance(backend.locks.acquire("k", "a", 1_000), Granted)
        assert postgres_url.partition("@")[2] in backend.url


def test_expiry_goes_on_while_a_statement_waits_for_the_row(store, postgres_url):
    """now() and EXCLUDED stand still in that time, and would shorten the lease that is then written."""
    store.acquire("k", "a", 60_000)
    with psycopg.connect(postgres_url) as blocker:
        blocker.execute("SELECT * FROM pyresil_locks FOR UPDATE")
        answers = []
        thread = SYSTEM.spawn(lambda: answers.append(store.renew("k", "a", 30_000, timeout=20)), "renew")
        thread.join(1.5)
        assert thread.is_alive()
        let_go = SYSTEM.monotonic()
    thread.join(20)
    assert answers == [True]
    remaining = store.inspect("k").remaining_ms
    since = (SYSTEM.monotonic() - let_go) * 1000
    assert remaining > 30_000 - since - 500, "the 1.5 s before do not count"


def test_a_lock_that_expires_while_a_statement_waits_for_the_row_is_free(store, postgres_url):
    first = store.acquire("k", "a", 600).token
    with psycopg.connect(postgres_url) as blocker:
        blocker.execute("SELECT * FROM pyresil_locks FOR UPDATE")
        answers = []
        thread = SYSTEM.spawn(lambda: answers.append(store.renew("k", "a", 3_000, timeout=20)), "renew")
        thread.join(1.0)
    thread.join(20)
    assert answers == [False], "it expired before the renewal could be written"
    assert store.acquire("k", "b", 60_000).token > first


def test_a_waiter_writes_nothing(store, raw):
    store.acquire("k", "a", 60_000)
    store.acquire("k", "b", 60_000)
    before = raw("SELECT xmin, ctid, * FROM pyresil_locks")
    (transactions,) = raw("SELECT pg_current_xact_id()::text::bigint")
    for number in range(20):
        assert isinstance(store.acquire("k", f"b{number}", 1_000), Held)
    assert raw("SELECT xmin, ctid, * FROM pyresil_locks") == before
    (after,) = raw("SELECT pg_current_xact_id()::text::bigint")
    assert after[0] - transactions[0] <= 2, "a refused try took a transaction id"


def test_nothing_is_prepared_and_every_call_may_land_on_another_connection(store, postgres_url):
    """As behind pgbouncer in transaction mode: no state of a session is used."""
    used = []
    with ConnectionPool(postgres_url, min_size=4, max_size=4, open=True) as pool:
        pool.wait(10)
        pooled = PostgresLockStore(pool)
        token = pooled.acquire("k", "a", 60_000).token
        for _ in range(12):
            assert pooled.renew("k", "a", 60_000) is True
            assert pooled.acquire("k", "b", 60_000).token == token
        assert pooled.release("k", "a") is True
        with pool.connection() as one, pool.connection() as two, pool.connection() as three:
            for connection in (one, two, three):
                used.append(connection.info.backend_pid)
                assert connection.autocommit is False, "the application's setting is back"
                assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
                assert "wait" not in vars(connection)
    assert len(set(used)) == 3


def test_an_exhausted_pool_is_unknown_within_the_timeout(store, postgres_url):
    with ConnectionPool(postgres_url, min_size=1, max_size=1, open=True) as pool:
        pooled = PostgresLockStore(pool)
        with pool.connection():
            began = SYSTEM.monotonic()
            with pytest.raises(StoreUnavailableError):
                pooled.acquire("k", "a", 1_000, timeout=0.3)
            assert SYSTEM.monotonic() - began < 3
        assert isinstance(pooled.acquire("k", "a", 1_000), Granted)


def test_a_pool_that_looks_whether_its_server_is_there_keeps_no_call_beyond_its_time(store, postgres_url):
    """Looking takes as long as a server that hangs does."""
    over, looks = threading.Event(), []

    def look(connection):
        looks.append(connection)
        over.wait(10)

    with ConnectionPool(postgres_url, min_size=1, max_size=1, open=True, check=look) as pool:
        pooled = PostgresLockStore(pool)
        with pytest.raises(StoreUnavailableError, match="no connection in time"):
            pooled.inspect("k", timeout=0.2)
        wait_until(lambda: looks)
        assert not over.is_set()
        over.set()
        assert isinstance(pooled.acquire("k", "a", 60_000), Granted)
        wait_until(lambda: pool.get_stats()["pool_available"] == 1)


def test_calls_that_give_up_leave_the_application_one_of_its_pool(store, postgres_url):
    over = threading.Event()
    with ConnectionPool(
        postgres_url, min_size=6, max_size=6, open=True, check=lambda connection: over.wait(60)
    ) as pool:
        pool.wait()
        pooled = PostgresLockStore(pool)
        for _ in range(8):
            with pytest.raises(StoreUnavailableError, match="no connection in time"):
                pooled.inspect("k", timeout=0.1)
        wait_until(lambda: pool.get_stats()["pool_available"] == 1)
        assert not over.is_set()
        over.set()
        wait_until(lambda: pool.get_stats()["pool_available"] == 6)
        assert pooled.inspect("k") is None


@pytest.mark.parametrize("size", [2, 3])
def test_a_dead_connection_of_a_small_pool_keeps_nobody_from_the_others(store, postgres_url, size):
    over, dead = threading.Event(), []

    def look(connection):
        dead[:] = dead or [connection]
        if connection is dead[0]:
            over.wait(60)

    with ConnectionPool(postgres_url, min_size=size, max_size=size, open=True, check=look) as pool:
        pool.wait()
        pooled = PostgresLockStore(pool)
        with pytest.raises(StoreUnavailableError, match="no connection in time"):
            pooled.inspect("k", timeout=0.3)
        wait_until(lambda: dead)
        assert isinstance(pooled.acquire("k", "a", 60_000), Granted)
        assert not over.is_set()
        over.set()
        wait_until(lambda: pool.get_stats()["pool_available"] == size)


def test_calls_that_gave_up_on_a_pool_that_is_disposed_of_keep_nobody_from_the_next_one(store, postgres_url):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    hang, over = threading.Event(), threading.Event()

    def made():
        if hang.is_set():
            over.wait(60)
        return psycopg.connect(postgres_url)

    hang.set()
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=made, pool_size=1, max_overflow=0)
    lent = PostgresLockStore(engine)
    with pytest.raises(StoreUnavailableError, match="no connection in time"):
        lent.inspect("k", timeout=0.3)
    hang.clear()
    engine.dispose()
    assert lent.inspect("k") is None
    assert not over.is_set()
    over.set()
    engine.dispose()


def test_calls_that_give_up_leave_the_application_one_of_its_engine(store, postgres_url):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    over, begun = threading.Event(), []

    def made():
        begun.append(None)
        over.wait(60)
        return psycopg.connect(postgres_url)

    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=made, pool_size=4, max_overflow=2)
    lent = PostgresLockStore(engine)
    for _ in range(8):
        with pytest.raises(StoreUnavailableError, match="no connection in time"):
            lent.inspect("k", timeout=0.1)
    wait_until(lambda: len(begun) == 5)
    assert not over.is_set()
    over.set()
    wait_until(lambda: engine.pool.checkedout() == 0 and engine.pool.checkedin() > 1)
    assert lent.inspect("k") is None
    engine.dispose()


@pytest.mark.parametrize("pooling", ["NullPool", "StaticPool", "SingletonThreadPool"])
def test_an_engine_may_have_a_pool_without_a_limit(store, postgres_url, pooling):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    url = postgres_url.replace("postgresql:", "postgresql+psycopg:")
    engine = sqlalchemy.create_engine(url, poolclass=getattr(sqlalchemy.pool, pooling))
    assert isinstance(PostgresLockStore(engine).acquire("k", "a", 60_000), Granted)
    engine.dispose()


def test_a_pool_that_connects_for_every_use_keeps_no_call_beyond_its_time(store, postgres_url):
    """It connects under its lock: whoever gives a connection back waits for that as well."""
    connecting, over, hang, returned = threading.Event(), threading.Event(), threading.Event(), []

    class Hanging(psycopg.Connection):
        @classmethod
        def connect(cls, *args, **options):
            if hang.is_set():
                connecting.set()
                over.wait(20)
            return super().connect(*args, **options)

    class Pool(NullConnectionPool):
        def putconn(self, connection):
            super().putconn(connection)
            returned.append(connection)

    with Pool(postgres_url, connection_class=Hanging, max_size=4, open=True) as pool:
        pooled = PostgresLockStore(pool)
        assert pooled.inspect("k") is None
        wait_until(lambda: len(returned) == 1)
        with psycopg.connect(postgres_url) as blocker:
            blocker.execute("LOCK TABLE pyresil_locks")
            answers = []
            asking = threading.Thread(target=lambda: answers.append(pooled.inspect("k", timeout=30)))
            asking.start()
            with psycopg.connect(postgres_url, autocommit=True) as looking:
                waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                wait_until(lambda: looking.execute(waits).fetchone() == (1,))
            hang.set()
            with pytest.raises(StoreUnavailableError, match="no connection in time"):
                pooled.inspect("k", timeout=0.3)
            assert connecting.wait(10)
        asking.join(10)  # its answer is there, and its connection cannot go back yet
        assert answers == [None]
        assert len(returned) == 1
        assert not over.is_set()
        hang.clear()
        over.set()
        wait_until(lambda: len(returned) > 2)
        assert pooled.inspect("k") is None


def test_a_pool_to_which_closing_returns_gets_back_a_connection_without_an_answer(store, postgres_url):
    store.acquire("k", "a", 60_000)
    with ConnectionPool(postgres_url, close_returns=True, min_size=1, max_size=1, open=True) as pool:
        pooled = PostgresLockStore(pool)
        with psycopg.connect(postgres_url) as blocker:
            blocker.execute("SELECT * FROM pyresil_locks FOR UPDATE")
            with pytest.raises(StoreUnavailableError):
                pooled.renew("k", "a", 60_000, timeout=0.3)
        wait_until(lambda: pool.get_stats()["pool_available"] == 1)
        assert pooled.renew("k", "a", 60_000) is True
        connection = pool.getconn()
        assert connection.autocommit is False
        connection.close()  # it goes back
        wait_until(lambda: pool.get_stats()["pool_available"] == 1)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_another_isolation_level_of_the_database_still_has_one_winner(store, raw, postgres_url, level):
    database = postgres_url.rpartition("/")[2]
    raw(f"ALTER DATABASE {database} SET default_transaction_isolation = '{level}'")
    stores = [PostgresLockStore(postgres_url) for _ in range(6)]
    barrier = threading.Barrier(6)
    answers = [None] * 6

    def work(number):
        barrier.wait(10)
        answers[number] = stores[number].acquire("k", f"o{number}", 60_000)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sum(isinstance(answer, Granted) for answer in answers) == 1
    for made in stores:
        made.close()


def test_it_never_runs_inside_the_applications_transaction(store, postgres_url):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    lent = PostgresLockStore(engine)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("SELECT 1"))
        assert isinstance(lent.acquire("k", "a", 60_000), Granted)
        connection.rollback()
    assert store.inspect("k").owner == "a"
    with engine.connect() as connection:
        assert connection.connection.driver_connection.autocommit is False
    engine.dispose()
    lent.close()


def test_an_exhausted_pool_of_an_engine_keeps_no_call_beyond_its_time(store, postgres_url):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    url = postgres_url.replace("postgresql:", "postgresql+psycopg:")
    engine = sqlalchemy.create_engine(url, pool_size=1, max_overflow=0, pool_timeout=10)
    lent = PostgresLockStore(engine)
    with engine.connect(), pytest.raises(StoreUnavailableError, match="no connection in time"):
        lent.inspect("k", timeout=0.1)
    assert lent.inspect("k") is None
    wait_until(lambda: engine.pool.checkedin() == 1)
    assert lent.inspect("k") is None
    engine.dispose()


def test_an_engine_that_looks_whether_its_server_is_there_keeps_no_call_beyond_its_time(store, postgres_url):
    """Looking takes as long as a server that hangs does."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    url = postgres_url.replace("postgresql:", "postgresql+psycopg:")
    engine = sqlalchemy.create_engine(url, pool_size=1, max_overflow=0, pool_pre_ping=True)
    lent = PostgresLockStore(engine)
    lent.inspect("k")
    over, ping = threading.Event(), engine.dialect.do_ping

    def hanging(connection):
        over.wait(10)
        return ping(connection)

    engine.dialect.do_ping = hanging
    with pytest.raises(StoreUnavailableError, match="no connection in time"):
        lent.inspect("k", timeout=0.2)
    assert not over.is_set()
    over.set()
    wait_until(lambda: engine.pool.checkedin() == 1)
    assert lent.inspect("k") is None
    engine.dispose()


def test_an_engine_that_lost_its_connection_keeps_no_call_beyond_its_time(store, raw, postgres_url):
    """Its pool counts what it gave up as idle, and connects anew when that is borrowed."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    over, connections = threading.Event(), []

    def made():
        if connections:
            over.wait(10)
        connections.append(psycopg.connect(postgres_url))
        return connections[-1]

    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=made, pool_size=1, max_overflow=0)
    lent = PostgresLockStore(engine)
    lent.inspect("k")
    raw(f"SELECT pg_terminate_backend({connections[0].info.backend_pid})")
    with pytest.raises(StoreUnavailableError, match="no connection in time"):
        lent.inspect("k", timeout=0.4)
    assert not over.is_set()
    over.set()
    wait_until(lambda: len(connections) == 2 and engine.pool.checkedin() == 1)
    assert lent.inspect("k") is None
    engine.dispose()


def test_another_driver_of_an_engine_is_refused():
    class Engine:
        raw_connection = None

        class dialect:
            driver = "pg8000"

    with pytest.raises(ConfigurationError, match="driver must be psycopg or psycopg2, got 'pg8000'"):
        PostgresLockStore(Engine())


def test_an_unreachable_server_is_unknown_within_the_timeout():
    store = PostgresLockStore(f"postgresql://u:secret@127.0.0.1:{free_port()}/x")
    for call in (
        lambda: store.acquire("k", "a", 1_000, timeout=0.3),
        lambda: store.renew("k", "a", 1_000, timeout=0.3),
        lambda: store.scan(timeout=0.3),
    ):
        began = SYSTEM.monotonic()
        with pytest.raises(StoreUnavailableError, match="cannot be reached") as error:
            call()
        assert SYSTEM.monotonic() - began < 4
        assert "secret" not in one_line(error)
    store.close()


def test_an_error_dies_without_the_garbage_collector():
    # Also those of the tries before the last one; which of them was refused and which came too late is the machine's matter.
    kinds = StoreUnavailableError, psycopg.OperationalError, TimeoutError

    def alive():
        # Not `isinstance`, which asks objects of other tests, some of which answer nothing.
        return [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]

    store = PostgresLockStore(f"postgresql://127.0.0.1:{free_port()}/x")
    before = alive()
    gc.disable()
    try:
        with pytest.raises(StoreUnavailableError):
            store.inspect("k", timeout=1)
        wait_until(lambda: all(error in before for error in alive()), 10, "the end of all errors")
    finally:
        gc.enable()


def test_hosts_that_never_answer_are_unknown_within_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = ",".join([f"127.0.0.1:{silent.getsockname()[1]}"] * 3)
        store = PostgresLockStore(f"postgresql://u@{hosts}/x")
        began = SYSTEM.monotonic()
        with pytest.raises(StoreUnavailableError, match="no connection in time"):
            store.inspect("k", timeout=0.3)
        assert SYSTEM.monotonic() - began < 1.8
        store.close()


def test_a_connection_that_comes_too_late_is_kept_for_the_next_call(store, monkeypatch):
    store.close()
    database = store._database
    connect, opened = database._connect, []

    def slow(deadline):
        SYSTEM.sleep(0.4)
        opened.append(connect(deadline))
        return opened[-1]

    monkeypatch.setattr(database, "_connect", slow)
    with pytest.raises(StoreUnavailableError, match="no connection in time"):
        store.inspect("k", timeout=0.1)
    wait_until(lambda: database._idle)
    assert store.inspect("k", timeout=20) is None
    assert len(opened) == 1


def test_a_connection_is_waited_for_where_waits_are_left_out(store, monkeypatch):
    store.close()
    connect, opened = _postgres.Database._connect, []

    def counted(database, deadline):
        opened.append(None)
        return connect(database, deadline)

    monkeypatch.setattr(_postgres.Database, "_connect", counted)
    with instant():
        assert isinstance(store.acquire("k", "a", 60_000), Granted)
    assert len(opened) == 1


def test_a_hung_server_is_unknown_within_the_timeout(new_postgres):
    server = new_postgres()
    stores = [PostgresLockStore(server.url)]
    pool = ConnectionPool(server.url, min_size=1, max_size=2, open=True)
    stores.append(PostgresLockStore(pool))
    stores[0].create_tables()
    for number, store in enumerate(stores):
        store.acquire(f"k{number}", "a", 60_000)
    ((backend,),) = server.execute(
        "SELECT array_agg(pid) FROM pg_stat_activity WHERE datname = 'postgres' AND pid <> pg_backend_pid()"
    )
    import signal

    server.pause()
    for pid in backend:
        os.kill(pid, signal.SIGSTOP)
    try:
        for number, store in enumerate(stores):
            began = SYSTEM.monotonic()
            with pytest.raises(StoreUnavailableError, match="cannot be reached"):
                store.renew(f"k{number}", "a", 60_000, timeout=0.5)
            assert 0.4 < SYSTEM.monotonic() - began < 6
    finally:
        for pid in backend:
            os.kill(pid, signal.SIGCONT)
        server.resume()
    for number, store in enumerate(stores):
        assert store.renew(f"k{number}", "a", 60_000, timeout=10) is True
    pool.close()


def test_wrong_users_and_databases_are_told(postgres):
    for url in (postgres.url_of("nowhere"), postgres.url.replace("postgres@", "nobody-known@")):
        began = SYSTEM.monotonic()
        with pytest.raises(StoreError, match="check user, password, database") as error:
            PostgresLockStore(url).acquire("k", "a", 1_000)
        assert not isinstance(error.value, StoreUnavailableError)
        assert SYSTEM.monotonic() - began < 3
        one_line(error)


def test_missing_rights_are_told(store, raw, postgres_url):
    role = f"r_{postgres_url.rpartition('/')[2]}"
    raw(f"CREATE ROLE {role} LOGIN")
    limited = PostgresLockStore(postgres_url.replace("postgres@", f"{role}@"))
    with pytest.raises(StoreError, match="the user's rights") as error:
        limited.acquire("k", "a", 1_000)
    one_line(error)
    with pytest.raises(StoreError, match="the user's rights"):
        PostgresLockStore(postgres_url.replace("postgres@", f"{role}@"), table="other").create_tables()
    limited.close()
    raw(f"DROP ROLE {role}")


def test_a_read_only_server_is_told_and_never_a_held_lock(store, raw, postgres_url):
    database = postgres_url.rpartition("/")[2]
    raw(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    replica = PostgresLockStore(postgres_url)
    store.acquire("k", "a", 60_000)
    for call in (
        lambda: replica.acquire("k", "b", 1_000),
        lambda: replica.renew("k", "a", 1_000),
        lambda: replica.release("k", "a"),
    ):
        with pytest.raises(StoreError, match="is read-only: connect to the primary") as error:
            call()
        one_line(error)
    replica.close()


def test_another_programs_table_is_told(postgres_url, raw):
    raw("CREATE TABLE pyresil_locks (id int)")
    store = PostgresLockStore(postgres_url)
    with pytest.raises(StoreError, match="another program's or another version's") as error:
        store.acquire("k", "a", 1_000)
    one_line(error)
    store.close()


def test_tokens_grow_though_the_table_was_lost(store, raw):
    token = store.acquire("k", "a", 60_000).token
    raw("TRUNCATE pyresil_locks")
    assert store.renew("k", "a", 60_000) is False
    assert store.acquire("k", "b", 60_000).token > token


def test_rows_are_pruned_seven_days_after_their_last_use(store, raw):
    for key in ("old", "young", "held"):
        store.acquire(key, "a", 60_000)
        if key != "held":
            store.release(key, "a")
    raw("UPDATE pyresil_locks SET used_at = used_at - interval '8 days' WHERE key <> 'pyresil:young'")
    assert store.prune() == 1
    assert raw("SELECT key FROM pyresil_locks ORDER BY key") == [("pyresil:held",), ("pyresil:young",)]
    raw("UPDATE pyresil_locks SET used_at = used_at - interval '8 days', expires_at = now() WHERE key <> 'x'")
    store._until_prune = 0
    store.acquire("new", "a", 60_000)
    assert raw("SELECT key FROM pyresil_locks") == [("pyresil:new",)]


def test_connections_are_few_and_not_shared_with_a_forked_child(store):
    used_by_threads_and_a_forked_child(store, lambda: store._database._idle)


def test_an_interrupted_call_leaves_no_connection_out_of_step(store, postgres_url):
    done = run_python(
        """
        import sys
        from pyresil.stores.postgres import PostgresLockStore
        from tests.support.storm import cut_short

        print(cut_short(PostgresLockStore(sys.argv[1]), turns=200, calls=10, first=2e-4, step=1e-4))
        """,
        postgres_url,
    )
    assert int(done.stdout.splitlines()[-1]) > 30


def test_what_a_signal_handler_raises_comes_out(store, postgres_url):
    store.acquire("k", "a", 60_000)
    with psycopg.connect(postgres_url) as blocker:
        blocker.execute("SELECT * FROM pyresil_locks FOR UPDATE")
        began = SYSTEM.monotonic()
        with interrupted():
            store.renew("k", "a", 60_000, timeout=10)
        assert SYSTEM.monotonic() - began < 4
    assert store.renew("k", "a", 60_000) is True


@pytest.mark.parametrize("kind", [Interrupt, ValueError])
def test_a_call_that_is_cut_short_inside_the_driver_leaves_the_applications_pool_in_order(
    store, postgres_url, monkeypatch, kind
):
    store.acquire("k", "a", 60_000)
    converse = _postgres._converse

    def cut_short(connection, generator, deadline):
        def begun():
            yield next(generator)  # the statement is sent
            raise kind

        return converse(connection, begun(), deadline)

    with ConnectionPool(postgres_url, min_size=1, max_size=1, open=True) as pool:
        pooled = PostgresLockStore(pool)
        with monkeypatch.context() as patched:
            patched.setattr(_postgres, "_converse", cut_short)
            with pytest.raises(kind):
                pooled.inspect("k")
        assert pooled.inspect("k").owner == "a"
        with pool.connection() as connection:
            assert connection.autocommit is False


def test_a_call_that_is_cut_short_while_it_sets_autocommit_sets_it_back(store, postgres_url):
    left = [True]

    class Cut(psycopg.Connection):
        def set_autocommit(self, value):
            super().set_autocommit(value)
            if left and left.pop() is value:
                raise Interrupt

    with ConnectionPool(postgres_url, connection_class=Cut, min_size=1, max_size=1, open=True) as pool:
        pooled = PostgresLockStore(pool)
        with pytest.raises(Interrupt):
            pooled.inspect("k")
        with pool.connection() as connection:
            assert connection.autocommit is False
        assert pooled.inspect("k") is None


def test_idle_connections_that_another_thread_took_meanwhile(store):
    store._database._idle = EmptiedMeanwhile()
    store.close()
    store._database._idle = []


def test_a_key_in_a_database_of_another_encoding_is_an_error(postgres, raw):
    name = "latin_" + postgres.create_database()
    postgres.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    store = PostgresLockStore(postgres.url_of(name))
    store.create_tables()
    assert isinstance(store.acquire("caf\u00e9", "a", 1_000), Granted)
    with pytest.raises(StoreError) as error:
        store.acquire("\u4e2d", "a", 1_000)
    one_line(error)
    store.close()
    postgres.drop_database(name)


def test_a_server_that_comes_back_in_time_is_used(new_postgres):
    server = new_postgres()
    store = PostgresLockStore(server.url)
    store.create_tables()
    token = store.acquire("k", "a", 60_000).token
    server.stop()
    answers = []
    thread = SYSTEM.spawn(lambda: answers.append(store.acquire("k", "a", 60_000, timeout=20)), "caller")
    thread.join(0.3)
    assert thread.is_alive()
    server.start()
    thread.join(20)
    assert answers == [Granted(token)]
    store.close()


def test_a_reply_that_is_lost_is_asked_again(store, postgres, new_proxy, postgres_url):
    proxy = new_proxy(postgres)
    far = PostgresLockStore(postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/"))
    token = far.acquire("k", "a", 60_000).token
    proxy.drop_replies(1)
    assert far.acquire("k", "a", 60_000).token == token
    proxy.drop_replies(1)
    assert far.renew("k", "a", 10_000) is True
    proxy.drop_replies(1)
    far.release("k", "a")
    assert store.inspect("k") is None
    assert proxy.replies_dropped == 3
    wait_until(lambda: isinstance(store.acquire("k", "b", 1_000), Granted))
    far.close()


def test_gevent_greenlets_go_on_while_one_waits(store, postgres_url):
    done = run_python(
        """
        from gevent import monkey; monkey.patch_all()
        import gevent, psycopg, sys
        from pyresil.stores.postgres import PostgresLockStore
        store = PostgresLockStore(sys.argv[1])
        store.acquire("k", "a", 60_000)
        blocker = psycopg.connect(sys.argv[1])
        blocker.execute("SELECT * FROM pyresil_locks FOR UPDATE")
        ticks = 0

        def tick():
            global ticks
            while True:
                ticks += 1
                gevent.sleep(0.01)

        gevent.spawn(tick)
        waiting = gevent.spawn(store.renew, "k", "a", 60_000, timeout=20)
        gevent.sleep(0.1)
        before = ticks
        while ticks < before + 10:
            gevent.sleep(0.01)
        assert not waiting.ready()
        blocker.commit()
        assert waiting.get(timeout=15) is True
        blocker.close()
        print("went on")
        """,
        postgres_url,
    )
    assert done.stdout == "went on\n"
