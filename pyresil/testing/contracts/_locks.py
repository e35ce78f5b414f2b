"""What every `LockStore` promises.

The suites need one fixture, ``store``: an empty store. Methods of the class say what else can be done with it: `another`,
`advance`, `restart`. They are plain methods, so a subclass overrides what its store can do.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

from pyresil.clock import SYSTEM
from pyresil.errors import ConfigurationError
from pyresil.stores.base import MAX_TOKEN, Granted, Held

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.stores.base import LockStore

__all__ = [
    "LockStoreSequential",
    "LockStoreSuite",
]

TTL = 60_000

#: Keys that stores have mixed up: braces (hash tags), blanks, case, normal forms, quotes, wildcards, the longest ones.
KEYS = (
    "k",
    "K",
    " k",
    "k ",
    "a{b}c",
    "x}y",
    "}",
    "}x",
    "{",
    "{}",
    "{}x",
    "%7D",
    "%",
    "_",
    "a*",
    "a?",
    "a\\",
    "[a]",
    "'\"",
    "line\nend",
    "\t",
    "caf\u00e9",
    "cafe\u0301",
    "\U0001f512",
    "\u4e2d\u6587" * 250,
    "\U0001f512" * 500,
    "z" * 499,
    "z" * 500,
    "lock:k",
    "pyresil:k",
)


def granted(answer: Granted | Held) -> int:
    """The token of a grant."""
    assert isinstance(answer, Granted), f"expected a grant, got {answer!r}"
    assert 1 <= answer.token <= MAX_TOKEN
    return answer.token


def held(answer: Granted | Held) -> Held:
    """A refusal with a plausible rest."""
    assert isinstance(answer, Held), f"expected a refusal, got {answer!r}"
    assert isinstance(answer.remaining_ms, int)
    assert answer.remaining_ms >= 1
    return answer


def refused(function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """The arguments are at fault, and the error says so."""
    try:
        answer = function(*args, **kwargs)
    except ConfigurationError:
        return
    raise AssertionError(f"{function.__name__}{args!r} must raise ConfigurationError, returned {answer!r}")


class LockStoreSuite:
    """What the suites share; a subclass overrides what its store can do."""

    def another(self, store: LockStore) -> LockStore:
        """A second store object on the same data, as another process would have; the same one where there is no such."""
        return store

    def advance(self, store: LockStore, seconds: float) -> None:
        """Let so much time pass for the store; really waits unless overridden."""
        SYSTEM.sleep(seconds + 0.01)

    #: Whether `advance` can let weeks pass in a moment.
    can_advance: bool = False

    def restart(self, store: LockStore) -> LockStore:
        """Restart what keeps the data, and return a store on it."""
        raise SkipTest("this store's data does not outlive it, or cannot be restarted here")


class LockStoreSequential(LockStoreSuite):
    """One caller at a time."""

    def test_a_free_lock_is_granted_and_then_held(self, store: LockStore) -> None:
        """Held names the holder's rest, token and meta."""
        token = granted(store.acquire("k", "a", TTL, "host 1"))
        answer = held(store.acquire("k", "b", TTL))
        assert answer.remaining_ms <= TTL
        assert answer.token == token
        assert answer.meta == "host 1"

    def test_acquire_is_idempotent_for_its_owner(self, store: LockStore) -> None:
        """A repeated acquire has the same token and runs from now."""
        token = granted(store.acquire("k", "a", 2_000))
        assert granted(self.another(store).acquire("k", "a", TTL)) == token
        info = store.inspect("k")
        assert info is not None
        assert 2_000 < info.remaining_ms <= TTL

    def test_tokens_grow(self, store: LockStore) -> None:
        """Over releases, other owners and forced releases."""
        tokens = []
        for number in range(6):
            tokens.append(granted(store.acquire("k", f"owner-{number}", TTL)))
            assert store.force_release("k") if number % 2 else store.release("k", f"owner-{number}")
        assert all(earlier < later for earlier, later in itertools.pairwise(tokens))

    def test_only_the_owner_renews_and_releases(self, store: LockStore) -> None:
        """Others are told no, and change nothing."""
        token = granted(store.acquire("k", "a", TTL))
        assert store.renew("k", "b", 5_000) is False
        assert store.release("k", "b") is False
        info = store.inspect("k")
        assert info is not None
        assert (info.key, info.owner, info.token) == ("k", "a", token)
        assert 5_000 < info.remaining_ms <= TTL

    def test_renew_is_absolute(self, store: LockStore) -> None:
        """It may shorten, and repeating it adds nothing."""
        granted(store.acquire("k", "a", TTL))
        for _ in range(3):
            assert store.renew("k", "a", 10_000) is True
        info = store.inspect("k")
        assert info is not None
        assert 0 < info.remaining_ms <= 10_000

    def test_release_is_calm(self, store: LockStore) -> None:
        """A second release, or one of a lock that never was, is no error."""
        granted(store.acquire("k", "a", TTL))
        assert store.release("k", "a") is True
        assert store.release("k", "a") is False
        assert store.release("never", "a") is False
        assert store.renew("k", "a", TTL) is False
        assert store.renew("never", "a", TTL) is False
        assert store.inspect("k") is None
        granted(store.acquire("k", "b", TTL))

    def test_min_hold_keeps_a_released_lock_closed(self, store: LockStore) -> None:
        """The lock has no owner then, and opens by force."""
        token = granted(store.acquire("k", "a", 5_000))
        assert store.release("k", "a", TTL) is True
        answer = held(store.acquire("k", "b", TTL))
        assert 5_000 < answer.remaining_ms <= TTL
        assert isinstance(store.acquire("k", "a", TTL), Held), "the owner gave it back"
        assert store.renew("k", "a", TTL) is False
        info = store.inspect("k")
        assert info is not None
        assert (info.owner, info.token) == ("", token)
        assert store.force_release("k") is True
        assert granted(store.acquire("k", "b", TTL)) > token

    def test_force_release_says_whether_it_was_closed(self, store: LockStore) -> None:
        """The holder is told no from then on."""
        assert store.force_release("k") is False
        granted(store.acquire("k", "a", TTL))
        assert store.force_release("k") is True
        assert store.force_release("k") is False
        assert store.inspect("k") is None
        assert store.renew("k", "a", TTL) is False

    def test_keys_are_kept_apart_exactly(self, store: LockStore) -> None:
        """Whatever is in them."""
        tokens = {key: granted(store.acquire(key, f"o{number}", TTL)) for number, key in enumerate(KEYS)}
        for number, key in enumerate(KEYS):
            info = store.inspect(key)
            assert info is not None, f"key {key!r}"
            assert (info.key, info.owner, info.token) == (key, f"o{number}", tokens[key])
        assert [info.key for info in store.scan()] == sorted(KEYS)
        for number, key in enumerate(KEYS):
            assert store.renew(key, f"o{number}", TTL), f"key {key!r}"
            assert store.release(key, f"o{number}"), f"key {key!r}"
        assert store.scan() == []

    def test_scan_takes_a_prefix_literally(self, store: LockStore) -> None:
        """Wildcards of the server are characters like others."""
        for key in ("a*b", "a*c", "axb", "b", "%", "_x", "A*b"):
            granted(store.acquire(key, "a", TTL, "m"))
        found = store.scan("a*")
        assert [info.key for info in found] == ["a*b", "a*c"]
        assert all(info.owner == "a" and info.meta == "m" for info in found)
        assert [info.key for info in store.scan("%")] == ["%"]
        assert [info.key for info in store.scan("_")] == ["_x"]
        assert store.scan("nothing") == []

    def test_bad_arguments_are_refused(self, store: LockStore) -> None:
        """With ConfigurationError, and nothing is stored."""
        bad_ttl: list[Any] = [None, 0, -1, True, 0.0004, 1.5, float("nan"), float("inf"), "5", 2**60]
        for ttl in bad_ttl:
            refused(store.acquire, "k", "a", ttl)
            refused(store.renew, "k", "a", ttl)
        bad_keys: list[Any] = ["", "x" * 501, "a\0b", "\ud800", None, 5, b"k"]
        for key in bad_keys:
            refused(store.acquire, key, "a", TTL)
            refused(store.renew, key, "a", TTL)
            refused(store.release, key, "a")
            refused(store.inspect, key)
            refused(store.force_release, key)
        bad_owners: list[Any] = ["", None, 7, "\u00e9", "a\nb", "x" * 201]
        for owner in bad_owners:
            refused(store.acquire, "k", owner, TTL)
        bad_holds: list[Any] = [-1, 0.5, None, True, float("nan")]
        for hold in bad_holds:
            refused(store.release, "k", "a", hold)
        bad_timeouts: list[Any] = [0, -1, float("nan"), "5", True]
        for timeout in bad_timeouts:
            refused(store.acquire, "k", "a", TTL, timeout=timeout)
        assert store.scan() == []

    def test_it_works_again_after_close(self, store: LockStore) -> None:
        """Closing gives back connections, not locks."""
        token = granted(store.acquire("k", "a", TTL))
        other = self.another(store)
        store.close()
        assert granted(store.acquire("k", "a", TTL)) == token
        assert held(other.acquire("k", "b", TTL)).token == token
