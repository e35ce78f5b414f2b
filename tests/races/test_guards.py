"""Many threads at one bulkhead or one timeout, with the interpreter switching as often as it can: exact counts."""

from __future__ import annotations

import threading
import time

import pytest

from pyresil import (
    AdaptiveBulkhead,
    Bulkhead,
    BulkheadFullError,
    Policy,
    Timeout,
    TimeoutExceededError,
    TimeoutSaturatedError,
    _workers,
)
from tests.support.processes import wait_until
from tests.support.threads import together


class Gauge:
    """How many are inside, and the most that ever were."""

    def __init__(self):
        self.lock, self.inside, self.most, self.total = threading.Lock(), 0, 0, 0

    def __enter__(self):
        with self.lock:
            self.inside += 1
            self.total += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *exc_info):
        with self.lock:
            self.inside -= 1


@pytest.mark.parametrize("form", ["call", "block"])
@pytest.mark.parametrize("queue", [0, 3, 100])
def test_never_more_than_the_slots_and_nothing_is_lost(form, queue):
    bulkhead = Bulkhead(3, max_queue=queue)
    policy, gauge = Policy(bulkhead), Gauge()
    refused = []

    def work():
        with gauge:
            time.sleep(0)

    def run(number):
        for _ in range(150):
            try:
                if form == "call":
                    policy.call(work)
                else:
                    with policy.execute():
                        work()
            except BulkheadFullError as error:
                refused.append(error.reason)

    together(8, run)
    assert gauge.most <= 3
    assert gauge.total + len(refused) == 8 * 150
    assert set(refused) <= {"full"}
    if queue == 100:
        assert not refused
    assert bulkhead.stats()[:2] == (0, 0)
    assert len(bulkhead._slots.permits) == 3


def test_waiters_that_give_up_leave_nothing_and_the_slots_survive():
    bulkhead = Bulkhead(2, max_queue=50, queue_timeout="1ms")
    policy, gauge = Policy(bulkhead), Gauge()
    refused = []

    def work():
        with gauge:
            time.sleep(0.0005)

    def run(number):
        for _ in range(60):
            try:
                policy.call(work)
            except BulkheadFullError as error:
                refused.append(error.reason)

    together(8, run)
    assert gauge.most <= 2
    assert gauge.total + len(refused) == 8 * 60
    assert bulkhead.stats()[:2] == (0, 0)
    assert len(bulkhead._slots.permits) == 2


@pytest.mark.parametrize("again", range(10))
def test_the_queue_takes_exactly_as_many_as_it_may(again):
    bulkhead = Bulkhead(1, max_queue=5)
    policy = Policy(bulkhead)
    go, refused, ran = threading.Event(), [], []

    def work():
        go.wait(10)
        ran.append(1)

    def run(number):
        if number == 0:
            wait_until(lambda: len(refused) == 19 - 5 and bulkhead.stats().queued == 5)
            go.set()
            return
        try:
            policy.call(work)
        except BulkheadFullError:
            refused.append(1)

    together(21, run)
    assert (len(ran), len(refused)) == (6, 14)
    assert bulkhead.stats()[:2] == (0, 0)


def test_results_that_come_at_the_deadline_are_taken_or_dropped_never_lost():
    timeout = Timeout("2ms", mode="abandon", max_abandoned=1000)
    policy = Policy(timeout)
    ended = []

    def run(number):
        for _ in range(60):
            try:
                ended.append(policy.call(lambda: time.sleep(0.002) or "done"))
            except TimeoutExceededError:
                ended.append("timeout")

    together(6, run)
    assert len(ended) == 360
    assert set(ended) <= {"done", "timeout"}
    wait_until(lambda: timeout.abandoned == 0)


def test_calls_in_worker_threads_do_not_mix_up_results():
    policy = Policy(Timeout("10s", mode="abandon"))

    def run(number):
        for turn in range(100):
            assert policy.call(lambda a, b: (a, b), number, turn) == (number, turn)

    together(6, run)


def test_no_call_is_left_with_a_worker_that_ends(monkeypatch):
    monkeypatch.setattr(_workers, "IDLE", 0.0005)
    monkeypatch.setattr(_workers, "_workers", _workers.Workers())
    policy = Policy(Timeout("10s", mode="abandon"))

    def run(number):
        for turn in range(60):
            assert policy.call(lambda a: a, turn) == turn
            time.sleep(0.0005 * (turn % 3))

    together(6, run)


def test_saturation_counts_exactly():
    timeout = Timeout("10ms", mode="abandon", max_abandoned=4)
    policy, go = Policy(timeout), threading.Event()
    while timeout.abandoned < 4:  # on a busy machine a worker may come too late to begin one at all
        with pytest.raises(TimeoutExceededError):
            policy.call(go.wait, 20)
    refused = []

    def run(number):
        try:
            policy.call(lambda: None)
        except TimeoutSaturatedError:
            refused.append(number)

    together(8, run)
    assert len(refused) == 8
    go.set()
    wait_until(lambda: timeout.abandoned == 0)


def test_a_limit_that_moves_loses_no_slot():
    bulkhead = AdaptiveBulkhead(4, maximum=6, max_queue=100)
    policy = Policy(bulkhead)

    def run(number):
        for _ in range(300):
            policy.call(time.sleep, 0)

    together(8, run)
    stats = bulkhead.stats()
    assert (stats.active, stats.queued) == (0, 0)
    assert 1 <= stats.limit <= 6
    slots = bulkhead._slots
    assert (slots.size, len(slots.permits), slots.debt) == (stats.limit, stats.limit, 0)
