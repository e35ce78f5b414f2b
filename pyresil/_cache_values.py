"""How cached values are kept: packed, so that every reader gets a copy and nobody shares a mutable object."""

from __future__ import annotations

from typing import Any

from pyresil.errors import ConfigurationError

__all__ = ["Entry", "Packing", "whole_ms"]

#: Immutable types: the value itself is its own copy.
_ATOMS = frozenset((str, bytes, int, float, bool, complex, type(None)))


class Entry:
    """A kept result: a packed value, or a packed error for negative caching.

    Attributes:
        packed: The value itself where it is immutable, else its serialised form.
        plain: Whether it is the value itself.
        is_error: Whether it is an error to be raised.
        fresh_until: When it becomes stale.
        retry_at: No refresh is tried before this, after one failed.
    """

    __slots__ = ("fresh_until", "is_error", "packed", "plain", "retry_at")

    def __init__(
        self, packed: Any, fresh_until: float, *, plain: bool = False, is_error: bool = False
    ) -> None:
        self.packed = packed
        self.plain = plain
        self.is_error = is_error
        self.fresh_until = fresh_until
        self.retry_at = 0.0


def _same(loaded: Any, value: Any) -> bool:
    """Whether JSON gave back what it was given: an ``IntEnum`` or ``OrderedDict`` is equal to what comes back, and is not the same."""
    if type(loaded) is not type(value):
        return False
    if type(value) is list:
        return len(loaded) == len(value) and all(map(_same, loaded, value))
    if type(value) is dict:
        return loaded.keys() == value.keys() and all(_same(loaded[key], item) for key, item in value.items())
    return bool(loaded == value)


def whole_ms(duration: float) -> int:
    """Whole milliseconds, 1 or more, of a duration in seconds."""
    return max(1, int(duration * 1000))


class Packing:
    """Packs and unpacks values.

    Args:
        codec: None for pickle, ``"json"`` for JSON.
        subject: What to call the cache in errors.
    """

    __slots__ = ("codec", "subject")

    def __init__(self, codec: str | None, subject: str) -> None:
        self.codec = codec
        self.subject = subject

    def pack(self, value: Any, fresh_until: float) -> Entry:
        """An entry for ``value``.

        Raises:
            ConfigurationError: It does not come back the same.
        """
        if type(value) in _ATOMS and self.codec is None:
            return Entry(value, fresh_until, plain=True)
        try:
            if self.codec == "json":
                import json

                packed: Any = json.dumps(value)
                if not _same(json.loads(packed), value):
                    raise ValueError("it does not come back the same from JSON")
            else:
                import pickle

                packed = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
                loaded = pickle.loads(packed)  # noqa: S301 - our own bytes, made on the line above
                if type(loaded) is not type(value):
                    raise ValueError(f"it comes back as a {type(loaded).__name__}")
        except Exception as error:
            raise ConfigurationError(
                f"{self.subject}: a result of type {type(value).__name__} cannot be copied ({error}); return plain data"
            ) from error
        return Entry(packed, fresh_until)

    def pack_error(self, error: Exception, fresh_until: float) -> Entry | None:
        """An entry that raises a copy of ``error``; None where it cannot be copied."""
        import pickle

        try:
            packed = pickle.dumps(error)
            pickle.loads(packed)  # noqa: S301 - our own bytes, made on the line above
        except Exception:
            return None
        return Entry(packed, fresh_until, is_error=True)

    def unpack(self, entry: Entry) -> Any:
        """A copy of the value, or the error raised."""
        if entry.plain:
            return entry.packed
        if self.codec == "json" and not entry.is_error:
            import json

            return json.loads(entry.packed)
        import pickle

        value = pickle.loads(entry.packed)  # noqa: S301 - our own bytes, from `pack`
        if entry.is_error:
            raise value
        return value
