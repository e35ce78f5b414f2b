"""What the tests of the requests integration share."""

from __future__ import annotations

import pathlib
import threading
import time


def descriptors() -> int:
    """How many descriptors this process has open."""
    return len(list(pathlib.Path("/proc/self/fd").iterdir()))


def helpers() -> list[str]:
    """Names of the threads that a call may start."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pyresil-resolver")]


class Watch:
    """How long a block took."""

    def __enter__(self):
        self.began = time.monotonic()
        return self

    def __exit__(self, *exc_info):
        self.took = time.monotonic() - self.began
