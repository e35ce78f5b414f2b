"""What the tests of several stores do."""

from __future__ import annotations

import os
import threading

from pyresil.stores.base import Held


def used_by_threads_and_a_forked_child(store, idle):
    """Twenty threads at once leave few connections in `idle()`, and a child that is forked then uses none of them."""
    store.acquire("k", "a", 60_000)
    threads = [threading.Thread(target=lambda n=n: store.acquire(f"t{n}", "a", 60_000)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert 1 <= len(idle()) <= 8
    pid = os.fork()
    if pid == 0:
        good = False
        try:
            good = isinstance(store.acquire("k", "b", 1_000), Held) and store.renew("t1", "a", 60_000)
            store.close()
        finally:
            os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.renew("k", "a", 60_000) is True
