"""The pages on leases and jobs: their snippets run, in several processes where that is what they are about."""

from __future__ import annotations

import pathlib
import re
import sys
import textwrap

import pytest

from tests.support.processes import ROOT, run_python

HOW_TO = ROOT / "docs" / "how-to"


def snippets(page: pathlib.Path, language: str = "python") -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.fixture
def home(tmp_path):
    """The variables of an instance whose default store is in the test's folder."""
    return {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYTHONPATH": ":".join([str(ROOT), *map(str, sys.path)]),
    }


def instances(spawn, home, code, count=2):
    processes = [spawn(code, env=home) for _ in range(count)]
    for process in processes:
        assert process.wait(20) == 0, process.output()
    return [process.output().splitlines() for process in processes]


def test_a_plain_loop_runs_in_one_of_three_instances(spawn, home):
    first, *rest = instances(spawn, home, "\n".join(snippets(HOW_TO / "plain-loop.md")), 3)
    outputs = [first, *rest]
    ran = [output for output in outputs if output]
    # The owner may end, and hand over, while another instance still has a tick to come.
    assert ran
    tokens = [int(line.rsplit(" ", 1)[1]) for output in ran for line in output]
    parts = [int(line.split()[2]) for output in ran for line in output]
    assert parts == [0, 1, 2] * (len(parts) // 3), "no run was cut short"
    assert all(tokens.count(token) == 3 for token in tokens), "no two runs with one token"


def test_apscheduler(spawn, home):
    pytest.importorskip("apscheduler")
    start, stop = snippets(HOW_TO / "apscheduler.md")
    outputs = instances(spawn, home, f"{start}\nimport time; time.sleep(3.5)\n{stop}")
    # APScheduler itself writes to stderr when the machine made it miss a tick.
    lines = [line for output in outputs for line in output if line.startswith("report under")]
    tokens = [int(line.rsplit(" ", 1)[1]) for line in lines]
    assert 2 <= len(tokens) <= 5
    assert len(tokens) == len(set(tokens)), "a tick in one instance only"


def test_schedule(spawn, home):
    pytest.importorskip("schedule")
    outputs = instances(spawn, home, "\n".join(snippets(HOW_TO / "schedule.md")))
    tokens = [int(line.rsplit(" ", 1)[1]) for output in outputs for line in output]
    assert 1 <= len(tokens) <= 4
    assert len(tokens) == len(set(tokens))


@pytest.mark.slow
def test_celery(home):
    pytest.importorskip("celery")
    (code,) = snippets(HOW_TO / "celery-beat.md")
    check = """
        from celery.contrib.testing.worker import start_worker
        with start_worker(app, perform_ping_check=False, pool="threads", concurrency=2, loglevel="ERROR"):
            first = nightly_import.delay().get(timeout=10)
            with locks.hold("nightly-import"):
                skipped = nightly_import.delay().get(timeout=10)
            second = nightly_import.delay().get(timeout=10)
        print(skipped, 0 < first < second)
    """
    done = run_python(code + textwrap.dedent(check), env=home, flags=("-W", "ignore"), timeout=28)
    assert done.stdout.split()[-2:] == ["None", "True"]


def test_stale_writes_are_refused(home, tmp_path):
    code = "\n".join(snippets(HOW_TO / "fence-writes.md"))
    printed = run_python(code, env=home, cwd=tmp_path).stdout.splitlines()
    assert printed[0].startswith("refused, token ")
    assert printed[1:] == ["final of the second", "sent"]


@pytest.mark.server
def test_stale_writes_are_refused_on_postgres(postgres_url):
    psycopg = pytest.importorskip("psycopg")
    create_and_save, fence = snippets(HOW_TO / "fence-writes.md", "sql")
    create, save = create_and_save.split(";\n", 1)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(create)

        def write(statement, token, body=""):
            return connection.execute(statement, {"id": "r", "body": body, "token": token}).rowcount

        assert write(save, 5, "first") == 1
        assert write(save, 9, "second") == 1
        assert write(save, 5, "late") == 0
        assert write(fence, 8) == 0
        assert write(fence, 9) == 1
        assert connection.execute("SELECT body, token FROM report").fetchone() == ("second", 9)


def test_the_page_of_the_strategy_runs(home, tmp_path):
    page = ROOT / "docs" / "reference" / "strategies" / "lock.md"
    assert run_python("\n".join(snippets(page)), env=home, cwd=tmp_path).stdout.startswith("report ")


def test_the_reference_runs_and_names_what_there_is(home, tmp_path):
    import inspect

    from pyresil import Lease, Locks, events

    page = ROOT / "docs" / "reference" / "leases.md"
    text = page.read_text(encoding="utf-8")
    assert run_python("\n".join(snippets(page)), env=home, cwd=tmp_path).stdout == "report True\n"
    for cls in (Locks, Lease):
        for name, member in vars(cls).items():
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                assert name in {"store", "clock"} or f"`{name}" in text, f"{cls.__name__}.{name}"
    for option in list(inspect.signature(Locks.acquire).parameters)[2:]:
        assert f"| `{option}` |" in text, option
    for word in [word for word in events.TYPES if word.startswith(("lock-", "job-", "leadership-"))]:
        assert f"`{word}`" in text, word


def test_a_leader_and_its_successor(spawn, home):
    code = "\n".join(snippets(HOW_TO / "leader-election.md"))
    work = "time.sleep(0.5)"
    assert work in code
    outputs = instances(spawn, home, code.replace(work, "time.sleep(2)"))
    led = [output for output in outputs if "leading" in output]
    assert led
    for output in led:
        assert "leading" in output[:2]
        assert output[-1] == "no more: released"
