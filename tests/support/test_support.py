"""The helpers themselves: a helper that quietly does nothing would let other tests pass for no reason."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import signal
import socket
import subprocess
import threading
import time

import psycopg
import pytest
import redis
import requests

from tests.support import processes
from tests.support.processes import accepts, free_port, run_python, state_of, wait_until


def test_run_python_finds_this_checkout_and_passes_arguments(tmp_path):
    done = run_python(
        """
        import sys, pyresil
        print(pyresil.__file__, sys.argv[1:])
        """,
        "a",
        1,
        cwd=tmp_path,
    )
    assert done.stdout.split() == [str(processes.ROOT / "pyresil" / "__init__.py"), "['a',", "'1']"]


def test_run_python_fails_with_the_snippets_stderr():
    with pytest.raises(AssertionError, match="ValueError: no"):
        run_python("raise ValueError('no')")
    assert run_python("import sys; sys.exit(3)", check=False).returncode == 3


def test_run_python_kills_a_snippet_that_hangs():
    with pytest.raises(subprocess.TimeoutExpired):
        run_python("import time; time.sleep(60)", timeout=0.5)


def test_wait_until_gives_up():
    with pytest.raises(AssertionError, match="pigs fly"):
        wait_until(lambda: False, 0.05, "pigs fly")


def test_spawned_process_is_paused_resumed_and_stopped(spawn, tmp_path):
    ticks = tmp_path / "ticks"
    process = spawn(
        """
        import sys, time
        while True:
            open(sys.argv[1], "a").write(".")
            time.sleep(0.01)
        """,
        ticks,
    )
    wait_until(lambda: ticks.exists() and ticks.stat().st_size > 1)
    process.pause()
    wait_until(lambda: state_of(process.pid) == "T")  # the stop is not instant
    before = ticks.stat().st_size
    time.sleep(0.1)
    assert ticks.stat().st_size == before
    process.resume()
    wait_until(lambda: ticks.stat().st_size > before)
    process.pause()
    assert process.stop() == -signal.SIGTERM
    assert not process.running


def test_process_dies_with_the_process_that_started_it(spawn, tmp_path):
    code = """
        import sys, time
        from tests.support.processes import Process
        child = Process(["sleep", "60"], sys.argv[1])
        print(child.pid, flush=True)
        time.sleep(60)
        """
    parent = spawn(code, tmp_path / "child.log")
    child = int(wait_until(lambda: parent.output().strip()))
    # Before that it is still on the way there, and has not asked for the signal.
    wait_until(lambda: pathlib.Path(f"/proc/{child}/cmdline").read_bytes().startswith(b"sleep"))
    assert state_of(child) not in {None, "Z"}
    parent.kill()
    wait_until(lambda: state_of(child) in {None, "Z"})


def test_valkey_is_shared_and_evaluates_scripts(redis_server, valkey, prefix):
    for server in (redis_server, valkey):
        with redis.Redis(port=server.port) as client:
            client.set(f"{prefix}a", "1", px=60_000)
            assert client.eval("return redis.call('GET', KEYS[1])", 1, f"{prefix}a") == b"1"
            assert client.delete(f"{prefix}a") == 1


def test_own_valkey_keeps_its_data_over_a_crash_and_hangs_when_paused(new_valkey):
    server = new_valkey(durable=True)
    with redis.Redis(port=server.port, socket_timeout=2, retry=None) as client:
        client.set("a", "1")
        server.pause()
        with pytest.raises(redis.exceptions.TimeoutError):
            client.get("a")
        server.resume()
        assert client.get("a") == b"1"
        server.kill()
        with pytest.raises(redis.exceptions.ConnectionError):
            client.get("a")
        server.start()
        assert client.get("a") == b"1"
    port = server.port
    server.stop()
    assert not accepts(port)


def test_cluster_serves_every_slot(valkey_cluster, prefix):
    from redis.cluster import RedisCluster

    with RedisCluster(host="127.0.0.1", port=valkey_cluster.port) as client:
        for i in range(40):
            client.set(f"{prefix}{i}", str(i))
        assert [int(client.get(f"{prefix}{i}")) for i in range(40)] == list(range(40))
    sizes = []
    for node in valkey_cluster.nodes:
        with redis.Redis(port=node.port) as client:
            sizes.append(len(list(client.scan_iter(match=f"{prefix}*"))))
    assert sum(sizes) == 40
    assert all(sizes), sizes


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_sentinels_promote_the_replica(new_sentinel):
    from redis.sentinel import Sentinel

    setup = new_sentinel()
    sentinel = Sentinel([("127.0.0.1", one.port) for one in setup.sentinels], socket_timeout=1)
    assert sentinel.discover_master(setup.service) == ("127.0.0.1", setup.primary.port)
    setup.primary.kill()
    wait_until(lambda: setup.primary_port() == setup.replica.port, 20, "the failover")
    wait_until(lambda: b"role:master" in setup.replica.send("INFO", "replication"))
    for one in [*sentinel.sentinels]:
        one.close()


def test_postgres_gives_each_test_a_database(postgres_server):
    name = postgres_server.create_database()
    with psycopg.connect(postgres_server.url_of(name), autocommit=True) as conn:
        conn.execute("CREATE TABLE t (a int)")
        assert conn.execute("SELECT count(*) FROM t").fetchone() == (0,)
    postgres_server.drop_database(name)
    assert postgres_server.execute("SELECT 1 FROM pg_database WHERE datname = %s", name) == []


def test_postgres_versions_are_what_they_say(postgres_server):
    ((number,),) = postgres_server.execute("SHOW server_version_num")
    if postgres_server.version != "system":
        assert int(number) // 10_000 == int(postgres_server.version)


def test_own_postgres_keeps_its_data_over_a_crash(new_postgres):
    server = new_postgres()
    server.execute("CREATE TABLE t (a int)")
    server.execute("INSERT INTO t VALUES (7)")
    server.restart()
    assert server.execute("SELECT a FROM t") == [(7,)]
    server.kill()
    server.start()
    assert server.execute("SELECT a FROM t") == [(7,)]


def test_postgres_url_is_an_empty_database(postgres_url):
    with psycopg.connect(postgres_url) as conn:
        tables = conn.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
    assert tables == (0,)


def test_proxy_drops_a_request_or_only_its_reply(valkey, new_proxy, prefix):
    proxy = new_proxy(valkey)
    with redis.Redis(port=proxy.port, retry=None, socket_timeout=5) as client:
        key = f"{prefix}n"
        client.incr(key)
        proxy.drop_requests(1, b"INCR")
        with pytest.raises(redis.exceptions.ConnectionError):
            client.incr(key)
        assert int(client.get(key)) == 1
        proxy.drop_replies(1, b"INCR")
        with pytest.raises(redis.exceptions.ConnectionError):
            client.incr(key)
        assert int(client.get(key)) == 2
    assert (proxy.requests_dropped, proxy.replies_dropped) == (1, 1)


def test_proxy_can_leave_the_client_waiting(valkey, new_proxy, prefix):
    proxy = new_proxy(valkey)
    with redis.Redis(port=proxy.port, retry=None, socket_timeout=1.5) as client:
        proxy.drop_replies(1, b"INCR", cut=False)
        with pytest.raises(redis.exceptions.TimeoutError):
            client.incr(f"{prefix}n")
        proxy.stall()
        with pytest.raises(redis.exceptions.TimeoutError):
            client.ping()
        proxy.resume()
        assert client.ping()


def test_proxy_cuts_refuses_and_accepts_again(valkey, new_proxy):
    proxy = new_proxy(valkey)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as conn:
        conn.sendall(b"PING\r\n")
        assert conn.recv(100) == b"+PONG\r\n"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            assert conn.recv(100) == b"", "an orderly end instead of a reset"
            raise ConnectionResetError
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=5)
    proxy.accept()
    assert accepts(proxy.port)


def test_proxy_in_front_of_nothing_resets():
    from tests.support.proxy import TcpProxy

    proxy = TcpProxy(free_port())
    try:
        # where the reset is noticed depends on who is faster
        with (
            contextlib.suppress(ConnectionResetError, BrokenPipeError),
            socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as conn,
        ):
            assert conn.recv(10) == b""
    finally:
        proxy.close()
    assert not accepts(proxy.port)


APP = """
    import os, time
    from flask import Flask
    app = Flask(__name__)
    inside = peak = 0

    @app.get("/meet")
    def meet():
        global inside, peak
        inside += 1
        peak = max(peak, inside)
        for _ in range(int(os.environ["ROUNDS"])):
            if peak >= 2:
                break
            time.sleep(0.01)
        inside -= 1
        return {"pid": os.getpid(), "peak": peak}
"""


@pytest.mark.parametrize(("worker_class", "together"), [("sync", False), ("gthread", True), ("gevent", True)])
def test_gunicorn_serves_as_its_worker_class_does(new_gunicorn, worker_class, together):
    # How long the first waits for the second: in vain where they are not served together.
    rounds = 1000 if together else 100
    server = new_gunicorn(APP, worker_class=worker_class, env={"ROUNDS": str(rounds)})
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: requests.get(f"{server.url}/meet", timeout=20), range(2)))
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [answer.json()["pid"] for answer in answers] == server.worker_pids() * 2
    peak = max(answer.json()["peak"] for answer in answers)
    assert peak == (2 if together else 1)
    server.stop()
    assert not accepts(server.port)


def test_gunicorn_that_cannot_start_says_why(new_gunicorn):
    with pytest.raises(AssertionError, match="no such thing"):
        new_gunicorn("raise RuntimeError('no such thing')")


def test_no_thread_of_the_helpers_outlives_its_test(valkey):
    from tests.support.proxy import TcpProxy

    proxy = TcpProxy(valkey.port)
    with redis.Redis(port=proxy.port) as client:
        client.ping()
    proxy.close()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("proxy-")])
