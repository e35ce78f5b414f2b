"""Case P21 through the real adapter: a retry around a session that answers 503 with a Retry-After."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pyresil import Constant, Policy, Retry
from pyresil.integrations.requests import ResilientSession
from tests.integrations.requests.helpers import Flaky, Watch
from tests.support.misbehaving import MisbehavingServer


@pytest.fixture
def flaky(_session_servers):
    return Flaky(_session_servers.get("misbehaving", MisbehavingServer))


@pytest.fixture
def make():
    made = []

    def make(**options):
        session = ResilientSession(
            Policy(Retry(attempts=2, backoff=Constant("10ms"), **options), name="carrier")
        )
        session.trust_env = False
        made.append(session)
        return session

    yield make
    for session in made:
        session.close()


def test_P21_seconds_are_waited(make, flaky):
    url, _ = flaky(fail=1, after="1")
    with Watch() as timer:
        assert make().get(url).status_code == 200
    assert timer.took >= 1


def test_P21_a_date_is_waited_for(make, flaky):
    when = datetime.now(UTC) + timedelta(seconds=2)
    date = when.strftime("%a, %d %b %Y %H:%M:%S GMT").replace(" ", "%20")
    url, _ = flaky(fail=1, after=date)
    assert make().get(url).status_code == 200
    assert datetime.now(UTC) >= when.replace(microsecond=0) - timedelta(milliseconds=50)


def test_P21_garbage_is_ignored(make, flaky):
    url, _ = flaky(fail=1, after="soon")
    with Watch() as timer:
        assert make().get(url).status_code == 200
    assert timer.took < 4


def test_P21_what_is_over_the_budget_is_given_up_at_once(make, flaky):
    url, key = flaky(fail=9, after="1000000000")
    with Watch() as timer:
        assert Policy().options(deadline="5s").call(make().get, url).status_code == 503
        assert make(max_elapsed="5s").get(url).status_code == 503
    assert timer.took < 4
    assert len(flaky.seen(key)) == 2
