"""Which store, and what its errors mean to whoever called the command."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyresil.cli._report import UNAVAILABLE, USAGE
from pyresil.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyresil.stores.base import LockStore

#: Names the store where --store does not.
VARIABLE = "PYRESIL_STORE"


def default_path(environment: Mapping[str, str]) -> str:
    """The SQLite file that is used where nothing else is named: one for each user."""
    state = environment.get("XDG_STATE_HOME")
    # The specification of these folders says that a relative path is to be ignored.
    if not state or not state.startswith("/"):
        if os.geteuid() == 0:
            state = "/var/lib"
        else:
            home = os.path.expanduser("~")  # noqa: PTH111 - pathlib costs 5 ms of import
            state = f"{home}/.local/state"
    return f"{state}/pyresil/locks.db"


def store_url(option: str | None, environment: Mapping[str, str]) -> str:
    """The URL of the store: the option's, else the environment's, else the default file's."""
    if option is not None:
        return option
    named = environment.get(VARIABLE)
    if named:
        return named
    return "sqlite:///" + default_path(environment).replace("%", "%25").replace("?", "%3F").replace(
        "#", "%23"
    )


def open_store(url: str) -> LockStore:
    """The lock store behind ``url``; connects when it is first used.

    Raises:
        ConfigurationError: The URL is at fault.
        ImportError: The client library is missing; the text names the extra.
    """
    if url.strip().lower().startswith("memory:"):
        raise ConfigurationError(
            "the store memory: is inside one process and would exclude nobody: use sqlite:///path or a server"
        )
    from pyresil.stores.backend import connect

    return connect(url).locks


def meaning(error: Exception | None) -> tuple[int, str]:
    """The exit status for an error of the store, and what to say."""
    if isinstance(error, ConfigurationError):
        return USAGE, str(error)
    if isinstance(error, (StoreError, ImportError)):
        return UNAVAILABLE, str(error)
    return UNAVAILABLE, f"the store failed: {type(error).__name__}: {error}"
