"""The files in tests/typing, read by both type checkers: what they infer, and that wrong uses are errors."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.support.processes import ROOT, environment

FILES = sorted((ROOT / "tests" / "typing").glob("*.py"))


def check(tool, *arguments):
    """Runs a checker over the files; the tests' own environment need not have it, `.ci/run` installs both."""
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", tool, *arguments, "tests/typing"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_files():
    assert len(FILES) >= 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mypy():
    check("mypy", "--strict")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pyright():
    check("pyright", "--pythonpath", sys.executable)
