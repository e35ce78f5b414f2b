from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import time

import pytest
import redis

from pyresil.clock import SYSTEM
from pyresil.errors import ConfigurationError, StoreError, StoreUnavailableError
from pyresil.stores.backend import connect
from pyresil.stores.base import MAX_TOKEN, Granted, Held
from pyresil.stores.redis import RedisLockStore, _server
from pyresil.stores.redis.locks import escape, unescape
from pyresil.testing import instant
from tests.stores.helpers import EmptiedMeanwhile, interrupted, used_by_threads_and_a_forked_child
from tests.support.processes import free_port, run_python, wait_until
from tests.support.threads import started_since

pytestmark = pytest.mark.server

LOCK = b"%s{lock:%s}"


@pytest.fixture
def client(valkey):
    with redis.Redis.from_url(valkey.url) as made:
        yield made


@pytest.fixture
def store(client, prefix):
    with RedisLockStore(client, prefix=prefix) as made:
        yield made


@pytest.fixture
def name(prefix):
    """The server's name of a lock."""
    return lambda key: f"{prefix}{{lock:{key}}}"


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith("Redis")
    return text


def elapsed_since(began):
    return SYSTEM.monotonic() - began


def test_nothing_is_opened_by_the_constructor():
    RedisLockStore(f"redis://127.0.0.1:{free_port()}/0")
    RedisLockStore(f"redis+cluster://127.0.0.1:{free_port()}")
    RedisLockStore(f"redis+sentinel://127.0.0.1:{free_port()}/service/0")


@pytest.mark.parametrize("bad", [None, 5, b"redis://x", object()])
def test_what_is_no_client_is_refused(bad):
    with pytest.raises(ConfigurationError, match=r"client must be a URL, or a redis\.Redis"):
        RedisLockStore(bad)


def test_an_asyncio_client_is_refused():
    import redis.asyncio

    with pytest.raises(ConfigurationError, match="asyncio"):
        RedisLockStore(redis.asyncio.Redis())


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://host:1",
        "redis+sentinel://host:1/service/x",
        "redis+sentinel://host:x/service",
        "redis+cluster://:7000",
        "redis+cluster://h:1/5",
        "redis+cluster://h:1?nonsense=1",
        "redis+cluster://h:1?ssl=maybe",
        "http://h",
        "redis://h:port/0",
        "redis://h/one",
        "redis://h/0/1",
        "redis://h/-1",
        "redis://h/0?nonsense=1",
        "rediss://h/0?ssl_cert_reqs=nonsense",
    ],
)
def test_a_bad_url_is_refused(url):
    with pytest.raises(ConfigurationError, match="Redis store: url must be one of"):
        RedisLockStore(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:top/secret@h:1/0",
        "redis://:top#secret@h:1/0",
        "rediss://:top?secret@h:1/0",
        "rediss://:top?secret=secret@h:1/0",
        "redis+sentinel://u:top/secret@h:1,g:2/service/0",
        "redis+cluster://u:top/secret@h:1",
    ],
)
def test_no_part_of_a_password_that_should_be_quoted_is_shown(url):
    with pytest.raises(ConfigurationError, match="Redis store: url must be one of") as error:
        RedisLockStore(url)
    assert "secret" not in str(error.value)
    assert "top" not in str(error.value)
    assert "secret" not in repr(connect(url))
    assert "top" not in repr(connect(url))


@pytest.mark.parametrize("url", ["redis://h:1/0?password=top@secret", "redis://u:top%2Fsecret@h:1/0"])
def test_a_password_may_be_an_option_or_quoted(url):
    assert "secret" not in repr(RedisLockStore(url)) + repr(connect(url))
    assert "top" not in repr(RedisLockStore(url)) + repr(connect(url))


def test_the_database_is_the_one_of_the_url(valkey, prefix):
    with (
        RedisLockStore(valkey.url, prefix=prefix) as zero,
        RedisLockStore(f"{valkey.url[:-2]}/3", prefix=prefix) as three,
    ):
        zero.acquire("k", "a", 1000)
        assert isinstance(three.acquire("k", "b", 1000), Granted)
        assert three.release("k", "b")
        assert zero.release("k", "a")


def test_another_kind_of_server_is_told(listener):
    with RedisLockStore(f"redis://127.0.0.1:{listener(b'HTTP/1.1 400 Bad Request')}/0") as store:
        with pytest.raises(StoreError, match="does not speak the protocol of Redis") as caught:
            store.acquire("k", "a", 1000, timeout=1)
        assert not isinstance(caught.value, StoreUnavailableError)


def test_sentinels_that_say_nothing_are_told_in_short(listener):
    url = f"redis+sentinel://:secret@127.0.0.1:{listener(b'')}/service"
    with RedisLockStore(url, timeout=0.5) as store, pytest.raises(StoreUnavailableError) as caught:
        store.acquire("k", "a", 1000)
    # Whichever comes first, the end of redis-py's search or of the time.
    assert re.search(
        r"\((No master found for 'service'|no (reply|sentinel answered) in time)\)", str(caught.value)
    )
    assert "<" not in str(caught.value)


@pytest.fixture
def listener():
    """``listener(answer)``: the port of a server that answers everything in the same way, or with nothing."""
    with contextlib.ExitStack() as stack:

        def start(answer):
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def serve():
                with contextlib.suppress(OSError), contextlib.ExitStack() as open_ones:
                    while True:
                        connection = open_ones.enter_context(server.accept()[0])
                        if answer:
                            connection.recv(65536)
                            connection.sendall(answer + b"\r\n\r\n")

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            stack.callback(thread.join, 5)
            stack.callback(server.shutdown, socket.SHUT_RDWR)
            return server.getsockname()[1]

        yield start


@pytest.mark.parametrize("bad", ["a{b", "}", None, "\n"])
def test_a_bad_prefix_is_refused(client, bad):
    with pytest.raises(ConfigurationError, match="prefix"):
        RedisLockStore(client, prefix=bad)


@pytest.mark.parametrize("key", ["k", "a{b}c", "}", "{}", "%", "%7B", "%257D", "{%7D", "\u00e9"])
def test_escaping_is_undone(key):
    assert b"{" not in escape(key)
    assert b"}" not in escape(key)
    assert unescape(escape(key)) == key


def test_what_the_server_sees(store, client, name):
    token = store.acquire("k", "owner-1", 60_000, "host 1").token
    row = client.hgetall(name("k"))
    assert row.pop(b"acquired")
    assert row == {b"owner": b"owner-1", b"token": str(token).encode(), b"meta": b"host 1"}
    assert 59_000 < client.pttl(name("k")) <= 60_000
    assert int(client.get(name("k") + ":token")) == token
    store.release("k", "owner-1")
    assert not client.exists(name("k"))


def test_the_counter_is_kept_seven_days_and_longer_than_the_lock(store, client, name):
    week = 7 * 86_400_000
    store.acquire("k", "a", 60_000)
    assert week < client.pttl(name("k") + ":token") <= week + 60_000
    store.renew("k", "a", 5 * week)
    assert client.pttl(name("k") + ":token") > 5.9 * week


def test_nothing_else_is_left_after_a_release(store, client, prefix):
    store.acquire("k", "a", 60_000)
    assert store.wait_for_release("k", timeout=0.01) is False
    store.release("k", "a")
    store.acquire("k", "b", 60_000)
    store.release("k", "b")
    left = sorted(client.keys(f"{prefix}*"))
    assert all(client.pttl(key) > 0 for key in left)
    client.pexpire(f"{prefix}{{lock:k}}:waiters", 1)
    client.pexpire(f"{prefix}{{lock:k}}:bell", 1)
    wait_until(lambda: len(client.keys(f"{prefix}*")) == 1)


def test_tokens_grow_though_the_server_lost_everything(store, client):
    token = store.acquire("k", "a", 60_000).token
    client.flushall()
    assert store.renew("k", "a", 60_000) is False
    assert store.acquire("k", "b", 60_000).token > token


def test_tokens_grow_with_a_counter_ahead_of_time(store, client, name):
    client.set(name("k") + ":token", MAX_TOKEN - 2)
    assert store.acquire("k", "a", 1_000) == Granted(MAX_TOKEN - 1)
    store.release("k", "a")
    assert store.acquire("k", "a", 1_000) == Granted(MAX_TOKEN)
    store.release("k", "a")
    with pytest.raises(StoreError, match="written by another program"):
        store.acquire("k", "a", 1_000)
    assert int(client.get(name("k") + ":token")) == MAX_TOKEN


def test_a_release_wakes_a_waiter_at_once(store):
    store.acquire("k", "a", 60_000)
    answers = []

    def wait():
        answers.append(store.wait_for_release("k", timeout=20))
        answers.append(SYSTEM.monotonic())

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(0.3)
    began = SYSTEM.monotonic()
    store.release("k", "a")
    thread.join(5)
    assert answers[0] is True
    assert answers[1] - began < 2


def test_each_release_lets_one_of_many_waiters_in(store):
    store.acquire("k", "first", 60_000)
    let_in = []

    def work(number):
        while isinstance(store.acquire("k", f"w{number}", 60_000), Held):
            store.wait_for_release("k", timeout=10)
        let_in.append(number)
        store.release("k", f"w{number}")

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    SYSTEM.sleep(0.2)
    began = SYSTEM.monotonic()
    store.release("k", "first")
    for thread in threads:
        thread.join(10)
    assert sorted(let_in) == list(range(8))
    assert elapsed_since(began) < 5


def test_a_waiter_wakes_when_the_lock_expires(store):
    store.acquire("k", "a", 200)
    began = SYSTEM.monotonic()
    assert store.wait_for_release("k", timeout=20) is True
    assert elapsed_since(began) < 5
    assert isinstance(store.acquire("k", "b", 1_000), Granted)


def test_no_request_of_a_waiter_outlasts_its_time_by_much(store, monkeypatch):
    """Who waits inside a policy looks every 100 ms whether its deadline passed: a server that hangs must not keep it."""
    limits = []
    run, command = store._link.run, store._link.command

    def spied_run(name, keys, args, timeout):
        limits.append(timeout)
        return run(name, keys, args, timeout)

    def spied_command(key, words, timeout):
        limits.append(timeout)
        return command(key, words, timeout)

    store.acquire("k", "a", 60_000)
    monkeypatch.setattr(store._link, "run", spied_run)
    monkeypatch.setattr(store._link, "command", spied_command)
    assert store.wait_for_release("k", timeout=0.1) is False
    assert len(limits) >= 2
    assert max(limits) <= 1.1


def test_an_unreachable_server_is_unknown_within_the_timeout():
    store = RedisLockStore(redis.Redis(port=free_port()))
    for call in (
        lambda: store.acquire("k", "a", 1_000, timeout=0.3),
        lambda: store.renew("k", "a", 1_000, timeout=0.3),
        lambda: store.release("k", "a", timeout=0.3),
        lambda: store.inspect("k", timeout=0.3),
        lambda: store.scan(timeout=0.3),
    ):
        began = SYSTEM.monotonic()
        with pytest.raises(StoreUnavailableError, match="cannot be reached") as error:
            call()
        assert elapsed_since(began) < 3
        one_line(error)
    store.close()


@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
def test_unreachable_nodes_are_unknown_within_the_timeout(kind):
    path = "/service/0" if kind == "sentinel" else ""
    store = RedisLockStore(f"redis+{kind}://127.0.0.1:{free_port()}{path}")
    began = SYSTEM.monotonic()
    with pytest.raises(StoreUnavailableError, match="cannot be reached") as error:
        store.acquire("k", "a", 1_000, timeout=0.3)
    assert elapsed_since(began) < 5
    one_line(error)
    store.close()


def test_a_hung_server_is_unknown_within_the_timeout(new_valkey):
    server = new_valkey()
    store = RedisLockStore(redis.Redis(port=server.port, socket_timeout=None))
    store.acquire("k", "a", 60_000)
    server.pause()
    began = SYSTEM.monotonic()
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        store.renew("k", "a", 60_000, timeout=0.5)
    assert 0.4 < elapsed_since(began) < 4
    server.resume()
    assert store.renew("k", "a", 60_000) is True
    store.close()


def test_a_name_that_is_not_found_out_keeps_no_call_beyond_its_time(store, client, monkeypatch):
    store.inspect("k")
    store.close()
    find_out, over, found = socket.getaddrinfo, threading.Event(), []

    def dead_resolver(*args, **options):
        over.wait(20)
        found.append(None)
        return find_out(*args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", dead_resolver)
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        store.inspect("k", timeout=0.3)
    assert not found
    over.set()
    wait_until(lambda: store._link._server._idle)
    monkeypatch.undo()
    assert store.inspect("k") is None


def test_callers_that_give_up_on_a_dead_resolver_leave_few_threads(store, monkeypatch):
    over, find_out = threading.Event(), socket.getaddrinfo

    def dead_resolver(*args, **options):
        over.wait(20)
        return find_out(*args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", dead_resolver)
    for _ in range(50):
        with pytest.raises(StoreUnavailableError, match="cannot be reached"):
            store.inspect("k", timeout=0.01)
    waiting = [thread for thread in threading.enumerate() if thread.name == "pyresil-redis"]
    over.set()
    assert len(waiting) <= 32
    wait_until(lambda: not any(thread.is_alive() for thread in waiting))
    assert store.inspect("k") is None


def test_a_server_that_cannot_be_reached_takes_no_connection_from_another_one(store, monkeypatch):
    over, find_out = threading.Event(), socket.getaddrinfo

    def half_dead_resolver(host, *args, **options):
        if host == "dead.invalid":
            over.wait(20)
            raise OSError("no such host")
        return find_out(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", half_dead_resolver)
    dead = RedisLockStore(redis.Redis(host="dead.invalid"))
    for _ in range(40):
        with pytest.raises(StoreUnavailableError, match="cannot be reached"):
            dead.inspect("k", timeout=0.01)
    waiting = [thread for thread in threading.enumerate() if thread.name == "pyresil-redis"]
    try:
        assert store.inspect("k", timeout=2.0) is None
    finally:
        over.set()
        wait_until(lambda: not any(thread.is_alive() for thread in waiting))


def test_half_a_reply_is_unknown_within_the_timeout():
    replies = [b"*0\r\n", b"*4\r\n$1\r\n"]

    def serve():
        connection = server.accept()[0]
        with connection:
            while sent := connection.recv(65536):
                connection.sendall(replies.pop(0) if b"EVALSHA" in sent else b"+OK\r\n" * sent.count(b"*"))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = SYSTEM.spawn(serve, "half a server")
        client = redis.Redis(port=server.getsockname()[1], protocol=2)
        with RedisLockStore(client, timeout=30) as store:
            assert store.inspect("k") is None
            began = SYSTEM.monotonic()
            with pytest.raises(StoreUnavailableError, match="cannot be reached"):
                store.inspect("k", timeout=0.5)
            assert 0.4 < elapsed_since(began) < 4
    thread.join(5)
    assert replies == []


def test_a_redirection_has_the_time_of_its_own_call():
    def serve():
        connection = server.accept()[0]
        with connection:
            while sent := connection.recv(65536):
                if b"ASKING" in sent:
                    time.sleep(2.5)
                connection.sendall(b"+OK\r\n" * sent.count(b"*"))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = SYSTEM.spawn(serve, "slow to redirect")
        with contextlib.closing(redis.Redis(port=server.getsockname()[1], protocol=2)) as client:
            pool = client.connection_pool
            node = _server.Server(pool.connection_class, pool.connection_kwargs, redis.exceptions)
            assert node.exchange((b"PING",), SYSTEM.monotonic() + 2, once=True) == b"OK"
            assert node.exchange((b"PING",), SYSTEM.monotonic() + 30, asking=True) == b"OK"
            node.close()
    thread.join(5)


@pytest.mark.parametrize("source", ["url", "client"])
def test_a_hung_cluster_is_unknown_within_the_timeout(new_cluster, source):
    cluster = new_cluster()
    url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
    client = redis.RedisCluster(host="127.0.0.1", port=cluster.port, socket_timeout=None)
    store = RedisLockStore(url if source == "url" else client)
    fresh = RedisLockStore(url, timeout=1)
    store.acquire("k", "a", 60_000)
    for node in cluster.nodes:
        node.pause()
    try:
        for _ in range(2):
            began = SYSTEM.monotonic()
            with pytest.raises(StoreUnavailableError, match="cannot be reached"):
                store.renew("k", "a", 60_000, timeout=0.5)
            assert 0.4 < elapsed_since(began) < 4
        began = SYSTEM.monotonic()
        with pytest.raises(StoreUnavailableError, match="cannot be reached"):
            fresh.inspect("k")
        assert elapsed_since(began) < 4.5
    finally:
        for node in cluster.nodes:
            node.resume()
    assert store.renew("k", "a", 60_000) is True
    wait_until(lambda: store._link._looking == -1)
    store.close()
    fresh.close()
    client.close()


def test_a_cluster_that_is_met_for_the_first_time_keeps_no_call_beyond_its_time(valkey_cluster):
    """Its client asks the nodes when it is made, and finds out their names without any limit."""
    store = RedisLockStore(valkey_cluster.url)
    make, over, made = store._link._make, threading.Event(), []

    def slow():
        over.wait(10)
        made.append(make())
        return made[-1]

    store._link._make = slow
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        store.inspect("k", timeout=0.2)
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        store.scan(timeout=0.2)
    assert not over.is_set()
    over.set()
    wait_until(lambda: len(made) == 2 and store._link._client is not None)
    assert store.inspect("k") is None
    assert len(made) == 2
    assert store._link._client in made
    store.close()


@pytest.mark.parametrize("source", ["url", "client"])
@pytest.mark.timeout(120)
def test_hung_sentinels_are_unknown_within_the_timeout(new_sentinel, source):
    group = new_sentinel()
    hosts = [("127.0.0.1", sentinel.port) for sentinel in group.sentinels]
    client = redis.Sentinel(hosts, sentinel_kwargs={"socket_timeout": None}).master_for(group.service)
    store = RedisLockStore(group.url if source == "url" else client)
    for sentinel in group.sentinels:
        sentinel.pause()
    try:
        before = set(threading.enumerate())
        for _ in range(3):
            began = SYSTEM.monotonic()
            with pytest.raises(StoreUnavailableError, match="cannot be reached"):
                store.acquire("k", "a", 60_000, timeout=0.5)
            assert elapsed_since(began) < 4
        # Not one for each call; those that made the client are about to end.
        wait_until(lambda: len(started_since(before)) <= 1, 3, "one thread that asks")
    finally:
        for sentinel in group.sentinels:
            sentinel.resume()
    assert isinstance(store.acquire("k", "a", 60_000, timeout=20), Granted)
    store.close()


@pytest.mark.timeout(120)
def test_a_master_that_sentinels_tell_by_name_keeps_no_call_beyond_its_time(new_sentinel, monkeypatch):
    """They do with `resolve-hostnames`: nothing limits how long it takes to find out what that means."""
    group = new_sentinel()
    find_out, over, found = socket.getaddrinfo, threading.Event(), []
    primary = group.primary.port

    def half_dead_resolver(host, port, *args, **options):
        if port == primary:
            over.wait(20)
            found.append(None)
        return find_out(host, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", half_dead_resolver)
    with RedisLockStore(group.url) as store:
        with pytest.raises(StoreUnavailableError, match="cannot be reached"):
            store.inspect("k", timeout=0.3)
        assert not found
        over.set()
        wait_until(lambda: store._link._server._idle)
        assert store.inspect("k") is None


def test_a_question_to_a_sentinel_that_is_never_answered_does_not_stand_in_the_way_for_ever(monkeypatch):
    """As where its host went down after it had acknowledged the question."""
    monkeypatch.setattr(_server, "_ALONE", 0.2)
    over, asked = threading.Event(), []

    class Pool:
        def get_master_address(self):
            asked.append(None)
            if len(asked) < 3:
                over.wait(30)
            return ("host", 1)

    sentinels = _server._Sentinels(Pool(), redis.exceptions)
    began = SYSTEM.monotonic()
    found = None
    while found is None and elapsed_since(began) < 10:
        with contextlib.suppress(redis.TimeoutError):
            found = sentinels.get_master_address(0.05)
    over.set()
    assert found == ("host", 1)
    took = elapsed_since(began)
    assert len(asked) >= 3
    assert took >= 0.2 * (2 ** (len(asked) - 1) - 1), "0.2 s, then 0.4 s, and so on"


def test_a_sentinel_is_waited_for_where_waits_are_left_out():
    class Pool:
        def get_master_address(self):
            time.sleep(0.1)
            return ("host", 1)

    with instant():
        assert _server._Sentinels(Pool(), redis.exceptions).get_master_address(20) == ("host", 1)


@pytest.mark.timeout(120)
def test_a_sentinel_that_refuses_is_told_at_once(new_sentinel):
    group = new_sentinel()
    for server in group.sentinels:
        server.send("ACL", "SETUSER", "nobody", "on", ">secret", "+ping", "+client", "+hello")
    hosts = [("127.0.0.1", server.port) for server in group.sentinels]
    login = {"username": "nobody", "password": "secret"}
    client = redis.Sentinel(hosts, sentinel_kwargs=login).master_for(group.service)
    with RedisLockStore(client) as store, pytest.raises(StoreError, match="refused the credentials"):
        store.acquire("k", "a", 60_000)


@pytest.mark.timeout(120)
def test_a_master_is_found_where_no_thread_can_be_started(new_sentinel, monkeypatch):
    def spawn(target, name):
        raise RuntimeError("can't start new thread")

    with RedisLockStore(new_sentinel().url) as store:
        monkeypatch.setattr(SYSTEM, "spawn", spawn)
        assert isinstance(store.acquire("k", "a", 60_000), Granted)


def test_a_server_that_comes_back_in_time_is_used(new_valkey):
    server = new_valkey(durable=True)
    store = RedisLockStore(server.url)
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


def fill_idle(store, connections):
    """As many idle connections as a store keeps."""
    barrier = threading.Barrier(8)

    def work(number):
        barrier.wait(10)
        for _ in range(20):
            store.inspect(f"k{number}")

    while len(connections()) < 4:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)


def test_connections_that_died_together_cost_one_try(new_valkey):
    server = new_valkey(durable=True)
    store = RedisLockStore(server.url)
    store.acquire("k", "a", 60_000)
    node, died = store._link._server, []
    exchange = node.exchange

    def counted(*args, **options):
        try:
            return exchange(*args, **options)
        except redis.ConnectionError as error:
            if type(error) is redis.ConnectionError:  # not that the server is loading
                died.append(error)
            raise

    node.exchange = counted
    fill_idle(store, lambda: node._idle)
    server.restart()
    assert store.renew("k", "a", 60_000, timeout=20) is True
    assert len(died) == 1, died
    assert len(node._idle) == 1
    fill_idle(store, lambda: node._idle)
    server.restart()
    assert store.inspect("k", timeout=20).owner == "a"
    assert len(died) == 2, died
    store.close()


def test_wrong_credentials_are_told_without_the_password(new_valkey):
    server = new_valkey()
    server.send("CONFIG", "SET", "requirepass", "right-one")
    url = f"redis://:wrong-one@127.0.0.1:{server.port}/0"
    began = SYSTEM.monotonic()
    for store in (
        RedisLockStore(url),
        RedisLockStore(f"redis://127.0.0.1:{server.port}/0"),
        connect(url).locks,
    ):
        with pytest.raises(StoreError, match="refused the credentials") as error:
            store.acquire("k", "a", 1_000)
        assert not isinstance(error.value, StoreUnavailableError)
        assert "wrong-one" not in one_line(error)
        assert "wrong-one" not in repr(store)
    assert elapsed_since(began) < 5
    right = RedisLockStore(f"redis://:right-one@127.0.0.1:{server.port}/0")
    assert isinstance(right.acquire("k", "a", 1_000), Granted)
    right.close()


def test_missing_rights_are_told(new_valkey):
    server = new_valkey()
    server.send("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+hello", "+auth", "+client|setinfo")
    store = RedisLockStore(f"redis://reader:pw@127.0.0.1:{server.port}/0")
    with pytest.raises(StoreError, match="refused the credentials") as error:
        store.acquire("k", "a", 1_000)
    one_line(error)
    store.close()


@pytest.mark.slow
def test_a_read_only_replica_is_told_and_never_a_held_lock(new_valkey):
    primary = new_valkey()
    RedisLockStore(primary.url).acquire("k", "a", 60_000)
    replica = new_valkey(options=["--replicaof", f"127.0.0.1 {primary.port}"])
    wait_until(lambda: b"master_link_status:up" in replica.send("INFO", "replication"), 20)
    store = RedisLockStore(replica.url)
    for call in (
        lambda: store.acquire("k", "b", 1_000),
        lambda: store.renew("k", "b", 1_000),
        lambda: store.release("k", "b"),
    ):
        with pytest.raises(StoreError, match="read-only replica: connect to the primary") as error:
            call()
        one_line(error)
    store.close()


def test_out_of_memory_refuses_grants_only(new_valkey):
    server = new_valkey()
    store = RedisLockStore(server.url)
    store.acquire("k", "a", 60_000)
    store.acquire("held", "a", 60_000)
    server.send("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.send("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreUnavailableError, match="out of memory") as error:
        store.acquire("other", "a", 60_000)
    one_line(error)
    assert store.renew("k", "a", 60_000) is True
    assert store.inspect("k").owner == "a"
    assert store.release("k", "a", 30_000) is True
    assert store.release("held", "a") is True
    store.close()


def test_a_key_that_never_expires_is_another_programs(store, client, name):
    store.acquire("k", "a", 60_000)
    client.persist(name("k"))
    with pytest.raises(StoreError, match="never expires"):
        store.acquire("k", "b", 1_000)
    with pytest.raises(StoreError, match="never expires"):
        store.inspect("k")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_replaced_master_is_found_by_sentinel(new_sentinel):
    servers = new_sentinel()
    sentinel = redis.Sentinel(
        [("127.0.0.1", server.port) for server in servers.sentinels], sentinel_kwargs={"socket_timeout": 1}
    )
    stores = [
        RedisLockStore(servers.url, timeout=15),
        RedisLockStore(sentinel.master_for(servers.service), timeout=15),
    ]
    tokens = []
    for number, store in enumerate(stores):
        tokens.append(store.acquire(f"k{number}", "a", 60_000).token)
    wait_until(lambda: servers.replica.send("EXISTS", "pyresil:{lock:k1}").startswith(b":1"))
    servers.primary.kill()
    for number, store in enumerate(stores):
        assert store.acquire(f"k{number}", "b", 60_000).token == tokens[number]
        assert store.renew(f"k{number}", "a", 60_000) is True
        assert store.release(f"k{number}", "a") is True
        assert store.acquire(f"k{number}", "b", 60_000).token > tokens[number]
    # The one that is asked may hear of it later than the one that told the stores.
    wait_until(lambda: servers.primary_port() == servers.replica.port, 60)


def test_a_cluster_that_moves_a_slot_is_followed(new_cluster, prefix):
    cluster = new_cluster()
    client = redis.RedisCluster(host="127.0.0.1", port=cluster.port)
    store = RedisLockStore(client, prefix=prefix)
    token = store.acquire("k", "a", 60_000).token
    slot = client.keyslot(f"{prefix}{{lock:k}}")
    source = client.get_node_from_key(f"{prefix}{{lock:k}}")
    ids = {node.port: node.send("CLUSTER", "MYID").split(b"\r\n")[1].decode() for node in cluster.nodes}
    old = next(node for node in cluster.nodes if node.port == source.port)
    new = next(node for node in cluster.nodes if node.port != source.port)
    new.send("CLUSTER", "SETSLOT", str(slot), "IMPORTING", ids[old.port])
    old.send("CLUSTER", "SETSLOT", str(slot), "MIGRATING", ids[new.port])
    names = old.send("CLUSTER", "GETKEYSINSLOT", str(slot), "10").split(b"\r\n")
    for found in (line.decode() for line in names if line.startswith(prefix.encode())):
        assert old.send("MIGRATE", "127.0.0.1", str(new.port), found, "0", "2000").startswith(b"+OK")
    assert store.renew("k", "a", 60_000) is True, "asked the node that imports it"
    for node in (new, old, *cluster.nodes):
        node.send("CLUSTER", "SETSLOT", str(slot), "NODE", ids[new.port])
    assert store.acquire("k", "a", 60_000) == Granted(token)
    assert store.acquire("k", "b", 60_000).token == token
    assert store.release("k", "a") is True
    client.close()
    store.close()


def test_a_unix_socket(new_valkey, tmp_path):
    path = f"/tmp/pyresil-{os.getpid()}.sock"
    new_valkey(options=["--unixsocket", path])
    store = RedisLockStore(redis.Redis(unix_socket_path=path))
    assert isinstance(store.acquire("k", "a", 1_000), Granted)
    by_url = RedisLockStore(f"unix://{path}")
    assert isinstance(by_url.acquire("k", "b", 1_000), Held)
    store.close()


def test_connections_are_few_and_not_shared_with_a_forked_child(store):
    used_by_threads_and_a_forked_child(store, lambda: store._link._server._idle)


def test_an_interrupted_call_leaves_no_connection_out_of_step(valkey, prefix):
    done = run_python(
        """
        import sys
        from pyresil.stores.redis import RedisLockStore, _server
        from tests.support.storm import cut_short

        print(cut_short(RedisLockStore(sys.argv[1], prefix=sys.argv[2]), turns=400, calls=20, first=2e-5, step=1e-5))
        """,
        valkey.url,
        prefix,
    )
    assert int(done.stdout.splitlines()[-1]) > 50


@pytest.mark.parametrize("used", [True, False], ids=["used", "new"])
def test_what_a_signal_handler_raises_comes_out(new_valkey, used):
    server = new_valkey()
    store = RedisLockStore(redis.Redis(port=server.port))
    if used:
        store.acquire("k", "a", 60_000)
    server.pause()
    try:
        began = SYSTEM.monotonic()
        with interrupted():
            store.inspect("k", timeout=10)
        assert elapsed_since(began) < 4
    finally:
        server.resume()
    assert store.inspect("other") is None
    store.close()


def test_idle_connections_that_another_thread_took_meanwhile(store):
    store.acquire("k", "a", 60_000)
    store._link._server._idle = EmptiedMeanwhile()
    store.close()


def test_a_store_that_another_thread_closes_in_the_middle_is_used_on(valkey, prefix):
    store = RedisLockStore(valkey.url, prefix=prefix)
    link = store._link
    watched = {
        type(link)._server_of.__code__,
        type(link).client.fget.__code__,
        type(link).where.fget.__code__,
    }
    closed = []

    def close_at_each_line(frame, event, arg):
        if frame.f_code not in watched:
            return None
        if event == "line":
            sys.settrace(None)
            closed.append(store.close())
            sys.settrace(close_at_each_line)
        return close_at_each_line

    before = sys.gettrace()
    sys.settrace(close_at_each_line)
    try:
        assert isinstance(store.acquire("k", "a", 60_000), Granted)
        assert link.where.startswith("Redis store")
    finally:
        sys.settrace(before)
    assert len(closed) > 5
    store.close()


def test_gevent_greenlets_go_on_while_one_waits(valkey, prefix):
    done = run_python(
        """
        from gevent import monkey; monkey.patch_all()
        import gevent, sys
        from pyresil.stores.redis import RedisLockStore, _server
        store = RedisLockStore(sys.argv[1], prefix=sys.argv[2])
        store.acquire("k", "a", 60_000)
        waiting = gevent.spawn(store.wait_for_release, "k", timeout=10)
        ticks = 0
        for _ in range(20):
            ticks += 1
            gevent.sleep(0.01)
        assert not waiting.ready()
        store.release("k", "a")
        assert waiting.get(timeout=5) is True
        print(ticks)
        """,
        valkey.url,
        prefix,
    )
    assert int(done.stdout) == 20
