"""Circuit breakers of several processes that share their state through a store; each breaker here stands for a process."""

from __future__ import annotations

import logging
import threading

import pytest

from pyresil import (
    CircuitBreaker,
    CircuitOpenError,
    CircuitSnapshot,
    CircuitState,
    ConfigurationError,
    MemoryCircuitStore,
    Policy,
    StoreError,
    StoreUnavailableError,
    VersionedCircuit,
    connect,
)
from pyresil.strategies.circuit_breaker.shared import Share
from pyresil.testing import ManualClock, record_events

OPEN, CLOSED, HALF_OPEN = CircuitState.OPEN, CircuitState.CLOSED, CircuitState.HALF_OPEN


class Store(MemoryCircuitStore):
    """A store that can be out of reach, and counts requests."""

    down = False
    #: What is written arrives, and its answer does not.
    lost = False
    reads = writes = 0

    def read(self, *args, **options):
        self.reads += 1
        if self.down:
            raise StoreUnavailableError("down")
        return super().read(*args, **options)

    def write(self, *args, **options):
        self.writes += 1
        if self.down:
            raise StoreUnavailableError("down")
        answer = super().write(*args, **options)
        if self.lost:
            raise StoreUnavailableError("the answer got lost")
        return answer


@pytest.fixture
def store(clock):
    return Store(clock)


@pytest.fixture
def make(clock, store):
    """`make(**options)`: a breaker on the store, and the call of a policy around it."""

    def build(**options):
        options.setdefault("minimum_calls", 2)
        breaker = CircuitBreaker("api", share=store, clock=clock, **options)
        return breaker, Policy(breaker, name="carrier").call

    return build


def ok():
    return "ok"


def fail():
    raise OSError("down")


def failing(call, times=2):
    for _ in range(times):
        with pytest.raises(OSError):
            call(fail)


def rejected(call):
    with pytest.raises(CircuitOpenError) as caught:
        call(ok)
    return caught.value


def test_what_one_opens_is_open_for_all_within_a_second(make, clock):
    (first, call), (second, other) = make(), make()
    other(ok)
    failing(call)
    assert first.state is OPEN
    assert other(ok) == "ok"  # it looked a moment ago
    clock.advance(1)
    assert rejected(other).retry_after == 29.0
    assert second.state is OPEN


def test_counts_are_each_process_own(make):
    (_, call), (second, other) = make(), make()
    failing(call, 1)
    failing(other, 1)
    assert second.stats().calls == 1
    assert second.state is CLOSED


def test_a_closed_circuit_is_read_once_a_second_and_not_written(make, clock, store):
    _, call = make()
    for _ in range(10):
        call(ok)
    assert (store.reads, store.writes) == (1, 0)
    clock.advance(1)
    call(ok)
    assert store.reads == 2


def test_one_process_probes_and_the_others_wait_for_what_it_finds(make, clock):
    (first, call), (second, other) = make(), make()
    failing(call)
    clock.advance(1)
    rejected(other)
    clock.advance(29)

    def probe():
        assert rejected(other).retry_after == 30.0
        assert second.state is OPEN
        return "probed"

    assert call(probe) == "probed"
    assert first.state is CLOSED
    clock.advance(1)
    assert other(ok) == "ok"
    assert second.state is CLOSED


def test_a_probe_that_fails_opens_it_for_all(make, clock):
    (first, call), (second, other) = make(), make()
    failing(call)
    clock.advance(30)
    failing(call, 1)
    assert first.stats().opened == 2
    assert rejected(other).retry_after == 30.0
    assert second.stats().opened == 2


def test_the_turn_of_a_process_that_vanishes_ends_with_its_time(make, clock):
    (first, call), (second, other) = make(probe_timeout="5s"), make(probe_timeout="5s")
    failing(call)
    clock.advance(30)
    vanished = first.enter(Policy(first)._context())  # a probe that never comes back
    assert rejected(other).retry_after == 5.0
    clock.advance(5)
    assert other(ok) == "ok"
    assert second.state is CLOSED
    del vanished


def test_several_probes_of_one_process(make, clock):
    breaker, call = make(half_open_calls=3)
    failing(call)
    clock.advance(30)
    for _ in range(3):
        assert call(ok) == "ok"
    assert breaker.state is CLOSED


@pytest.mark.parametrize(
    ("how", "state"),
    [("trip", OPEN), ("isolate", CircuitState.ISOLATED), ("disable", CircuitState.DISABLED), ("reset", CLOSED),
     ("metrics_only", CircuitState.METRICS_ONLY)],
)  # fmt: skip
def test_what_is_set_by_hand_is_set_for_all(make, clock, how, state):
    (first, _), (second, other) = make(), make()
    first.isolate()
    clock.advance(1)
    rejected(other)
    getattr(first, how)()
    clock.advance(1)
    try:
        other(ok)
    except CircuitOpenError:
        pass
    assert second.state is state


def test_by_hand_wins_over_what_somebody_else_wrote_meanwhile(make, clock):
    (first, call), (second, other) = make(), make()
    other(ok)
    failing(call)
    second.isolate()  # it has not looked since
    clock.advance(1)
    rejected(call)
    assert first.state is CircuitState.ISOLATED


def test_a_decision_that_comes_second_gives_way(make, clock):
    (_first, call), (second, other) = make(open_for="5s"), make(open_for="60s")
    other(ok)
    failing(call)
    failing(other, 1)  # it did not know
    assert second.state is OPEN
    assert rejected(other).retry_after == 5.0


@pytest.mark.parametrize("cut", ["_post", "follow"])
def test_what_others_decided_is_followed_also_after_a_signal_handler_raised_in_it(
    make, clock, monkeypatch, cut
):
    breaker, call = make()
    other, _ = make()
    call(ok)
    other.isolate()
    clock.advance(1)
    take_over, owner = Share._take_over, breaker._circuit if cut == "follow" else breaker

    def interrupted(share, *args):
        with monkeypatch.context() as patch:
            patch.setattr(type(owner), cut, raising)
            take_over(share, *args)

    def raising(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Share, "_take_over", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call(ok)
    assert breaker.state is CLOSED
    clock.advance(1)
    rejected(call)
    assert breaker.state is CircuitState.ISOLATED


def test_events_are_told_for_what_others_decided_too(make, clock):
    (_, call), (_second, other) = make(), make()
    other(ok)
    failing(call)
    clock.advance(1)
    with record_events(["circuit-opened", "circuit-closed"]) as events:
        rejected(other)
        clock.advance(29)
        call(ok)
        clock.advance(1)
        other(ok)
    assert [(event.from_state, event.to_state) for event in events] == [
        (CLOSED, OPEN),
        (HALF_OPEN, CLOSED),  # the one that probed
        (OPEN, CLOSED),
    ]


def test_a_store_that_is_down_is_told_and_the_breaker_goes_on_by_itself(make, clock, store, caplog):
    (first, call), (second, other) = make(), make()
    store.down = True
    with record_events("circuit-store-error") as events, caplog.at_level(logging.WARNING, "pyresil"):
        failing(call)
        assert first.state is OPEN
        clock.advance(30)
        assert call(ok) == "ok"
        assert first.state is CLOSED
        failing(call)
    assert len(events) >= 3
    assert isinstance(events[0].error, StoreUnavailableError)
    assert sum("goes on by itself" in record.getMessage() for record in caplog.records) == 1
    store.down = False
    clock.advance(5)
    rejected(call)  # writes what it decided meanwhile
    rejected(other)
    assert second.state is OPEN


def test_while_the_store_is_down_it_is_asked_every_five_seconds(make, clock, store):
    _, call = make()
    store.down = True
    for _ in range(20):
        call(ok)
        clock.advance(0.5)
    assert store.reads == 2


def test_a_store_that_lost_everything_leaves_things_as_they_are(make, clock, store):
    breaker, call = make()
    failing(call)
    store._rows.clear()
    clock.advance(1)
    rejected(call)
    breaker.reset()
    assert store.read("api").snapshot.state == "closed"


def test_what_one_opens_is_open_for_all_although_the_store_lost_everything_before(make, clock, store):
    (first, call), (_second, other) = make(), make()
    call(ok)
    first.reset()
    store._rows.clear()
    failing(call)  # it looked a moment ago
    clock.advance(1)
    rejected(other)


def test_a_break_that_ends_when_the_store_lost_everything_is_followed_by_a_probe(make, clock, store):
    breaker, call = make(open_for="0.5s")
    failing(call)
    store._rows.clear()
    clock.advance(0.5)
    assert call(ok) == "ok"
    assert breaker.state is CLOSED


def test_a_decision_is_written_also_where_the_answer_to_the_one_before_got_lost(make, clock, store):
    (first, _), (second, other) = make(), make()
    store.lost = True
    first.isolate()
    store.lost, store.down = False, True
    first.reset()
    store.down = False
    clock.advance(5)
    first.enter(Policy(first)._context())  # looks, and writes
    other(ok)
    assert second.state is CLOSED


def test_a_decision_is_not_taken_for_the_one_before_whose_answer_got_lost(make, store):
    (first, _), (second, other) = make(), make()
    store.lost = True
    first.isolate()
    store.lost = False
    first.reset()
    other(ok)
    assert second.state is CLOSED


def test_a_round_of_probes_is_asked_for_also_where_an_answer_got_lost_before(make, clock, store):
    (_first, call), (second, other) = make(open_for="2s"), make(open_for="2s")
    store.lost = True
    failing(call)
    store.lost = False
    clock.advance(2)

    def probe():
        rejected(other)
        return "probed"

    assert call(probe) == "probed"
    clock.advance(1)
    assert other(ok) == "ok"
    assert second.state is CLOSED


def test_a_round_of_probes_is_not_the_one_of_a_forked_child(make, clock):
    breaker, call = make()
    failing(call)
    clock.advance(30)
    probe = breaker.enter(Policy(breaker)._context())
    breaker._after_fork()
    assert rejected(call).retry_after == 30.0
    clock.advance(30)
    assert call(ok) == "ok"  # the parent's time is up
    del probe


@pytest.mark.parametrize(
    "answer",
    [None, ("x", 1), VersionedCircuit(None, -1), VersionedCircuit(CircuitSnapshot("ajar", 0, 0, "x"), 1)],
)
def test_what_a_store_answers_is_checked(make, store, answer):
    _breaker, call = make()
    store.read = lambda *args, **options: answer
    with record_events("circuit-store-error") as events:
        assert call(ok) == "ok"
    assert isinstance(events[0].error, StoreError)


def test_threads_of_one_process_share_its_turn(make, clock, store):
    breaker, call = make(half_open_calls=4)
    failing(call)
    clock.advance(30)
    barrier, admitted, rejections = threading.Barrier(8), [], []

    def caller():
        barrier.wait()
        try:
            call(admitted.append, 1)
        except CircuitOpenError:
            rejections.append(1)

    threads = [threading.Thread(target=caller) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert breaker.state is CLOSED
    assert len(admitted) >= 4
    assert store.read("api").snapshot.state == "closed"


def test_a_thread_that_comes_late_to_the_turn_leaves_its_end_as_it_is(make, clock, store, monkeypatch):
    breaker, call = make()
    failing(call)
    clock.advance(30)
    claim, late = Share.claim, []

    def slow(share, *args):
        """Another thread has the whole turn after this one saw that the break is over, and before it asks for the turn."""
        if not late:
            late.append(args)
            call(lambda: 1)
            assert store.read("api").snapshot.state == "closed"
        return claim(share, *args)

    monkeypatch.setattr(Share, "claim", slow)
    call(lambda: 1)
    assert late
    assert breaker.state is CLOSED
    assert store.read("api").snapshot.state == "closed"


def test_as_a_block(make, clock):
    (_, call), (second, _) = make(), make()
    failing(call)
    with pytest.raises(CircuitOpenError), Policy(second).execute():
        raise AssertionError("entered")


def test_options_and_where_stores_come_from(store, tmp_path):
    assert CircuitBreaker("api", share=store).describe()["share"] == "shared"
    with pytest.raises(ConfigurationError, match="name"):
        CircuitBreaker(share=store)
    with pytest.raises(ConfigurationError, match="share"):
        CircuitBreaker("api", share=object())
    assert isinstance(connect("memory:").circuits, MemoryCircuitStore)
    with pytest.raises(ConfigurationError, match="circuit"):
        _ = connect(f"sqlite:///{tmp_path}/x.db").circuits
    with pytest.raises(ConfigurationError, match="max_keys"):
        MemoryCircuitStore(max_keys=0)


def test_a_memory_store_is_bounded_and_keeps_open_circuits():
    store = MemoryCircuitStore(max_keys=10)
    store.write("open", CircuitSnapshot("open", 60_000, 1, "w"), 0)
    for number in range(100):
        store.write(f"k{number}", CircuitSnapshot("closed", 0, 0, "w"), 0)
    assert int(repr(store).partition("=")[2].rstrip(")")) <= 10
    assert store.read("open").snapshot.state == "open"


def test_a_write_answers_what_stands_in_its_way():
    store = MemoryCircuitStore(ManualClock())
    mine, other = CircuitSnapshot("open", 1_000, 1, "me"), CircuitSnapshot("closed", 0, 0, "other")
    assert store.read("k") == (None, 0)
    assert store.write("k", mine, 0) == (mine, 1)
    assert store.write("k", other, 0) == (mine, 1)
    assert store.write("k", other, 1) == (other, 2)
    with pytest.raises(ConfigurationError):
        store.read("")
