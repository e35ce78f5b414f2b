from __future__ import annotations

import gc
import threading
import time
import traceback
import weakref

import pytest

from pyresil.cancel import CancelToken, _Callback, _Registration
from pyresil.clock import Parker, SignalSafeEvent
from pyresil.context import current_context
from pyresil.errors import CancelledError, ConfigurationError, TimeoutExceededError
from pyresil.policy import Policy
from pyresil.testing import ManualClock
from tests.support.processes import run_python, wait_until


def test_it_reads_like_an_event():
    token = CancelToken()
    assert (token.is_set(), token.wait(0.0), token.reason, token.remaining()) == (False, False, None, None)
    token.raise_if_cancelled()
    assert token.cancel("stop") is True
    assert token.cancel("again") is False
    assert (token.is_set(), token.wait(), token.reason) == (True, True, "stop")
    with pytest.raises(CancelledError, match="stop"):
        token.raise_if_cancelled()


def test_a_reason_that_is_an_exception_is_raised_itself():
    token = CancelToken()
    reason = KeyError("why")
    token.cancel(reason)
    with pytest.raises(KeyError) as caught:
        token.raise_if_cancelled()
    assert caught.value is reason


def test_a_reason_that_is_raised_again_and_again_keeps_nobody_alive():
    """Each raise adds to the traceback of the one object, whose frames hold what the calls were about."""

    class Held:
        pass

    def failed_somewhere():
        raise LookupError("off")

    token = CancelToken()
    try:
        failed_somewhere()
    except LookupError as error:
        reason = error
    token.cancel(reason)
    watched = []

    def request():
        local = Held()
        watched.append(weakref.ref(local))
        assert Policy().options(cancel=token).settle(int).error is reason

    for _ in range(5):
        request()
    assert sum(ref() is not None for ref in watched) <= 1
    assert "failed_somewhere" in "".join(traceback.format_exception(reason)), (
        "it tells still where it came from"
    )


def test_a_deadline_needs_no_thread():
    clock = ManualClock()
    token = CancelToken(timeout="10s", clock=clock)
    clock.advance(9)
    assert token.remaining() == 1
    assert not token.is_set()
    clock.advance(1)
    assert token.is_set()
    assert token.remaining() == 0
    assert isinstance(token.reason, TimeoutExceededError)
    with pytest.raises(TimeoutExceededError, match="10 s"):
        token.raise_if_cancelled()
    assert clock.timers == 0


@pytest.mark.parametrize("bad", [-1, "soon", True, float("nan")])
def test_a_bad_timeout_is_refused(bad):
    with pytest.raises(ConfigurationError, match="cancel token"):
        CancelToken(timeout=bad)


def test_children_follow_and_never_lead():
    clock = ManualClock()
    parent = CancelToken(timeout=60, clock=clock)
    child, sibling = parent.child(timeout=10), parent.child()
    assert (child.remaining(), sibling.remaining()) == (10, 60)
    child.cancel()
    assert not parent.is_set()
    assert not sibling.is_set()
    parent.cancel("all")
    assert sibling.reason == "all"


@pytest.mark.parametrize("derive", [lambda token: token, CancelToken.child], ids=["itself", "child"])
def test_a_token_that_is_handed_on_at_every_level_is_looked_at_once(derive):
    policy = Policy()

    def walk(depth):
        token = current_context().cancel
        return token._chain() if depth == 0 else policy.options(cancel=derive(token)).call(walk, depth - 1)

    chain = policy.call(walk, 10)
    assert len(chain) == len(set(chain)) <= 3 * 11


def test_a_look_at_a_long_chain_compares_no_token_with_all_others(monkeypatch):
    token = CancelToken()
    for _ in range(300):
        token = token.child()
    compared = []
    monkeypatch.setattr(
        CancelToken, "__eq__", lambda self, other: compared.append(None) or self is other, raising=False
    )
    assert not token.is_set()
    assert len(compared) < 300


def test_callbacks_run_once_in_order_and_one_that_raises_stops_nobody(caplog):
    token = CancelToken()
    seen = []
    token.on_cancel(lambda: seen.append(1))
    token.on_cancel(lambda: 1 / 0)
    remove = token.on_cancel(lambda: seen.append("removed"))
    token.on_cancel(lambda: seen.append(3))
    remove()
    remove()
    token.cancel()
    token.cancel()
    assert seen == [1, 3]
    token.on_cancel(lambda: seen.append("late"))
    assert seen == [1, 3, "late"]
    assert "callback raised" in caplog.text


def test_a_callback_on_a_child_runs_when_the_parent_is_cancelled():
    parent = CancelToken()
    seen = []
    parent.child().child().on_cancel(lambda: seen.append(1))
    parent.cancel()
    assert seen == [1]


def test_a_deadline_fires_callbacks_and_the_event():
    clock = ManualClock()
    parent = CancelToken(timeout=5, clock=clock)
    token = parent.child()
    seen = []
    token.on_cancel(lambda: seen.append(clock.elapsed))
    event = token.as_event()
    assert isinstance(event, threading.Event)
    assert token.as_event() is event
    clock.advance(4)
    assert (seen, event.is_set()) == ([], False)
    clock.advance(4)
    assert (seen, event.is_set()) == ([5.0], True)


def test_waiting_ends_with_the_token():
    token = CancelToken()
    thread = threading.Thread(target=token.cancel)
    begun = time.monotonic()
    threading.Timer(0.05, thread.start).start()
    assert token.wait(10) is True
    assert time.monotonic() - begun < 5
    assert CancelToken(timeout=0.05).wait() is True


def test_a_wait_leaves_nothing_behind():
    parent = CancelToken()
    token = parent.child()
    for _ in range(100):
        token.wait(0.0001)
    assert (token._callbacks, parent._callbacks) == ({}, {})


def test_a_token_that_is_done_lets_callbacks_and_timers_go():
    clock = ManualClock()
    parent = CancelToken()
    token = CancelToken._make(clock, (parent,), None)
    token._deadline = clock.monotonic() + 60

    class Thing:
        def act(self):
            raise AssertionError

    thing = Thing()
    gone = weakref.ref(thing)
    token.on_cancel(thing.act)
    del thing
    assert clock.timers == 1
    token._close()
    assert (clock.timers, parent._callbacks) == (0, {})
    assert gone() is None
    parent.cancel()


def test_a_token_dies_without_the_collector():
    gc.disable()
    try:
        token = CancelToken(timeout=60, clock=ManualClock())
        child = token.child()
        child.as_event()
        child.on_cancel(print)
        gone = weakref.ref(token)
        child._close()
        del token, child
        assert gone() is None
    finally:
        gc.enable()


def test_cancel_and_register_race_and_every_callback_runs_once():
    for _ in range(300):
        token = CancelToken()
        seen = []
        barrier = threading.Barrier(3)

        def register(token=token, seen=seen, barrier=barrier):
            barrier.wait()
            for _ in range(5):
                token.on_cancel(lambda: seen.append(1))

        def cancel(token=token, barrier=barrier):
            barrier.wait()
            token.cancel()

        threads = [threading.Thread(target=target) for target in (register, register, cancel)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == 10


def test_the_event_is_a_real_event():
    event = SignalSafeEvent()
    assert "unset" in repr(event)
    assert event.wait(0.01) is False
    event.set()
    assert event.wait() is True
    assert ": set" in repr(event)
    event.clear()
    assert not event.is_set()
    woken = []
    threads = [threading.Thread(target=lambda: woken.append(event.wait(10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(event._parkers) == 4)
    event.set()
    for thread in threads:
        thread.join(5)
    assert woken == [True] * 4
    assert event._parkers == {}


@pytest.mark.parametrize("what", ["event.set", "token.cancel"])
def test_a_handler_may_set_what_its_own_thread_waits_for(what):
    """The stock Event hung in some of such processes: the handler needs the lock that the interrupted wait holds."""
    done = run_python(
        f"""
        import signal, sys
        from pyresil.cancel import CancelToken
        from pyresil.clock import SignalSafeEvent
        sys.setswitchinterval(1e-5)
        rounds = 0
        for _ in range(1500):
            event, token = SignalSafeEvent(), CancelToken()
            signal.signal(signal.SIGALRM, lambda *_: {what}())
            # Again and again: one that comes right before the wait itself is seen by Python only after it.
            signal.setitimer(signal.ITIMER_REAL, 0.00005 + rounds % 50 * 0.00001, 0.01)
            assert {"event.wait(10)" if what == "event.set" else "token.wait(10)"}
            rounds += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(rounds)
        """,
    )
    assert done.stdout.strip() == "1500"


def test_a_slow_callback_does_not_delay_those_who_wait():
    go_on = threading.Event()
    token, other = CancelToken(timeout=1.0), CancelToken(timeout=1.5)
    token.on_cancel(lambda: go_on.wait(10))
    event = other.as_event()
    seen = []
    other.on_cancel(lambda: seen.append(1))
    assert event.wait(5), "set by the watchdog while the dispatch thread is busy"
    assert seen == []
    go_on.set()
    wait_until(lambda: seen == [1])


def test_a_clock_that_is_none_is_refused_together_with_other_faults():
    with pytest.raises(
        ConfigurationError, match=r"timeout must be a duration.*clock must be a Clock or None, got 3"
    ):
        CancelToken(timeout=-1, clock=3)


def test_a_callback_that_interrupts_keeps_nobody_waiting():
    def interrupt():
        raise KeyboardInterrupt

    token, woken = CancelToken(), []
    token.on_cancel(interrupt)
    token.on_cancel(lambda: woken.append(True))
    with pytest.raises(KeyboardInterrupt):
        token.cancel()
    assert woken == [True]


@pytest.mark.parametrize(
    ("holder", "step"),
    [
        (CancelToken, "_fire"),
        (_Callback, "fire"),
        (Parker, "unpark"),
        (SignalSafeEvent, "set"),
        (_Registration, "remove"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_signal_handler_that_raises_in_a_cancel_keeps_nobody_waiting(monkeypatch, holder, step):
    """Python runs one where a function starts."""
    original, cuts = getattr(holder, step), []

    def interrupted(self):
        if cuts:
            raise cuts.pop()
        original(self)

    monkeypatch.setattr(holder, step, interrupted)
    above = CancelToken()
    token = above.child()
    event, parkers, called = token.as_event(), [Parker(), Parker()], []
    for parker in parkers:
        _Registration(token, _Callback(parker.unpark, quick=True)).add()
    token.on_cancel(lambda: called.append(1))
    cuts.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        token.cancel()
    assert event.is_set()
    assert [parker.wait(0.0) for parker in parkers] == [True, True]
    assert called == [1]
    assert token._callbacks == above._callbacks == {}


@pytest.mark.parametrize("step", ["add", "is_set", "_arm", "_chain", "remaining"])
@pytest.mark.parametrize("ends", ["cancel", "deadline"])
def test_the_event_of_a_token_is_set_although_a_signal_handler_raised_where_it_was_made(
    monkeypatch, step, ends
):
    clock = ManualClock()
    token = CancelToken(timeout="10s", clock=clock)
    holder = _Registration if step == "add" else CancelToken

    def interrupted(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(holder, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            token.as_event()
    event = token.as_event()
    assert not event.is_set()
    if ends == "cancel":
        token.cancel()
    else:
        clock.advance("10s")
    assert event.is_set()
    assert token.as_event() is event
    assert clock.timers == (1 if ends == "cancel" else 0)


def test_of_two_threads_that_ask_first_both_get_one_event(monkeypatch):
    token, inside = CancelToken(), []
    add = _Registration.add

    def added(self):
        add(self)
        if not inside:
            inside.append(None)
            inside.append(token.as_event())

    monkeypatch.setattr(_Registration, "add", added)
    event = token.as_event()
    assert inside[1] is event
    assert len(token._callbacks) == 1
    token.cancel()
    assert event.is_set()


def test_a_token_above_keeps_nothing_of_children_that_were_set():
    clock = ManualClock()
    above = CancelToken(clock=clock)
    seen = []
    for timeout in (None, "1s"):
        child = above.child().child(timeout)
        event = child.as_event()
        child.on_cancel(lambda: seen.append(1))
        if timeout is None:
            child.cancel()
        else:
            clock.advance("1s")
        assert event.is_set()
    assert seen == [1, 1]
    assert not above._callbacks
