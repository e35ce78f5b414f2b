"""Signal handlers that use the very limit that they interrupted, or raise out of a wait."""

from __future__ import annotations

import pytest

from tests.support.processes import run_python


@pytest.mark.parametrize("algorithm", ["sliding-window", "fixed-window", "token-bucket"])
@pytest.mark.parametrize("per", ["None", "lambda ctx: 1"])
def test_a_handler_that_re_enters_is_counted_exactly(algorithm, per):
    run_python(
        f"""
        import signal, time
        from pyresil import Policy, RateLimit, RateLimitedError
        from tests.support.depth import storm

        limiter = RateLimit("100000000/d", algorithm={algorithm!r}, per={per})
        call = Policy(limiter).call
        inside = calls = 0

        def handler(*_):
            global inside
            inside += 1
            call(int)

        limiter.hit(key={None if per == "None" else 1})
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        begun = time.monotonic()
        for _ in storm(0.4, lambda: inside > 20):
            for _ in range(100):
                call(int)
                calls += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        used = 100_000_000 - limiter.stats({None if per == "None" else 1}).remaining - 1
        refilled = (time.monotonic() - begun + 1.0) * 100_000_000 / 86_400 if {algorithm!r} == "token-bucket" else 0
        assert inside > 20, inside
        assert calls + inside - refilled <= used <= calls + inside, (used, calls, inside)
        """
    )


def test_a_handler_that_raises_out_of_a_wait_leaves_nothing_behind():
    run_python(
        """
        import signal
        from pyresil import Policy, RateLimit

        class Interrupted(BaseException):
            pass

        def handler(*_):
            raise Interrupted

        limiter = RateLimit("1/h", max_wait="2h")
        call = Policy(limiter).call
        call(int)
        signal.signal(signal.SIGALRM, handler)
        for _ in range(5):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            try:
                call(int)
                raise AssertionError("admitted")
            except Interrupted:
                pass
            assert limiter.stats().waiting == 0
            later = limiter.reserve()
            assert 3500 < later.delay <= 3600, later.delay  # the place of the interrupted one is free
            later.cancel()
        """
    )
