"""Smoke test of the installed wheel: run isolated, from an empty folder.

Usage: python -I smoke.py DIST_FOLDER PYRESIL_LOCK
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import subprocess
import sys
import tarfile
import zipfile


def check_archives(dist: pathlib.Path) -> None:
    """The wheel holds the package and nothing else; the sdist all that a packager needs."""
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "pyresil/py.typed" in names, names
    outside = [name for name in names if not name.startswith(("pyresil/", "pyresil-"))]
    assert not outside, outside
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    for wanted in (
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "pyproject.toml",
        "setup.cfg",
        "tests/conftest.py",
    ):
        assert wanted in members, f"the sdist lacks {wanted}"
    lua_in_sdist = {name for name in members if name.startswith("pyresil/") and name.endswith(".lua")}
    assert lua_in_sdist == {name for name in names if name.endswith(".lua")}, (
        "Lua files differ between sdist and wheel"
    )


def check_library() -> None:
    """Every public name is there, and a policy runs."""
    import pyresil

    assert "site-packages" in str(pyresil.__file__), pyresil.__file__
    assert pyresil.__version__ == importlib.metadata.version("pyresil")
    for name in pyresil.__all__:
        getattr(pyresil, name)

    calls = []

    def flaky() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("not yet")
        return "done"

    policy = pyresil.Policy(
        pyresil.Retry(attempts=3, backoff=pyresil.Constant("1ms")),
        pyresil.CircuitBreaker(),
        pyresil.Bulkhead(max_concurrent=2),
        pyresil.Timeout("5s"),
        name="smoke",
    )
    assert policy.call(flaky) == "done"
    assert len(calls) == 3, calls


def check_command(command: str) -> None:
    """The command runs another one under a lease in the default SQLite file and passes on its status."""
    code = "import os, sys; print(os.environ['PYRESIL_LOCK_KEY']); sys.exit(3)"
    done = subprocess.run(
        [command, "run", "--key", "smoke", "--", sys.executable, "-c", code],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (3, "smoke"), done


if __name__ == "__main__":
    check_archives(pathlib.Path(sys.argv[1]))
    check_library()
    check_command(sys.argv[2])
    print("the wheel works")
