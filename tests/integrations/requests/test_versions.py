"""The oldest requests and urllib3 that are supported; the newest are those the tests run with."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.processes import ROOT, environment

OLDEST = ["requests==2.31.0", "urllib3==2.0.2"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_oldest_versions_are_bounded_too(tmp_path):
    """A part of the matrix, with both installed into a folder that goes before the environment's own."""
    target = tmp_path / "oldest"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--target", target, *OLDEST],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"the old versions cannot be installed here: {done.stderr.strip()[-200:]}")
    tests = ROOT / "tests" / "integrations" / "requests"
    checked = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider",
            tests / "test_bounds.py", tests / "test_session.py", tests / "test_pool.py",
            "-k", "https-reused-cancel or http-new-deadline or every_way or Blocking or good",
        ],
        env=environment({"PYTHONPATH": f"{target}:{ROOT}"}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout[-4000:]
    used = subprocess.run(
        [sys.executable, "-c", "import requests, urllib3; print(requests.__version__, urllib3.__version__)"],
        env=environment({"PYTHONPATH": f"{target}:{ROOT}"}),
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert used.stdout.split() == ["2.31.0", "2.0.2"]
