"""`record_events`: what happened, as a list."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyresil import _dispatch
from pyresil.events import subscribe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyresil.events import Event

__all__ = ["RecordedEvents", "record_events"]

#: Late events come on the dispatch thread: it is waited for this many real seconds at the end of the block.
_LATE = 1.0


class RecordedEvents(list[Any]):
    """The events, in the order in which they came."""

    @property
    def types(self) -> list[str]:
        """Their words, such as ``["retry", "retry", "fallback"]``."""
        return [event.type for event in self]

    def of(self, kind: type[Event] | str) -> list[Any]:
        """Those of one kind: an event class or a word."""
        if isinstance(kind, str):
            return [event for event in self if event.type == kind]
        return [event for event in self if isinstance(event, kind)]


@contextmanager
def record_events(
    types: Iterable[type[Event] | str] | type[Event] | str | None = None,
) -> Iterator[RecordedEvents]:
    """Collect the events of the whole process while the block runs.

    Args:
        types: Event classes or their words; None for all.

    Yields:
        A list that grows as events happen. Late ones (the loss of a lease, say) are there at the end of the block.

    Raises:
        ConfigurationError: A type is unknown.
    """
    recorded = RecordedEvents()
    unsubscribe = subscribe(recorded.append, types)
    try:
        yield recorded
        if _dispatch._dispatcher is not None:
            _dispatch._dispatcher.flush(_LATE)
    finally:
        unsubscribe()
