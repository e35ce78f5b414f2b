"""Stores that fail, hang or lie on demand, in front of a real one."""

from __future__ import annotations

import threading

from pyresil.stores.base import LockStore


class FaultyStore(LockStore):
    """Passes everything on to another store; `faults` maps a method's name to what happens before (or instead).

    A fault is an exception to raise, or a function of the call number (from 1) that may raise, wait, or return one of the
    strings ``"drop-request"`` and ``"drop-reply"``, which raise what an unreachable store raises before or after the call.
    """

    can_wait = False

    def __init__(self, inner):
        self.inner = inner
        self.faults = {}
        self.calls = []
        self.lock = threading.Lock()

    def _do(self, method, *args, timeout=None, **kwargs):
        from pyresil.errors import StoreUnavailableError

        with self.lock:
            self.calls.append((method, *args))
            number = sum(call[0] == method for call in self.calls)
        fault = self.faults.get(method)
        if isinstance(fault, BaseException):
            raise fault
        what = fault(number) if fault is not None else None
        if what == "drop-request":
            raise StoreUnavailableError("the request was dropped")
        answer = getattr(self.inner, method)(*args, **kwargs)
        if what == "drop-reply":
            raise StoreUnavailableError("the reply was dropped")
        return answer

    def count(self, method):
        return sum(call[0] == method for call in self.calls)

    def acquire(self, key, owner, ttl_ms, meta="", *, timeout=None):
        return self._do("acquire", key, owner, ttl_ms, meta, timeout=timeout)

    def renew(self, key, owner, ttl_ms, *, timeout=None):
        return self._do("renew", key, owner, ttl_ms, timeout=timeout)

    def release(self, key, owner, min_hold_ms=0, *, timeout=None):
        return self._do("release", key, owner, min_hold_ms, timeout=timeout)

    def inspect(self, key, *, timeout=None):
        return self._do("inspect", key, timeout=timeout)

    def scan(self, prefix="", *, timeout=None):
        return self._do("scan", prefix, timeout=timeout)

    def force_release(self, key, *, timeout=None):
        return self._do("force_release", key, timeout=timeout)


class Interrupt(BaseException):
    """What a signal handler raises."""


def interrupt(monkeypatch, owner, name):
    """The next call of a method raises, as a signal handler may where a function starts; returns what it raises."""

    def interrupted(*args, **kwargs):
        monkeypatch.undo()
        raise Interrupt

    monkeypatch.setattr(owner, name, interrupted)
    return Interrupt
