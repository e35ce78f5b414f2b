"""A part of the matrix in a process that gevent has patched."""

from __future__ import annotations

import json

import pytest

from tests.support.processes import run_python

SNIPPET = """
    from gevent import monkey
    monkey.patch_all()
    import json, sys, time
    import gevent
    import requests
    from pyresil import CancelledError, CancelToken, Policy, TimeoutExceededError
    from pyresil.integrations.requests import ResilientAdapter

    urls, ca, path = json.loads(sys.argv[1])
    LIMIT = 0.2
    beats = []

    def heart():
        while True:
            beats.append(None)
            gevent.sleep(0.01)

    gevent.spawn(heart)
    session = requests.Session()
    session.trust_env = False
    session.verify = ca
    for scheme in urls:
        session.mount(f"{scheme}://", ResilientAdapter(pool_maxsize=1, pool_block=path == "pool"))

    def fetch(url):
        if path == "upload":
            return session.post(url, data=b"u" * 20_000_000)
        return session.get(url)

    def deadline(url):
        began = time.monotonic()
        try:
            Policy().options(deadline=LIMIT).call(fetch, url)
        except TimeoutExceededError as error:
            assert isinstance(error, requests.Timeout)
            return time.monotonic() - began
        raise AssertionError("no timeout")

    def cancel(url):
        token = CancelToken()
        began = time.monotonic()
        gevent.spawn_later(LIMIT, token.cancel, "why")
        try:
            Policy().options(cancel=token).call(fetch, url)
        except CancelledError as error:
            assert isinstance(error, requests.RequestException) and error.reason == "why"
            return time.monotonic() - began
        raise AssertionError("not cancelled")

    for scheme, base in urls.items():
        for reused in (False, True):
            for stop in ((deadline, cancel) if path == "hang" else (cancel,) if reused else (deadline,)):
                session.get_adapter(base).close()
                if reused:
                    assert session.get(base + "/ok", timeout=5).text == "ok"
                del beats[:]
                took = stop(base + "/" + path)
                assert LIMIT - 0.05 <= took < LIMIT + 5, (scheme, reused, stop, took)
                assert beats, "others did not run meanwhile"
                assert session.get(base + "/ok", timeout=5).text == "ok"
    print("passed")
"""


@pytest.mark.parametrize(
    "path", ["hang", "drip-headers", "drip-length", "drip-chunked", "drip-close", "endless", "upload"]
)
def test_calls_end_in_time_under_gevent(upstream, path):
    urls = {scheme: upstream.url(scheme) for scheme in ("http", "https")}
    done = run_python(SNIPPET, json.dumps([urls, upstream.ca, path]), timeout=25)
    assert done.stdout.split() == ["passed"]


def test_connecting_and_waiting_for_the_pool_are_bounded_under_gevent(upstream):
    done = run_python(
        """
        from gevent import monkey
        monkey.patch_all()
        import json, sys, time
        import gevent
        import requests
        from pyresil.integrations.requests import ResilientSession

        ports, ca = json.loads(sys.argv[1])
        session = ResilientSession(pool_maxsize=1, pool_block=True)
        session.trust_env = False
        session.verify = ca

        def late(url):
            began = time.monotonic()
            try:
                session.get(url, timeout=0.25)
            except requests.Timeout:
                assert 0.25 <= time.monotonic() - began < 5
                return
            raise AssertionError("no timeout")

        late(f"http://127.0.0.1:{ports['backlog']}/")
        late(f"https://127.0.0.1:{ports['silent']}/")
        ok = f"http://localhost:{ports['http']}/ok"
        with session.get(ok.replace("/ok", "/big"), stream=True, timeout=20):
            late(ok)
        jobs = [gevent.spawn(session.get, ok, timeout=10) for _ in range(20)]
        assert [job.get().text for job in jobs] == ["ok"] * 20
        print("passed")
        """,
        json.dumps([upstream.ports, upstream.ca]),
        timeout=25,
    )
    assert done.stdout.split() == ["passed"]
