"""The library's logger, loaded when there is something to say: `logging` costs as much to import as half of the core."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


def log() -> logging.Logger:
    """The ``pyresil`` logger."""
    from pyresil._logs import logger

    return logger()
