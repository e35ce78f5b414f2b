"""The tables of the reference pages say what the code says."""

from __future__ import annotations

import inspect
import re

import pytest

import pyresil
from pyresil import PyresilError, errors, testing
from pyresil.events import TYPES
from pyresil.integrations import flask, requests
from pyresil.testing import contracts
from tests.support.processes import ROOT

REFERENCE = ROOT / "docs" / "reference"


def first_sentence(thing):
    return inspect.getdoc(thing).partition("\n\n")[0].replace("\n", " ").replace("``", "`").rstrip(".")


def error_rows():
    for name in errors.__all__:
        kind = getattr(pyresil, name)
        others = [
            f"`{base.__name__}`"
            for base in kind.__mro__[1:]
            if base.__module__ in ("builtins", "pyresil.errors")
        ]
        also = [
            name
            for name in others
            if name not in ("`PyresilError`", "`Exception`", "`BaseException`", "`object`", "`OSError`")
        ]
        fields = [
            f"`{name}`" for name in inspect.signature(kind).parameters if name not in ("policy", "message")
        ]
        yield f"| `{kind.__name__}` | `{kind.code}` | {', '.join(also)} | {', '.join(fields)} | {first_sentence(kind)} |"


def event_rows():
    for word, kind in TYPES.items():
        if kind.__module__ == "pyresil.events":
            fields = ", ".join(f"`{name}`" for name in kind.fields[3:])
            yield f"| `{word}` | `{kind.__name__}` | {fields} | {first_sentence(kind)} |"


@pytest.mark.parametrize(("page", "rows"), [("errors.md", error_rows), ("events.md", event_rows)])
def test_the_table_of_the_page(page, rows):
    text = (REFERENCE / page).read_text(encoding="utf-8")
    for row in rows():
        assert row in text


def test_every_public_name_is_in_the_documentation():
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    named = {*pyresil.__all__, *testing.__all__, *contracts.__all__, *flask.__all__, *requests.__all__}
    missing = [name for name in sorted(named) if not re.search(rf"\b{name}\b", text)]
    assert missing == ["__version__"]


def test_every_error_is_in_the_table():
    assert all(issubclass(getattr(errors, name), PyresilError) for name in errors.__all__)
