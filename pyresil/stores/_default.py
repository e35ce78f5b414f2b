"""Which store is meant where nobody names one, and which file a URL means.

The same for the library and for the command, so that they exclude each other.
"""

from __future__ import annotations

import os

from pyresil.errors import ConfigurationError

TYPE_CHECKING = False  # importing it from typing would cost a start of the command 2.5 ms

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


def path_of(rest: str) -> str:
    """The file that a sqlite URL names.

    Args:
        rest: The URL after ``sqlite:``.

    Raises:
        ConfigurationError: It names none, or another one than was meant.
    """
    path = rest.removeprefix("///") if rest.startswith("///") else ""
    if "?" in path or "#" in path:
        raise ConfigurationError(f"connect: a sqlite URL takes no options and no fragment, got sqlite:{rest}")
    if "%" in path:
        from urllib.parse import unquote

        path = unquote(path)
    if not path or path == ":memory:":
        raise ConfigurationError(
            "connect: a sqlite URL names a file after three slashes: sqlite:///relative.db or sqlite:////srv/app/absolute.db, got "
            f"sqlite:{rest}"
        )
    first, slash, _ = path.partition("/")
    if slash and first and not os.path.isdir(first) and os.path.isdir(f"/{first}"):  # noqa: PTH112 - pathlib costs 5 ms
        # cron's working folder is another than the application's: two files would exclude nobody.
        raise ConfigurationError(
            f"connect: sqlite:{rest} names {path!r} below the working folder: for /{path} write four slashes, sqlite:/{rest}"
        )
    return path
