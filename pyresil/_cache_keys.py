"""Cache keys from the arguments of a call: bound to their parameters, typed, and holding no object alive.

``f(1)`` and ``f(x=1)`` are one key; ``f(1)``, ``f(True)`` and ``f(1.0)`` are three, and so are other values that are equal but not
the same: ``0.0`` and ``-0.0``, ``Decimal("1.0")`` and ``Decimal("1.00")``, one moment in two time zones. Lists, dicts and sets count
by their content. An object that is compared by identity is held weakly: a cached method does not keep its ``self`` alive, and an id
that is used again is another key.
"""

from __future__ import annotations

import weakref
from types import MethodType
from typing import TYPE_CHECKING, Any

from pyresil.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["ArgumentsKey", "NoKey", "freeze", "shortcut", "told", "unbound", "unwrapped"]

#: Types whose values are equal only to values of the same type here, because the type stands beside them.
ATOMS = frozenset((str, bytes, int, bool, type(None)))
#: Types with values that are equal and can be told apart by their text; so can those of their subclasses.
_TELLING = frozenset(
    ("builtins.float", "builtins.complex", "decimal.Decimal", "datetime.datetime", "datetime.time")
)
_MISSING = object()


class NoKey:
    """A mixin: what is no key and no part of one; strategies refuse it, and it is not formatted.

    A function that is meant for an argument of the call, ``key=lambda order_id: f"order:{order_id}"``, gets the context. Its key
    would be the same for all calls, or another one for each.
    """

    __slots__ = ()

    def __format__(self, spec: str, /) -> str:
        raise TypeError(
            f"a {type(self).__name__} is no part of a key: take ctx.key, ctx.args[0] or ctx.arguments()['name']; "
            "to show it write {ctx!r}"
        )


def freeze(value: Any) -> Hashable:
    """A hashable, typed stand-in for a value.

    Raises:
        TypeError: It is not hashable, nor a list, dict or set of what is; or it is a context.
    """
    kind = type(value)
    if kind in ATOMS:
        return (kind, value)
    if _in_order(kind):
        return (kind, *map(freeze, value))
    if any(f"{base.__module__}.{base.__qualname__}" in _TELLING for base in kind.__mro__):
        return (kind, value, repr(value))
    if kind in (set, frozenset):
        return (kind, frozenset(map(freeze, value)))
    if kind is dict:
        return (kind, frozenset((freeze(key), freeze(item)) for key, item in value.items()))
    if isinstance(value, NoKey):
        raise TypeError(f"a {kind.__name__} is no key, and no part of one")
    own: Any = kind
    if own.__eq__ is object.__eq__ and own.__hash__ is object.__hash__:
        try:
            return (kind, weakref.ref(value))
        except TypeError:
            return (kind, value)
    hash(value)
    return (kind, value)


def _in_order(kind: type[Any]) -> bool:
    return kind in (list, tuple) or (issubclass(kind, tuple) and kind.__eq__ is tuple.__eq__)


def told(key: Any, arguments: ArgumentsKey | None) -> Any:
    """A key as the caller knows it, for events and errors: what a key function gave, or the tuple of a call's arguments.

    Args:
        key: The frozen one.
        arguments: What made it, where the arguments of a call are the key.
    """
    return _thaw(key) if arguments is None else tuple(map(_thaw, key[len(arguments.prefix) :]))


def _thaw(frozen: Any) -> Any:
    """The value that `freeze` was given; None for an object that is gone."""
    kind: Any = frozen[0]
    value: Any = frozen[1] if len(frozen) > 1 else None  # of an empty tuple
    if _in_order(kind):
        items = map(_thaw, frozen[1:])
        return kind._make(items) if hasattr(kind, "_make") else kind(items)
    if kind in (set, frozenset):
        return kind(map(_thaw, value))
    if kind is dict:
        return {_thaw(key): _thaw(item) for key, item in value}
    return value() if type(value) is weakref.ref and kind is not weakref.ref else value


def unbound(
    function: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A bound method's function, with its object as an argument like others: it is not kept alive by the cache."""
    bound = getattr(function, "__self__", None)
    plain = getattr(function, "__func__", None)
    return (function, args) if bound is None or plain is None else (plain, (bound, *args))


def unwrapped(function: Callable[..., Any], known: ArgumentsKey | None) -> Callable[..., Any]:
    """What a cache was put around, where ``function`` is the decorated one: the user has no other name for it.

    Args:
        function: A function or a bound method.
        known: What makes the cache's keys; None before the first call.
    """
    inner = plain = getattr(function, "__func__", function)
    for _ in range(100):
        if inner is None or (known is not None and inner == known.function):
            break
        inner = getattr(inner, "__wrapped__", None)
        if known is None:
            break
    if inner is None or inner is plain:
        return function
    owner = getattr(function, "__self__", None)
    return inner if owner is None else MethodType(inner, owner)


class ArgumentsKey:
    """Makes keys for one function: called with the arguments of a call.

    Args:
        function: Its parameters decide which arguments are the same.
        apart: Keys of another function are other keys.
    """

    __slots__ = ("_defaults", "_names", "_plain", "_signature", "function", "prefix")

    def __init__(self, function: Callable[..., Any], *, apart: bool = False) -> None:
        self.function = function
        self.prefix: tuple[Any, ...] = (freeze(function),) if apart else ()
        self._signature: Any = None
        code = getattr(function, "__code__", None)
        # A plain function without *args, **kwargs or keyword-only parameters is bound here, which is ten times as fast.
        self._plain = code is not None and not code.co_kwonlyargcount and not code.co_flags & 0x0C
        if code is None or not self._plain:
            self._names: tuple[str, ...] = ()
            self._defaults: dict[str, Any] = {}
            return
        self._plain = code.co_posonlyargcount == 0
        self._names = code.co_varnames[: code.co_argcount]
        given = getattr(function, "__defaults__", None) or ()
        self._defaults = dict(zip(self._names[len(self._names) - len(given) :], given, strict=True))

    @property
    def simple(self) -> int | None:
        """The number of parameters, where all of them are plain ones."""
        return len(self._names) if self._plain else None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        """The key of one call.

        Raises:
            TypeError: The arguments do not fit the function.
            ConfigurationError: An argument cannot be part of a key.
        """
        values: Any = args
        if kwargs or len(args) != len(self._names) or not self._plain:
            values = self._bind(args, kwargs)
        try:
            key = tuple([(type(value), value) if type(value) in ATOMS else freeze(value) for value in values])
            return self.prefix + key if self.prefix else key
        except TypeError as error:
            raise ConfigurationError(
                f"cached: an argument of {shown(self.function)} cannot be part of a cache key ({error}); give key="
            ) from error

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        if self._plain and len(args) <= len(self._names) and self._names:
            rest = self._names[len(args) :]
            values = [*args, *(kwargs.get(name, self._defaults.get(name, _MISSING)) for name in rest)]
            if not any(value is _MISSING for value in values) and all(name in rest for name in kwargs):
                return values
        # Everything else, and what does not fit: the standard library's binding, and its error.
        if self._signature is None:
            import inspect

            try:
                self._signature = inspect.signature(self.function)
            except ValueError:
                # A builtin that does not tell its parameters: positions and names as they were given.
                return [*args, kwargs]
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return list(bound.arguments.values())


def shortcut(key: ArgumentsKey, names: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """A hit as source (see `pyresil._flat`): a fresh, immutable value of a call with a few plain arguments by position.

    Args:
        key: Makes the keys of the function.
        names: ``entries`` (the store's, by key), ``now`` (the clock) and ``hit`` (the event's type).
    """
    count = key.simple
    if count is None or count > 4 or key.prefix:
        return None
    values = [f"args[{position}]" for position in range(count)]
    plain = "".join(f" and type({value}) in $atoms" for value in values)
    parts = "".join(f"(type({value}), {value}), " for value in values)
    return _SHORTCUT.format(count=count, plain=plain, key=parts), {**names, "atoms": ATOMS}


_SHORTCUT = """\
if not kwargs and len(args) == {count} and not $hit.listeners{plain}:
    $key = ({key})
    $found = $entries.get($key)
    if $found is not None:
        $found = $found[0]
        if $found.plain and $now() < $found.fresh_until:
            try:
                $entries.move_to_end($key)
            except KeyError:
                pass
            return $found.packed
"""
