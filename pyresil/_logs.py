"""The ``pyresil`` logger, with a ``NullHandler``. Loaded by the first thing that has something to say."""

from __future__ import annotations

import logging

_LOGGER = logging.getLogger("pyresil")
_LOGGER.addHandler(logging.NullHandler())


def logger() -> logging.Logger:
    """The library's logger."""
    return _LOGGER
