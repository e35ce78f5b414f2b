"""Telling functions apart, and making a wrapper look like what it wraps."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from pyresil.errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable

W = TypeVar("W")

_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200  # inspect.CO_*, without importing inspect
_ITERABLE_COROUTINE = 0x100


def _flags(fn: Any) -> int:
    """The code flags of a function, also behind ``partial``, a method, or a callable object."""
    for _ in range(100):
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif hasattr(fn, "__func__"):
            fn = fn.__func__
        else:
            break
    code = getattr(fn, "__code__", None)
    if code is None and not isinstance(fn, type):
        code = getattr(getattr(type(fn), "__call__", None), "__code__", None)  # noqa: B004 - the function itself
    return getattr(code, "co_flags", 0)


def is_async(fn: Any) -> bool:
    """Whether a call of ``fn`` only makes something to be awaited."""
    try:
        return bool(_flags(fn) & (_COROUTINE | _ASYNC_GENERATOR | _ITERABLE_COROUTINE))
    except Exception:
        return False  # a proxy whose attributes raise, or are anything


def describe_function(fn: Any) -> str:
    """A name for messages."""
    if isinstance(fn, functools.partial):
        return describe_function(fn.func)
    name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None)
    return name if isinstance(name, str) else shown(fn)


def described(value: Any) -> Any:
    """An option for `describe`: a plain value itself, a function or class by its name, anything else as text."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    return describe_function(value) if callable(value) else shown(value)


def require_plain_function(fn: Any, policy: str | None = None) -> None:
    """Refuse what cannot run under a sync policy.

    Raises:
        TypeError: It cannot be called, or is an async or generator function.
    """
    if not callable(fn):
        # A property and its kind: written above it, a decorator gets the descriptor and not the function.
        below = f"; put the decorator below @{type(fn).__name__}" if hasattr(type(fn), "__get__") else ""
        raise TypeError(f"only a callable can be decorated, got {shown(fn)}{below}")
    under = f" (policy {policy!r})" if policy else ""
    if is_async(fn):
        raise TypeError(
            f"{describe_function(fn)} is async: pyresil is for sync code{under}; decorate a plain function, "
            "or use a library for asyncio"
        )
    if _flags(fn) & _GENERATOR:
        raise TypeError(
            f"{describe_function(fn)} is a generator function: calling it only makes the generator, so nothing would run "
            f"under the policy{under}; return a list, or put the policy around what the generator calls"
        )


def wrap_like(wrapper: W, fn: Callable[..., Any]) -> W:
    """`functools.wraps` that takes any callable."""
    functools.update_wrapper(wrapper, fn)  # type: ignore[arg-type]  # any wrapper
    if not hasattr(fn, "__name__"):
        inner = fn.func if isinstance(fn, functools.partial) else type(fn)
        for attribute in ("__name__", "__qualname__"):
            setattr(wrapper, attribute, getattr(inner, attribute, type(fn).__name__))
    return wrapper
