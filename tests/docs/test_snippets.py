"""Every Python snippet of the documentation runs, page by page, each page in an interpreter of its own."""

from __future__ import annotations

import re

import pytest

from tests.support.processes import ROOT, run_python

DOCS = ROOT / "docs"
#: Pages whose snippets need more than an interpreter, and the test that runs them.
ELSEWHERE = {
    "how-to/requests.md": "tests/docs/test_requests_how_to.py",
    **dict.fromkeys(
        ("how-to/apscheduler.md", "how-to/celery-beat.md", "how-to/schedule.md"),
        "tests/docs/test_lease_pages.py",
    ),
}
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def pages():
    found = {
        path.relative_to(DOCS).as_posix(): BLOCK.findall(path.read_text(encoding="utf-8"))
        for path in DOCS.rglob("*.md")
    }
    return {name: blocks for name, blocks in found.items() if blocks}


PAGES = pages()


def test_the_exceptions_exist():
    for page, test in ELSEWHERE.items():
        assert page in PAGES
        assert (ROOT / test).exists()


@pytest.mark.parametrize("page", sorted(set(PAGES) - set(ELSEWHERE)))
def test_page(page, tmp_path):
    """The blocks of a page build on one another, as they are read."""
    run_python(
        "\n\n".join(PAGES[page]), cwd=tmp_path, env={"PYRESIL_STORE": f"sqlite:///{tmp_path}/locks.db"}
    )
