"""The strategy pages tell the defaults that the code has, and the events that exist."""

from __future__ import annotations

import inspect
import pathlib

import pytest

import pyresil
from pyresil import events

PAGES = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "strategies"

#: The class of each page.
CLASSES = {
    "adaptive-bulkhead": "AdaptiveBulkhead",
    "bulkhead": "Bulkhead",
    "cache": "Cache",
    "circuit-breaker": "CircuitBreaker",
    "fallback": "Fallback",
    "hedge": "Hedge",
    "lock": "Lock",
    "rate-limit": "RateLimit",
    "retry": "Retry",
    "timeout": "Timeout",
}
SECTIONS = ["About", "Usage", "Defaults", "Events", "Sequence", "Patterns", "Anti-patterns"]


def rows(page, section):
    """The rows of the first table of a section, as lists of cells."""
    text = page.read_text(encoding="utf-8").split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("name", sorted(path.stem for path in PAGES.glob("*.md")))
def test_a_page_keeps_to_the_template_and_to_the_code(name):
    page = PAGES / f"{name}.md"
    headings = [line[3:] for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
    assert headings == SECTIONS

    parameters = inspect.signature(getattr(pyresil, CLASSES[name])).parameters
    documented = {cells[0].strip("`"): cells[1].strip("`") for cells in rows(page, "Defaults")}
    assert set(documented) == set(parameters)
    for option, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty:
            assert documented[option] in {"required", "-", "–"}, option
        elif "UNSET" not in repr(parameter.default):
            assert eval(documented[option], vars(pyresil).copy()) == parameter.default, option

    for cells in rows(page, "Events"):
        kind = events.TYPES[cells[0].strip("`")]
        fields = [
            field.strip()
            for field in cells[1].replace("`", "").split(",")
            if field.strip() not in {"", "-", "–"}
        ]
        assert fields == list(kind.fields[3:]), cells[0]


def test_every_strategy_has_a_page():
    assert {path.stem for path in PAGES.glob("*.md")} == set(CLASSES)
    assert set(CLASSES.values()) <= set(pyresil.__all__)
