"""Ordered delivery of what was decided under a lock, outside of it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Outbox:
    """Delivers what was decided under a lock, outside of it and in the order of the decisions.

    Whoever changes state appends ``(function, argument)`` to ``pending`` in the same stretch, and calls `drain` afterwards.
    One thread at a time drains; the others leave theirs to it. A listener that changes state again only appends: what it
    caused is delivered after what it is being told.
    """

    __slots__ = ("_draining", "pending")

    def __init__(self) -> None:
        self.pending: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._draining = False

    def drain(self) -> None:
        """Deliver everything that is pending, unless somebody is already doing so."""
        while self.pending and not self._draining:
            mine = False
            try:
                # No call stands between the test and the note, so two threads cannot both pass.
                if not self._draining:
                    self._draining = mine = True
                    while self.pending:
                        function, argument = self.pending.popleft()
                        function(argument)
            finally:
                if mine:
                    self._draining = False
