"""The benchmarks run and judge as they say; what they measure is not asserted."""

from __future__ import annotations

import pytest

from benchmarks import report, rows, runner
from benchmarks.model import Contender, Limit, NotInstalledError, Result, Row, Target, need

calls = [
    row
    for row in rows.ALL
    if row.unit == "ns" and "server" not in row.name and not row.name.startswith("lease")
]


@pytest.fixture(autouse=True)
def _no_collections(monkeypatch):
    """They are for fair numbers, and take a while in the large process of a test run."""
    monkeypatch.setattr("gc.collect", lambda: 0)


@pytest.mark.parametrize("row", calls, ids=lambda row: row.name)
def test_our_contenders_do_the_work(row):
    """Peers may be missing or not; what is ours is either there and works, or is named as missing."""
    only_ours = tuple(contender for contender in row.contenders if runner.is_ours(contender.name))
    result = runner.measure(Row(row.name, row.work, only_ours), 1, rounds=2, slice_ms=0.05)
    assert set(result.rounds) | set(result.missing) == {contender.name for contender in only_ours}
    assert all(value > 0 for values in result.rounds.values() for value in values)
    assert all("no" in why for why in result.missing.values())


def test_threads_share_one_object_and_failures_come_out():
    seen = []
    row = Row("row", "", (Contender("pyresil", lambda: lambda: seen.append(1)),))
    runner.measure(row, 8, rounds=1, slice_ms=0.05)
    assert len(seen) > 8

    def fails():
        if len(seen) > 3:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        runner.timed_in_threads(fails, 80, 8)


def result_of(**rounds) -> Result:
    row = Row("row", "the work", tuple(Contender(name, lambda: None) for name in rounds), unit="ms")
    return Result(row, 1, {name: list(values) for name, values in rounds.items()})


def test_ratio_is_the_median_of_the_rounds_own_ratios():
    result = result_of(pyresil=[10, 20, 1000], peer=[20, 40, 100])
    assert runner.ratio(result, "pyresil", "peer") == 0.5


@pytest.mark.parametrize(
    ("target", "holds"),
    [
        (Target("pyresil", 0.5, "peer"), True),
        (Target("pyresil", 0.49, "peer"), False),
        (Target("pyresil", 1.1, "fastest peer"), False),
        (Target("pyresil", 0.1, "peer", plus=8), True),
        (Target("pyresil", 0.1, "peer", plus=7), False),
        (Target("pyresil", 0.5, "nobody"), None),
        (Target("pyresil (call)", 0.5, "peer"), None),
        (Limit("pyresil", 10), True),
        (Limit("pyresil", 9), False),
        (Limit("pyresil", 9, base="(reference)"), True),
    ],
)
def test_targets_are_judged(target, holds):
    result = result_of(pyresil=[10.0] * 3, peer=[20.0] * 3, fast=[5.0] * 3)
    result.rounds["(reference)"] = [1.0] * 3
    assert runner.judge(result, target)[1] is holds


def test_report_counts_failed_targets_and_names_what_is_missing():
    result = result_of(pyresil=[10.0] * 3, peer=[20.0] * 3)
    row = Row(
        "row", "the work", result.row.contenders, (Target("pyresil", 0.1, "peer"),), threads=(1,), unit="ms"
    )
    result = Result(row, 1, result.rounds, {"other": "other is not installed"})
    text, failed = report.document([result], "python -m benchmarks", 3)
    assert failed == 1
    assert "FAIL" in text
    assert "not measured: other is not installed" in text


def test_a_missing_peer_is_no_error():
    with pytest.raises(NotInstalledError, match="no_such_library"):
        need("no_such_library")
