"""Sessions and the misbehaving server for the tests of the requests integration."""

from __future__ import annotations

import pathlib
import threading
import time

import pytest
import requests

from pyresil.integrations.requests import ResilientAdapter
from tests.support.misbehaving import MisbehavingServer
from tests.support.processes import wait_until


@pytest.fixture(scope="session")
def upstream(_session_servers):
    """The shared `MisbehavingServer`."""
    return _session_servers.get("misbehaving", MisbehavingServer)


def descriptors() -> int:
    return len(list(pathlib.Path("/proc/self/fd").iterdir()))


def helpers() -> list[str]:
    """Names of the threads that a call may start."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pyresil-resolver")]


@pytest.fixture
def nothing_left():
    """No descriptor and no thread more than before, once the test's sessions are closed."""
    before = descriptors()
    threads = threading.active_count()
    yield
    wait_until(lambda: descriptors() <= before, 3, "closing of all descriptors")
    wait_until(lambda: threading.active_count() <= threads, 3, "the end of all threads")


@pytest.fixture
def session(upstream, nothing_left):
    """A stock session with our adapter."""
    made = requests.Session()
    made.trust_env = False
    made.verify = upstream.ca
    for scheme in ("http://", "https://"):
        made.mount(scheme, ResilientAdapter())
    with made:
        yield made


class Watch:
    """How long a block took."""

    def __enter__(self):
        self.began = time.monotonic()
        return self

    def __exit__(self, *exc_info):
        self.took = time.monotonic() - self.began


@pytest.fixture
def watch():
    return Watch
