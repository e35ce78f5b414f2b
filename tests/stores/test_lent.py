"""Connections of an application's pool: it gets back each one once, whatever a signal handler does."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from pyresil.clock import SYSTEM
from pyresil.stores._lent import from_pool
from tests.locks.faults import Interrupt
from tests.support.processes import wait_until


class Pool:
    def __init__(self):
        self.connection = SimpleNamespace(autocommit=True, closed=False)
        self.back = []

    def getconn(self, timeout):
        return self.connection

    def putconn(self, connection):
        self.back.append(connection)
        self.took()

    def took(self):
        """The rest of the work."""


class NullConnectionPool(Pool):
    """One that connects for whom it lends to; known by its name."""


@pytest.fixture
def interrupting():
    """`interrupting(name)`: a signal handler raises at the start of the next function of that name."""

    def begin(name):
        def trace(frame, event, arg):
            if frame.f_code.co_name == name:
                sys.settrace(before)
                raise Interrupt

        sys.settrace(trace)

    before = sys.gettrace()
    yield begin
    sys.settrace(before)


@pytest.mark.parametrize(
    ("kind", "cut"), [(Pool, "putconn"), (NullConnectionPool, "in_a_thread"), (NullConnectionPool, "spawn")]
)
def test_a_signal_handler_that_raises_as_a_connection_goes_back_loses_none(interrupting, kind, cut):
    pool = kind()
    with pytest.raises(Interrupt), from_pool(pool, SYSTEM.monotonic() + 20):
        interrupting(cut)
    wait_until(lambda: pool.back)
    assert pool.back == [pool.connection]


def test_a_signal_handler_that_raises_when_a_connection_is_back_gives_it_back_once(interrupting):
    pool = Pool()
    with pytest.raises(Interrupt), from_pool(pool, SYSTEM.monotonic() + 20):
        interrupting("took")
    assert pool.back == [pool.connection]
