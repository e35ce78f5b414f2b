"""Every race is run by threads that change places as often as they can."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _tiny_switch_interval():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
