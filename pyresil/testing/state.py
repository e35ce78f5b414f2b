"""`fresh_state`: what one test leaves in the process must not reach the next one."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pyresil import _dispatch
from pyresil.context import _current, _lease
from pyresil.events import TYPES, note_listeners

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["fresh_state"]


def _reset() -> None:
    """Forget what modules keep for the whole process.

    A module with such state has a function ``_fresh_state()``; only loaded modules can have any.
    """
    _current.set(None)
    _lease.set(None)
    for name, module in list(sys.modules.items()):
        if name.startswith("pyresil."):
            forget = module.__dict__.get("_fresh_state")
            if forget is not None:
                forget()


class _Fresh(AbstractContextManager["None"]):
    def __init__(self) -> None:
        self._listeners = {kind: kind.listeners for kind in TYPES.values()}
        for kind in TYPES.values():
            kind.listeners = ()
            note_listeners(kind)
        _reset()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if _dispatch._dispatcher is not None:
            _dispatch._dispatcher.flush(1.0)
        for event, listeners in self._listeners.items():
            event.listeners = listeners
            note_listeners(event)
        _reset()


def fresh_state() -> AbstractContextManager[None]:
    """Forget the process-wide state of the library now: event listeners, default stores, shared instances, the context.

    Call it before a test, or use it as ``with fresh_state():``; then the state is forgotten again at the end of the block, and
    the listeners that were there before come back.
    """
    return _Fresh()
