"""What type checkers infer of leases, locks, jobs and elections; checked, never run."""

from __future__ import annotations

import threading
from typing import assert_type

from pyresil import (
    CancelToken,
    Election,
    Fallback,
    Lease,
    Lock,
    LockInfo,
    Locks,
    MemoryLockStore,
    Policy,
    Retry,
    current_context,
    current_lease,
    fencing_token,
)

locks = Locks(MemoryLockStore(), ttl="30s")


def work(number: int, *, text: str = "") -> str:
    return text * number


def leases() -> None:
    lease = locks.acquire("k", ttl=10, wait=None, min_hold="1s", max_hold=60)
    assert_type(lease, Lease | None)
    if lease is not None:
        assert_type(lease.key, str)
        assert_type(lease.owner, str)
        assert_type(lease.token, int)
        assert_type(lease.held, bool)
        assert_type(lease.remaining(), float)
        assert_type(lease.lost, threading.Event)
        assert_type(lease.cancel, CancelToken)
        assert_type(lease.detected_by, str | None)
        assert_type(lease.run(work, 1, text="a"), str)
        assert_type(lease.release(), bool)
        lease.run(work, "1")  # type: ignore[arg-type]
        with lease as same:
            assert_type(same, Lease)
    with locks.hold("k") as held:
        assert_type(held, Lease)
    assert_type(locks.status("k"), LockInfo | None)
    assert_type(locks.list("prefix"), list[LockInfo])
    assert_type(locks.break_lease("k"), bool)


def jobs() -> None:
    one = locks.on_one_instance(key="k")(work)
    assert_type(one(1, text="a"), str | None)
    both = locks.without_overlapping()(one)
    assert_type(both(1), str | None)
    both("1")  # type: ignore[arg-type]

    @locks.on_one_instance()
    @locks.without_overlapping()
    def nightly() -> int:
        return 1

    assert_type(nightly(), int | None)


def elections() -> None:
    def lead(lease: Lease) -> None:
        assert_type(lease.token, int)

    def lost(lease: Lease, reason: str) -> None:
        assert_type(reason, str)

    election = locks.election("k", on_acquired=lead, on_lost=lost, ttl="10s")
    assert_type(election, Election)
    assert_type(election.is_leader, bool)
    assert_type(election.lease, Lease | None)
    assert_type(election.stop("5s"), bool)


def strategies() -> None:
    policy = Policy(Fallback(None), Lock("k", store=locks), Retry())
    assert_type(policy.call(work, 1), str | None)
    assert_type(Policy(Lock(lambda ctx: str(ctx.key))).call(work, 1), str)


def where_it_is_found() -> None:
    lease = current_lease()
    assert_type(lease, Lease | None)
    ctx = current_context()
    if ctx is not None:
        assert_type(ctx.lease, Lease | None)
        assert_type(ctx.fencing_token, int | None)
    assert_type(fencing_token(), int | None)
