"""The snippets of the page on requests run as they stand, in one session of their own, against a real server."""

from __future__ import annotations

import re

import pytest

from tests.support.misbehaving import MisbehavingServer
from tests.support.processes import ROOT, run_python

PAGE = ROOT / "docs" / "how-to" / "requests.md"


@pytest.fixture(scope="module")
def upstream(_session_servers):
    return _session_servers.get("misbehaving", MisbehavingServer)


def test_the_snippets_run_in_order(upstream, tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(snippets) >= 7
    code = "\n".join(snippets).replace("http://localhost:8000", upstream.url("http"))
    printed = run_python(code, cwd=tmp_path, timeout=25).stdout.splitlines()
    promised = [
        line.replace("http://localhost:8000", upstream.url("http"))
        for line in re.findall(r"print\(.*?\)  # (.*)", text)
    ]
    assert printed == promised[: len(printed)]
    assert len(printed) == len(promised)
