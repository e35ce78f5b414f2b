"""The contract of lock stores, and the checks that all stores share.

A lock is a row: who owns it, until when, and a fencing token that grows with every acquisition. Expiry runs on the store's
own clock. A store that is busy or cannot be reached raises `StoreUnavailableError`: what it holds is unknown, which is
neither "held by someone else" nor "free".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from pyresil._validate import Configured
from pyresil.stores._checks import DEFAULT_PREFIX as DEFAULT_PREFIX
from pyresil.stores._checks import DEFAULT_TIMEOUT as DEFAULT_TIMEOUT
from pyresil.stores._checks import KEEP as KEEP
from pyresil.stores._checks import MAX_TOKEN as MAX_TOKEN
from pyresil.stores._checks import MAX_TTL_MS as MAX_TTL_MS
from pyresil.stores._checks import SHORTEST_HALVED as SHORTEST_HALVED
from pyresil.stores._checks import check_key as check_key
from pyresil.stores._checks import check_meta as check_meta
from pyresil.stores._checks import check_ms as check_ms
from pyresil.stores._checks import check_owner as check_owner
from pyresil.stores._checks import check_prefix as check_prefix
from pyresil.stores._checks import check_scan_prefix as check_scan_prefix
from pyresil.stores._checks import check_timeout as check_timeout
from pyresil.stores._checks import check_token as check_token
from pyresil.stores._checks import ms_from_seconds as ms_from_seconds

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Granted", "Held", "LockInfo", "LockStore"]


class Granted(NamedTuple):
    """The lock is the caller's.

    Attributes:
        token: The fencing token, 1 to 2^53 - 1.
    """

    token: int


class Held(NamedTuple):
    """The lock is somebody else's, or stays closed for its minimum hold.

    Attributes:
        remaining_ms: Milliseconds until it opens unless it is renewed, 1 or more.
        token: The holder's fencing token, or None where the store cannot tell.
        meta: What the holder said of itself.
    """

    remaining_ms: int
    token: int | None
    meta: str


class LockInfo(NamedTuple):
    """A lock that is closed at the moment.

    Attributes:
        key: Its key.
        owner: The id of the holder; empty where it was released and its minimum hold runs.
        token: The fencing token of the last acquisition.
        remaining_ms: Milliseconds until it opens unless it is renewed, 1 or more.
        meta: What the holder said of itself.
    """

    key: str
    owner: str
    token: int
    remaining_ms: int
    meta: str


class LockStore(Configured, ABC):
    """Keeps locks. Every method is one atomic step, safe from any thread, and may be repeated after a lost reply.

    Each method takes ``timeout``: seconds for the whole call with all its retries; None is the store's own default
    (5 seconds).

    All of them raise `ConfigurationError` for an argument that no store accepts, `StoreUnavailableError` where the store is
    busy or cannot be reached, and `StoreError` where it answers what cannot be right or refuses for good.
    """

    #: Whether `wait_for_release` really waits.
    can_wait: bool = False
    #: Seconds of a call without a ``timeout``.
    _own_timeout: float = DEFAULT_TIMEOUT

    def __deepcopy__(self, memo: object) -> Self:
        # A copy of a policy excludes whom the policy itself excludes.
        return self

    @abstractmethod
    def acquire(
        self, key: str, owner: str, ttl_ms: int, meta: str = "", *, timeout: float | None = None
    ) -> Granted | Held:
        """Take the lock where it is free, expired, or already this owner's.

        Idempotent per owner: a repeated call answers with the same token, and the lock then runs ``ttl_ms`` from now.

        Args:
            key: 1 to 500 characters of any Unicode, without NUL and surrogates.
            owner: Id of this acquisition: 1 to 200 visible ASCII characters.
            ttl_ms: Milliseconds until the lock expires, 1 or more.
            meta: What the holder says of itself, up to 2,000 ASCII characters.
            timeout: Seconds for the call.

        Returns:
            `Granted`, or `Held` with what is known of the holder.
        """

    @abstractmethod
    def renew(self, key: str, owner: str, ttl_ms: int, *, timeout: float | None = None) -> bool:
        """Let the lock expire ``ttl_ms`` from now, where it still is this owner's.

        Returns:
            False where it is not: it expired, was released, or somebody else has it.
        """

    @abstractmethod
    def release(self, key: str, owner: str, min_hold_ms: int = 0, *, timeout: float | None = None) -> bool:
        """Give the lock back, where it still is this owner's.

        Args:
            key: The key.
            owner: The owner that acquired it.
            min_hold_ms: The lock opens to others only this long after its acquisition.
            timeout: Seconds for the call.

        Returns:
            False where it was not this owner's any more, which is no error. A release that was repeated after a lost reply may
            answer so as well.
        """

    @abstractmethod
    def inspect(self, key: str, *, timeout: float | None = None) -> LockInfo | None:
        """What is known of the lock, or None where it is free."""

    @abstractmethod
    def scan(self, prefix: str = "", *, timeout: float | None = None) -> list[LockInfo]:
        """All closed locks whose keys start with ``prefix``, sorted by key."""

    @abstractmethod
    def force_release(self, key: str, *, timeout: float | None = None) -> bool:
        """Open the lock whoever holds it, its minimum hold included; its token is not given out again.

        Returns:
            Whether it was closed.
        """

    def wait_for_release(self, key: str, *, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds until another try at the lock may be worth it.

        Returns:
            True where it was released, opened, or may have; False where the time was up, or at once where ``can_wait`` is
            False.
        """
        return False

    def diagnose(self, *, timeout: float | None = None) -> list[tuple[str, str, str]]:
        """What there is to say about how the store is set up, for ``pyresil-lock doctor``.

        Returns:
            Triples of ``"ok"``, ``"warning"`` or ``"error"``, what was looked at in a word or two, and a sentence.
        """
        return []

    def close(self) -> None:
        """Close what the store opened itself. It opens it again when it is used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
