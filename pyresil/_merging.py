"""How stacked decorators, and a registry's preset, become one policy of a function.

A wrapper of ours carries a marker with what it was given so far. A decorator that finds one on the function it decorates
starts again from the bare function, with its own stage added. `functools.wraps` copies markers to other people's wrappers, so
a marker names its own wrapper.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pyresil._functions import describe_function, require_plain_function
from pyresil._stages import OFF, ORDER, STAGES, build_stage, known_options, stage_of, strategy_class
from pyresil.errors import ConfigurationError, shown
from pyresil.outcome import UNSET
from pyresil.policy import Policy
from pyresil.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyresil._stages import Entry
    from pyresil.clock import Clock

__all__ = [
    "DEFAULT_NAMES",
    "Names",
    "Preset",
    "assemble",
    "decorate",
    "doubtful",
    "policy_of",
    "stage_decorator",
]


class Names:
    """The strategies that are shared by name: one table a registry, and one for decorators used without a registry."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, str], tuple[dict[str, Any], Strategy[Any]]] = {}
        #: How often `share` gave each of them.
        self._uses: dict[tuple[str, str], int] = {}

    def get(self, word: str, name: str) -> Strategy[Any] | None:
        """The strategy under ``name``, if there is one."""
        found = self._shared.get((word, name))
        return None if found is None else found[1]

    def share(
        self, word: str, name: str, fields: Mapping[str, Any], clock: Clock | None = None
    ) -> Strategy[Any]:
        """The strategy under ``name``, made at first use.

        Raises:
            ConfigurationError: It was made with other options.
        """
        options = {**fields, "name": name}
        found = self._shared.get((word, name))
        if found is None:
            fresh = build_stage(word, options, clock=clock)
            found = self._shared.setdefault((word, name), (options, fresh))
        if len(options) > 1 and found[0] != options:
            raise ConfigurationError(
                f"{word} {name!r} is in use with the options {_shown(found[0])}, and cannot have {_shown(options)} as well"
            )
        self._uses[(word, name)] = self._uses.get((word, name), 0) + 1
        return found[1]

    def give_back(self, word: str, name: str) -> None:
        """One use is over: where a registry's decorator above took over what a decorator below had shared here."""
        left = self._uses[(word, name)] = self._uses.get((word, name), 0) - 1
        if left <= 0:
            self._uses.pop((word, name), None)
            self._shared.pop((word, name), None)

    def all(self, word: str) -> dict[str, Strategy[Any]]:
        """All strategies of a stage by name."""
        # A copy in one step: other threads may add to it meanwhile.
        shared = list(self._shared.items())
        return {name: strategy for (kind, name), (_, strategy) in shared if kind == word}

    def clear(self) -> None:
        """Forget all of them."""
        self._shared.clear()
        self._uses.clear()


def _shown(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items() if name != "name") or "by default"


#: The names of decorators that are used without a registry.
DEFAULT_NAMES = Names()


def _fresh_state() -> None:
    """For `pyresil.testing`: functions that are decorated already keep what they have."""
    DEFAULT_NAMES.clear()


class Preset(NamedTuple):
    """What a registry's preset brings to a function."""

    name: str
    stages: Mapping[str, Entry]
    defaults: Mapping[str, Mapping[str, Any]]
    names: Names
    clock: Clock | None


#: The strategies of a function by stage, each with the options it was built from (None where it is not its own).
_Made: TypeAlias = "dict[str, tuple[Mapping[str, Any] | None, Strategy[Any]]]"


class _Marker(NamedTuple):
    """What a wrapper of ours knows of itself. `functools.wraps` copies it to others, so it names its own wrapper."""

    wrapper: weakref.ref[Any]
    fn: Callable[..., Any]
    given: dict[str, Entry]
    preset: Preset | None
    made: _Made
    shared: list[str]
    policy: Policy[Any]


def _marker(fn: Any) -> _Marker | None:
    found = getattr(fn, "__dict__", {}).get("__pyresil__")
    return found if isinstance(found, _Marker) and found.wrapper() is fn else None


def markers_of(fn: Any) -> list[_Marker]:
    """The markers of ``fn`` and of everything it wraps, the outermost first; also through methods and ``partial``."""
    found: list[_Marker] = []
    for _ in range(100):
        if isinstance(fn, partial):
            fn = fn.func
            continue
        fn = getattr(fn, "__func__", fn)
        marker = _marker(fn)
        if marker is not None:
            found.append(marker)
        fn = getattr(fn, "__wrapped__", None)
        if fn is None:
            break
    return found


def policy_of(fn: Callable[..., Any]) -> Policy[Any] | None:
    """The policy that decorators gave to ``fn``, also to a method; None where the outermost decorator is not one of ours."""
    marker = _marker(getattr(fn, "__func__", fn))
    return None if marker is None else marker.policy


def decorate(
    fn: Callable[..., Any], given: Mapping[str, Entry], preset: Preset | None = None
) -> Callable[..., Any]:
    """Add stages, or a preset, to a function, merged with what directly stacked decorators gave it before.

    Raises:
        ConfigurationError: A stage or a preset is given twice, or an option is wrong.
        TypeError: ``fn`` cannot be decorated.
    """
    if isinstance(fn, (classmethod, staticmethod)):
        return type(fn)(decorate(fn.__func__, given, preset))
    require_plain_function(fn)
    before = _marker(fn)
    base = fn
    stages = dict(given)
    if before is not None:
        base = before.fn
        twice = [word for word in stages if word in before.given]
        if twice:
            raise ConfigurationError(
                f"{describe_function(base)}: the stage {', '.join(twice)} is given twice"
            )
        if preset is not None and before.preset is not None:
            raise ConfigurationError(
                f"{describe_function(base)}: two presets, {before.preset.name!r} and {preset.name!r}; one can be given"
            )
        preset = preset or before.preset
        stages = {**before.given, **stages}
    module = getattr(base, "__module__", None)
    label = f"{module}.{describe_function(base)}" if module else describe_function(base)
    shared: list[str] = []
    made = assemble(stages, preset, label, {} if before is None else before.made, shared)
    if before is not None:
        names = DEFAULT_NAMES if before.preset is None else before.preset.names
        for word in before.shared:
            names.give_back(word, before.made[word][1].name or "")
    policy: Policy[Any] = Policy(
        *(made[word][1] for word in ORDER if word in made),
        name=label if preset is None else preset.name,
        clock=None if preset is None else preset.clock,
    )
    wrapper = policy(base)
    wrapper.__dict__["__pyresil__"] = _Marker(
        weakref.ref(wrapper), base, stages, preset, made, shared, policy
    )
    return wrapper


#: Options of which one stands in the place of the other.
_EITHER: dict[str, tuple[str, str]] = {"fallback": ("value", "using")}


def _over(word: str, upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one layer over those of the layer below it."""
    either = _EITHER.get(word, ())
    hidden = either if any(name in upper for name in either) else ()
    return {**{name: value for name, value in lower.items() if name not in hidden}, **upper}


def assemble(
    given: Mapping[str, Entry],
    preset: Preset | None,
    label: str,
    before: _Made,
    shared: list[str] | None = None,
) -> _Made:
    """The strategies of a function, by stage: its own fields over the preset's, the preset's over the defaults.

    What was built ``before`` from the same options stays the same object when further stages are merged in. ``shared`` takes
    the stages that are shared by name.
    """
    names = DEFAULT_NAMES if preset is None else preset.names
    clock = None if preset is None else preset.clock
    made: _Made = {}
    for word in ORDER:
        own = given.get(word)
        inherited = None if preset is None else preset.stages.get(word)
        entry = inherited if own is None else own
        if entry is None or entry is OFF:
            continue
        if isinstance(entry, Strategy):
            made[word] = (None, entry)
            continue
        fields: dict[str, Any] = dict(entry) if isinstance(entry, dict) else {}
        if preset is not None:
            if own is None and STAGES[word].shared:
                fields.setdefault("name", preset.name)
            elif own is not None and isinstance(inherited, dict):
                fields = _over(word, fields, {name: inherited[name] for name in inherited if name != "name"})
            fields = _over(word, fields, preset.defaults.get(word, {}))
        fields.pop("idempotent", None)  # for integrations, see `markers_of`
        if "name" in fields and STAGES[word].shared:
            made[word] = (None, names.share(word, fields.pop("name"), fields, clock))
            if shared is not None:
                shared.append(word)
        elif word in before and before[word][0] == fields:
            made[word] = before[word]
        else:
            made[word] = (fields, build_stage(word, fields, name=label, clock=clock))
    return made


def stage_decorator(
    word: str,
    first: Any,
    options: Mapping[str, Any],
    *,
    by_name: bool = False,
    bare: bool = True,
    extra: tuple[str, ...] = (),
) -> Any:
    """What a decorator of one stage returns: a decorator, or with a function as ``first`` the decorated function.

    Args:
        word: The stage.
        first: The positional argument: `UNSET`, False (off), True, a function (the bare form), a ready strategy, a name
            (with ``by_name``, None for none), or the shorthand's value.
        options: The options by keyword.
        by_name: A string is the name of a shared instance.
        extra: Options of the decorator alone.
        bare: A function is what is to be decorated, and not the shorthand's value.

    Raises:
        ConfigurationError: An option is unknown, or given together with ``False`` or a ready strategy.
    """
    fields = dict(options)
    entry: Entry = fields
    options_known = (*known_options(word), *extra)
    unknown = [name for name in fields if name not in options_known]
    if unknown:
        known = ", ".join(options_known)
        text = f"{word}: no option {', '.join(map(repr, unknown))}; known are {known}"
        plain = first is not UNSET and not (by_name or callable(first) or isinstance(first, (bool, Strategy)))
        first_one = {STAGES[word].shorthand: first} if plain else {}
        raise ConfigurationError("; ".join((text, *_other_faults(word, {**first_one, **fields}))))
    if first is False or isinstance(first, Strategy):
        if fields:
            raise ConfigurationError(
                f"{word}: options cannot be given together with {first!r}, got {_shown(fields)}"
            )
        if first is not False and stage_of(first) not in (word, None):
            raise ConfigurationError(f"{word}: a ready strategy must be of that stage, got {shown(first)}")
        entry = OFF if first is False else first
    elif isinstance(first, type) and issubclass(first, (BaseException, Strategy)):
        instead = f"{first.__name__}(…)" if issubclass(first, Strategy) else f"handle={first.__name__}"
        hint = f"; write {instead}" if issubclass(first, Strategy) or "handle" in options_known else ""
        raise ConfigurationError(f"{word}: this class cannot be decorated: {shown(first)}{hint}")
    elif bare if callable(first) else hasattr(type(first), "__get__"):
        # A function; or a classmethod or property, which is told what it is.
        return decorate(first, {word: fields})
    elif first is not UNSET and first is not True and not (by_name and first is None):
        shorthand = "name" if by_name and isinstance(first, str) else STAGES[word].shorthand
        if shorthand in fields:
            raise ConfigurationError(
                f"{word}: {shorthand} is given twice, as {first!r} and {fields[shorthand]!r}"
            )
        fields[shorthand] = first

    def decorator(fn: Callable[..., Any]) -> Callable[..., Any]:
        return decorate(fn, {word: entry})

    return decorator


def _other_faults(word: str, options: Mapping[str, Any]) -> list[str]:
    """What is wrong with the options that a stage does know; it may be built without those that a preset could bring."""
    known = {name: value for name, value in options.items() if name in known_options(word)}
    try:
        strategy_class(word)(**known)
    except ConfigurationError as error:
        return [str(error).partition(": ")[2]]
    except TypeError:
        return []  # an option is missing
    return []


def doubtful(word: str, decorator: Callable[..., Any]) -> Callable[..., Any]:
    """The decorator whose one argument is a function: maybe ``@fallback`` was written and ``@fallback(value)`` meant.

    The function that was to be decorated is then this one, and somebody calls it with its arguments.
    """

    def decorates(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs or not callable(args[0]):
            raise TypeError(
                f"@{word} needs its argument: @{word}(…); written bare it took the function below it for the argument"
            )
        return decorator(args[0])

    return decorates
