"""`pyresil-lock run` where its key is plainly taken: said and done with, before anything is loaded that only a command needs.

Starts come in herds: a crontab of many machines' worth of jobs, or a deployment's. A start that is in vain loads a third of
what another does, forks nothing, starts no thread and never asks for the store's write lock, so that it keeps neither the
machine nor the one start that runs its command.
"""

from __future__ import annotations

import os

from pyresil.cli._report import NOTE, Reporter, secrets_of
from pyresil.cli._store import store_url
from pyresil.errors import ConfigurationError

TYPE_CHECKING = False  # importing it from typing would cost a start 2.5 ms

if TYPE_CHECKING:
    from pyresil.cli._options import Settings


class Glance:
    """Looks at the key of a start, as often as it was written to its SQLite file.

    Where the key looks free, where the start would wait for it, where the store is a server, and where something is wrong that
    is named later, there is nothing to see.

    Args:
        settings: What was asked for.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._url = self._path = ""
        self._seen: object = ""
        if settings.wait or settings.jitter:
            return
        try:
            self._url = store_url(settings.store, os.environ)
            scheme, _, rest = self._url.strip().partition(":")
            if scheme.lower() == "sqlite":
                from pyresil.stores._default import path_of

                self._path = path_of(rest)
        except ConfigurationError:
            pass

    def busy(self) -> int | None:
        """Say that the key is taken, where that is plain to see.

        Returns:
            The exit status; None where the start goes on.
        """
        if not self._path or self._written() == self._seen:
            return None
        from pyresil.stores._sqlite_layout import glance

        self._seen = self._written()
        holder = glance(self._path, self._settings.key)
        if holder is None:
            return None
        say_busy(reporter(self._settings, self._url), self._settings.key, holder)
        return self._settings.busy_exit

    def _written(self) -> object:
        """What changes with every write to the file, but for two within a tick of its clock."""
        try:
            found = os.stat(f"{self._path}-wal")  # noqa: PTH116 - pathlib costs 5 ms of import
        except (OSError, ValueError):
            return None
        return found.st_mtime_ns, found.st_size


def reporter(settings: Settings, url: str) -> Reporter:
    """Where messages go, with the passwords of ``url`` left out."""
    return Reporter(
        quiet=settings.quiet, verbose=settings.verbose, json=settings.json, secrets=secrets_of(url)
    )


def say_busy(report: Reporter, key: str, holder: tuple[int, str] | None) -> None:
    """The one line of a start whose key is taken.

    Args:
        report: Where it goes.
        key: The key.
        holder: Milliseconds until it opens and what the holder said of itself, as far as that is known.
    """
    known = ""
    if holder is not None:
        remaining_ms, meta = holder
        by = f" by {meta}" if meta else ""
        known = f"{by}, for {remaining_ms / 1000.0:.1f} s more unless renewed"
    report.say(NOTE, "busy", f"{key!r} is taken{known}; the command did not run", key=key)
