"""What the tests of several stores do."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import pytest

from pyresil.stores.base import Held
from tests.support.processes import forked


class TimeUpError(Exception):
    """What the handler of a job's time limit raises."""


@contextlib.contextmanager
def interrupted(after=0.2):
    """A signal handler raises `TimeUpError` in the block so many seconds later, and it comes out of the block."""

    def handler(number, frame):
        raise TimeUpError

    before = signal.signal(signal.SIGUSR1, handler)
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        with pytest.raises(TimeUpError):
            timer.start()
            yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGUSR1, before)


class EmptiedMeanwhile(list):
    """A list that another thread empties after it was seen to have something in it."""

    def __bool__(self):
        return True


def used_by_threads_and_a_forked_child(store, idle):
    """Twenty threads at once leave few connections in `idle()`, and a child that is forked then uses none of them."""
    store.acquire("k", "a", 60_000)
    threads = [threading.Thread(target=lambda n=n: store.acquire(f"t{n}", "a", 60_000)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert 1 <= len(idle()) <= 8

    def child():
        good = isinstance(store.acquire("k", "b", 1_000), Held) and store.renew("t1", "a", 60_000)
        store.close()
        return good

    assert forked(child)()
    assert store.renew("k", "a", 60_000) is True
