"""--help, made from the text of the commands."""

from __future__ import annotations

from textwrap import fill, wrap

from pyresil.cli import _text

_WIDTH = 79
_COLUMN = 22


def main_help() -> str:
    """What `pyresil-lock --help` says."""
    width = max(len(command.name) for command in _text.COMMANDS)
    first = [command.examples[0] for command in _text.COMMANDS[:4]]
    return "\n\n".join(
        [
            "usage: pyresil-lock COMMAND [OPTION…]",
            fill(f"{_text.SUMMARY.capitalize()}.", _WIDTH),
            "commands (each has --help):\n"
            + "\n".join(f"  {command.name:<{width}}  {command.summary}" for command in _text.COMMANDS),
            _examples(first),
            *(fill(paragraph, _WIDTH) for paragraph in _text.paragraphs(_text.ABOUT)),
            _statuses(),
        ]
    )


def help_of(command: _text.Command) -> str:
    """What `pyresil-lock NAME --help` says."""
    about = [f"{command.summary.capitalize()}.", *_text.paragraphs(command.text)]
    return "\n\n".join(
        [
            f"usage: {_usage(command)}",
            *(fill(paragraph, _WIDTH) for paragraph in about),
            "options:\n" + "\n".join([_option("--help", "show this"), *map(_described, command.options)]),
            _examples(list(command.examples)),
            *(fill(paragraph, _WIDTH) for paragraph in _text.paragraphs(_text.ABOUT)),
            _statuses(),
        ]
    )


def _described(option: _text.Option) -> str:
    return _option(f"{option.flag} {option.value}".strip(), option.text)


def _option(flag: str, text: str) -> str:
    lines = wrap(text, _WIDTH - _COLUMN)
    head = f"  {flag}"
    # A flag that leaves no gap has a line of its own.
    beside = len(head) < _COLUMN - 1
    first = head.ljust(_COLUMN) + lines.pop(0) if beside else head
    return "\n".join([first, *(" " * _COLUMN + line for line in lines)])


def _usage(command: _text.Command) -> str:
    words = [f"pyresil-lock {command.name}", *_text.synopsis(command)]
    # Breaks only between options: their own blanks are hidden from the wrapping.
    glued = " ".join(word.replace(" ", "\0") for word in words)
    return fill(
        glued, _WIDTH - 7, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    ).replace("\0", " ")


def _examples(examples: list[tuple[str, str]]) -> str:
    return "examples:\n" + "\n".join(f"  # {what}\n  {line}" for what, line in examples)


def _statuses() -> str:
    lines = []
    for status, text in _text.STATUSES:
        first, *more = wrap(text, _WIDTH - 17)
        lines += [f"  {status:<14} {first}", *(" " * 17 + line for line in more)]
    return "exit status:\n" + "\n".join(lines)
