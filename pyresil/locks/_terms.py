"""What is asked of a lease, checked once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyresil._validate import Checker
from pyresil.cancel import CancelToken
from pyresil.context import UNSET
from pyresil.errors import ConfigurationError
from pyresil.stores.base import check_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.durations import Duration
    from pyresil.locks.lease import Lease

#: The least ttl of a lease that is renewed, in seconds: with two busy threads a timer may be late by 40 ms.
LEAST_TTL = 0.5


class Terms:
    """What was asked for; durations in seconds."""

    __slots__ = ("key", "max_hold", "min_hold", "on_lost", "renew", "ttl", "wait")

    def __init__(self, key: str, ttl: float) -> None:
        self.key = key
        self.ttl = ttl
        self.wait: float | None = 0.0
        self.on_lost: Callable[[Lease], object] | None = None
        self.min_hold = 0.0
        self.max_hold: float | None = None
        self.renew = True


def _is_zero(value: object) -> bool:
    """The default itself; False is no number here."""
    return value.__class__ is int and value == 0


def make_terms(
    key: str,
    default_ttl: float,
    ttl: Duration = UNSET,
    wait: Duration | None = 0,
    cancel: CancelToken | None = None,
    on_lost: Callable[[Lease], object] | None = None,
    *,
    min_hold: Duration = 0,
    max_hold: Duration | None = None,
    renew: bool = True,
) -> Terms:
    """Check what was asked for; the arguments are those of `Locks.acquire`.

    Raises:
        ConfigurationError: With all faults.
    """
    if (
        ttl is UNSET
        and _is_zero(wait)
        and cancel is None
        and on_lost is None
        and _is_zero(min_hold)
        and max_hold is None
        and renew is True
    ):
        # Nothing but a key, as most often: a tenth of the time.
        return Terms(check_key(key), default_ttl)
    check = Checker("lock", key)
    try:
        check_key(key)
    except ConfigurationError as error:
        check.faults.append(str(error).removeprefix("lock: "))
    renewed = check.boolean("renew", renew)
    seconds = default_ttl
    if ttl is not UNSET:
        seconds = check.duration("ttl", ttl, minimum=LEAST_TTL if renewed else 0.001)
    # Stores count whole milliseconds, and the lease must not believe in more than its store.
    terms = Terms(key, max(1, round(seconds * 1000.0)) / 1000.0)
    terms.wait = check.optional_duration("wait", wait, positive=False)
    terms.on_lost = check.function("on_lost", on_lost)
    terms.min_hold = check.duration("min_hold", min_hold, positive=False)
    terms.max_hold = check.optional_duration("max_hold", max_hold)
    terms.renew = renewed
    check.instance("cancel", cancel, CancelToken, "a CancelToken or None")
    check.done()
    return terms
