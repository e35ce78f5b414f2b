"""Forks: how often this process is the child of one, and what a fork must not come into the middle of.

What is opened in one generation is not used in the next. And what SQLite does in another thread while the process is forked
stays half done in the child for ever, where the file then is busy, so a fork waits for it, for a second at most.
"""

from __future__ import annotations

import os
import threading

from pyresil.clock import SYSTEM, Parker

#: Read it as ``_forks.generation``; it grows in every forked child. Cheaper than asking the kernel for the process id.
generation = 0

#: How long a fork waits for other threads, and how often it looks, in seconds.
_PATIENCE, _LOOK = 1.0, 0.001

#: The stretches that are under way, each with the number of its thread. One that is over is taken out by the one call
#: ``stretches.pop(stretch, None)``: a function for it could be cut at its start, and forks wait for what is listed.
stretches: dict[object, int] = {}
#: The threads that are about to fork, and until when that counts: a signal handler that raises may skip `_in_parent`.
_forking: dict[int, float] = {}


def begin(stretch: object, deadline: float) -> None:
    """A stretch begins that no other thread's fork shall come into the middle of; it is over once it is no more in `stretches`.

    Args:
        stretch: Names it.
        deadline: Until when to wait for a fork that is about to happen, on the system's monotonic clock.
    """
    me = threading.get_ident()
    nested = me in list(stretches.values())  # in a signal handler: what it interrupted goes on after it
    while True:
        stretches[stretch] = me
        # Looked at once the fork can see this one.
        if nested or not _forking or me in _forking or _are_through() or SYSTEM.monotonic() >= deadline:
            return
        stretches.pop(stretch, None)
        SYSTEM.park_for_work(Parker(), _LOOK)


def _are_through() -> bool:
    now = SYSTEM.monotonic()
    return all(until <= now for until in list(_forking.values()))


def _before() -> None:
    me = threading.get_ident()
    until = SYSTEM.monotonic() + _PATIENCE
    _forking[me] = until + _PATIENCE
    while any(thread != me for thread in list(stretches.values())) and SYSTEM.monotonic() < until:
        SYSTEM.park_for_work(Parker(), _LOOK)


def _in_parent() -> None:
    _forking.pop(threading.get_ident(), None)


def _in_child() -> None:
    global generation
    generation += 1
    _forking.clear()
    stretches.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
