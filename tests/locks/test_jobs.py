from __future__ import annotations

import functools
import sys
import threading
import types
from datetime import timedelta

import pytest

from pyresil.context import current_context, current_lease, fencing_token
from pyresil.errors import ConfigurationError, LockError, LockLostError, StoreUnavailableError
from pyresil.events import LockAcquired, subscribe
from pyresil.locks import Lease, Locks
from pyresil.locks._acquire import Acquisition
from pyresil.stores.memory import MemoryLockStore
from pyresil.testing import ManualClock, record_events
from tests.locks.faults import interrupt


@pytest.fixture
def here(store, clock):
    return Locks(store, ttl="30s", clock=clock)


@pytest.fixture
def there(store, clock):
    return Locks(store, ttl="30s", clock=clock)


def both_orders(locks, key="job", **options):
    def apply(fn):
        return locks.on_one_instance(key, **options)(locks.without_overlapping(key)(fn))

    def other(fn):
        return locks.without_overlapping(key)(locks.on_one_instance(key, **options)(fn))

    return [apply, other]


@pytest.mark.parametrize("name", ["on_one_instance", "without_overlapping"])
def test_parentheses_that_were_forgotten_are_missed_when_it_is_decorated(here, name):
    def job():
        """Would never run: calling it would decorate."""

    with pytest.raises(ConfigurationError, match=f"has parentheses: @locks.{name}"):
        getattr(here, name)(job)


# -- signal handlers that raise


def test_an_interrupted_end_of_a_run_leaves_no_lease(clock, here, there, monkeypatch):
    raised = []

    @here.without_overlapping("job")
    def job():
        raised.append(interrupt(monkeypatch, Lease, "release"))

    with pytest.raises(BaseException) as caught:
        job()
    assert caught.type is raised[0]
    assert there.acquire("job").held


def test_an_interrupted_ownership_is_not_kept_beside_the_next_one(clock, here, store, monkeypatch):
    @here.on_one_instance("job")
    def job():
        return 1

    job()
    store.inner.force_release("job:owner")
    clock.advance(11)
    held, looks = Lease.held, []

    def interrupted(lease):
        looks.append(lease)
        if len(looks) == 2:  # just after the lock was granted again
            raise KeyboardInterrupt
        return held.__get__(lease)

    monkeypatch.setattr(Lease, "held", property(interrupted))
    with pytest.raises(KeyboardInterrupt):
        job()
    assert job() == 1
    assert len(here._leases) == 1
    assert here.status("job:owner").owner == next(iter(here._leases)).owner


def test_an_interrupted_tick_does_not_take_the_ownership_from_a_run_in_another_thread(
    clock, here, there, store, monkeypatch
):
    begun, go_on, raised = threading.Event(), threading.Event(), []

    @here.on_one_instance("job", min_hold=0)
    def job():
        begun.set()
        with clock.blocked():
            go_on.wait(20)
        current_lease().raise_if_lost()
        return 1

    other = threading.Thread(daemon=True, target=job)

    def meanwhile(number):
        if number == 1:  # two ticks at once, and the other one is faster
            other.start()
            assert begun.wait(5)
            raised.append(interrupt(monkeypatch, Locks, "_remember"))

    store.faults["acquire"] = meanwhile
    with pytest.raises(BaseException) as caught:
        job()
    assert caught.type is raised[0]
    assert there.acquire("job:owner") is None
    go_on.set()
    other.join(5)
    assert not other.is_alive()


def test_close_does_not_take_the_ownership_from_a_run_in_another_thread(clock, here, there, store):
    begun, go_on, closed, ran = threading.Event(), threading.Event(), [], []

    @here.on_one_instance("job", min_hold=0)
    def job():
        ran.append(None)
        if len(ran) == 1:
            begun.set()
            with clock.blocked():
                go_on.wait(20)

    other = threading.Thread(daemon=True, target=job)
    closer = threading.Thread(daemon=True, target=here.close)

    def meanwhile(number):
        if number == 1:
            other.start()
            assert begun.wait(5)

    def granted(event):
        if begun.is_set() and not closed:  # the same acquisition once more
            closer.start()
            clock.wait_until_parked()
            closed.append(there.acquire("job:owner"))

    store.faults["acquire"] = meanwhile
    stop = subscribe(granted, LockAcquired)
    job()
    stop()
    assert closed == [None]
    go_on.set()
    for thread in (other, closer):
        thread.join(5)
        assert not thread.is_alive()
    assert there.acquire("job:owner").held


def test_close_that_meets_a_new_ownership_does_not_wait_for_it(clock, here, there):
    job = both_orders(here, min_hold=0)[0](lambda: pytest.fail("it ran"))
    closer = threading.Thread(daemon=True, target=here.close)

    def granted(event):
        closer.start()
        clock.wait_until_parked()

    stop = subscribe(granted, LockAcquired)
    assert job() is None
    stop()
    closer.join(5)
    assert not closer.is_alive(), "it waits for a run that there is not"
    assert there.acquire("job:owner").held


# -- on_one_instance


def test_one_instance_runs_every_tick(clock, here, there):
    ran = []

    @here.on_one_instance("job")
    def job_here(tick):
        ran.append(("here", tick))
        return tick

    @there.on_one_instance("job")
    def job_there(tick):
        ran.append(("there", tick))
        return tick

    for tick in range(5):
        assert job_there(tick) == tick
        assert job_here(tick) is None
        clock.advance("10m")
    assert ran == [("there", tick) for tick in range(5)]
    assert here.status("job:owner") is not None, "kept between the ticks"
    assert here.status("job") is None


def test_a_skipped_call_is_told(clock, here, there, caplog):
    run = there.on_one_instance("job")(lambda: 1)
    assert run() == 1

    @here.on_one_instance("job")
    def report():
        raise AssertionError

    with record_events("job-skipped") as events, caplog.at_level("DEBUG", "pyresil"):
        assert report() is None
    assert [(event.key, event.reason) for event in events] == [("job", "not-owner")]
    assert "skipped" in caplog.text
    assert all(record.levelname == "DEBUG" for record in caplog.records)


def test_becoming_the_owner_is_told(here, caplog):
    with caplog.at_level("INFO", "pyresil"):
        here.on_one_instance("job")(lambda: 1)()
    assert "this process owns 'job:owner'" in caplog.text


def test_another_instance_takes_over_when_the_owner_is_gone(clock, store, here, there):
    ran = []
    first = here.on_one_instance("job")(lambda: ran.append("here"))
    second = there.on_one_instance("job")(lambda: ran.append("there"))
    first()
    here.close()
    assert second() is None, "the same tick, by a clock that is a little behind"
    clock.advance(1)
    second()
    first()
    assert ran == ["here", "there"]


def test_the_minimum_hold_counts_from_the_last_run(clock, here, there):
    ran = []
    first = here.on_one_instance("job", min_hold="3s")(lambda: ran.append("here"))
    second = there.on_one_instance("job", min_hold="3s")(lambda: ran.append("there"))
    first()
    clock.advance("1h")
    first()
    clock.advance(0.5)
    here.close()
    second()
    assert ran == ["here", "here"]
    clock.advance(2.5)
    second()
    assert ran == ["here", "here", "there"]


def test_the_minimum_hold_counts_the_time_that_the_machine_was_suspended():
    class Laptop(ManualClock):
        asleep = 0.0

        def boottime(self):
            return super().boottime() + self.asleep

    clock = Laptop()
    store = MemoryLockStore(clock)
    here, there = Locks(store, ttl="2h"), Locks(store, ttl="2h")
    ran = []
    job_here = here.on_one_instance("job", min_hold="5s")(lambda: ran.append("here"))
    job_there = there.on_one_instance("job", min_hold="5s")(lambda: ran.append("there"))
    job_here()
    clock.asleep = 3600.0
    job_here()
    here.close()
    clock.advance(4)
    job_there()
    assert ran == ["here", "here"]
    clock.advance(1)
    job_there()
    assert ran == ["here", "here", "there"]


def test_the_minimum_hold_counts_from_the_last_run_also_where_a_reply_was_lost(clock, store, here, there):
    ran = []
    job_here = here.on_one_instance("job", min_hold="5s")(lambda: ran.append("here"))
    job_there = there.on_one_instance("job", min_hold="5s")(lambda: ran.append("there"))
    store.faults["acquire"] = lambda number: "drop-reply" if number == 1 else None
    with pytest.raises(StoreUnavailableError):
        job_here()
    clock.advance(20)
    job_here()
    here.close()
    clock.advance(4)
    job_there()
    assert ran == ["here"], "the acquisition is 20 seconds older than the run"
    clock.advance(1)
    job_there()
    assert ran == ["here", "there"]


def test_the_minimum_hold_is_not_longer_for_an_outage(clock, store, here, there):
    ran = []
    job_here = here.on_one_instance("job", min_hold="5s")(lambda: ran.append("here"))
    job_there = there.on_one_instance("job", min_hold="5s")(lambda: ran.append("there"))
    store.faults["acquire"] = StoreUnavailableError("down")
    for _ in range(60):
        with pytest.raises(StoreUnavailableError):
            job_here()
        clock.advance("1m")
    store.faults.clear()
    job_here()
    here.close()
    clock.advance(36)  # at most the ttl longer, as for a request that was lost
    job_there()
    assert ran == ["here", "there"]


def test_a_dead_owner_is_followed_after_its_ttl(clock, store, here, there):
    ran = []
    here.on_one_instance("job")(lambda: ran.append("here"))()
    store.faults["renew"] = ConnectionError("dead")
    second = there.on_one_instance("job")(lambda: ran.append("there"))
    clock.advance(29)
    second()
    clock.advance(1)
    second()
    assert ran == ["here", "there"]


def test_an_owner_that_lost_its_lease_stands_again(clock, store, here, there):
    tokens = []
    job = here.on_one_instance("job")(lambda: tokens.append(fencing_token()))
    job()
    there.break_lease("job:owner")
    clock.advance(10)
    job()
    job()
    assert len(set(tokens)) == 2
    assert tokens == sorted(tokens)
    assert tokens[1] == tokens[2]


def test_losing_the_owners_lease_cancels_the_run(clock, here, there):
    @here.on_one_instance("job")
    def job():
        ctx = current_context()
        assert current_lease().key == "job:owner"
        there.break_lease("job:owner")
        clock.advance(10)
        assert ctx.cancel.is_set()
        ctx.cancel.raise_if_cancelled()

    with pytest.raises(LockLostError, match="job:owner"):
        job()


def test_threads_of_one_process_share_the_ownership(here, store):
    ran = []
    barrier = threading.Barrier(8)
    jobs = [here.on_one_instance("job")(lambda: ran.append(fencing_token())) for _ in range(8)]

    def tick(job):
        barrier.wait()
        job()

    for _ in range(20):
        threads = [threading.Thread(daemon=True, target=tick, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ran) == 8, "nobody took the own process for another instance"
        assert len(set(ran)) == 1
        ran.clear()
        here.break_lease("job:owner")
        here._keys.owners["job:owner"]._lease._renewal.stop()
    assert len(here._leases) <= 20


def test_a_store_that_cannot_be_asked_is_an_error_not_a_skip(store, here):
    job = here.on_one_instance("job")(lambda: 1)
    store.faults["acquire"] = StoreUnavailableError("down")
    with pytest.raises(StoreUnavailableError):
        job()
    store.faults.clear()
    assert job() == 1
    store.faults["acquire"] = StoreUnavailableError("down")
    assert job() == 1, "the lease is still good"


def test_a_lost_reply_makes_no_second_owner(store, here, there):
    job = here.on_one_instance("job")(lambda: fencing_token())
    store.faults["acquire"] = lambda number: "drop-reply"
    with pytest.raises(StoreUnavailableError):
        job()
    granted = there.status("job:owner").token
    store.faults.clear()
    assert job() == granted


# -- without_overlapping


def test_runs_do_not_overlap(here, there):
    entered = []

    @here.without_overlapping("job")
    def job(depth):
        entered.append(depth)
        with record_events("job-skipped") as events:
            assert other(depth) is None
            assert job(depth + 1) is None
        assert [(event.key, event.reason) for event in events] == [("job", "running")] * 2
        return "ran"

    other = there.without_overlapping("job")(lambda depth: entered.append("other"))
    assert job(0) == "ran"
    assert entered == [0]
    other(1)
    assert entered == [0, "other"], "nothing is kept between runs"
    assert here.list() == []


def test_an_error_comes_out_and_the_run_is_over(here):
    @here.without_overlapping("job")
    def job():
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            job()


# -- both


@pytest.mark.parametrize("order", [0, 1])
def test_both_on_one_function_share_the_key(clock, here, there, order):
    seen = []

    def work():
        seen.append((current_lease().key, fencing_token(), here.status("job").token))
        assert here.status("job:owner") is not None
        return "ran"

    job = both_orders(here)[order](work)
    other = both_orders(there)[order](work)
    assert job() == "ran"
    assert other() is None
    assert [key for key, *_ in seen] == ["job"]
    assert seen[0][1] == seen[0][2], "the token inside is the run's"
    assert here.status("job") is None


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("broken", ["job", "job:owner"])
def test_losing_either_lease_cancels_the_run(clock, here, there, order, broken):
    def work():
        there.break_lease(broken)
        clock.advance(10)
        assert current_context().cancel.is_set()
        assert current_lease().cancel.is_set(), "the lease that the work sees says so as well"
        assert current_lease().cancel.reason.key == broken
        current_context().cancel.raise_if_cancelled()

    with pytest.raises(LockLostError) as caught:
        both_orders(here)[order](work)()
    assert caught.value.key == broken


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("given", ["owner", "run", "none"])
def test_the_key_of_one_is_the_key_of_both(here, order, given):
    owner = here.on_one_instance("job" if given == "owner" else None)
    run = here.without_overlapping("job" if given == "run" else None)

    def work():
        return sorted(info.key for info in here.list())

    job = owner(run(work)) if order else run(owner(work))
    key = "job" if given != "none" else f"{__name__}.{work.__qualname__}"
    assert job() == [key, f"{key}:owner"]


def test_two_keys_for_one_function_are_refused(here):
    job = here.on_one_instance("a")(lambda: None)
    with pytest.raises(ConfigurationError, match="'a' already, got another one, 'b'"):
        here.without_overlapping("b")(job)


@pytest.mark.parametrize("stage", ["on_one_instance", "without_overlapping"])
def test_a_stage_twice_is_refused(here, stage):
    job = getattr(here, stage)("a")(lambda: None)
    with pytest.raises(ConfigurationError, match=f"{stage} is given twice"):
        getattr(here, stage)("a")(job)


def test_a_decorator_in_between_keeps_its_place(here):
    order = []

    def traced(fn):
        @functools.wraps(fn)
        def wrapper():
            order.append("traced")
            return fn()

        return wrapper

    inner = here.without_overlapping("job")(lambda: order.append(current_lease().key))
    job = here.on_one_instance("outer")(traced(inner))
    job()
    assert order == ["traced", "job"], "functools.wraps copied the mark, and fooled nobody"
    assert [info.key for info in here.list()] == ["outer:owner"]


def test_jobs_of_two_locks_on_one_function_are_two_jobs(here, there):
    inner = there.without_overlapping("job")(lambda: [info.key for info in here.list()])
    assert here.without_overlapping("other")(inner)() == ["job", "other"]


# -- keys


def test_the_default_key_is_the_functions_name(here):
    @here.without_overlapping()
    def nightly():
        return current_lease().key

    assert nightly() == f"{__name__}.test_the_default_key_is_the_functions_name.<locals>.nightly"


def test_two_jobs_with_one_default_key_are_refused(here, there):
    def make(locks):
        @locks.on_one_instance()
        def job():
            return "ran"

        return job

    first = make(here)
    with pytest.raises(ConfigurationError, match=r"job .*make.*job has the same default key"):
        make(here)
    make(there)
    assert first() == "ran"
    here.without_overlapping("same")(lambda: 1)
    here.without_overlapping("same")(lambda: 2)


def test_there_is_no_default_key_in_a_script(here):
    fn = types.FunctionType((lambda: None).__code__, {}, "nightly")
    fn.__module__ = "__main__"
    fn.__qualname__ = "nightly"
    for decorator in (here.on_one_instance(), here.without_overlapping()):
        with pytest.raises(ConfigurationError, match=r"__main__\.nightly"):
            decorator(fn)
    assert here.without_overlapping("k")(fn)() is None
    with pytest.raises(ConfigurationError, match="no name of its own"):
        here.without_overlapping()(functools.partial(print))


def test_keys_of_other_things_are_refused(here):
    here.on_one_instance("a")(lambda: None)
    with pytest.raises(ConfigurationError, match="'a:owner' is the lease of another job's owner"):
        here.without_overlapping("a:owner")(lambda: None)
    with pytest.raises(ConfigurationError, match="lease of a job's owner"):
        here.election("a:owner")
    with pytest.raises(ConfigurationError, match="the key is a job's"):
        here.election("a")
    here.without_overlapping("b:owner")(lambda: None)
    with pytest.raises(ConfigurationError, match="'b:owner', is the key of another job"):
        here.on_one_instance("b")(lambda: None)
    with here.election("c"), here.election("d:owner"):
        with pytest.raises(ConfigurationError, match="'c' is an election's"):
            here.without_overlapping("c")(lambda: None)
        with pytest.raises(ConfigurationError, match="'d:owner', is an election's"):
            here.on_one_instance("d")(lambda: None)
        with pytest.raises(ConfigurationError, match="another election"):
            here.election("c")
    here.without_overlapping("c")(lambda: None)


@pytest.mark.parametrize("same", [0.7, "700ms", timedelta(milliseconds=700)], ids=str)
def test_jobs_that_share_an_owner_may_write_its_options_in_their_own_ways(here, same):
    for name, min_hold in (("first", "700ms"), ("second", same)):
        job = here.on_one_instance("k", ttl="10s", min_hold=min_hold)(lambda name=name: name)
        assert job() == name


def test_jobs_that_share_an_owner_have_its_options(here):
    first = here.on_one_instance("same", ttl="40s", min_hold="1m")(lambda: 1)
    assert here.on_one_instance("same", ttl=40, min_hold=60)(lambda: 2)() == 2
    for options in ({"ttl": "40s"}, {"min_hold": "1m"}):
        with pytest.raises(ConfigurationError, match=r"another job of the key 'same'.* 40 s and 60 s, got"):
            here.on_one_instance("same", **options)(lambda: 3)
    assert first() == 1


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"key": ""}, "key must be"),
        ({"key": 5}, "key must be"),
        ({"key": print}, "key must be"),
        ({"ttl": 0}, "ttl must be"),
        ({"ttl": None}, "ttl must be"),
    ],
)
def test_bad_options_are_refused(here, options, word):
    for stage in (here.on_one_instance, here.without_overlapping):
        with pytest.raises(ConfigurationError, match=word):
            stage(**{"key": "k", **options})(lambda: None)
    with pytest.raises(ConfigurationError, match="min_hold must be"):
        here.on_one_instance("x", min_hold=-1)(lambda: None)


def test_async_and_generator_functions_are_refused(here):
    async def later():
        pass

    def lazily():
        yield

    for fn in (later, lazily, 5):
        for stage in (here.on_one_instance, here.without_overlapping):
            with pytest.raises(TypeError):
                stage("k")(fn)


def test_the_decorated_function_looks_like_itself(here):
    @here.on_one_instance("job")
    @here.without_overlapping("job")
    def nightly(a: int, *, b: str = "x") -> str:
        """Says what it does."""
        return f"{a}{b}"

    assert nightly.__name__ == "nightly"
    assert nightly.__doc__ == "Says what it does."
    assert nightly(1, b="y") == "1y"
    with pytest.raises(TypeError):
        nightly()


def test_after_close_jobs_are_skipped(here):
    job = here.without_overlapping("job")(lambda: 1)
    here.close()
    with record_events("job-skipped") as events:
        assert job() is None
    assert [event.reason for event in events] == ["closed"]


@pytest.mark.parametrize("name", ["on_one_instance", "without_overlapping"])
def test_a_tick_that_meets_close_is_skipped(here, monkeypatch, name):
    job = getattr(here, name)("job")(lambda: pytest.fail("it ran"))
    run = Acquisition.run

    def close_first(self):
        here.close()
        return run(self)

    monkeypatch.setattr(Acquisition, "run", close_first)
    with record_events("job-skipped") as events:
        assert job() is None
    assert [event.reason for event in events] == ["closed"]


@pytest.mark.parametrize(
    "stages", [("on_one_instance",), ("without_overlapping",), ("on_one_instance", "without_overlapping")]
)
def test_a_tick_is_skipped_that_meets_close_between_its_leases_and_its_run(here, monkeypatch, stages):
    job = lambda: pytest.fail("it ran")  # noqa: E731 - decorated below
    for name in stages:
        job = getattr(here, name)("job")(job)
    run = Lease.run

    def close_first(self, *args, **kwargs):
        here.close()
        return run(self, *args, **kwargs)

    monkeypatch.setattr(Lease, "run", close_first)
    with record_events("job-skipped") as events:
        assert job() is None
    assert [event.reason for event in events] == ["closed"]


def test_a_lock_error_of_the_run_itself_comes_out_also_where_the_locks_are_closed_by_then(here):
    @here.on_one_instance("job")
    def job():
        here._closed = True
        raise LockError("its own")

    with pytest.raises(LockError, match="its own"):
        job()


def test_close_in_the_middle_of_a_run_hands_the_ownership_back_when_that_ends(clock, here, there, caplog):
    begun, go_on = threading.Event(), threading.Event()

    @here.on_one_instance("job")
    def job():
        begun.set()
        with clock.blocked():
            go_on.wait(20)

    threads = [threading.Thread(daemon=True, target=job), threading.Thread(daemon=True, target=here.close)]
    threads[0].start()
    assert begun.wait(5)
    threads[1].start()
    clock.wait_until_parked()
    clock.advance(2)
    go_on.set()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert clock.elapsed == 2
    assert "did not stop" not in caplog.text
    assert there.acquire("job:owner").held


def test_an_ownership_that_is_lost_in_the_middle_of_a_run_is_not_kept_for_ever(clock, here):
    @here.on_one_instance("job")
    def job():
        here.break_lease("job:owner")
        clock.advance(11)
        assert current_lease().detected_by == "refused"

    job()
    assert here._leases == {}


def test_close_hands_the_ownership_back(clock, here, there):
    here.on_one_instance("job", min_hold=0)(lambda: 1)()
    here.close()
    assert there.on_one_instance("job")(lambda: 2)() == 2
    assert sys.getrefcount(here) > 0


@pytest.mark.parametrize("apply", [0, 1])
def test_a_job_above_staticmethod_and_classmethod(here, apply):
    class Reports:
        @both_orders(here, "static")[apply]
        @staticmethod
        def static(number):
            return number, fencing_token() is not None

        @both_orders(here, "of the class")[apply]
        @classmethod
        def of_the_class(cls, number):
            return cls, number

    assert Reports.static(1) == Reports().static(1) == (1, True)
    assert Reports.of_the_class(2) == Reports().of_the_class(2) == (Reports, 2)


@pytest.mark.parametrize("descriptor", [property, classmethod])
def test_parentheses_forgotten_above_a_descriptor(here, descriptor):
    with pytest.raises(ConfigurationError, match=r"has parentheses: @locks\.without_overlapping"):
        here.without_overlapping(descriptor(len))
