"""What a circuit breaker remembers of the last error it counted, without keeping anything of the failed call alive."""

from __future__ import annotations

import weakref
from typing import Any

#: Fields of an ``OSError`` that its constructor takes from the arguments, so that a copy made without it lacks them.
_OS_FIELDS = ("errno", "strerror", "filename", "filename2")

#: Packages of HTTP clients. Their errors and responses lead to what was sent, which may be of any size, and to open connections.
_CLIENTS = frozenset(("requests", "urllib3", "httpx"))
#: The attributes by which they do.
_LEFT_OUT = frozenset(
    ("request", "_request", "_next", "next_request", "pool", "conn", "connection", "raw", "stream")
)

#: So deep errors inside errors are copied; what is deeper is left out.
_DEPTH = 4


def copy_of(error: Exception, depth: int = _DEPTH) -> Exception | None:
    """The error without traceback, cause and context, or None where it cannot be copied.

    Its constructor is not called, as it may take anything: arguments and attributes are carried over. Errors among them (a
    ``requests.ConnectionError`` holds that of the connection pool) are replaced by such copies too, since the traceback of any of
    them leads to the frames of the failed call.
    """
    kind = type(error)
    try:
        args = tuple([_without_traceback(value, depth) for value in error.args])
        copy = kind.__new__(kind, *args)
        copy.args = args
        left_out = _LEFT_OUT if _is_a_clients(kind) else ()
        for name, value in error.__dict__.items():
            copy.__dict__[name] = None if name in left_out else _without_traceback(value, depth)
        if isinstance(error, OSError):
            for field in _OS_FIELDS:
                value = getattr(error, field, None)
                if value is not None:
                    setattr(copy, field, value)
    except Exception:
        return None  # somebody's own ``__new__``
    return copy if isinstance(copy, kind) else None


def _without_traceback(value: Any, depth: int) -> Any:
    if isinstance(value, BaseException):
        if not isinstance(value, Exception) or depth <= 0:
            return repr(value)
        inner = copy_of(value, depth - 1)
        return repr(value) if inner is None else inner
    if value.__class__ in (list, tuple):
        return value.__class__([_without_traceback(item, depth) for item in value])
    if _is_a_clients(value.__class__) and "status_code" in getattr(value, "__dict__", ()):
        return _without_connection(value, depth)
    return value


def _is_a_clients(kind: type[Any]) -> bool:
    """Whether a class is one of an HTTP client, or made from one."""
    return any(base.__module__.partition(".")[0] in _CLIENTS for base in kind.__mro__)


def _without_connection(response: Any, depth: int) -> Any:
    """A response with its status, its headers and as much of its body as was read; None where it is one of very many."""
    if depth <= 0:
        return None
    kind = response.__class__
    copy = kind.__new__(kind)
    for name, value in response.__dict__.items():  # ``history`` has responses too
        copy.__dict__[name] = None if name in _LEFT_OUT else _without_traceback(value, depth - 1)
    return copy


class LastFailure:
    """The error itself while somebody else keeps it, afterwards a copy.

    An error's traceback holds the frames of the failed call, and they its locals: a breaker that kept it would keep them until
    the next failure. Nor can the traceback be taken off it, since it is still on its way to the caller.

    Args:
        error: The error.
    """

    __slots__ = ("_copy", "_reference")

    def __init__(self, error: Exception) -> None:
        self._copy = copy_of(error)
        try:
            self._reference: weakref.ref[Exception] | None = weakref.ref(error)
        except TypeError:  # most built-in types take no weak references
            self._reference = None

    def get(self) -> Exception | None:
        """The error or its copy."""
        original = None if self._reference is None else self._reference()
        return self._copy if original is None else original
