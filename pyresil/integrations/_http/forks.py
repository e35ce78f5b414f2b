"""What the child of a fork has of its parent's calls.

Locks of urllib3 and requests that another thread may have held as the process forked are new in the child. Connections are
the parent's, who still speaks on them.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from requests import Session
    from urllib3.poolmanager import PoolManager

#: Another object in every child: what was made under another one is of the parent's. Read it as ``forks.era``.
era = object()

#: Whose locks they are; weakly, for the child of a fork.
_managers: weakref.WeakSet[PoolManager] = weakref.WeakSet()
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def watch_manager(manager: PoolManager) -> None:
    """A child of this process may use the manager."""
    _managers.add(manager)


def watch_session(session: Session) -> None:
    """A child of this process may use the session's cookies."""
    _sessions.add(session)


def _begin_child() -> None:
    global era
    era = object()
    # Looked up at use: gevent may have replaced it since this module was imported.
    for manager in list(_managers):
        manager.pools.lock = threading.RLock()
    for session in list(_sessions):
        jar: Any = session.cookies
        if hasattr(jar, "_cookies_lock"):
            jar._cookies_lock = threading.RLock()


os.register_at_fork(after_in_child=_begin_child)
