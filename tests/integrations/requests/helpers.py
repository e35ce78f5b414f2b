"""What the tests of the requests integration share."""

from __future__ import annotations

import pathlib
import threading
import time
import uuid

import requests


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


class Flaky:
    """`flaky(fail=2, status=503)`: a URL that fails so often, and its key; `flaky.seen(key)`: the keys that were sent to it."""

    def __init__(self, upstream):
        self.upstream = upstream

    def __call__(self, fail=2, status=503, **query):
        key = uuid.uuid4().hex
        more = "".join(f"&{name}={value}" for name, value in query.items())
        return self.upstream.url("http", f"/flaky?key={key}&fail={fail}&status={status}{more}"), key

    def seen(self, key):
        return requests.get(self.upstream.url("http", "/seen"), timeout=5).json()["keys"].get(key, [])
