"""Single operations on a socket: what ends them, and as what."""

from __future__ import annotations

import errno
import socket
import threading
import time

import pytest

from pyresil import CancelToken
from pyresil._dispatch import post
from pyresil.integrations._http.budget import Budget, Stop
from pyresil.integrations._http.call import Call, Cut
from pyresil.integrations._http.response import BoundRawResponse
from tests.support.processes import forked


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    cut = Cut()
    cut.attach(ours)
    with ours, theirs:
        yield ours, theirs, cut
        cut.close()


def call_on(cut, *tokens, limit=None):
    call = Call(Budget(tokens, limit), request=None)
    call.cut = cut
    return call


def test_what_comes_is_moved(pair):
    ours, theirs, cut = pair
    theirs.sendall(b"abc")
    buffer = bytearray(8)
    assert call_on(cut, CancelToken(), limit=1).operate(ours, ours.recv_into, buffer) == 3
    assert buffer[:3] == b"abc"


def test_a_timeout_that_comes_too_early_is_waited_out(pair):
    ours, _, cut = pair
    calls = []

    def operation(_):
        calls.append(time.monotonic())
        raise TimeoutError("timed out")

    began = time.monotonic()
    with pytest.raises(Stop):
        call_on(cut, limit=0.5).operate(ours, operation, b"")
    assert time.monotonic() - began >= 0.5
    assert len(calls) > 1


def test_the_kernels_own_timeout_is_an_error_of_the_connection(pair):
    """A dead connection must not look like the end of a body, which is what a second try would find."""
    ours, _, cut = pair

    def operation(_):
        raise OSError(errno.ETIMEDOUT, "Connection timed out")

    with pytest.raises(TimeoutError) as caught:
        call_on(cut, limit=5).operate(ours, operation, b"")
    assert caught.value.errno == errno.ETIMEDOUT


def test_a_cancel_during_an_operation_wins_over_its_result(pair):
    ours, theirs, cut = pair
    token = CancelToken()

    def operation(_):
        token.cancel()
        return 7

    with pytest.raises(Stop):
        call_on(cut, token).operate(ours, operation, b"")
    assert theirs.recv(1) == b"", "the connection was shut down"
    assert not token._callbacks


def test_a_lost_lease_cuts_the_connection_whatever_the_dispatch_thread_does(pair):
    """A listener that takes its time, or an `on_lost` of another lease, must not keep the work at its call."""
    ours, theirs, cut = pair
    theirs.setblocking(False)
    token = CancelToken()
    go = threading.Event()
    seen = []

    def operation(_):
        token._cancel_soon("lost")
        seen.append(theirs.recv(1))
        return 7

    post(go.wait)
    try:
        with pytest.raises(Stop):
            call_on(cut, token).operate(ours, operation, b"")
    finally:
        go.set()
    assert seen == [b""], "the connection was shut down at once"
    assert not token._callbacks


def test_an_interrupt_passes_although_the_connection_was_cut(pair):
    ours, _, cut = pair
    token = CancelToken()

    def operation(_):
        token.cancel()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_on(cut, token).operate(ours, operation, b"")
    with pytest.raises(KeyboardInterrupt), call_on(cut, CancelToken()).connecting(cut, timed=False):
        raise KeyboardInterrupt


def test_a_cancel_after_an_operation_finds_nothing(pair):
    ours, theirs, cut = pair
    token = CancelToken()
    call = call_on(cut, token)
    theirs.sendall(b"a")
    call.operate(ours, ours.recv_into, bytearray(1))
    token.cancel()
    ours.sendall(b"still there")
    assert theirs.recv(20) == b"still there"


def test_a_cancel_that_was_taken_out_before_the_end_is_waited_for_by_nobody(pair):
    """A canceller that was interrupted between finding the hook and calling it must not cut a later user."""
    ours, theirs, cut = pair
    token = CancelToken()
    call = call_on(cut, token)
    theirs.sendall(b"a")
    found = []

    def operation(buffer):
        found.extend(token._callbacks)
        return ours.recv_into(buffer)

    assert call.operate(ours, operation, bytearray(1)) == 1
    found[0].fire()  # too late
    ours.sendall(b"still there")
    assert theirs.recv(20) == b"still there"


def test_a_cancel_in_a_forked_child_leaves_the_connection_of_its_parent_alone(pair):
    """It has the token with what was listed on it: a handler of SIGTERM, say, cancels it there."""
    ours, theirs, cut = pair
    theirs.settimeout(5)
    token = CancelToken()

    def operation(buffer):
        check = forked(token.cancel)
        assert check()
        theirs.sendall(b"abc")
        return ours.recv_into(buffer)

    assert call_on(cut, token).operate(ours, operation, bytearray(8)) == 3
    token.cancel()
    ours.sendall(b"still there")
    assert theirs.recv(20) == b"still there"


def test_an_end_of_the_other_side_is_told_as_such(pair):
    ours, theirs, cut = pair
    theirs.close()
    assert call_on(cut, CancelToken(), limit=1).operate(ours, ours.recv_into, bytearray(1)) == 0


def test_the_watchdog_cuts_where_an_operation_is_many_waits(pair):
    ours, _, cut = pair

    class Foreign:
        """A socket of another library, whose one operation waits again and again."""

        def settimeout(self, timeout):
            pass

        def recv_into(self, buffer):
            ours.settimeout(10)
            return ours.recv_into(buffer)

    foreign = Foreign()
    began = time.monotonic()
    call = call_on(cut, limit=0.2)
    call.begin(foreign, cut)
    with pytest.raises(Stop):
        call.operate(foreign, foreign.recv_into, bytearray(1))
    assert 0.2 <= time.monotonic() - began < 5


def test_parking_ends_with_the_budget():
    from pyresil.clock import Parker

    with pytest.raises(Stop):
        Budget((), 0.05).park(Parker())
    token = CancelToken()
    timer = threading.Timer(0.05, token.cancel)
    timer.start()
    with pytest.raises(Stop):
        Budget((token,)).park(Parker())
    timer.join()
    assert not token._callbacks


def test_a_response_may_be_closed_by_two_threads_at_once(pair):
    ours, theirs, _ = pair
    others = []

    class Raced(BoundRawResponse):
        def flush(self):  # called in the middle of `close`
            if not others:
                others.append(threading.Thread(target=self.close))
                others[0].start()
                others[0].join()
            super().flush()

    theirs.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    response = Raced(ours)
    response.begin()
    assert response.read() == b"ok"
    response.close()
    assert others
    assert response.closed
