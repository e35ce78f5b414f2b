"""What every `LimiterStore` promises.

The suite needs one fixture, ``store``: a store where nothing was counted. Methods of the class say what else can be done with
it: `another`, `advance`. They are plain methods, so a subclass overrides what its store can do.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pyresil.clock import SYSTEM
from pyresil.errors import ConfigurationError
from pyresil.stores.limiter import Decision, LimitSpec
from pyresil.testing.contracts._locks import KEYS

if TYPE_CHECKING:
    from pyresil.stores.limiter import LimiterStore

__all__ = ["LimiterStoreContract"]

#: A limit of each algorithm that admits 5 at once; all of it is back after this many seconds.
WINDOW = 0.6
SPECS = (
    LimitSpec("sliding-window", 5, WINDOW, 5),
    LimitSpec("fixed-window", 5, WINDOW, 5),
    LimitSpec("token-bucket", 5, WINDOW, 5),
    LimitSpec("gcra", 5, WINDOW, 5),
)
LONG = LimitSpec("sliding-window", 5, 3600.0, 5)


def admitted(answer: Decision, wait_ms: int = 0) -> Decision:
    """The permits were taken, for then."""
    assert isinstance(answer, Decision), f"expected a Decision, got {answer!r}"
    assert answer.allowed is True, f"expected to be admitted, got {answer!r}"
    assert answer.retry_after_ms == 0
    assert answer.wait_ms <= wait_ms
    return answer


def refused(answer: Decision) -> Decision:
    """No permit was taken, and there is a plausible time for the next try."""
    assert isinstance(answer, Decision), f"expected a Decision, got {answer!r}"
    assert answer.allowed is False, f"expected to be refused, got {answer!r}"
    assert answer.wait_ms == 0
    assert isinstance(answer.retry_after_ms, int)
    assert answer.retry_after_ms >= 1
    return answer


class LimiterStoreContract:
    """Derive from it and give it a fixture ``store``."""

    #: Callers at once, where there are many.
    callers = 16

    def another(self, store: LimiterStore) -> LimiterStore:
        """A second client of the same server or file; by default the same object."""
        return store

    def advance(self, store: LimiterStore, seconds: float) -> None:
        """Let time pass for the store; by default by waiting."""
        SYSTEM.sleep(seconds)

    def test_each_algorithm_admits_the_limit_and_no_more(self, store: LimiterStore) -> None:
        """At once; ``remaining`` counts down."""
        for spec in SPECS:
            long = spec._replace(window=3600.0)
            left = [admitted(store.hit(spec.algorithm, long, 1)).remaining for _ in range(5)]
            assert left == [4, 3, 2, 1, 0]
            again = refused(store.hit(spec.algorithm, long, 1))
            assert again.retry_after_ms <= 3_600_000
            assert again.remaining == 0

    def test_what_is_refused_is_admitted_after_the_time_it_was_told(self, store: LimiterStore) -> None:
        """Whatever the algorithm."""
        for spec in SPECS:
            for _ in range(5):
                store.hit(spec.algorithm, spec, 1)
            while not (answer := store.hit(spec.algorithm, spec, 1)).allowed:
                self.advance(store, refused(answer).retry_after_ms / 1000.0)

    def test_weights(self, store: LimiterStore) -> None:
        """All permits of a hit, or none."""
        assert admitted(store.hit("k", LONG, 3)).remaining == 2
        assert refused(store.hit("k", LONG, 3)).remaining == 2
        assert admitted(store.hit("k", LONG, 2)).remaining == 0

    def test_a_wait_takes_the_permits_for_later_and_who_comes_next_stands_behind(
        self, store: LimiterStore
    ) -> None:
        """Times of admission never go back."""
        for spec in SPECS:
            long = spec._replace(window=3600.0)
            for _ in range(5):
                admitted(store.hit(spec.algorithm, long, 1))
            refused(store.hit(spec.algorithm, long, 1, 10))
            first = admitted(store.hit(spec.algorithm, long, 1, 10_000_000), 3_600_000)
            second = admitted(store.hit(spec.algorithm, long, 1, 10_000_000), 7_200_000)
            assert 1 <= first.wait_ms <= second.wait_ms + 5

    def test_a_cancelled_hit_was_never_made(self, store: LimiterStore) -> None:
        """Its permits are there again; cancelling it is no error later either."""
        for spec in SPECS:
            long = spec._replace(window=3600.0)
            taken = [admitted(store.hit(spec.algorithm, long, 1)) for _ in range(5)]
            store.cancel(spec.algorithm, taken[-1].reservation)
            admitted(store.hit(spec.algorithm, long, 1))
            refused(store.hit(spec.algorithm, long, 1))
            store.reset(spec.algorithm)
            store.cancel(spec.algorithm, taken[0].reservation)

    def test_a_reset_forgets_one_key(self, store: LimiterStore) -> None:
        """And no other."""
        for key in ("a", "b"):
            for _ in range(5):
                admitted(store.hit(key, LONG, 1))
        store.reset("a")
        store.reset("never used")
        admitted(store.hit("a", LONG, 1))
        refused(store.hit("b", LONG, 1))

    def test_keys_are_kept_apart_exactly(self, store: LimiterStore) -> None:
        """The ones that stores have mixed up."""
        once = LimitSpec("sliding-window", 1, 3600.0, 1)
        for key in KEYS:
            admitted(store.hit(key, once, 1))
        for key in KEYS:
            refused(store.hit(key, once, 1))

    def test_keys_that_no_store_accepts_are_refused(self, store: LimiterStore) -> None:
        """With a clear error."""
        wrong: tuple[Any, ...] = ("", "k\0", "k" * 501, "\ud800", 5, None)
        for key in wrong:
            for call in (
                lambda key=key: store.hit(key, LONG, 1),
                lambda key=key: store.reset(key),
            ):
                try:
                    call()
                except ConfigurationError:
                    continue
                raise AssertionError(f"the key {key!r} must raise ConfigurationError")

    def test_another_client_counts_the_same(self, store: LimiterStore) -> None:
        """Who shares the store shares the limit."""
        other = self.another(store)
        for turn in range(5):
            admitted((store, other)[turn % 2].hit("k", LONG, 1))
        refused(store.hit("k", LONG, 1))
        refused(other.hit("k", LONG, 1))

    def test_many_callers_at_once_get_exactly_the_limit(self, store: LimiterStore) -> None:
        """Whatever the algorithm."""
        for spec in SPECS:
            limit = spec._replace(permits=20, burst=20, window=86_400.0 * 365)
            answers: list[bool] = []
            barrier = threading.Barrier(self.callers)

            def caller(
                limit: LimitSpec = limit, answers: list[bool] = answers, barrier: threading.Barrier = barrier
            ) -> None:
                mine = self.another(store)
                barrier.wait(10)
                answers.extend(mine.hit(f"many-{limit.algorithm}", limit, 1).allowed for _ in range(5))

            threads = [threading.Thread(target=caller) for _ in range(self.callers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert len(answers) == 5 * self.callers
            assert sum(answers) == 20, f"{limit.algorithm} admitted {sum(answers)}"
