"""Measuring: all contenders of a row in turn, in another order each round, so that a noisy moment hits all of them."""

from __future__ import annotations

import gc
import itertools
import random
import statistics
import threading
import time

from benchmarks.model import Limit, NotInstalledError, Operation, Result, Row, Target


def loop(operation: Operation, times: int) -> None:
    for _ in itertools.repeat(None, times):
        operation()


def timed(operation: Operation, times: int) -> float:
    """Nanoseconds a call, in one thread."""
    began = time.perf_counter_ns()
    loop(operation, times)
    return (time.perf_counter_ns() - began) / times


def timed_in_threads(operation: Operation, times: int, threads: int) -> float:
    """Nanoseconds of wall time a call, with so many threads calling the same object at once."""
    share = max(1, times // threads)
    barrier = threading.Barrier(threads + 1)
    failures: list[BaseException] = []

    def work() -> None:
        barrier.wait()
        try:
            loop(operation, share)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    barrier.wait()
    began = time.perf_counter_ns()
    for worker in workers:
        worker.join()
    took = time.perf_counter_ns() - began
    if failures:
        raise failures[0]
    return took / (share * threads)


def calibrate(operation: Operation, slice_ms: float) -> int:
    """How many calls fill a time slice."""
    times = 1
    while True:
        took = timed(operation, times) * times / 1e6
        if took >= slice_ms / 4:
            return max(1, int(times * slice_ms / took))
        times *= 4


def measure(row: Row, threads: int, rounds: int, slice_ms: float) -> Result:
    """All rounds of one row."""
    result = Result(row, threads)
    ready: list[tuple[str, Operation, int]] = []
    for contender in row.contenders:
        try:
            operation = contender.make()
            operation()
            times = calibrate(operation, slice_ms) if row.unit == "ns" else 1
        except NotInstalledError as error:
            result.missing[contender.name] = str(error)
            continue
        except Exception as error:
            if is_ours(contender.name):
                raise
            result.missing[contender.name] = f"it fails here with {error!r}"
            continue
        ready.append((contender.name, operation, times))
        result.rounds[contender.name] = []
    order = random.Random(20)
    rounds = min(rounds, row.rounds) if row.rounds else rounds
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            order.shuffle(ready)
            for name, operation, times in ready:
                if row.unit != "ns":
                    value = float(operation())  # type: ignore[arg-type]  # such an operation returns its measure
                elif threads == 1:
                    value = timed(operation, times)
                else:
                    value = timed_in_threads(operation, times, threads)
                result.rounds[name].append(value)
            gc.collect()
    finally:
        gc.enable()
    return result


def median(result: Result, name: str) -> float:
    return statistics.median(result.rounds[name])


def is_ours(name: str) -> bool:
    return name.startswith("pyresil ") or name == "pyresil"


def peers(result: Result) -> list[str]:
    """The other libraries, without the references (in brackets)."""
    return [name for name in result.rounds if not is_ours(name) and not name.startswith("(")]


def ratio(result: Result, name: str, other: str) -> float:
    """Median of the rounds' own ratios: both sides of each were measured within the same moment."""
    pairs = zip(result.rounds[name], result.rounds[other], strict=True)
    return statistics.median(a / b for a, b in pairs if b)


def judge(result: Result, target: Target | Limit) -> tuple[str, bool | None]:
    """What was reached, and whether that is enough (None: cannot be said here)."""
    if target.ours not in result.rounds:
        return "not there yet", None
    if isinstance(target, Limit):
        value = median(result, target.ours) - (median(result, target.base) if target.base else 0.0)
        return f"{value:.3g} {result.row.unit}", value <= target.most
    if target.peer == "fastest peer":
        candidates = peers(result)
        if not candidates:
            return "no peer installed", None
        peer = min(candidates, key=lambda name: median(result, name))
    elif target.peer in result.rounds:
        peer = target.peer
    else:
        return f"{target.peer} is not installed", None
    reached = ratio(result, target.ours, peer)
    named = f" ({peer})" if target.peer == "fastest peer" else ""
    if target.plus:
        most = target.factor * median(result, peer) + target.plus
        return f"{median(result, target.ours):.3g} of {most:.3g} {result.row.unit}", median(
            result, target.ours
        ) <= most
    return f"{reached:.3g} ×{named}", reached <= target.factor
