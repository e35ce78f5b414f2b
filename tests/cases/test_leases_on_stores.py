"""Cases about leases that a store alone has to get right, over the matrix of stores."""

from __future__ import annotations

import json
import os
import sqlite3

import pytest
import redis

from pyresil.clock import SYSTEM
from pyresil.errors import ConfigurationError, StoreError, StoreUnavailableError
from pyresil.locks import Locks
from pyresil.stores.base import Granted, Held
from pyresil.stores.redis import RedisLockStore
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


def redis_name(prefix, key):
    return f"{prefix}{{lock:{key}}}"


@pytest.mark.server
@pytest.mark.parametrize("kind", ["reset", "silent"])
def test_L5_the_first_reply_of_acquire_is_lost_on_redis(valkey, new_proxy, prefix, kind):
    proxy = new_proxy(valkey)
    client = redis.Redis(port=valkey.port)
    store = RedisLockStore(redis.Redis(port=proxy.port), prefix=prefix)
    before = store.acquire("k", "warm-up", 60_000).token
    store.release("k", "warm-up")
    proxy.drop_replies(1, b"EVALSHA", cut=kind == "reset")
    answer = store.acquire("k", "a", 60_000, timeout=2)
    assert proxy.replies_dropped == 1
    assert isinstance(answer, Granted)
    assert answer.token > before
    assert int(client.get(redis_name(prefix, "k") + ":token")) == answer.token, "the counter moved once"
    assert int(client.hget(redis_name(prefix, "k"), "token")) == answer.token
    assert 0 < client.pttl(redis_name(prefix, "k")) <= 60_000
    client.close()


@pytest.mark.server
def test_L5_a_short_call_is_one_try_and_its_own_retry_is_the_same_acquisition(valkey, new_proxy, prefix):
    proxy = new_proxy(valkey)
    with RedisLockStore(redis.Redis(port=proxy.port), prefix=prefix) as store:
        store.acquire("warm-up", "a", 1_000)  # the server knows the script: the reply is not that it does not
        proxy.drop_replies(1, b"EVALSHA", cut=False)
        with pytest.raises(StoreUnavailableError):
            store.acquire("k", "a", 60_000, timeout=0.5)
        token = store.inspect("k").token
        assert store.acquire("k", "a", 60_000).token == token


@pytest.mark.server
@pytest.mark.parametrize("cut", [True, False], ids=["reset", "silent"])
def test_L5_the_first_reply_of_release_is_lost_on_redis(valkey, new_proxy, prefix, cut):
    proxy = new_proxy(valkey)
    client = redis.Redis(port=valkey.port)
    store = RedisLockStore(redis.Redis(port=proxy.port), prefix=prefix)
    store.acquire("k", "a", 60_000)
    store.release("k", "nobody")
    proxy.drop_replies(1, b"EVALSHA", cut=cut)
    store.release("k", "a", timeout=2)
    assert proxy.replies_dropped == 1
    assert not client.exists(redis_name(prefix, "k"))
    client.close()


@pytest.mark.server
@pytest.mark.parametrize("cut", [True, False], ids=["reset", "silent"])
def test_L5_the_first_reply_of_renew_is_lost_on_redis(valkey, new_proxy, prefix, cut):
    proxy = new_proxy(valkey)
    client = redis.Redis(port=valkey.port)
    store = RedisLockStore(redis.Redis(port=proxy.port), prefix=prefix)
    store.acquire("k", "a", 20_000)
    store.renew("k", "a", 20_000)
    proxy.drop_replies(1, b"EVALSHA", cut=cut)
    assert store.renew("k", "a", 10_000, timeout=2) is True
    assert proxy.replies_dropped == 1
    assert 0 < client.pttl(redis_name(prefix, "k")) <= 10_000
    client.close()


@pytest.mark.server
def test_L8_script_flush_between_the_calls(valkey, prefix):
    store = RedisLockStore(valkey.url, prefix=prefix)
    store.acquire("k", "warm-up", 60_000)
    store.force_release("k")
    for call in (
        lambda: isinstance(store.acquire("k", "a", 60_000), Granted),
        lambda: store.renew("k", "a", 60_000),
        lambda: store.inspect("k").owner == "a",
        lambda: not store.wait_for_release("k", timeout=0.01),
        lambda: store.release("k", "a"),
    ):
        assert valkey.send("SCRIPT", "FLUSH").startswith(b"+OK")
        assert call()


@pytest.mark.server
@pytest.mark.parametrize("by", ["client", "url"])
def test_L9_keys_on_a_cluster(valkey_cluster, prefix, by):
    keys = [
        "k",
        "a{b}c",
        "x}y",
        "}",
        "}x",
        "\u4e2d" * 500,
        "\U0001f512" * 500,
        "\u0633\u0644\u0627\u0645" * 125,
    ]
    client = redis.RedisCluster(port=valkey_cluster.port, host="127.0.0.1")
    store = RedisLockStore(client if by == "client" else valkey_cluster.url, prefix=prefix)
    tokens = {}
    for number, key in enumerate(keys):
        tokens[key] = store.acquire(key, f"o{number}", 60_000).token
    for number, key in enumerate(keys):
        refused = store.acquire(key, "another", 60_000)
        assert isinstance(refused, Held)
        assert refused.token == tokens[key]
        assert store.renew(key, f"o{number}", 60_000) is True
        assert store.renew(key, "another", 60_000) is False
    assert [info.key for info in store.scan()] == sorted(keys)
    for number, key in enumerate(keys):
        assert store.release(key, f"o{number}") is True
    assert store.scan() == []
    client.close()


@pytest.mark.server
@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("protocol", [2, 3])
def test_L10_clients_with_and_without_decoding_and_both_protocols(valkey, prefix, decode, protocol):
    client = redis.Redis(port=valkey.port, decode_responses=decode, protocol=protocol)
    plain = RedisLockStore(redis.Redis(port=valkey.port), prefix=prefix)
    store = RedisLockStore(client, prefix=prefix)
    answer = store.acquire("k", "a", 60_000, "host 1")
    assert isinstance(answer, Granted)
    assert plain.acquire("k", "a", 60_000, "host 1") == answer
    assert store.acquire("k", "b", 60_000)[1:] == (answer.token, "host 1")
    assert store.renew("k", "b", 60_000) is False
    assert store.renew("k", "a", 60_000) is True
    assert store.inspect("k")[:3] == plain.inspect("k")[:3] == ("k", "a", answer.token)
    assert store.scan()[0][:3] == ("k", "a", answer.token)
    assert store.release("k", "b") is False
    assert store.release("k", "a") is True
    client.close()


FOREIGN = {
    "string": (("SET", "theirs"), ("GET",)),
    "list": (("RPUSH", "theirs"), ("LRANGE", "0", "-1")),
    "hash": (("HSET", "field", "theirs"), ("HGETALL",)),
    "set": (("SADD", "theirs"), ("SMEMBERS",)),
}


@pytest.mark.server
@pytest.mark.parametrize("kind", FOREIGN)
def test_L18_a_key_written_by_a_foreign_program_on_redis(valkey, prefix, kind):
    write, read = FOREIGN[kind]
    client = redis.Redis(port=valkey.port, decode_responses=True)
    store = RedisLockStore(client, prefix=prefix)
    name = redis_name(prefix, "k")
    client.execute_command(write[0], name, *write[1:])
    before = client.execute_command(read[0], name, *read[1:])
    for call in (
        lambda: store.acquire("k", "a", 1_000),
        lambda: store.renew("k", "a", 1_000),
        lambda: store.release("k", "a"),
        lambda: store.force_release("k"),
        lambda: store.inspect("k"),
        store.scan,
    ):
        with pytest.raises(StoreError, match="written by another program"):
            call()
    assert client.execute_command(read[0], name, *read[1:]) == before
    assert client.ttl(name) == -1
    client.close()


@pytest.mark.server
@pytest.mark.parametrize(
    "value", ["a word", "-5", "1.5", "1e3", "", "0", "9007199254740991", "99999999999999999999"]
)
def test_L18_a_counter_written_by_a_foreign_program_on_redis(valkey, prefix, value):
    client = redis.Redis(port=valkey.port, decode_responses=True)
    store = RedisLockStore(client, prefix=prefix)
    counter = redis_name(prefix, "k") + ":token"
    client.set(counter, value)
    with pytest.raises(StoreError, match="written by another program"):
        store.acquire("k", "a", 1_000)
    assert client.get(counter) == value
    assert store.inspect("k") is None, "nothing was granted"
    client.close()


@pytest.mark.server
@pytest.mark.parametrize("token", ["a word", "-5", "1.5", "0", "99999999999999999999"])
def test_L18_a_token_written_by_a_foreign_program_on_redis(valkey, prefix, token):
    client = redis.Redis(port=valkey.port, decode_responses=True)
    store = RedisLockStore(client, prefix=prefix)
    store.acquire("k", "a", 60_000)
    client.hset(redis_name(prefix, "k"), "token", token)
    for call in (
        lambda: store.acquire("k", "a", 60_000),
        lambda: store.acquire("k", "b", 60_000),
        lambda: store.inspect("k"),
    ):
        with pytest.raises(StoreError, match="fencing token"):
            call()
    assert client.hget(redis_name(prefix, "k"), "token") == token
    client.close()


REAL_TIME = (
    "memory-real-time",
    "sqlite",
    "redis",
    "redis-cluster",
    "postgres",
    "postgres-pool",
    "postgres-engine",
)


@pytest.fixture(params=REAL_TIME)
def harness(request):
    made = LOCK_STORES[request.param](request)
    yield made
    made.close()


def test_L3_a_holder_that_was_overtaken_renews(harness):
    a, b = harness.store(), harness.store()
    first = a.acquire("k", "a", 100).token
    SYSTEM.sleep(0.15)
    second = b.acquire("k", "b", 20_000).token
    assert second > first
    assert a.renew("k", "a", 60_000) is False
    info = b.inspect("k")
    assert (info.owner, info.token) == ("b", second)
    assert info.remaining_ms <= 20_000


def test_L4_a_holder_that_overran_releases(harness):
    a, b = harness.store(), harness.store()
    a.acquire("k", "a", 100)
    SYSTEM.sleep(0.15)
    b.acquire("k", "b", 60_000)
    assert a.release("k", "a") is False
    assert b.inspect("k").owner == "b"
    assert isinstance(harness.store().acquire("k", "c", 60_000), Held)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_L7_a_fork_inside_a_held_lease(harness):
    store = harness.store()
    locks, contender = Locks(store, ttl="3s"), Locks(harness.store(), ttl="5s")
    lease = locks.acquire("k")
    pid = os.fork()
    if pid == 0:
        try:
            clean = not lease.held
            lease.release()
            with lease:
                pass
            store.close()
            clean = clean and not lease.held
        finally:
            os._exit(0 if clean else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert contender.acquire("k") is None
    SYSTEM.sleep(4.0)  # longer than the ttl
    assert lease.held, "the parent's renewals go on"
    assert contender.acquire("k") is None
    lease.release()
    assert contender.acquire("k").release()


def test_L11_a_waiter_is_judged_by_the_holders_ttl(harness):
    holder, waiter = harness.store(), harness.store()
    token = holder.acquire("k", "a", 20_000).token
    SYSTEM.sleep(1.2)
    refused = waiter.acquire("k", "b", 1_000)
    assert isinstance(refused, Held)
    assert refused.token == token
    assert 10_000 < refused.remaining_ms <= 20_000


def test_L12_a_minimum_hold_of_a_short_run(harness):
    store, contender = harness.store(), harness.store()
    store.acquire("k", "a", 60_000)
    began = SYSTEM.monotonic()
    assert store.release("k", "a", 3_000) is True
    assert isinstance(contender.acquire("k", "b", 60_000), Held)
    assert SYSTEM.monotonic() - began < 2.8, "release returns at once"
    SYSTEM.sleep(3.1)
    assert isinstance(contender.acquire("k", "b", 60_000), Granted)


def test_L20_a_hung_job_is_lost_by_its_maximum_hold(harness):
    locks = Locks(harness.store(), ttl="3s")
    lease = locks.acquire("k", max_hold="3.5s")
    assert lease.lost.wait(15)
    assert lease.cancel.reason.detected_by == "max-hold"
    assert not lease.held
    assert Locks(harness.store()).acquire("k", wait="15s").release()
