"""A bounded campaign: three processes want one key while processes, servers and the network fail around them.

What must hold, whatever happens: no two of them see `held` True at once on a live clock, fencing tokens grow, nothing hangs,
and when the faults are over work goes on without anybody being restarted. Run it with `-s` to see what it did.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter

import pytest

from tests.support.depth import seconds
from tests.support.processes import wait_until

TTL = 0.8
SECONDS = seconds(10.0)  # every fault comes at least once

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(100 + 2 * SECONDS),
    pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="compares the clocks of processes"),
]

WORKER = """
    import os, random, sys, time
    from pyresil.errors import PyresilError
    from pyresil.locks import Locks
    from pyresil.stores.backend import connect

    url, prefix, log, name = sys.argv[1:]
    out = os.open(log, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    def say(*words):
        os.write(out, (" ".join(map(str, words)) + "\\n").encode())
    def now():
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    chance = random.Random(name)
    locks = Locks(connect(url, prefix=prefix).locks, ttl="0.8s")
    while True:
        try:
            lease = locks.acquire("campaign", wait=2)
        except PyresilError as error:
            say("error", type(error).__name__, name)
            time.sleep(0.02)
            continue
        if lease is None:
            continue
        say("begin", now(), lease.token, name)
        until = now() + chance.uniform(0.05, 3.0)  # longer than the ttl, so that losing it in the middle shows
        while now() < until:
            before = now()
            held = lease.held
            after = now()
            if not held:
                say("lost", before, lease.token, name)
                break
            say("tick", before, after, lease.token)
            time.sleep(0.005)
        lease.release()
        time.sleep(chance.uniform(0.05, 0.4))  # nobody promises turns: leave the others one
"""


class Campaign:
    """The processes, their log, and the faults that any store can have."""

    def __init__(self, spawn, tmp_path, url, prefix):
        self.spawn, self.url, self.prefix = spawn, url, prefix
        self.log = tmp_path / "campaign.log"
        self.count = 0
        self.done = Counter()
        self.chance = random.Random(20)
        self.names = {}
        self.workers = [self.start() for _ in range(3)]

    def start(self):
        self.count += 1
        worker = self.spawn(WORKER, self.url, self.prefix, self.log, self.count)
        self.names[str(self.count)] = worker
        return worker

    def holder(self):
        """Who got the lock last; it need not have it any more."""
        return self.names[self.lines("begin")[-1][2]]

    def lines(self, kind):
        if not self.log.exists():
            return []
        found = [line.split() for line in self.log.read_text().splitlines()]
        return [line[1:] for line in found if line and line[0] == kind]

    def kill_one(self):
        number = self.chance.randrange(3)
        self.workers[number].kill()
        self.workers[number] = self.start()

    def pause_holder(self):
        worker = self.holder()
        if not worker.running:
            return
        worker.pause()
        time.sleep(TTL * 1.5)
        worker.resume()

    def run(self, faults):
        faults = {"kill": self.kill_one, "pause": self.pause_holder, **faults}
        end = time.monotonic() + SECONDS
        order = []
        while time.monotonic() < end:
            if not order:
                order = sorted(faults)
                self.chance.shuffle(order)
            name = order.pop()
            time.sleep(self.chance.uniform(0.1, 0.5))
            faults[name]()
            self.done[name] += 1
        healed = time.clock_gettime(time.CLOCK_BOOTTIME)
        wait_until(
            lambda: len({line[2] for line in self.lines("begin") if float(line[0]) > healed}) >= 2,
            20,
            "two processes that get the lock again",
        )
        assert all(worker.running for worker in self.workers), [worker.output() for worker in self.workers]
        for worker in self.workers:
            worker.kill()
        self.check()

    def check(self):
        first_seen, last_seen = {}, {}
        for before, after, token in self.lines("tick"):
            token = int(token)
            first_seen[token] = min(first_seen.get(token, float("inf")), float(after))
            last_seen[token] = max(last_seen.get(token, 0.0), float(before))
        begun = [int(line[1]) for line in self.lines("begin")]
        lost = len(self.lines("lost"))
        errors = Counter(line[0] for line in self.lines("error"))
        print(
            f"\n{self.url.partition(':')[0]}: {dict(self.done)}; {len(begun)} leases, {lost} lost, errors {dict(errors)}"
        )
        assert len(begun) == len(set(begun)), "a token was given out twice"
        assert len(begun) >= 5, "it got little done"
        tokens = sorted(first_seen)
        latest = 0.0
        for token in tokens:
            assert first_seen[token] >= latest, f"token {token} was held while an earlier one still was"
            latest = max(latest, last_seen[token])


def test_on_sqlite(spawn, tmp_path, prefix):
    path = tmp_path / "locks.db"
    campaign = Campaign(spawn, tmp_path, f"sqlite:///{path}", prefix)
    wait_until(lambda: campaign.lines("begin"), 20)

    def busy(seconds):
        def block():
            other = sqlite3.connect(path, isolation_level=None, timeout=5)
            other.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            other.execute("COMMIT")
            other.close()

        return block

    campaign.run({"busy for less than the ttl": busy(TTL / 2), "busy for longer": busy(TTL * 1.5)})


def network_faults(proxy):
    def cut():
        proxy.refuse()
        proxy.cut()
        time.sleep(TTL * 1.5)
        proxy.accept()

    def stall(seconds):
        def block():
            proxy.stall()
            time.sleep(seconds)
            proxy.resume()

        return block

    return {
        "requests dropped": lambda: proxy.drop_requests(3),
        "replies dropped": lambda: proxy.drop_replies(3),
        "requests dropped without a word": lambda: proxy.drop_requests(2, cut=False),
        "network stalled for less than the ttl": stall(TTL / 2),
        "network stalled for longer": stall(TTL * 1.5),
        "network cut": cut,
    }


@pytest.mark.server
def test_on_redis(spawn, tmp_path, prefix, new_valkey, new_proxy):
    server = new_valkey(durable=True)
    proxy = new_proxy(server)
    campaign = Campaign(spawn, tmp_path, f"redis://127.0.0.1:{proxy.port}/0", prefix)
    wait_until(lambda: campaign.lines("begin"), 20)

    def stopped(seconds):
        def stop():
            server.pause()
            time.sleep(seconds)
            server.resume()

        return stop

    def crash():
        server.kill()
        server.start()

    campaign.run(
        {
            "server stopped for less than the ttl": stopped(TTL / 2),
            "server stopped for longer": stopped(TTL * 1.5),
            "server killed": crash,
            **network_faults(proxy),
        }
    )


@pytest.mark.server
def test_on_postgres(spawn, tmp_path, prefix, new_postgres, new_proxy):
    from pyresil.stores.postgres import PostgresLockStore

    server = new_postgres()
    with PostgresLockStore(server.url) as store:
        store.create_tables()
    proxy = new_proxy(server)
    campaign = Campaign(spawn, tmp_path, f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres", prefix)
    wait_until(lambda: campaign.lines("begin"), 20)

    def terminate():
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pyresil'"
        )

    campaign.run(
        {"backends terminated": terminate, "server restarted": server.restart, **network_faults(proxy)}
    )
