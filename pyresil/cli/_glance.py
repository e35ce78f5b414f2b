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


def busy_at_a_glance(settings: Settings) -> int | None:
    """Say that the key is taken, where one look at a SQLite file shows it.

    Returns:
        The exit status; None where the start goes on: the key looks free, the start would wait for it, the store is a server,
        or something is wrong that is named later.
    """
    if settings.wait or settings.jitter:
        return None
    try:
        url = store_url(settings.store, os.environ)
        scheme, _, rest = url.strip().partition(":")
        if scheme.lower() != "sqlite":
            return None
        from pyresil.stores._default import path_of
        from pyresil.stores._sqlite_layout import glance

        holder = glance(path_of(rest), settings.key)
    except ConfigurationError:
        return None
    if holder is None:
        return None
    say_busy(reporter(settings, url), settings.key, holder)
    return settings.busy_exit


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
