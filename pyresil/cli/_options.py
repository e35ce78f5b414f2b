"""Reading the command line: every fault of it in one line, and nothing guessed."""

from __future__ import annotations

import argparse
from typing import NamedTuple, NoReturn

from pyresil.cli import _text
from pyresil.durations import seconds
from pyresil.errors import ConfigurationError

#: A lease that is renewed every third of it; below this a busy machine alone would lose it.
_TTL_FLOOR = 0.5


class UsageError(Exception):
    """The command line is wrong; the text is one line that says what to do."""


class Settings(NamedTuple):
    """What `run` and `lead` were asked for; durations in seconds."""

    command: list[str]
    key: str
    store: str | None
    ttl: float = 30.0
    wait: float = 0.0
    min_hold: float = 0.0
    max_hold: float | None = None
    timeout: float | None = None
    jitter: float = 0.0
    grace: float = 10.0
    busy_exit: int = 75
    lost_exit: int = 76
    quiet: bool = False
    verbose: bool = False
    json: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps our line breaks, and the options' column narrow."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=22)


def _wrapped(text: str) -> str:
    from textwrap import fill

    return fill(text, 78)


def _examples(command: _text.Command) -> str:
    lines = [f"  # {what}\n  {line}" for what, line in command.examples]
    return "examples:\n" + "\n".join(lines)


def _statuses() -> str:
    return "exit status:\n" + "\n".join(f"  {status:<14} {text}" for status, text in _text.STATUSES)


def parser_of(command: _text.Command, *, full: bool) -> argparse.ArgumentParser:
    """The parser of one subcommand; ``full`` with all that only --help shows."""
    parser = _Parser(
        prog=f"pyresil-lock {command.name}",
        usage=_usage(command) if full else None,
        description="\n\n".join(
            map(_wrapped, (f"{command.summary.capitalize()}.", *_text.paragraphs(command.text)))
        )
        if full
        else None,
        epilog="\n\n".join([_examples(command), *map(_wrapped, _text.paragraphs(_text.ABOUT)), _statuses()])
        if full
        else None,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    for option in command.options:
        if option.value:
            choices = option.kind.split("|") if "|" in option.kind else None
            parser.add_argument(option.flag, metavar=option.value, help=option.text, choices=choices)
        else:
            parser.add_argument(option.flag, action="store_true", help=option.text)
    return parser


def _usage(command: _text.Command) -> str:
    words = [f"pyresil-lock {command.name}"]
    for option in command.options:
        shown = f"{option.flag} {option.value}".strip()
        words.append(shown if option.flag == "--key" else f"[{shown}]")
    from textwrap import fill

    words.append(command.positional)
    # Breaks only between options: their own blanks are hidden from the wrapping.
    glued = " ".join(word.replace(" ", "\0") for word in words if word)
    return fill(glued, 78, subsequent_indent="    ", break_long_words=False).replace("\0", " ")


def main_help() -> str:
    """What `pyresil-lock --help` says."""
    width = max(len(command.name) for command in _text.COMMANDS)
    return "\n".join(
        [
            "usage: pyresil-lock COMMAND [OPTION…]",
            "",
            _wrapped(_text.SUMMARY.capitalize() + "."),
            "",
            "commands (each has --help):",
            *(f"  {command.name:<{width}}  {command.summary}" for command in _text.COMMANDS),
            "",
            "examples:",
            *(f"  # {what}\n  {line}" for c in _text.COMMANDS[:4] for what, line in c.examples[:1]),
            "",
            *("\n".join([_wrapped(text), ""]) for text in _text.paragraphs(_text.ABOUT)),
            _statuses(),
            "",
        ]
    )


def read_settings(command: _text.Command, words: list[str]) -> Settings:
    """The settings of `run` or `lead`.

    Raises:
        UsageError: Something is wrong; all of it in one line.
        SystemExit: --help was asked for and printed.
    """
    before, dashes, after = _split(words)
    full = "--help" in before or "-h" in before
    if not dashes and not full:
        raise UsageError(
            f"put -- before the command to run: {_text_of_use(command)}; see pyresil-lock {command.name} --help"
        )
    parser = parser_of(command, full=full)
    found = vars(parser.parse_args(before))
    faults: list[str] = []
    if not after or not after[0]:
        faults.append("name the command to run after --")
    elif any("\0" in word for word in after):
        faults.append("the command must not contain NUL")
    values: dict[str, object] = {}
    for option in command.options:
        name = option.flag[2:].replace("-", "_")
        text = found[name]
        if text is None or option.kind not in ("duration", "status"):
            continue
        try:
            values[name] = _status(text) if option.kind == "status" else _duration(name, text)
        except ValueError as error:
            faults.append(f"{option.flag} {error}")
    faults += _key_faults(found["key"])
    if found.get("busy_ok"):
        if found["busy_exit"] is not None:
            faults.append("--busy-ok and --busy-exit exclude each other")
        values["busy_exit"] = 0
    if found["quiet"] and found["verbose"]:
        faults.append("--quiet and --verbose exclude each other")
    if faults:
        raise UsageError(f"{'; '.join(faults)}; see pyresil-lock {command.name} --help")
    return Settings(
        command=after,
        key=found["key"],
        store=found["store"],
        quiet=found["quiet"],
        verbose=found["verbose"],
        json=found["log_format"] == "json",
        **values,  # type: ignore[arg-type]  # read by the kind of each option
    )


def _split(words: list[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in words:
        return words, False, []
    at = words.index("--")
    return words[:at], True, words[at + 1 :]


def _text_of_use(command: _text.Command) -> str:
    return f"pyresil-lock {command.name} --key K {command.positional}"


def _key_faults(key: str | None) -> list[str]:
    if key is None:
        return ["--key is missing: name the lock"]
    return [fault] if (fault := key_fault(key, "--key")) else []


def key_fault(key: str, field: str) -> str:
    """What is wrong with a key, or the empty string."""
    from pyresil.stores.base import check_key

    try:
        check_key(key, field)
    except ConfigurationError as error:
        return str(error).removeprefix("lock: ")
    return ""


def _duration(name: str, text: str) -> float:
    """Seconds from ``"30"`` or ``"30s"``, with the lower bound of each option."""
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
    if text.isascii() and text.isdecimal() and int(text) <= 255:
        return int(text)
    raise ValueError(f"must be an exit status from 0 to 255, got {text!r}")


def read_options(command: _text.Command, words: list[str], positional: str) -> dict[str, str | bool | None]:
    """The options of a command without a command of its own.

    Args:
        command: Which one.
        words: Its arguments.
        positional: Name of what stands beside the options; in brackets where it may be missing, empty for none.

    Raises:
        UsageError: Something is wrong.
        SystemExit: --help was asked for and printed.
    """
    parser = parser_of(command, full="--help" in words or "-h" in words)
    if positional:
        optional = positional.startswith("[")
        parser.add_argument("positional", metavar=positional.strip("[]"), nargs="?" if optional else None)
    return vars(parser.parse_args(words))
