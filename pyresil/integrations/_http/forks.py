"""Locks of urllib3 and requests that another thread may hold as a process forks: the child gets new ones."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from requests import Session
    from urllib3.poolmanager import PoolManager

#: Whose locks they are; weakly, for the child of a fork.
_managers: weakref.WeakSet[PoolManager] = weakref.WeakSet()
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def watch_manager(manager: PoolManager) -> None:
    """A child of this process may use the manager."""
    _managers.add(manager)


def watch_session(session: Session) -> None:
    """A child of this process may use the session's cookies."""
    _sessions.add(session)


def _fresh_locks() -> None:
    # Looked up at use: gevent may have replaced it since this module was imported.
    for manager in list(_managers):
        manager.pools.lock = threading.RLock()
    for session in list(_sessions):
        jar: Any = session.cookies
        if hasattr(jar, "_cookies_lock"):
            jar._cookies_lock = threading.RLock()


os.register_at_fork(after_in_child=_fresh_locks)
