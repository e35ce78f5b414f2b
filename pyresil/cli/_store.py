"""Which store, and what its errors mean to whoever called the command."""

from __future__ import annotations

from pyresil.cli._report import UNAVAILABLE, USAGE
from pyresil.errors import ConfigurationError, StoreError

TYPE_CHECKING = False  # importing it from typing would cost a start 2.5 ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyresil.stores.base import LockStore


def store_url(option: str | None, environment: Mapping[str, str]) -> str:
    """The URL of the store: the option's, else the environment's, else the default file's."""
    if option is not None:
        return option
    from pyresil.stores._default import default_url

    return default_url(environment)


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
