"""The public names: what is exported, what tools see, what importing them costs, and the shipped list."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pathlib
import pkgutil
import re
import sys
import types

import pytest

import pyresil
from tests.support import api
from tests.support.processes import run_python

# Importing one of these costs milliseconds; what needs them imports them inside a function.
COSTLY = {
    "argparse", "asyncio", "concurrent", "dataclasses", "datetime", "email", "http", "importlib.metadata", "inspect",
    "json", "logging", "random", "sqlite3", "ssl", "statistics", "subprocess", "tempfile", "urllib", "uuid",
}  # fmt: skip


def test_all_is_what_is_exported():
    assert len(pyresil.__all__) == len(set(pyresil.__all__)), "a name stands twice in __all__"
    for name in pyresil.__all__:
        assert getattr(pyresil, name) is not None
    exported = {
        name
        for name in dir(pyresil)
        if not name.startswith("_") and not isinstance(getattr(pyresil, name), types.ModuleType)
    }
    # names that only the module itself uses, and that cannot be avoided in a lazy package
    exported -= {"annotations", "TYPE_CHECKING"}
    assert exported == set(pyresil.__all__) - {"__version__"}


def test_type_checkers_see_the_same_names():
    tree = ast.parse(pathlib.Path(pyresil.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.asname or alias.name
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert seen == set(pyresil.__all__) - {"__version__"}


def test_every_module_exports_what_its_all_says():
    for module in api.public_modules():
        for name in module.__all__:
            assert hasattr(importlib.import_module(module.__name__), name), f"{module.__name__}.{name}"


@pytest.mark.parametrize("contract", ["LockStore", "CacheStore", "LimiterStore", "CircuitStateStore"])
def test_what_a_store_answers_is_public(contract):
    """Somebody who writes a store has to make it."""
    kind = getattr(pyresil, contract)
    answers = {
        str(inspect.signature(getattr(kind, name)).return_annotation) for name in kind.__abstractmethods__
    }
    names = {name for answer in answers for name in re.findall(r"\b[A-Z]\w+", answer)}
    assert names
    assert names - {"None"} <= set(pyresil.__all__)


def test_no_public_name_is_also_the_name_of_a_module():
    """Importing the module would put itself in the place of the name."""
    for module in api.public_modules():
        below = {info.name for info in pkgutil.iter_modules(getattr(module, "__path__", []))}
        assert not below & set(module.__all__), module.__name__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        pyresil.no_such_name  # noqa: B018 - reading the attribute is what is tested


def loaded_by(code: str) -> set[str]:
    """Modules that a fresh interpreter loads for some code, on top of those it starts with."""
    done = run_python(
        """
        import sys
        before = set(sys.modules)
        exec(sys.argv[1])
        after = set(sys.modules) - before
        import json
        print(json.dumps(sorted(after)))
        """,
        code,
    )
    return set(json.loads(done.stdout))


TOUCH_ALL = "import pyresil\nfor name in pyresil.__all__: getattr(pyresil, name)"


def test_touching_every_public_name_loads_the_standard_library_only():
    loaded = loaded_by(TOUCH_ALL)
    foreign = {name for name in loaded if name.partition(".")[0] not in {"pyresil", *sys.stdlib_module_names}}
    assert not foreign


def test_touching_every_public_name_loads_nothing_costly():
    assert not loaded_by(TOUCH_ALL) & COSTLY


def test_importing_the_package_alone_loads_no_other_module_of_it():
    loaded = {name for name in loaded_by("import pyresil") if name.startswith("pyresil.")}
    assert not loaded, "the names of the package are lazy"


def test_the_shipped_list_of_the_public_api_is_up_to_date():
    assert api.FILE.read_text(encoding="utf-8") == api.text(), (
        "the public API changed: run python -m tests.support.api --write, and say so in CHANGELOG.md"
    )


@pytest.mark.parametrize(
    "module", ["errors", "events", "outcome", "context", "strategy", "policy", "decorators", "registry"]
)
def test_what_public_modules_offer_comes_from_the_package(module):
    home = importlib.import_module(f"pyresil.{module}")
    for name in home.__all__:
        assert getattr(pyresil, name) is getattr(home, name)
