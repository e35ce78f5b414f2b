"""Leases: locks that expire, with fencing tokens, for several processes that must not do the same work at once."""

from __future__ import annotations

from pyresil.locks.lease import Lease
from pyresil.locks.locks import Locks

__all__ = ["Lease", "Locks"]
