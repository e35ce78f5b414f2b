"""The manual page, the reference page and the completion scripts, made from the text of --help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyresil.cli import _text
from pyresil.cli._options import UsageError, read_options
from pyresil.cli._report import write

if TYPE_CHECKING:
    from collections.abc import Iterable

_FILES = (
    ("$XDG_STATE_HOME/pyresil/locks.db, ~/.local/state/pyresil/locks.db", "the default store of a user"),
    ("/var/lib/pyresil/locks.db", "the default store of root"),
)
_VARIABLES = (
    ("PYRESIL_STORE", "the store, where --store names none"),
    ("PYRESIL_LOCK_KEY, PYRESIL_LOCK_TOKEN, PYRESIL_LOCK_OWNER, PYRESIL_LOCK_TTL", "set for the command"),
)


def manual(words: list[str]) -> int:
    """Print the manual page."""
    found = read_options(_text.MANUAL, words)
    write(1, markdown() if found.get("format") == "markdown" else roff())
    return 0


def completion(words: list[str]) -> int:
    """Print a completion script."""
    shell = read_options(_text.COMPLETION, words)["positional"]
    if shell not in ("bash", "zsh"):
        raise UsageError(f"no completion for {shell!r}: it must be bash or zsh")
    write(1, bash() if shell == "bash" else zsh())
    return 0


def roff() -> str:
    """The page in the language of man(7)."""
    lines = [
        '.TH PYRESIL\\-LOCK 1 "" "pyresil" "User Commands"',
        ".SH NAME",
        f"pyresil\\-lock \\- {_roff(_text.SUMMARY)}",
        ".SH SYNOPSIS",
    ]
    for command in _text.COMMANDS:
        lines += [
            ".br",
            f"{_bold(f'pyresil-lock {command.name}')} {_roff(' '.join(_text.synopsis(command)))}".rstrip(),
        ]
    lines.append(".SH DESCRIPTION")
    for paragraph in _text.paragraphs(_text.ABOUT):
        lines += [".PP", _roff(paragraph)]
    lines.append(".SH COMMANDS")
    for command in _text.COMMANDS:
        lines.append(f".SS {_roff(command.name)} \\- {_roff(command.summary)}")
        for paragraph in _text.paragraphs(command.text):
            lines += [".PP", _roff(paragraph)]
        for option in command.options:
            lines += [".TP", f"{_bold(option.flag)} {_roff(option.value)}".rstrip(), _roff(option.text)]
    lines.append(".SH EXIT STATUS")
    lines += _terms(_text.STATUSES)
    lines.append(".SH ENVIRONMENT")
    lines += _terms(_VARIABLES)
    lines.append(".SH FILES")
    lines += _terms(_FILES)
    lines.append(".SH EXAMPLES")
    for command in _text.COMMANDS:
        for what, line in command.examples:
            lines += [".PP", f"{_roff(what.capitalize())}:", ".PP", ".nf", ".RS", _roff(line), ".RE", ".fi"]
    return "\n".join(lines) + "\n"


def _terms(pairs: Iterable[tuple[str, str]]) -> list[str]:
    lines = []
    for term, text in pairs:
        lines += [".TP", _bold(term), _roff(text)]
    return lines


def _bold(text: str) -> str:
    return f"\\fB{_roff(text)}\\fR"


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    # A line that begins with one of these would be a request.
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def markdown() -> str:
    """The reference page."""
    lines = ["# pyresil-lock", "", f"{_text.SUMMARY.capitalize()}.", ""]
    for paragraph in _text.paragraphs(_text.ABOUT):
        lines += [_plain(paragraph), ""]
    for command in _text.COMMANDS:
        synopsis = " ".join(["pyresil-lock", command.name, *_text.synopsis(command)])
        lines += [
            f"## {command.name}",
            "",
            f"{command.summary.capitalize()}.",
            "",
            "```text",
            synopsis,
            "```",
            "",
        ]
        for paragraph in _text.paragraphs(command.text):
            lines += [_plain(paragraph), ""]
        if command.options:
            lines += ["| option | what it does |", "|---|---|"]
            for option in command.options:
                flag = f"{option.flag} {option.value}".strip()
                lines.append(f"| `{flag}` | {_plain(option.text)} |")
            lines.append("")
        for what, line in command.examples:
            lines += [f"{what.capitalize()}:", "", "```sh", line, "```", ""]
    lines += ["## Exit status", "", "| status | when |", "|---|---|"]
    lines += [f"| {status} | {_plain(text)} |" for status, text in _text.STATUSES]
    lines += ["", "## Environment", "", "| variable | what it is |", "|---|---|"]
    lines += [f"| `{name}` | {_plain(text)} |" for name, text in _VARIABLES]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


_BASH = """# bash completion of pyresil-lock
_pyresil_lock() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}} at
    COMPREPLY=()
    for ((at = 2; at < COMP_CWORD; at++)); do
        if [[ ${{COMP_WORDS[at]}} == -- ]]; then
            if ((COMP_CWORD == at + 1)); then
                COMPREPLY=($(compgen -c -- "$current"))
            else
                COMPREPLY=($(compgen -f -- "$current"))
            fi
            return
        fi
    done
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "{commands} --help --version" -- "$current"))
        return
    fi
    case $command,$previous in
{values}
    esac
    case $command in
{options}
    esac
}}
complete -o default -F _pyresil_lock pyresil-lock
"""


def bash() -> str:
    """The completion script for bash 3.2 and later."""
    values, options = [], []
    for command in _text.COMMANDS:
        words = ["--help"]
        for option in command.options:
            words.append(option.flag)
            if option.value:
                choices = option.kind.replace("|", " ") if "|" in option.kind else ""
                reply = f'COMPREPLY=($(compgen -W "{choices}" -- "$current")); ' if choices else ""
                values.append(f"        {command.name},{option.flag}) {reply}return ;;")
        if command.positional.startswith("--"):
            words.append("--")
        elif "|" in command.positional:
            words += command.positional.split("|")
        options.append(
            f'        {command.name}) COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$current")) ;;'
        )
    names = " ".join(command.name for command in _text.COMMANDS)
    return _BASH.format(commands=names, values="\n".join(values), options="\n".join(options))


_ZSH = """#compdef pyresil-lock
# zsh completion of pyresil-lock
_pyresil_lock() {{
    local -a commands
    commands=(
{commands}
    )
    local at=${{words[(i)--]}}
    if (( at > 2 && CURRENT > at )); then
        shift $at words
        (( CURRENT -= at ))
        _normal
        return
    fi
    if (( CURRENT == 2 )); then
        _describe -t commands command commands
        return
    fi
    local command=$words[2]
    shift words
    (( CURRENT-- ))
    case $command in
{options}
    esac
}}
if [[ $funcstack[1] == _pyresil_lock ]]; then
    _pyresil_lock "$@"
else
    compdef _pyresil_lock pyresil-lock
fi
"""


def zsh() -> str:
    """The completion script for zsh: to be evaluated, or autoloaded as _pyresil_lock."""
    commands = "\n".join(f"        {_quoted(f'{c.name}:{c.summary}')}" for c in _text.COMMANDS)
    options = []
    for command in _text.COMMANDS:
        specs = []
        for option in command.options:
            spec = f"{option.flag}[{_zsh_text(option.text)}]"
            if option.value:
                choices = f"({option.kind.replace('|', ' ')})" if "|" in option.kind else ""
                spec += f":{option.value}:{choices}"
            specs.append(_quoted(spec))
        if "|" in command.positional:
            specs.append(_quoted(f"1:shell:({command.positional.replace('|', ' ')})"))
        listed = " \\\n            ".join(["_arguments", "'--help[show help]'", *specs])
        options.append(f"    {command.name})\n        {listed}\n        ;;")
    return _ZSH.format(commands=commands, options="\n".join(options))


def _zsh_text(text: str) -> str:
    short = text.partition(";")[0].partition(":")[0].partition("(")[0].strip()
    return short.replace("[", "\\[").replace("]", "\\]")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
