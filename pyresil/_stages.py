"""The stages of a policy that decorators and registries build: their words, canonical order, options and shorthands."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pyresil.errors import ConfigurationError, shown
from pyresil.strategy import Strategy

if TYPE_CHECKING:
    from pyresil.clock import Clock

__all__ = ["OFF", "ORDER", "STAGES", "Entry", "Stage", "build_stage", "parse_stage"]


class Stage(NamedTuple):
    """One stage: where its class is, the option that a plain value stands for, and whether a name or preset shares it."""

    word: str
    home: str
    cls: str
    shorthand: str
    shared: bool = False


class _Off:
    def __repr__(self) -> str:
        return "OFF"


#: A stage that is turned off, whatever a preset says.
OFF: Final = _Off()

#: What a stage is configured with: options by name, a ready strategy, or `OFF`.
Entry: TypeAlias = "dict[str, Any] | Strategy[Any] | _Off"

#: All stages in canonical order, the outermost first.
STAGES: Final = {
    stage.word: stage
    for stage in (
        Stage("fallback", "pyresil.strategies.fallback", "Fallback", "value"),
        Stage("cache", "pyresil.strategies.cache", "Cache", "ttl"),
        Stage("lock", "pyresil.strategies.lock", "Lock", "key"),
        Stage("retry", "pyresil.strategies.retry", "Retry", "attempts"),
        Stage("hedge", "pyresil.strategies.hedge", "Hedge", "delay"),
        Stage(
            "circuit_breaker",
            "pyresil.strategies.circuit_breaker",
            "CircuitBreaker",
            "failure_rate",
            shared=True,
        ),
        Stage("rate_limit", "pyresil.strategies.rate_limit", "RateLimit", "limit", shared=True),
        Stage("bulkhead", "pyresil.strategies.bulkhead", "Bulkhead", "max_concurrent", shared=True),
        Stage("timeout", "pyresil.strategies.timeout", "Timeout", "limit"),
    )
}
ORDER: Final = tuple(STAGES)


def strategy_class(word: str) -> type[Strategy[Any]]:
    """The class of a stage."""
    stage = STAGES[word]
    found: type[Strategy[Any]] = getattr(import_module(stage.home), stage.cls)
    return found


def stage_of(strategy: Strategy[Any]) -> str | None:
    """The stage whose class a strategy is of; None for AdaptiveBulkhead and for classes of users, which may stand anywhere."""
    for base in type(strategy).__mro__:
        for stage in STAGES.values():
            if base.__name__ == stage.cls and base.__module__.startswith(stage.home):
                return stage.word
    return None


def known_options(word: str) -> tuple[str, ...]:
    """The options of a stage by name, in the order of its constructor."""
    code = strategy_class(word).__init__.__code__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return (*tuple(name for name in names if name != "clock"), "clock")


def required_options(word: str) -> tuple[str, ...]:
    """The options that a stage cannot be built without: the constructor's positional ones that have no default."""
    make = strategy_class(word).__init__
    return make.__code__.co_varnames[1 : make.__code__.co_argcount - len(make.__defaults__ or ())]


def parse_stage(word: str, value: Any, faults: list[str], where: str) -> Entry:
    """Read what a stage was configured with.

    Args:
        word: The stage.
        value: True (defaults), False (off), a mapping of options, a ready strategy, or the shorthand's value.
        faults: Takes the text of each fault.
        where: What to call the place in a fault.
    """
    if value is True:
        return {}
    if value is False:
        return OFF
    if isinstance(value, Strategy):
        if stage_of(value) not in (word, None):
            faults.append(f"{where} must be a {word} strategy, got {shown(value)}")
        return value
    if not isinstance(value, Mapping):
        return {STAGES[word].shorthand: value}
    known = known_options(word)
    unknown = [name for name in value if name not in known]
    if unknown:
        faults.append(f"{where} has no option {', '.join(map(repr, unknown))}; known are {', '.join(known)}")
    fields = {name: given for name, given in value.items() if name in known}
    if word == "retry" and isinstance(fields.get("backoff"), Mapping):
        fields["backoff"] = _backoff(fields["backoff"], faults, where)
    return fields


def _backoff(value: Mapping[str, Any], faults: list[str], where: str) -> Any:
    from pyresil._engine.backoff import Exponential

    known = ("delay", "factor", "cap", "jitter")
    unknown = [name for name in value if name not in known]
    if unknown:
        faults.append(
            f"{where} backoff has no option {', '.join(map(repr, unknown))}; known are {', '.join(known)}"
        )
    try:
        return Exponential(**{name: value[name] for name in known if name in value})
    except ConfigurationError as error:
        faults.append(f"{where} backoff: {error}")
        return None


def build_stage(
    word: str, fields: Mapping[str, Any], *, name: str | None = None, clock: Clock | None = None
) -> Strategy[Any]:
    """Make the strategy of a stage.

    Args:
        word: The stage.
        fields: Its options.
        name: The name where the options have none, for the stages that are shared.
        clock: The clock where the options have none.

    Raises:
        ConfigurationError: An option is out of range, of the wrong type, or missing.
    """
    options = dict(fields)
    if name is not None and STAGES[word].shared:
        options.setdefault("name", name)
    if clock is not None:
        options.setdefault("clock", clock)
    missing = [option for option in required_options(word) if option not in options]
    if missing:
        raise ConfigurationError(f"{word}: {' and '.join(missing)} must be given")
    return strategy_class(word)(**options)
