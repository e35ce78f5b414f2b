from __future__ import annotations

import functools
import threading

import pytest

from pyresil import Bulkhead, CancelToken, Locks, MemoryLockStore, Policy, Retry
from pyresil._admission import Admission
from pyresil.context import current_context, current_lease
from pyresil.errors import (
    BulkheadFullError,
    CancelledError,
    ConfigurationError,
    LockError,
    StoreUnavailableError,
)
from pyresil.locks import Lease
from pyresil.locks._slots import LeaseSlots
from pyresil.stores.sqlite import SQLiteLockStore
from tests.locks import faults
from tests.locks.faults import FaultyStore
from tests.support.processes import wait_until
from tests.support.threads import Caller


@pytest.fixture
def store(clock):
    return FaultyStore(MemoryLockStore(clock=clock))


def bulkheads(store, clock, count=2, **options):
    """As many processes as ``count``, each with its own object."""
    options = {"max_concurrent": 2, "name": "export", "lock_store": store, **options}
    return [Policy(Bulkhead(**options), clock=clock) for _ in range(count)]


def test_the_cap_holds_over_all_instances(clock, store):
    one, other = bulkheads(store, clock)

    def inner():
        with pytest.raises(BulkheadFullError) as caught:
            other.call(print)
        assert (caught.value.reason, caught.value.name) == ("full", "export")
        return "ran"

    assert one.call(lambda: other.call(inner)) == "ran"
    assert store.inner.scan() == []
    assert one.call(lambda: other.call(lambda: "again")) == "again"


@pytest.mark.parametrize("where", [(Lease, "release"), (LeaseSlots, "end")])
@pytest.mark.parametrize("form", ["call", "block"])
def test_a_signal_handler_that_raises_where_a_slot_is_given_back(clock, store, monkeypatch, form, where):
    (one,) = bulkheads(store, clock, 1)
    interrupt = functools.partial(faults.interrupt, monkeypatch, *where)
    raised = []
    try:
        if form == "call":
            one.call(lambda: raised.append(interrupt()))
        else:
            with one.execute():
                raised.append(interrupt())
    except BaseException as error:
        assert type(error) is raised[0]  # noqa: PT017 - only made in the block
    else:
        raise AssertionError("it comes out")
    assert store.inner.scan() == []
    assert one.strategies[0].stats().active == 0


def test_a_signal_handler_that_raises_where_a_call_without_a_lease_leaves_keeps_nobody_waiting(
    clock, store, monkeypatch
):
    (one,) = bulkheads(store, clock, 1, max_concurrent=1, max_queue=1)
    waiting = []

    def refused(*args):
        waiting.append(Caller(lambda: one.call(lambda: "ran")))
        wait_until(lambda: one.strategies[0].stats().queued == 1)
        faults.interrupt(monkeypatch, Admission, "exit")
        raise BulkheadFullError("full", "export")

    monkeypatch.setattr(one.strategies[0]._leases, "take", refused)
    with pytest.raises(faults.Interrupt), one.execute():
        pytest.fail("it ran")
    assert waiting[0].ended().value == "ran"


@pytest.mark.parametrize("form", ["call", "block"])
def test_no_work_begins_in_a_slot_that_closing_took_back(clock, store, monkeypatch, form):
    (one,) = bulkheads(store, clock, 1)
    slots = one.strategies[0]._leases
    take = slots.take

    def take_and_close(*args):
        lease = take(*args)
        slots.locks.close()
        return lease

    monkeypatch.setattr(slots, "take", take_and_close)
    with pytest.raises(LockError, match="closed"):
        if form == "call":
            one.call(pytest.fail, "it ran")
        else:
            with one.execute():
                pytest.fail("it ran")
    assert store.inner.scan() == []
    assert one.strategies[0].stats().active == 0


def test_slots_are_no_leases_of_the_work(clock, store):
    (one,) = bulkheads(store, clock, 1)
    assert one.call(lambda: (current_lease(), current_context().lease)) == (None, None)


def test_the_block_and_the_loop_form(clock, store):
    one, other = bulkheads(store, clock, max_concurrent=1)
    with one.execute():
        with pytest.raises(BulkheadFullError), other.execute():
            raise AssertionError
        with pytest.raises(BulkheadFullError), one.execute():
            raise AssertionError
    with other.execute():
        assert len(store.inner.scan("bulkhead:export:")) == 1
    looped = Policy(
        Retry(attempts=2, backoff=lambda attempt, outcome: 0),
        Bulkhead(1, name="export", lock_store=store),
        clock=clock,
    )
    for attempt in looped.execute():
        with attempt:
            assert len(store.inner.scan()) == 1
            if attempt.number == 1:
                raise ValueError
    assert store.inner.scan() == []


def test_waiting_for_a_slot_of_another_instance(clock, store):
    one, other = bulkheads(store, clock, max_concurrent=1, max_queue=5, queue_timeout="10s")
    box = []
    block = one.execute()
    block.__enter__()
    thread = threading.Thread(daemon=True, target=lambda: box.append(other.call(lambda: clock.elapsed)))
    thread.start()
    clock.wait_until_parked()
    clock.advance(3)
    block.__exit__(None, None, None)
    clock.advance(1)
    thread.join(5)
    assert 3 <= box[0] <= 4


def test_waiting_ends_with_the_queue_timeout_and_with_a_cancel(clock, store):
    one, other = bulkheads(store, clock, max_concurrent=1, max_queue=5, queue_timeout="2s")
    errors = []

    def call(**options):
        try:
            other.options(**options).call(print)
        except Exception as error:
            errors.append(error)

    token = CancelToken(clock=clock)
    with one.execute():
        thread = threading.Thread(daemon=True, target=call)
        thread.start()
        clock.wait_until_parked()
        clock.advance(2)
        thread.join(5)
        thread = threading.Thread(daemon=True, target=call, kwargs={"cancel": token})
        thread.start()
        clock.wait_until_parked()
        token.cancel()
        thread.join(5)
    assert [type(error) for error in errors] == [BulkheadFullError, CancelledError]
    assert errors[0].reason == "queue-timeout"
    assert other.call(lambda: "free") == "free", "nothing is left behind"


def test_a_dead_instance_frees_its_slot_after_the_ttl(clock, store):
    one, other = bulkheads(MemoryLockStore(clock=clock), clock, max_concurrent=1)
    store = one.strategies[0]._leases._store
    store.renew = lambda *args, **kwargs: (_ for _ in ()).throw(ConnectionError("dead"))
    with one.execute():
        with pytest.raises(BulkheadFullError):
            other.call(print)
        clock.advance(30)
        assert other.call(lambda: "free") == "free"


def test_an_unreachable_store_is_no_full_bulkhead(clock, store):
    (one,) = bulkheads(store, clock, 1)
    store.faults["acquire"] = StoreUnavailableError("down")
    with pytest.raises(StoreUnavailableError):
        one.call(print)
    with pytest.raises(StoreUnavailableError), one.execute():
        pass
    store.faults.clear()
    wait_until(lambda: store.inner.scan() == [])
    assert one.strategies[0].stats().active == 0
    assert one.call(lambda: "ran") == "ran"


def test_bad_options(store):
    with pytest.raises(ConfigurationError, match="name must be given with lock_store"):
        Bulkhead(lock_store=store)
    with pytest.raises(ConfigurationError, match=r"lock_store: .*store must be"):
        Bulkhead(lock_store=object(), name="export")
    with pytest.raises(ConfigurationError, match=r"lock_store: .*key must be"):
        Bulkhead(lock_store=store, name="x" * 500)


def test_describe(store):
    assert "FaultyStore" in Bulkhead(name="n", lock_store=store).describe()["lock_store"]
    assert Bulkhead().describe()["lock_store"] is None


def test_eight_threads_over_two_instances_on_a_file(tmp_path):
    store = SQLiteLockStore(tmp_path / "locks.db")
    policies = [Policy(Bulkhead(2, name="export", lock_store=Locks(store), max_queue=50)) for _ in range(2)]
    inside, most = [], []

    def work():
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.002)
        inside.pop()

    threads = [
        threading.Thread(
            daemon=True, target=lambda number=number: [policies[number % 2].call(work) for _ in range(5)]
        )
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(25)
    assert len(most) == 40
    assert max(most) <= 2
    assert store.scan() == []
