"""Signal handlers that raise at moments that nobody chose; for child processes, whose main thread this takes over."""

from __future__ import annotations

import random
import signal
import sys
import time

from tests.support import depth

#: So many interruptions are a storm; a busy machine gets so many seconds for them.
_ENOUGH, _PATIENCE = 120, 20.0


def storm(work, base, *, seconds, longest, check):
    """Interrupts `work` again and again, by a handler that raises a subclass of `base`.

    `work` runs over and over until the handler has raised, after at most `longest` seconds; then `check` is called, and the
    next round begins, for `seconds` in all at depth 1, or longer where the machine is too busy for a storm in that time.
    Returns how often what was raised came out of `work`.
    """
    armed = False

    class Alarm(base):
        pass

    def handler(number, frame):
        nonlocal armed
        if armed:
            armed = False  # one at a time
            raise Alarm

    def rounds():
        while armed:  # one that is raised inside a destructor goes nowhere
            work()

    sys.unraisablehook = lambda _: None
    signal.signal(signal.SIGALRM, handler)
    fired = 0
    began = time.monotonic()
    while (took := time.monotonic() - began) < depth.seconds(seconds) or (
        fired < _ENOUGH and took < _PATIENCE
    ):
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, longest))
            rounds()
        except Alarm:
            fired += 1
        check()
    return fired


def cut_short(store, *, turns, calls, first, step):
    """Interrupts calls of a lock store, after `first` seconds and up to 39 `step` more: each answer must be its own call's.

    Returns how many of so many `turns` were cut short.
    """

    class Interrupt(BaseException):
        pass

    def handler(number, frame):
        raise Interrupt

    def work():
        for _ in range(calls):
            info = store.inspect("k")
            assert info.owner == "a", info
            assert store.inspect("free") is None
            assert store.renew("k", "a", 60_000) is True

    store.acquire("k", "a", 60_000)
    signal.signal(signal.SIGALRM, handler)
    hit = 0
    for turn in range(turns):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, first + turn % 40 * step)
                work()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            hit += 1
    return hit
