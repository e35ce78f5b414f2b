"""The tables: for the terminal and, the same, as a Markdown file."""

from __future__ import annotations

import os
import platform

from benchmarks.model import Result, version_of
from benchmarks.runner import is_ours, judge, median, ratio

DISTRIBUTIONS = (
    "pyresil", "tenacity", "stamina", "backoff", "pybreaker", "circuitbreaker", "nopanic", "interlock-cb", "pyresilience",
    "grit-toolkit", "limits", "pyrate-limiter", "filelock", "python-redis-lock", "dislock", "cachetools", "dogpile.cache",
    "redis", "Flask", "requests",
)  # fmt: skip

MARKS = {True: "pass", False: "FAIL", None: "–"}


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table with aligned columns."""
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]


def targets(results: list[Result]) -> tuple[list[str], int]:
    """The table of what is promised, and how many promises do not hold."""
    rows = []
    failed = 0
    for result in results:
        for target in result.row.targets if result.threads == result.row.threads[0] else ():
            reached, enough = judge(result, target)
            failed += enough is False
            rows.append([result.row.name, str(target), reached, MARKS[enough]])
    return (table(["work", "target", "reached", ""], rows) if rows else []), failed


def details(result: Result) -> list[str]:
    """One row's own table, cheapest first."""
    unit = result.row.unit
    ours = [name for name in result.rounds if is_ours(name)]
    reference = min(ours, key=lambda name: median(result, name)) if ours else None
    notes = {contender.name: contender.note for contender in result.row.contenders}
    rows = []
    for name in sorted(result.rounds, key=lambda name: median(result, name)):
        values = sorted(result.rounds[name])
        spread = f"{number(values[len(values) // 10])} … {number(values[-1 - len(values) // 10])}"
        factor = f"{ratio(result, name, reference):.3g} ×" if reference else ""
        rows.append([name, number(median(result, name)), spread, factor, notes[name]])
    rows += [[name, "–", "", "", f"not measured: {why}"] for name, why in sorted(result.missing.items())]
    threads = "" if len(result.row.threads) == 1 else f", {result.threads} thread{'s' * (result.threads > 1)}"
    head = ["contender", unit, "80 % of rounds", "beside ours", ""]
    return [f"### {result.row.name}{threads}", "", result.row.work, "", *table(head, rows), ""]


def document(results: list[Result], command: str, rounds: int) -> tuple[str, int]:
    """The whole report, and how many targets do not hold."""
    versions = [f"{name} {found}" for name in DISTRIBUTIONS if (found := version_of(name))]
    promised, failed = targets(results)
    lines = [
        "# Benchmarks",
        "",
        (
            f"Made by `{command}` on {platform.system()} {platform.machine()} with {os.cpu_count()} cores, "
            f"{platform.python_implementation()} {platform.python_version()}: median of {rounds} rounds, all contenders in each "
            "round, in random order. Times of another machine differ; the ratios, taken within each round, are what counts."
        ),
        "",
        "Installed: " + ", ".join(versions) + ".",
        "",
        "## Targets",
        "",
        *promised,
        "",
        "## All rows",
        "",
        "In brackets: references that do less. The factor is over the cheapest form of ours.",
        "",
    ]
    for result in results:
        lines += details(result)
    return "\n".join(lines).rstrip() + "\n", failed
