"""The thread of the command that talks to the store."""

from __future__ import annotations

import threading
import time

import pytest

from pyresil.cli._worker import Worker
from pyresil.clock import SYSTEM
from pyresil.errors import StoreUnavailableError
from pyresil.stores.memory import MemoryLockStore
from tests.support.processes import wait_until


@pytest.fixture
def worker():
    return Worker(MemoryLockStore)


def test_rest_waits_for_the_job_that_is_under_way(worker):
    done = []
    worker.give("renew", lambda store: (time.sleep(0.2), done.append(True)))
    worker.rest(10.0)
    assert done == [True]
    wait_until(lambda: [answer.job for answer in worker.take()] == ["renew"], 5)


def test_rest_does_not_wait_for_ever(worker):
    go = threading.Event()
    worker.give("renew", lambda store: go.wait(20))
    began = time.monotonic()
    worker.rest(0.1)
    assert 0.05 < time.monotonic() - began < 5.0
    assert worker.take() == []
    go.set()
    wait_until(lambda: worker.take() != [], 5)


@pytest.mark.parametrize("jobs", [0, 1])
def test_rest_returns_at_once_where_nothing_is_to_be_done(worker, jobs):
    for _ in range(jobs):
        worker.give("renew", lambda store: None)
    worker.rest(10.0)
    began = time.monotonic()
    worker.rest(10.0)
    assert time.monotonic() - began < 5.0


def test_where_no_thread_can_be_started_the_store_is_out_of_reach(worker, monkeypatch):
    def spawn(target, name):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(SYSTEM, "spawn", spawn)
        worker.give("acquire", lambda store: None)
    (answer,) = worker.take()
    assert isinstance(answer.error, StoreUnavailableError)
    assert "can't start new thread" in str(answer.error)
    worker.give("acquire", lambda store: 1)
    worker.rest(10.0)
    assert [answer.value for answer in worker.take()] == [1]
    assert worker.outstanding == 0


def test_a_lease_counts_from_when_the_store_was_there_to_be_asked():
    there = []

    def connect():
        time.sleep(0.05)  # a driver is imported
        there.append(SYSTEM.boottime())
        return MemoryLockStore()

    worker = Worker(connect)
    worker.give("acquire", lambda store: None)
    worker.rest(10.0)
    (answer,) = worker.take()
    assert answer.sent >= there[0]
