"""The page on stores says what the code says."""

from __future__ import annotations

import re

import pytest

from pyresil.stores.postgres import PostgresLockStore
from tests.support.processes import ROOT, run_python

PAGE = (ROOT / "docs" / "reference" / "stores.md").read_text(encoding="utf-8")


def test_the_sql_of_the_table_is_the_stores():
    (sql,) = re.findall(r"^```sql\n(.*?)\n```", PAGE, re.MULTILINE | re.DOTALL)
    assert sql == PostgresLockStore("postgresql://localhost/x").table_sql()


@pytest.mark.parametrize(
    "url",
    [
        url
        for line in PAGE.splitlines()
        if line.startswith("| `") and "://" in line
        for url in re.findall(r"`([a-z+]+://[^`…]+)`", line)
    ],
)
def test_the_urls_of_the_table_are_taken(url, tmp_path, monkeypatch):
    from pyresil.stores.backend import connect

    monkeypatch.chdir(tmp_path)
    assert connect(url).locks


def test_the_suite_of_the_page_runs_and_passes(tmp_path):
    (code,) = [
        block
        for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
        if "Contract" in block
    ]
    (tmp_path / "test_mine.py").write_text(code, encoding="utf-8")
    done = run_python(
        "import pytest, sys; sys.exit(pytest.main(['-q', '-p', 'no:valkey', '-p', 'no:cacheprovider', 'test_mine.py']))",
        cwd=tmp_path,
        timeout=60,
    )
    assert " passed" in done.stdout
    assert "failed" not in done.stdout
