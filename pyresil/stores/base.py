"""The contract of lock stores, and the checks that all stores share.

A lock is a row: who owns it, until when, and a fencing token that grows with every acquisition. Expiry runs on the store's
own clock. A store that is busy or cannot be reached raises `StoreUnavailableError`: what it holds is unknown, which is
neither "held by someone else" nor "free".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from pyresil._validate import Configured
from pyresil.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Granted", "Held", "LockInfo", "LockStore"]

#: Seconds that a call may take where neither it nor its store says otherwise.
DEFAULT_TIMEOUT = 5.0

#: Up to so many seconds a call to a server is one try; longer ones are halved, for another where a reply is lost without a word.
SHORTEST_HALVED = 0.5

#: What every store puts before its keys, unless told otherwise.
DEFAULT_PREFIX = "pyresil:"

#: The largest fencing token: what a double, and so Lua and JSON, can count to.
MAX_TOKEN = 2**53 - 1

#: The longest ttl or minimum hold: a hundred years, in milliseconds.
MAX_TTL_MS = 100 * 366 * 86_400_000

#: Rows and counters are kept this long after their last use, in seconds.
KEEP = 7 * 86_400.0

_MAX_KEY = 500
_MAX_OWNER = 200
_MAX_META = 2_000


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
            False where it was not this owner's any more, which is no error.
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


def check_key(key: object, field: str = "key") -> str:
    """Refuse a key that some store could not keep apart.

    Returns:
        The key: 1 to 500 characters, no NUL, no surrogates.

    Raises:
        ConfigurationError: It is something else; the text shows the value.
    """
    must = f"a string of 1 to {_MAX_KEY} characters without NUL and surrogates"
    if not isinstance(key, str) or not 0 < len(key) <= _MAX_KEY or "\0" in key:
        shown = repr(key)
        raise ConfigurationError(
            f"lock: {field} must be {must}, got {shown if len(shown) < 80 else shown[:76] + ' ...'}"
        )
    if not key.isascii():
        try:
            key.encode("utf-8")
        except UnicodeEncodeError:
            raise ConfigurationError(f"lock: {field} must be {must}, got {key!r}") from None
    return key


def check_prefix(prefix: object, subject: str = "store") -> str:
    """Refuse a prefix that would move a hash tag or could not be stored."""
    if not isinstance(prefix, str) or len(prefix) > 100 or not prefix.isprintable() or not prefix.isascii():
        raise ConfigurationError(
            f"{subject}: prefix must be a string of at most 100 visible ASCII characters, got {prefix!r}"
        )
    if "{" in prefix or "}" in prefix:
        raise ConfigurationError(
            f"{subject}: prefix must have no brace (it would move the hash tag of a cluster), got {prefix!r}"
        )
    return prefix


def check_scan_prefix(prefix: object) -> str:
    """The empty string, or what `check_key` accepts."""
    return "" if prefix == "" else check_key(prefix, "prefix")


def check_owner(owner: object) -> str:
    """Refuse an owner that is not 1 to 200 visible ASCII characters."""
    if (
        not isinstance(owner, str)
        or not 0 < len(owner) <= _MAX_OWNER
        or not owner.isascii()
        or not owner.isprintable()
    ):
        raise ConfigurationError(
            f"lock: owner must be a string of 1 to {_MAX_OWNER} visible ASCII characters, got {owner!r}"
        )
    return owner


def check_meta(meta: object) -> str:
    """Refuse meta that is not up to 2,000 ASCII characters without NUL."""
    if not isinstance(meta, str) or len(meta) > _MAX_META or not meta.isascii() or "\0" in meta:
        raise ConfigurationError(
            f"lock: meta must be a string of at most {_MAX_META} ASCII characters without NUL, got {meta!r}"
        )
    return meta


def check_ms(value: object, field: str = "ttl_ms", minimum: int = 1) -> int:
    """Refuse what is not whole milliseconds from ``minimum`` to a hundred years."""
    if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= MAX_TTL_MS:
        return value
    raise ConfigurationError(
        f"lock: {field} must be whole milliseconds from {minimum} to {MAX_TTL_MS}, got {value!r}"
    )


def check_timeout(value: object, default: float, field: str = "timeout") -> float:
    """Seconds for one call: ``default`` for None; above 0 and finite."""
    if value is None:
        return default
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 < value <= 1e9:
        return float(value)
    raise ConfigurationError(f"lock: {field} must be seconds above 0, got {value!r}")


def check_token(token: object, key: str, where: str) -> int:
    """The token that a store answered with, as a number.

    Raises:
        StoreError: It is not a whole number from 1 to 2^53 - 1.
    """
    if isinstance(token, int) and not isinstance(token, bool) and 1 <= token <= MAX_TOKEN:
        return token
    raise StoreError(
        f"{where}: the fencing token of lock {key!r} must be an integer from 1 to 2^53-1, found {token!r}; "
        "another program may have written it"
    )


def ms_from_seconds(left: float) -> int:
    """Seconds that are left, as whole milliseconds rounded up, 1 or more."""
    return max(1, -int(-left * 1000.0 // 1))
