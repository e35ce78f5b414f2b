"""What a benchmark is made of: rows, contenders and targets."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass, field

Operation = Callable[[], object]


class NotInstalledError(Exception):
    """A contender's library, or the part of ours that it needs, is not here."""


def need(module: str):
    """Imports a peer, or says that it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotInstalledError(f"{module}: {error}") from error


class Ours:
    """`pyresil`, whose public names are looked up late: a row may be older than the feature that it measures."""

    def __getattr__(self, name: str):
        import pyresil

        try:
            return getattr(pyresil, name)
        except AttributeError as error:
            raise NotInstalledError(f"pyresil has no {name} yet") from error


ours = Ours()


@dataclass(frozen=True)
class Contender:
    """One library's way to do the row's work.

    Attributes:
        name: Library, and the form where there are several.
        make: Builds everything and returns the operation that is timed: one unit of the work.
        note: What is not the same as in the others.
    """

    name: str
    make: Callable[[], Operation]
    note: str = ""


@dataclass(frozen=True)
class Target:
    """`ours` must cost at most `factor` times `peer` (`"fastest peer"`: the cheapest that is not ours), plus `plus` units."""

    ours: str
    factor: float
    peer: str
    plus: float = 0.0

    def __str__(self) -> str:
        more = f" + {self.plus:g}" if self.plus else ""
        return f"{self.ours} ≤ {self.factor:g} × {self.peer}{more}"


@dataclass(frozen=True)
class Limit:
    """`ours` must cost at most `most` units, after `base` (a contender's name) is taken off where there is one."""

    ours: str
    most: float
    base: str = ""

    def __str__(self) -> str:
        return f"{self.ours} ≤ {self.most:g}{f' over {self.base}' if self.base else ''}"


@dataclass(frozen=True)
class Row:
    """One kind of work and those who do it.

    Attributes:
        name: Short name, matched by `--only`.
        work: What is done and how all are configured.
        contenders: Ours are those whose name starts with `pyresil`.
        targets: What is promised.
        threads: Numbers of threads to measure with.
        unit: `ns` a call (timed in loops), or `ms` and `MB`, which the operation itself returns as a number.
        rounds: At most so many rounds; 0 for what the command line says.
    """

    name: str
    work: str
    contenders: tuple[Contender, ...]
    targets: tuple[Target | Limit, ...] = ()
    threads: tuple[int, ...] = (1, 8)
    unit: str = "ns"
    rounds: int = 0


@dataclass
class Result:
    """Measured values of one row with one number of threads: a list of rounds for each contender."""

    row: Row
    threads: int
    rounds: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def version_of(distribution: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
