"""`python -m benchmarks`: measures ours beside the peers that are installed (`pip install --group bench`)."""

from __future__ import annotations

import argparse
import fnmatch
import pathlib
import platform
import sys

from benchmarks import report, rows, runner

RESULTS = pathlib.Path(__file__).parent / "results"


def main(arguments: list[str] | None = None) -> int:
    """Runs it. Status 1 with `--check` when a target does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="few short rounds: shows that all works, not what it costs"
    )
    parser.add_argument("--only", metavar="PATTERN", help="rows whose name matches, such as '*breaker*'")
    parser.add_argument("--list", action="store_true", help="names of the rows")
    parser.add_argument("--threads", type=int, metavar="N", help="only with so many threads")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds instead of 41 (quick: 7)")
    parser.add_argument(
        "--write",
        metavar="FILE",
        help="Markdown file (default: benchmarks/results/, not with --quick or --only)",
    )
    parser.add_argument("--check", action="store_true", help="status 1 when a target does not hold")
    options = parser.parse_args(arguments)

    wanted = [row for row in rows.ALL if fnmatch.fnmatch(row.name, options.only or "*")]
    if options.list or not wanted:
        print("\n".join(row.name for row in rows.ALL))
        return 0 if options.list else 2
    rounds = options.rounds or (7 if options.quick else 41)
    results = []
    for row in wanted:
        for threads in row.threads:
            if options.threads in (None, threads):
                print(f"{row.name}, {threads} thread(s) …", file=sys.stderr, flush=True)
                results.append(runner.measure(row, threads, rounds, 2.0 if options.quick else 10.0))

    given = sys.argv[1:] if arguments is None else arguments
    text, failed = report.document(results, " ".join(["python -m benchmarks", *given]), rounds)
    print(text)
    target = options.write
    if target is None and not options.quick and not options.only:
        target = (
            RESULTS
            / f"{platform.python_implementation().lower()}-{platform.python_version_tuple()[0]}.{platform.python_version_tuple()[1]}.md"
        )
    if target is not None:
        pathlib.Path(target).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(target).write_text(text, encoding="utf-8")
        print(f"written to {target}", file=sys.stderr)
    return 1 if options.check and failed else 0


if __name__ == "__main__":
    sys.exit(main())
