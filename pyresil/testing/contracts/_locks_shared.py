"""What every `LockStore` promises about time, many callers at once, and restarts."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

from pyresil.clock import SYSTEM
from pyresil.stores.base import Granted, Held
from pyresil.testing.contracts._locks import TTL, LockStoreSequential, LockStoreSuite, granted, held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyresil.stores.base import LockStore

__all__ = ["LockStoreConcurrent", "LockStoreContract", "LockStoreDurable", "LockStoreExpiry"]

WEEK = 7 * 86_400_000


class LockStoreExpiry(LockStoreSuite):
    """What time does."""

    def test_an_expired_lock_is_free(self, store: LockStore) -> None:
        """Its former holder is refused, and its token is not given out again."""
        token = granted(store.acquire("k", "a", 300))
        self.advance(store, 0.31)
        assert store.inspect("k") is None
        assert store.scan() == []
        assert store.renew("k", "a", TTL) is False
        assert store.release("k", "a") is False
        assert granted(store.acquire("k", "b", TTL)) > token
        assert store.renew("k", "a", TTL) is False
        info = store.inspect("k")
        assert info is not None
        assert info.owner == "b"

    def test_an_expired_lock_is_acquired_anew_by_its_former_owner(self, store: LockStore) -> None:
        """With a new token: in between it may have been anybody's."""
        token = granted(store.acquire("k", "a", 100))
        self.advance(store, 0.11)
        assert granted(store.acquire("k", "a", TTL)) > token

    def test_a_renewed_lock_stays(self, store: LockStore) -> None:
        """From the renewal on."""
        granted(store.acquire("k", "a", 2_500))
        self.advance(store, 0.1)
        assert store.renew("k", "a", 60_000) is True
        self.advance(store, 2.45)
        held(store.acquire("k", "b", TTL))

    def test_min_hold_counts_from_the_acquisition(self, store: LockStore) -> None:
        """And ends then."""
        granted(store.acquire("k", "a", TTL))
        self.advance(store, 0.2)
        assert store.release("k", "a", 2_200) is True
        assert held(store.acquire("k", "b", TTL)).remaining_ms <= 2_001
        self.advance(store, 2.01)
        granted(store.acquire("k", "b", TTL))

    def test_min_hold_that_is_over_holds_nothing(self, store: LockStore) -> None:
        """A long run opens at once."""
        granted(store.acquire("k", "a", TTL))
        self.advance(store, 0.05)
        assert store.release("k", "a", 10) is True
        granted(store.acquire("k", "b", TTL))

    def test_an_idempotent_acquire_does_not_move_min_hold(self, store: LockStore) -> None:
        """It is still the first acquisition."""
        granted(store.acquire("k", "a", TTL))
        self.advance(store, 0.3)
        granted(store.acquire("k", "a", TTL))
        assert store.release("k", "a", 250) is True
        granted(store.acquire("k", "b", TTL))

    def test_a_ttl_of_weeks(self, store: LockStore) -> None:
        """Long ones neither overflow nor end early."""
        token = granted(store.acquire("k", "a", 5 * WEEK))
        answer = held(store.acquire("k", "b", TTL))
        assert 4 * WEEK < answer.remaining_ms <= 5 * WEEK
        if not self.can_advance:
            return
        self.advance(store, 4.9 * 7 * 86_400)
        held(store.acquire("k", "b", TTL))
        assert store.renew("k", "a", 5 * WEEK) is True
        self.advance(store, 4.9 * 7 * 86_400)
        held(store.acquire("k", "b", TTL))
        self.advance(store, 0.2 * 7 * 86_400)
        assert granted(store.acquire("k", "b", TTL)) > token


class LockStoreConcurrent(LockStoreSuite):
    """Many callers at once; ``callers`` of them."""

    callers: int = 16

    def run_all(self, work: Callable[[int], Any]) -> list[Any]:
        """Run ``work(number)`` in as many threads as there are callers, started together; their answers in order."""
        import threading

        barrier = threading.Barrier(self.callers)
        answers: list[Any] = [None] * self.callers

        def run(number: int) -> None:
            barrier.wait(20)
            try:
                answers[number] = work(number)
            except BaseException as error:  # shown by the test's own thread
                answers[number] = error

        threads = [SYSTEM.spawn(partial(run, number), f"caller-{number}") for number in range(self.callers)]
        for thread in threads:
            thread.join(25)
            assert not thread.is_alive(), "a caller hangs"
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def others(self, store: LockStore) -> list[LockStore]:
        """A store for each caller: eight objects at most, so that real servers see eight connections and more."""
        found = [store] + [self.another(store) for _ in range(min(self.callers, 8) - 1)]
        return [found[number % len(found)] for number in range(self.callers)]

    @staticmethod
    def _contend(stores: list[LockStore], owners: str, number: int) -> Granted | Held:
        return stores[number].acquire("k", f"{owners}-{number}", TTL)

    def test_one_of_many_wins(self, store: LockStore) -> None:
        """Round after round, and the others are told who."""
        stores = self.others(store)
        last = 0
        for round_ in range(5):
            answers = self.run_all(partial(self._contend, stores, f"round-{round_}"))
            winners = [n for n, answer in enumerate(answers) if isinstance(answer, Granted)]
            assert len(winners) == 1, f"{len(winners)} winners"
            token = granted(answers[winners[0]])
            assert token > last
            last = token
            assert all(answer.token == token for answer in answers if isinstance(answer, Held))
            assert stores[0].release("k", f"round-{round_}-{winners[0]}") is True

    def test_one_owner_in_many_threads_acquires_once(self, store: LockStore) -> None:
        """As after lost replies."""
        stores = self.others(store)
        answers = self.run_all(lambda n: stores[n].acquire("k", "the-same", TTL))
        assert len({granted(answer) for answer in answers}) == 1

    def test_many_keys_do_not_disturb_each_other(self, store: LockStore) -> None:
        """Each caller has its own."""
        stores = self.others(store)

        def work(number: int) -> list[int]:
            tokens = []
            for _ in range(5):
                tokens.append(granted(stores[number].acquire(f"key-{number}", "a", TTL)))
                assert stores[number].renew(f"key-{number}", "a", TTL)
                assert stores[number].release(f"key-{number}", "a")
            return tokens

        for tokens in self.run_all(work):
            assert tokens == sorted(set(tokens))

    def test_fuzz_two_counters_under_the_lock(self, store: LockStore) -> None:
        """A lost update, a token out of order, or two inside is the failure."""
        stores = self.others(store)
        counters = {"first": 0, "second": 0}
        tokens: list[int] = []
        per_caller = 4

        @contextlib.contextmanager
        def locked(of: LockStore, owner: str) -> Iterator[int]:
            deadline = SYSTEM.monotonic() + 20
            while isinstance(answer := of.acquire("fuzz", owner, TTL), Held):
                assert SYSTEM.monotonic() < deadline, "never admitted"
                SYSTEM.sleep(0.002 * SYSTEM.random())
            yield answer.token
            assert of.release("fuzz", owner) is True

        def work(number: int) -> None:
            for turn in range(per_caller):
                with locked(stores[number], f"{number}-{turn}") as token:
                    first = counters["first"]
                    second = counters["second"]
                    SYSTEM.sleep(0.0002)
                    counters["first"] = first + 1
                    counters["second"] = second + 1
                    tokens.append(token)

        self.run_all(work)
        assert counters == dict.fromkeys(counters, self.callers * per_caller)
        assert tokens == sorted(set(tokens))

    def test_a_waiter_is_woken_by_a_release(self, store: LockStore) -> None:
        """Where the store can wait."""
        if not store.can_wait:
            assert store.wait_for_release("k", timeout=5.0) is False
            raise SkipTest("this store does not wait")
        other = self.another(store)
        granted(store.acquire("k", "a", TTL))
        assert store.wait_for_release("k", timeout=0.05) is False
        woken: list[bool] = []
        thread = SYSTEM.spawn(lambda: woken.append(other.wait_for_release("k", timeout=15.0)), "waiter")
        thread.join(0.2)
        assert thread.is_alive(), "it is still held"
        assert store.release("k", "a") is True
        thread.join(5)
        assert woken == [True]
        assert other.wait_for_release("k", timeout=5.0) is True, "a free lock needs no wait"


class LockStoreDurable(LockStoreSuite):
    """What outlives the server, for stores whose `restart` is given."""

    def test_a_held_lock_outlives_a_restart(self, store: LockStore) -> None:
        """With its owner and token."""
        token = granted(store.acquire("k", "a", TTL, "m"))
        store = self.restart(store)
        answer = held(store.acquire("k", "b", TTL))
        assert (answer.token, answer.meta) == (token, "m")
        assert store.renew("k", "a", TTL) is True
        assert store.release("k", "a") is True

    def test_tokens_grow_over_a_restart(self, store: LockStore) -> None:
        """Also where the counter was lost."""
        token = granted(store.acquire("k", "a", TTL))
        store.release("k", "a")
        store = self.restart(store)
        assert granted(store.acquire("k", "b", TTL)) > token


class LockStoreContract(LockStoreSequential, LockStoreExpiry, LockStoreConcurrent, LockStoreDurable):
    """All parts. Give it a fixture ``store`` that makes an empty store."""
