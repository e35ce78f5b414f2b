"""Jobs and elections in several real processes on one SQLite file."""

from __future__ import annotations

import os
import signal
import time
import urllib.request

import pytest

from pyresil.locks import Locks
from pyresil.stores.sqlite import SQLiteLockStore
from tests.support.processes import between_writes, wait_until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs signals")

JOB = """
    import os, sys, time
    from pyresil import Locks, SQLiteLockStore, fencing_token
    locks = Locks(SQLiteLockStore(sys.argv[1], timeout=20), ttl=sys.argv[4])

    @locks.on_one_instance("job", min_hold="100ms")
    @locks.without_overlapping("job")
    def job(tick):
        print(f"ran {tick} {os.getpid()} {fencing_token()}", flush=True)

    print("ready", flush=True)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    start, late = os.stat(sys.argv[2]).st_mtime, float(sys.argv[5])
    for tick in range(int(sys.argv[3])):
        due = start + tick * 0.25
        time.sleep(max(0.0, due - time.time()))
        if time.time() < due + late:
            job(tick)
    time.sleep(late)               # an instance that is behind must not find the owner gone
"""

CANDIDATE = """
    import os, signal, sys, time
    from pyresil import Locks, SQLiteLockStore, current_context
    locks = Locks(SQLiteLockStore(sys.argv[1], timeout=20), ttl="3s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    def lead(lease):
        with open(sys.argv[2], "a") as out:
            out.write(f"{lease.token} {os.getpid()} begin {time.monotonic()}\\n")
        try:
            while True:
                current_context().sleep(0.05)
        finally:
            with open(sys.argv[2], "a") as out:
                out.write(f"{lease.token} {os.getpid()} end {time.monotonic()}\\n")

    election = locks.election("leader", lead)
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
"""


def instances(spawn, folder, count, *, ticks, ttl, late):
    """Instances that begin together, with a tick every 250 ms; one that is behind by `late` seconds leaves a tick out."""
    start = folder / "start"
    processes = [spawn(JOB, folder / "locks.db", start, ticks, ttl, late) for _ in range(count)]
    for process in processes:
        wait_until(lambda process=process: "ready" in process.output(), what="an instance")
    start.touch()
    return processes


def runs(processes):
    found = []
    for process in processes:
        for line in process.output().splitlines():
            if line.startswith("ran"):
                _, tick, pid, token = line.split()
                found.append((int(tick), int(pid), int(token)))
    return sorted(found)


def test_three_instances_run_every_tick_once(tmp_path, spawn):
    ticks = 12
    processes = instances(spawn, tmp_path, 3, ticks=ticks, ttl="10s", late=3)
    for process in processes:
        assert process.wait(20) == 0, process.output()
    found = runs(processes)
    assert [tick for tick, *_ in found] == list(range(ticks)), found
    assert len({pid for _, pid, _ in found}) == 1
    tokens = [token for *_, token in found]
    assert tokens == sorted(set(tokens))


@pytest.mark.slow
def test_another_instance_takes_over_from_a_killed_owner(tmp_path, spawn):
    # Whoever takes over must not be so far behind that it comes to ticks that the owner ran before the kill.
    processes = instances(spawn, tmp_path, 2, ticks=44, ttl="3s", late=0.5)
    wait_until(lambda: len(runs(processes)) >= 4, 20, "the first runs")
    owner = runs(processes)[0][1]
    killed, other = sorted(processes, key=lambda process: process.pid != owner)
    killed.kill()
    assert other.wait(20) == 0, other.output()
    found = runs(processes)
    ran = [tick for tick, *_ in found]
    assert ran == sorted(set(ran)), "no tick twice"
    by_other = [tick for tick, pid, _ in found if pid == other.pid]
    assert by_other
    gap = by_other[0] - max(tick for tick, pid, _ in found if pid == owner)
    assert gap <= 22, "within one ttl and a tick, with two seconds of room for a busy machine"


def leaders(log):
    if not log.exists():
        return []
    return [line.split() for line in log.read_text().splitlines() if line.count(" ") == 3]


def test_three_candidates_and_never_two_leaders(tmp_path, spawn):
    path, log = tmp_path / "locks.db", tmp_path / "leaders"
    candidates = [spawn(CANDIDATE, path, log) for _ in range(3)]
    by_pid = {str(process.pid): process for process in candidates}

    def current(after=0):
        begun = [line for line in leaders(log) if line[2] == "begin" and int(line[0]) > after]
        return begun[-1] if begun else None

    first = wait_until(current, 20, "a first leader")
    time.sleep(3.5)
    assert len(leaders(log)) == 1, "it stays the leader for longer than a ttl"

    killed = time.monotonic()
    by_pid[first[1]].kill()
    second = wait_until(lambda: current(int(first[0])), 20, "a leader after the kill")
    assert time.monotonic() - killed < 10
    assert second[1] != first[1]

    stopped = time.monotonic()
    assert by_pid[second[1]].stop(signal.SIGTERM) == 0, by_pid[second[1]].output()
    third = wait_until(lambda: current(int(second[0])), 20, "a leader after the orderly end")
    assert time.monotonic() - stopped < 8
    assert len({first[1], second[1], third[1]}) == 3

    # The third is paused for longer than the ttl; nobody else is left, so a fourth takes over, and the third steps down.
    with between_writes(path):
        by_pid[third[1]].pause()
    fourth = spawn(CANDIDATE, path, log)
    last = wait_until(lambda: current(int(third[0])), 20, "a leader after the pause")
    assert last[1] == str(fourth.pid)
    by_pid[third[1]].resume()
    wait_until(
        lambda: [third[0], third[1], "end"] in [line[:3] for line in leaders(log)], 20, "the old leader's end"
    )
    assert Locks(SQLiteLockStore(path)).status("leader").token == int(last[0])
    tokens = [int(line[0]) for line in leaders(log) if line[2] == "begin"]
    assert tokens == sorted(set(tokens)), "one leader at a time, by token order"


def test_gunicorn_workers_run_a_tick_once_between_them(tmp_path, new_gunicorn):
    """A scheduler in each worker, with nothing installed but the library."""
    ticks = tmp_path / "ticks"
    new_gunicorn(
        f"""
        import os, threading, time
        from flask import Flask
        from pyresil import Locks, SQLiteLockStore

        app = Flask(__name__)
        locks = Locks(SQLiteLockStore({str(tmp_path / "locks.db")!r}, timeout=20), ttl="5s")

        @locks.on_one_instance(key="cleanup")
        def cleanup(tick):
            with open({str(ticks)!r}, "a") as out:
                out.write(f"{{tick}} {{os.getpid()}}\\n")

        def schedule():
            tick = 0
            while True:
                tick = max(tick, int(time.time() * 4)) + 1
                time.sleep(max(0.0, tick / 4 - time.time()))
                cleanup(tick)

        threading.Thread(target=schedule, daemon=True).start()

        @app.get("/")
        def index():
            return str(os.getpid())
        """,
        workers=4,
    )
    wait_until(lambda: ticks.exists() and ticks.read_text().count("\n") >= 12, 20, "twelve ticks")
    found = [line.split() for line in ticks.read_text().splitlines()]
    numbers = [int(tick) for tick, _ in found]
    assert numbers == sorted(set(numbers)), "every tick once"
    assert len({pid for _, pid in found}) == 1


@pytest.mark.parametrize("worker_class", ["sync", "gthread", "gevent"])
@pytest.mark.parametrize("preload", [False, True])
def test_gunicorn_hands_back_on_sigterm(tmp_path, new_gunicorn, worker_class, preload):
    """Leases of workers are free at once after an orderly end, and the master's own survives its workers."""
    path = tmp_path / "locks.db"
    server = new_gunicorn(
        f"""
        import os
        from flask import Flask
        from pyresil import Locks, SQLiteLockStore

        app = Flask(__name__)
        locks = Locks(SQLiteLockStore({str(path)!r}, timeout=20), ttl="60s")
        made_in = os.getpid()
        at_import = locks.acquire("import")

        @app.get("/")
        def index():
            lease = locks.acquire("worker")
            return f"{{lease is not None}} {{at_import is not None and at_import.held}}"
        """,
        worker_class=worker_class,
        options=["--preload"] if preload else [],
    )
    with urllib.request.urlopen(server.url, timeout=10) as response:
        answer = response.read().decode().split()
    assert answer == ["True", str(not preload)], "what the master took before the fork is not the worker's"
    locks = Locks(SQLiteLockStore(path))
    assert [info.key for info in locks.list()] == ["import", "worker"]
    if preload:
        os.kill(server.worker_pids()[0], signal.SIGTERM)
        wait_until(lambda: locks.status("worker") is None)
        assert locks.status("import") is not None, "a worker hands nothing of its master's back"
    server.stop()
    assert locks.list() == []
