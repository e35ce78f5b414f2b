"""Rules of the house that a linter does not know."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
import sys

import pytest

from tests.support.processes import ROOT

PACKAGE = ROOT / "pyresil"
MODULES = sorted(PACKAGE.rglob("*.py"))

# What needs a client library, and may import it.
WITH_CLIENTS = (
    "integrations/",
    "stores/redis/",
    "stores/postgres",
    "stores/_postgres",
    "idempotency/encryption",
)

# Not at the top of a module: they cost milliseconds of every import.
COSTLY_AT_TOP = {"asyncio", "dataclasses", "datetime", "inspect", "logging", "random"}


def relative(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


each_module = pytest.mark.parametrize("path", MODULES, ids=relative)


@functools.cache
def tree_of(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        return [statement.module or ""]
    return []


@each_module
def test_module_is_at_most_400_lines(path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 400, f"{relative(path)} has {lines} lines: split it by duty"


@each_module
def test_module_has_a_docstring_and_lazy_annotations(path):
    tree = tree_of(path)
    assert ast.get_docstring(tree), "a module says what it is for"
    if len(tree.body) == 1:
        return  # nothing but its docstring
    assert any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and node.names[0].name == "annotations"
        for node in tree.body
    )


@each_module
def test_module_imports_no_third_party_module(path):
    if relative(path).startswith(WITH_CLIENTS):
        return
    for node in ast.walk(tree_of(path)):
        for name in imported(node):
            top = name.partition(".")[0]
            assert top == "pyresil" or top in sys.stdlib_module_names, f"line {node.lineno} imports {name}"


@each_module
def test_module_imports_nothing_costly_at_its_top(path):
    if relative(path).startswith(("integrations/", "testing/")) or relative(path) == "_logs.py":
        return  # not loaded by the core; _logs is what others load inside functions
    for node in tree_of(path).body:
        for name in imported(node):
            assert name.partition(".")[0] not in COSTLY_AT_TOP, f"line {node.lineno} imports {name}"


@each_module
def test_module_does_not_import_through_the_package(path):
    """`from pyresil import Policy` would reach any layer, unseen by the import rules."""
    submodules = {p.stem if p.suffix else p.name for p in PACKAGE.iterdir()}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module == "pyresil":
            through = {alias.name for alias in node.names} - submodules - {"__version__"}
            assert not through, f"line {node.lineno} imports {through} through the package"


@each_module
def test_engines_import_only_what_is_pure(path):
    if not relative(path).startswith("_engine/"):
        return
    pure = {
        "abc",
        "__future__",
        "typing",
        "collections",
        "math",
        "enum",
        "functools",
        "itertools",
        "operator",
        "heapq",
        "bisect",
    }
    # a back-off called without a source of chance, as users and tests do, takes the clock's
    random_default = "pyresil.clock" if relative(path) == "_engine/backoff.py" else ""
    for node in ast.walk(tree_of(path)):
        for name in imported(node):
            own = name.startswith(
                (
                    "pyresil._engine",
                    "pyresil.errors",
                    "pyresil.outcome",
                    "pyresil.durations",
                    "pyresil._validate",
                )
            )
            assert own or name == random_default or name.partition(".")[0] in pure, (
                f"line {node.lineno} imports {name}"
            )


@each_module
def test_nothing_is_left_open_or_switched_off(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        assert not re.search(r"\b(TODO|FIXME|XXX)\b|pragma: no cover", line), f"line {number}: {line.strip()}"
        ignore = re.search(r"# type: ignore(.*)", line)
        if ignore:
            assert re.match(r"\[[a-z-]+(, ?[a-z-]+)*\]\s+#\s*\S+", ignore[1]), (
                f"line {number}: a type: ignore needs its code and, after another #, its reason"
            )
