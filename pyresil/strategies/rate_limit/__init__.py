"""`RateLimit`: how often something may be done.

The algorithms are `pyresil._engine.limiters`. ``limiter`` has the strategy, ``options`` reads what it is configured with,
``counts`` says where hits are counted, ``reservation`` has what it hands out.
"""

from __future__ import annotations

from pyresil.strategies.rate_limit.limiter import RateLimit
from pyresil.strategies.rate_limit.reservation import RateDecision, RateLimitStats, Reservation

__all__ = ["RateDecision", "RateLimit", "RateLimitStats", "Reservation"]
