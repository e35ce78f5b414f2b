"""The ``pyresil`` logger, with a ``NullHandler``. Loaded by the first thing that has something to say."""

from __future__ import annotations

import logging

_LOGGER = logging.getLogger("pyresil")
_LOGGER.addHandler(logging.NullHandler())


def logger() -> logging.Logger:
    """The library's logger."""
    return _LOGGER


def heard(level: int) -> bool:
    """Whether a record of this level would reach anybody: building one that is dropped costs more than a whole rejection."""
    if not _LOGGER.isEnabledFor(level):
        return False
    log: logging.Logger | None = _LOGGER
    while log is not None:
        for handler in log.handlers:
            if handler.__class__ is not logging.NullHandler:
                return True
        log = log.parent if log.propagate else None
    return False
