"""All rows, in the order of the report."""

from __future__ import annotations

from benchmarks.rows import calls, http, process, rejections, servers

ALL = (*calls.ROWS, *rejections.ROWS, *process.ROWS, *servers.ROWS, *http.ROWS)
