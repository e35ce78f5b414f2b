"""Which store is meant where nobody names one: the same for the library and for the command, so that they exclude each other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyresil.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The environment variable that names the store.
VARIABLE = "PYRESIL_STORE"


def default_path(environment: Mapping[str, str]) -> str:
    """The SQLite file that is used where nothing else is named: one for each user.

    Raises:
        ConfigurationError: The user has no home folder (a container that runs under a number).
    """
    state = environment.get("XDG_STATE_HOME")
    # The specification of these folders says that a relative path is to be ignored.
    if not state or not state.startswith("/"):
        if os.geteuid() == 0:
            state = "/var/lib"
        else:
            home = os.path.expanduser("~")  # noqa: PTH111 - pathlib costs 5 ms of import
            if not home.startswith("/"):
                raise ConfigurationError(
                    f"user {os.geteuid()} has no home folder for the default store: set {VARIABLE}, or XDG_STATE_HOME to a "
                    "folder that it can write to"
                )
            state = f"{home}/.local/state"
    return f"{state}/pyresil/locks.db"


def default_url(environment: Mapping[str, str]) -> str:
    """The URL of the store: ``PYRESIL_STORE``, else that of the default file."""
    named = environment.get(VARIABLE)
    if named:
        return named
    path = default_path(environment)
    for char in "%?#":
        path = path.replace(char, f"%{ord(char):02X}")
    return f"sqlite:///{path}"
