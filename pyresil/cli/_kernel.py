"""What the kernel does for the command beyond the standard library: parent-death signals, subreapers, the process tree.

All of it is Linux. Elsewhere, and where a sandbox forbids the calls, the functions answer False or None and the command
falls back on process groups.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_loaded: list[Any] = []


class Process(NamedTuple):
    """A running process.

    Attributes:
        pid: Its id.
        parent: The id of its parent.
        state: The kernel's letter: R, S, D, T, Z and so on.
        started: When it started, in ticks since boot: with the pid it names one process for ever.
    """

    pid: int
    parent: int
    state: str
    started: int


def load() -> None:
    """Load what the other functions need, before a fork, so that a forked child has nothing left to import."""
    if _loaded or not sys.platform.startswith("linux"):
        return
    try:
        import ctypes

        call: Any = ctypes.CDLL(None).prctl
        call.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
        _loaded.extend((call, ctypes.create_string_buffer, ctypes.addressof))
    except (ImportError, OSError, AttributeError):
        pass  # no ctypes or no prctl: the weaker mode


def _prctl(option: int, value: int) -> bool:
    return bool(_loaded) and _loaded[0](option, value, 0, 0, 0) == 0


def become_subreaper() -> bool:
    """Adopt every descendant whose own parent ends, however far down, also from other sessions."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int, parent: int) -> bool:
    """Get signal ``number`` when the parent ends; True also means that ``parent`` still is the parent."""
    return _prctl(_PR_SET_PDEATHSIG, number) and os.getppid() == parent


def set_name(name: str) -> None:
    """The name that ``ps`` and ``top`` show for this process (15 bytes)."""
    if _loaded:
        buffer = _loaded[1](name.encode()[:15])
        _prctl(_PR_SET_NAME, _loaded[2](buffer))


def _read(pid: str) -> Process | None:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # The name, in brackets, may have any character: what follows the last bracket is numbers.
        fields = os.read(fd, 4096).rpartition(b")")[2].split()
        return Process(int(pid), int(fields[1]), fields[0].decode(), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None  # it ended in between
    finally:
        os.close(fd)


def descendants(root: int) -> list[Process] | None:
    """Every process below ``root``, parents before their children; None where the kernel does not tell."""
    try:
        # Another namespace's /proc (unshare --pid without --mount-proc) counts otherwise: its numbers are other processes here.
        if os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115 - pathlib costs 5 ms of import
            return None
        names = os.listdir("/proc")  # noqa: PTH208 - as above
    except OSError:
        return None
    children: dict[int, list[Process]] = {}
    seen = False
    for name in names:
        process = _read(name) if name.isdecimal() else None
        if process is not None:
            seen = seen or process.pid == root
            children.setdefault(process.parent, []).append(process)
    if not seen:
        return None
    found: list[Process] = []
    ahead = [root]
    while ahead:
        below = children.pop(ahead.pop(), [])
        found.extend(below)
        ahead.extend(process.pid for process in below)
    return found
