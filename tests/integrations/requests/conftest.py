"""Sessions and the misbehaving server for the tests of the requests integration."""

from __future__ import annotations

import contextlib
import threading

import pytest
import requests

from pyresil.integrations.requests import ResilientAdapter, ResilientSession
from tests.integrations.requests.helpers import Watch, descriptors
from tests.support.misbehaving import MisbehavingServer
from tests.support.processes import wait_until
from tests.support.threads import started_since


@pytest.fixture(scope="session")
def upstream(_session_servers):
    """The shared `MisbehavingServer`."""
    return _session_servers.get("misbehaving", MisbehavingServer)


@pytest.fixture
def nothing_left():
    """No descriptor and no thread more than before, once the test's sessions are closed."""
    before = descriptors()
    threads = set(threading.enumerate())
    yield
    wait_until(lambda: descriptors() <= before, 10, "closing of all descriptors")
    wait_until(lambda: not started_since(threads), 10, "the end of all threads")


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


@pytest.fixture
def make_session(upstream, nothing_left):
    """`make_session(policy=None, **options)`: a `ResilientSession`, closed at the test's end."""
    with contextlib.ExitStack() as stack:

        def make(policy=None, **options):
            session = stack.enter_context(ResilientSession(policy, **options))
            session.trust_env = False
            session.verify = upstream.ca
            return session

        yield make


@pytest.fixture
def watch():
    return Watch
