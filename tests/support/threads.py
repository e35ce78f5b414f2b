"""Threads that tests start, and what becomes of them."""

from __future__ import annotations

import threading


def started_since(threads) -> list[threading.Thread]:
    """Threads that a call left; not those that the process has once, for callbacks and for work that was handed over."""
    shared = ("pyresil-dispatch", "pyresil-worker", "pyresil-watchdog")
    return [
        thread
        for thread in threading.enumerate()
        if thread not in threads and not thread.name.startswith(shared)
    ]


def together(count, work):
    """Runs `work(number)` in `count` threads, from one barrier; what one of them raises is raised."""
    barrier = threading.Barrier(count)
    errors = []

    def run(number):
        try:
            barrier.wait(10)
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(25)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


class Caller(threading.Thread):
    """Calls something in a thread of its own and keeps how it ended."""

    def __init__(self, function):
        super().__init__(daemon=True)
        self.function = function
        self.value = self.error = None
        self.start()

    def run(self):
        try:
            self.value = self.function()
        except BaseException as error:
            self.error = error

    def ended(self):
        """Itself, once the call has ended."""
        self.join(10)
        assert not self.is_alive(), "the call did not end"
        return self
