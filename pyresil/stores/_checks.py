"""What every store refuses: keys, owners, prefixes, durations and tokens that some store could not keep.

Apart from the contract, because the command checks its key on the way to saying that it is taken.
"""

from __future__ import annotations

from pyresil.errors import ConfigurationError, StoreError, shown

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


def check_key(key: object, field: str = "key") -> str:
    """Refuse a key that some store could not keep apart.

    Returns:
        The key: 1 to 500 characters, no NUL, no surrogates.

    Raises:
        ConfigurationError: It is something else; the text shows the value.
    """
    must = f"a string of 1 to {_MAX_KEY} characters without NUL and surrogates"
    if not isinstance(key, str) or not 0 < len(key) <= _MAX_KEY or "\0" in key:
        raise ConfigurationError(f"lock: {field} must be {must}, got {shown(key)}")
    if not key.isascii():
        try:
            key.encode("utf-8")
        except UnicodeEncodeError:
            raise ConfigurationError(f"lock: {field} must be {must}, got {shown(key)}") from None
    return key


def check_prefix(prefix: object, subject: str = "store") -> str:
    """Refuse a prefix that would move a hash tag or could not be stored."""
    if not isinstance(prefix, str) or len(prefix) > 100 or not prefix.isprintable() or not prefix.isascii():
        raise ConfigurationError(
            f"{subject}: prefix must be a string of at most 100 visible ASCII characters, got {shown(prefix)}"
        )
    if "{" in prefix or "}" in prefix:
        raise ConfigurationError(
            f"{subject}: prefix must have no brace (it would move the hash tag of a cluster), got {shown(prefix)}"
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
            f"lock: owner must be a string of 1 to {_MAX_OWNER} visible ASCII characters, got {shown(owner)}"
        )
    return owner


def check_meta(meta: object) -> str:
    """Refuse meta that is not up to 2,000 ASCII characters without NUL."""
    if not isinstance(meta, str) or len(meta) > _MAX_META or not meta.isascii() or "\0" in meta:
        raise ConfigurationError(
            f"lock: meta must be a string of at most {_MAX_META} ASCII characters without NUL, got {shown(meta)}"
        )
    return meta


def check_ms(value: object, field: str = "ttl_ms", minimum: int = 1) -> int:
    """Refuse what is not whole milliseconds from ``minimum`` to a hundred years."""
    if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= MAX_TTL_MS:
        return value
    raise ConfigurationError(
        f"lock: {field} must be whole milliseconds from {minimum} to {MAX_TTL_MS}, got {shown(value)}"
    )


def check_timeout(value: object, default: float, field: str = "timeout") -> float:
    """Seconds for one call: ``default`` for None; above 0 and finite."""
    if value is None:
        return default
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 < value <= 1e9:
        return float(value)
    raise ConfigurationError(f"lock: {field} must be seconds above 0, got {shown(value)}")


def check_token(token: object, key: str, where: str) -> int:
    """The token that a store answered with, as a number.

    Raises:
        StoreError: It is not a whole number from 1 to 2^53 - 1.
    """
    if isinstance(token, int) and not isinstance(token, bool) and 1 <= token <= MAX_TOKEN:
        return token
    raise StoreError(
        f"{where}: the fencing token of lock {shown(key)} must be an integer from 1 to 2^53-1, found {shown(token)}; "
        "another program may have written it"
    )


def ms_from_seconds(left: float) -> int:
    """Seconds that are left, as whole milliseconds rounded up, 1 or more."""
    return max(1, -int(-left * 1000.0 // 1))
