"""Opening a connection in a thread: nothing that was opened is lost."""

from __future__ import annotations

from pyresil.clock import SYSTEM
from pyresil.stores._opening import Opening
from tests.locks.faults import Interrupt


class InterruptedAfterwards(list):
    """Signal handlers run after calls: one raises here when the call has taken hold."""

    def pop(self, index=-1):
        super().pop(index)
        raise Interrupt


def test_a_signal_handler_that_raises_as_the_connection_is_handed_over_loses_none():
    connection, kept = object(), []
    opening = Opening(lambda: connection, kept.append, "opening", object())
    opening._made = InterruptedAfterwards()
    try:
        got = [opening.wait(SYSTEM.monotonic() + 20)]
    except Interrupt:
        got = []
    assert got + kept == [connection]
    assert not opening._made
