"""`Registry`: defaults, presets and named instances, from Python or a TOML file.

A preset maps stage words (``fallback, cache, lock, retry, hedge, circuit_breaker, rate_limit, bulkhead, timeout``) to options
by name, to a shorthand, to True (defaults) or False (off), or to a ready strategy. ``defaults`` fill in options of stages
that are turned on and never turn one on. A preset's breaker, bulkhead and rate limit are shared under the preset's name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pyresil._merging import Names, Preset, assemble, decorate
from pyresil._stages import OFF, ORDER, STAGES, build_stage, parse_stage
from pyresil._validate import Checker, Configured
from pyresil.clock import Clock
from pyresil.errors import ConfigurationError, shown
from pyresil.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil._stages import Entry
    from pyresil.decorators import Decorator
    from pyresil.strategies.bulkhead import Bulkhead
    from pyresil.strategies.circuit_breaker import CircuitBreaker
    from pyresil.strategies.rate_limit import RateLimit
    from pyresil.strategy import Strategy

__all__ = ["Registry"]


class Registry(Configured):
    """Presets by name, and the instances they share.

    Everything is checked when it is built, and all faults are in one message.

    Args:
        defaults: Options by stage word; they fill in what a preset or a decorator leaves open.
        presets: Stages by preset name.
        clock: The clock of everything that is built here.

    Raises:
        ConfigurationError: An unknown stage or option, a value out of range, or one name configured in two ways.
    """

    def __init__(
        self,
        defaults: Mapping[str, Any] | None = None,
        presets: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        check = Checker("registry")
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        self._names = Names()
        self._presets: dict[str, Preset] = {}
        self._policies: dict[str, Policy[Any]] = {}
        self._defaults = _read_defaults(defaults, check.faults)
        self._read_presets(presets, check.faults)
        check.done()

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], *, clock: Clock | None = None) -> Registry:
        """A registry from the tables ``[defaults]`` and ``[presets]`` of a TOML file.

        ``${NAME}`` in a string stands for an environment variable; a string that is nothing else takes the type that the
        variable's text has in TOML, so that ``attempts = "${ATTEMPTS}"`` is a number.

        Args:
            path: The file.
            clock: As in the constructor.

        Raises:
            ConfigurationError: The file cannot be read, is no TOML, names an unset variable, or holds what the constructor
                refuses; file, key and value are in the message.
        """
        import tomllib
        from pathlib import Path

        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigurationError(f"registry file {os.fspath(path)!r}: {error}") from error
        faults = [
            f"unknown table {key!r}; known are 'defaults', 'presets'"
            for key in data
            if key not in ("defaults", "presets")
        ]
        data = {key: _expand(value, key, faults) for key, value in data.items()}
        found: Registry | None = None
        try:
            found = cls(data.get("defaults"), data.get("presets"), clock=clock)
        except ConfigurationError as error:
            faults.append(str(error))
        if found is None or faults:
            raise ConfigurationError(f"registry file {os.fspath(path)!r}: {'; '.join(faults)}")
        return found

    def _read_presets(self, presets: Any, faults: list[str]) -> None:
        if presets is None:
            return
        if not isinstance(presets, Mapping):
            faults.append(f"presets must be a mapping of names to stages, got {shown(presets)}")
            return
        for name, stages in presets.items():
            where = f"presets.{name}"
            if not (isinstance(name, str) and name):
                faults.append(f"presets: a name must be a non-empty string, got {shown(name)}")
                continue
            entries = _read_stages(stages, where, faults)
            preset = Preset(name, entries, self._defaults, self._names, self._clock)
            self._presets[name] = preset
            # Built stage by stage, so that each fault is found and says where it is.
            made: dict[str, Strategy[Any]] = {}
            for word, entry in entries.items():
                try:
                    made.update(
                        {
                            word: found
                            for word, (_, found) in assemble(
                                {}, preset._replace(stages={word: entry}), name, {}
                            ).items()
                        }
                    )
                except ConfigurationError as error:
                    faults.append(f"{where}.{word}: {error}")
            if not faults:
                strategies = (made[word] for word in ORDER if word in made)
                try:
                    self._policies[name] = Policy(*strategies, name=name, clock=self._clock)
                except ConfigurationError as error:
                    faults.append(f"{where}: {error}")

    def _preset(self, name: str) -> Preset:
        found = self._presets.get(name)
        if found is None:
            known = ", ".join(map(repr, self._presets)) or "none"
            raise ConfigurationError(f"registry: no preset {name!r}; known are {known}")
        return found

    def policy(self, name: str) -> Policy[Any]:
        """The policy of a preset, the same object every time.

        Raises:
            ConfigurationError: There is no such preset.
        """
        return self._policies[self._preset(name).name]

    def _policy_apart(self, name: str, label: str) -> Policy[Any]:
        """A fresh policy of a preset, called ``label``, that shares no stage with others; a ready strategy stays what it is."""
        made = assemble({}, self._preset(name)._replace(name=label, names=Names()), label, {})
        return Policy(*(made[word][1] for word in ORDER if word in made), name=label, clock=self._clock)

    def resilience(self, name: str) -> Decorator:
        """A decorator that gives a function a preset; merged with the decorators stacked directly on it.

        Raises:
            ConfigurationError: There is no such preset.
        """
        preset = self._preset(name)

        def decorator(fn: Callable[..., Any]) -> Callable[..., Any]:
            return decorate(fn, {}, preset)

        return cast("Decorator", decorator)

    def breaker(self, name: str) -> CircuitBreaker:
        """The circuit breaker under ``name``; made with the defaults where there is none."""
        return cast("CircuitBreaker", self._named("circuit_breaker", name))

    def bulkhead(self, name: str) -> Bulkhead:
        """The bulkhead under ``name``; made with the defaults where there is none."""
        return cast("Bulkhead", self._named("bulkhead", name))

    def rate_limit(self, name: str) -> RateLimit:
        """The rate limit under ``name``.

        Raises:
            ConfigurationError: There is none, and the defaults give no ``limit``.
        """
        return cast("RateLimit", self._named("rate_limit", name))

    def _named(self, word: str, name: str) -> Strategy[Any]:
        found = self._names.get(word, name)
        return found or self._names.share(word, name, self._defaults.get(word, {}), self._clock)

    def breakers(self) -> dict[str, CircuitBreaker]:
        """All circuit breakers by name."""
        return cast("dict[str, CircuitBreaker]", self._names.all("circuit_breaker"))

    def bulkheads(self) -> dict[str, Bulkhead]:
        """All bulkheads by name."""
        return cast("dict[str, Bulkhead]", self._names.all("bulkhead"))

    def rate_limits(self) -> dict[str, RateLimit]:
        """All rate limits by name."""
        return cast("dict[str, RateLimit]", self._names.all("rate_limit"))

    def reset(self) -> None:
        """Bring every shared breaker and rate limit back to its first state."""
        for word in ORDER:
            for strategy in self._names.all(word).values():
                reset = getattr(strategy, "reset", None)
                if reset is not None:
                    reset()

    def __repr__(self) -> str:
        return f"Registry(presets={list(self._presets)!r})"


def _read_stages(stages: Any, where: str, faults: list[str]) -> dict[str, Entry]:
    if not isinstance(stages, Mapping):
        faults.append(f"{where} must be a mapping of stages ({', '.join(ORDER)}), got {shown(stages)}")
        return {}
    unknown = [word for word in stages if word not in STAGES]
    if unknown:
        faults.append(f"{where}: unknown stage {', '.join(map(repr, unknown))}; known are {', '.join(ORDER)}")
    return {
        word: parse_stage(word, value, faults, f"{where}.{word}")
        for word, value in stages.items()
        if word in STAGES
    }


def _read_defaults(defaults: Any, faults: list[str]) -> dict[str, dict[str, Any]]:
    read: dict[str, dict[str, Any]] = {}
    for word, entry in _read_stages({} if defaults is None else defaults, "defaults", faults).items():
        if not isinstance(entry, dict):
            given = "False" if entry is OFF else shown(entry)
            faults.append(f"defaults.{word} must be options (defaults turn no stage on or off), got {given}")
            continue
        read[word] = entry
        if "name" in entry:
            faults.append(
                f"defaults.{word}: a name is for one instance and cannot be a default, got {shown(entry['name'])}"
            )
        # A stage that needs more than its defaults cannot be built from them alone; anything else that is wrong shows here.
        try:
            build_stage(word, {**({} if "using" in entry else _PLACEHOLDERS.get(word, {})), **entry})
        except ConfigurationError as error:
            faults.append(f"defaults.{word}: {error}")
    return read


#: Stands in for the option that a stage cannot do without while its defaults are checked.
_PLACEHOLDERS: dict[str, dict[str, Any]] = {
    "fallback": {"value": None},
    "lock": {"key": "check"},
    "rate_limit": {"limit": "1/s"},
    "timeout": {"limit": "1s"},
    "cache": {"ttl": "1s"},
}


def _expand(value: Any, where: str, faults: list[str]) -> Any:
    """Replace ``${NAME}`` in all strings of a TOML value."""
    if isinstance(value, dict):
        return {key: _expand(item, f"{where}.{key}", faults) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, f"{where}[{position}]", faults) for position, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    import re

    def replace(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            faults.append(f"{where}: environment variable {match[1]!r} is not set, in {value!r}")
            return match[0]
        return found

    text = re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", replace, value)
    return _scalar(text) if re.fullmatch(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}", value) else text


def _scalar(text: str) -> Any:
    """The number or bool that ``text`` is in TOML, else the text itself."""
    import tomllib

    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, (bool, int, float)) else text
