"""Reading the command line: every fault of it in one line, and nothing guessed.

Not argparse: with the translations that it looks up it costs a fifth of the whole start, and it guesses (`-1` is an option,
the last of two values wins). The options of a command are the table in `_text`.
"""

from __future__ import annotations

from pyresil.cli._report import BUSY, LOST
from pyresil.errors import ConfigurationError

TYPE_CHECKING = False  # importing it from typing would cost a start 2.5 ms

if TYPE_CHECKING:
    from pyresil.cli._text import Command, Option

#: A lease that is renewed every third of it; below this a busy machine alone would lose it.
_TTL_FLOOR = 0.5


class UsageError(Exception):
    """The command line is wrong; the text is one line that says what to do."""


class HelpRequested(Exception):  # noqa: N818 - not an error
    """--help was given; the text is what to print."""


class Settings:
    """What `run` and `lead` were asked for; durations in seconds."""

    # No NamedTuple: evaluating the annotations of so many fields would cost half a millisecond of every start.
    ttl: float = 30.0
    wait: float = 0.0
    min_hold: float = 0.0
    max_hold: float | None = None
    timeout: float | None = None
    jitter: float = 0.0
    grace: float = 10.0
    busy_exit: int = BUSY
    lost_exit: int = LOST
    quiet: bool = False
    verbose: bool = False
    json: bool = False

    def __init__(self, command: list[str], key: str, store: str | None, values: dict[str, object]) -> None:
        self.command = command
        self.key = key
        self.store = store
        for name, value in values.items():
            setattr(self, name, value)


class Words:
    """A command line taken apart.

    Attributes:
        values: Value of each option that was given, by its name without the dashes; of a switch the empty string.
        positional: What is no option.
        faults: What is wrong.
    """

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.positional: list[str] = []
        self.faults: list[str] = []


def take_apart(command: Command, words: list[str]) -> Words:
    """Options and the rest.

    Raises:
        HelpRequested: --help is among the options.
    """
    options = {option.flag: option for option in command.options}
    found = Words()
    ahead = iter(words)
    for word in ahead:
        if word in ("--help", "-h"):
            from pyresil.cli._help import help_of

            raise HelpRequested(help_of(command))
        if word == "--":
            found.positional.extend(ahead)
        elif word.startswith("-") and word != "-":
            flag, equals, value = word.partition("=")
            option = options.get(flag)
            if option is None:
                found.faults.append(f"there is no option {flag!r}")
                continue
            given: str | None = value if equals else None
            if option.value and given is None:
                given = next(ahead, None)
                if given is None or given in options or given == "--":
                    found.faults.append(f"{flag} needs a value ({option.value})")
                    if given is not None:
                        ahead = iter([given, *ahead])
                    continue
            _take(found, option, given)
        else:
            found.positional.append(word)
    return found


def _take(found: Words, option: Option, value: str | None) -> None:
    flag = option.flag
    name = flag[2:].replace("-", "_")
    choices = option.kind.split("|") if "|" in option.kind else []
    if name in found.values:
        found.faults.append(f"{flag} was given twice")
    elif not option.value and value is not None:
        found.faults.append(f"{flag} takes no value, got {value!r}")
    elif choices and value not in choices:
        found.faults.append(f"{flag} must be {' or '.join(choices)}, got {value!r}")
    else:
        found.values[name] = value or ""


def refuse(command: Command, faults: list[str]) -> None:
    """Raise one `UsageError` with all faults, if there are any."""
    if faults:
        raise UsageError(f"{'; '.join(faults)}; see pyresil-lock {command.name} --help")


def read_settings(command: Command, words: list[str]) -> Settings:
    """The settings of `run` or `lead`.

    Raises:
        UsageError: Something is wrong; all of it in one line.
        HelpRequested: --help is among the options.
    """
    at = words.index("--") if "--" in words else len(words)
    found = take_apart(command, words[:at])
    given, positional, faults = found.values, found.positional, found.faults
    after = words[at + 1 :]
    if at == len(words):
        refuse(command, [*faults, f"put -- before the command to run: {_use(command)}"])
    if positional:
        faults.append(f"{positional[0]!r} is no option: put the command behind --: {_use(command)}")
    if not after or not after[0]:
        faults.append("name the command to run after --")
    elif any("\0" in word for word in after):
        faults.append("the command must not contain NUL")
    values: dict[str, object] = {}
    for option in command.options:
        name = option.flag[2:].replace("-", "_")
        if name in given and option.kind in ("duration", "status"):
            try:
                text = given[name]
                values[name] = _status(text) if option.kind == "status" else _duration(name, text)
            except ValueError as error:
                faults.append(f"{option.flag} {error}")
    key = given.get("key")
    if key is not None:
        faults += _key_faults(key, "--key")
    elif not any(fault.startswith("--key ") for fault in faults):
        faults.append("--key is missing: name the lock")
    for one, other in (("busy_ok", "busy_exit"), ("quiet", "verbose")):
        if one in given and other in given:
            flags = f"--{one} and --{other}".replace("_", "-")
            faults.append(f"{flags} exclude each other")
    if "busy_ok" in given:
        values["busy_exit"] = 0
    refuse(command, faults)
    for switch in ("quiet", "verbose"):
        values[switch] = switch in given
    values["json"] = given.get("log_format") == "json"
    return Settings(after, key or "", given.get("store"), values)


def _use(command: Command) -> str:
    return f"pyresil-lock {command.name} --key K {command.positional}"


def read_options(command: Command, words: list[str]) -> dict[str, str | None]:
    """The options of a command without a command of its own, and what stands beside them as ``positional``.

    Raises:
        UsageError: Something is wrong; all of it in one line.
        HelpRequested: --help is among the options.
    """
    found = take_apart(command, words)
    given, positional, faults = found.values, found.positional, found.faults
    wanted = command.positional
    if len(positional) > bool(wanted):
        faults.append(f"{positional[bool(wanted)]!r} is too much")
    if wanted and not wanted.startswith("[") and not positional:
        faults.append(f"{wanted} is missing")
    refuse(command, faults)
    return {**given, "positional": positional[0] if positional else None}


def check_key(command: Command, key: str, field: str) -> str:
    """The key, where a store takes it.

    Raises:
        UsageError: No store does.
    """
    refuse(command, _key_faults(key, field))
    return key


def _key_faults(key: str, field: str) -> list[str]:
    from pyresil.stores._checks import check_key

    try:
        check_key(key, field)
    except ConfigurationError as error:
        return [str(error).removeprefix("lock: ")]
    return []


def _duration(name: str, text: str) -> float:
    """Seconds from ``"30"`` or ``"30s"``, with the lower bound of each option."""
    from pyresil.durations import seconds

    given = text.strip()
    value: float | None = None
    try:
        # A bare number is seconds, as the shell's own sleep and timeout take it.
        value = seconds(f"{given}s" if given and given[-1].isdecimal() else given)
    except ValueError:
        pass
    if value is None:
        raise ValueError(f"must be a duration such as 30s, 250ms, 2m or 1h, got {text!r}")
    if name == "ttl" and value < _TTL_FLOOR:
        raise ValueError(
            f"must be at least {_TTL_FLOOR:g}s (it is renewed three times as often), got {text!r}"
        )
    if name in ("max_hold", "timeout") and value <= 0.0:
        raise ValueError(f"must be above 0, got {text!r}")
    return value


def _status(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 3 and int(text) <= 255:
        return int(text)
    raise ValueError(f"must be an exit status from 0 to 255, got {text!r}")
