"""Help, manual page, reference page and completion: one text, and nothing in it that does not work."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest

from pyresil.cli import _manual, _text
from pyresil.cli._options import read_settings
from tests.support.processes import ROOT

each_command = pytest.mark.parametrize("command", _text.COMMANDS, ids=lambda command: command.name)


def test_help_names_every_command_and_status(lock):
    done = lock("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for command in _text.COMMANDS:
        assert re.search(rf"^  {command.name} +{re.escape(command.summary)}$", done.stdout, re.MULTILINE)
    for status, _ in _text.STATUSES:
        assert f"  {status} " in done.stdout


@each_command
def test_help_of_a_command_names_every_option_with_examples(lock, command):
    done = lock(command.name, "--help")
    assert done.returncode == 0
    for option in command.options:
        assert re.search(rf"^  {option.flag} ?{re.escape(option.value)}", done.stdout, re.MULTILINE)
    for what, line in command.examples:
        assert f"  # {what}\n  {line}\n" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


@pytest.mark.parametrize(
    "words", [("--version",), ("run", "--key", "k", "--help"), ("run", "-h", "--", "true")]
)
def test_help_and_version_need_no_store(lock, words):
    done = lock(*words, env={"PYRESIL_STORE": "nonsense"})
    assert done.returncode == 0
    assert done.stdout


@each_command
def test_examples_are_understood(command):
    for _, line in command.examples:
        words = shlex.split(line)
        assert line.startswith(("pyresil-lock ", "eval "))
        if command.name in ("run", "lead"):
            settings = read_settings(command, words[2:])
            assert settings.command


def test_the_manual_page_in_the_repository_is_what_the_command_prints():
    assert (ROOT / "docs/man/pyresil-lock.1").read_text(encoding="utf-8") == _manual.roff()


def test_the_reference_page_in_the_repository_is_what_the_command_prints():
    assert (ROOT / "docs/reference/pyresil-lock.md").read_text(encoding="utf-8") == _manual.markdown()


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff")
def test_the_manual_page_is_sound():
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z"],
        input=_manual.roff(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def bash_completes(*words):
    script = (
        f"{_manual.bash()}\nCOMP_WORDS=({' '.join(repr(word) for word in words)})\nCOMP_CWORD={len(words) - 1}\n"
        '_pyresil_lock; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("pyresil-lock", "st"), {"status"}),
        (("pyresil-lock", ""), {command.name for command in _text.COMMANDS} | {"--help", "--version"}),
        (("pyresil-lock", "run", "--t"), {"--ttl", "--timeout"}),
        (("pyresil-lock", "run", "--log-format", ""), {"text", "json"}),
        (("pyresil-lock", "run", "--ttl", ""), set()),
        (("pyresil-lock", "list", "--format", "j"), {"json"}),
        (("pyresil-lock", "release", "k", "--f"), {"--force"}),
        (("pyresil-lock", "completion", ""), {"bash", "zsh", "--help"}),
        (("pyresil-lock", "run", "--key", "k", "--", "cat", "/et"), {"/etc"}),
    ],
)
def test_bash_completes(words, found):
    assert set(bash_completes(*words)) == found


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_behind_the_dashes():
    assert "true" in bash_completes("pyresil-lock", "run", "--key", "k", "--", "tru")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_takes_the_script():
    script = f"autoload -Uz compinit; compinit -u -D; {_manual.zsh()}; whence -w _pyresil_lock"
    done = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "_pyresil_lock: function\n"


def test_completion_of_another_shell_is_refused(lock):
    done = lock("completion", "fish")
    assert done.returncode == 2
    assert "bash or zsh" in done.stderr
