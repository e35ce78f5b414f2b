"""Stores on Redis 7 and later, and on Valkey: one server, Sentinel or Cluster."""

from __future__ import annotations

from pyresil.stores.redis.locks import RedisLockStore

__all__ = ["RedisLockStore"]
