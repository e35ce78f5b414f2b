"""Signal handlers that raise or re-enter while policies run, and forks, each in a process of its own."""

from __future__ import annotations

import pytest

from tests.support.processes import run_python

STORM = """
    from pyresil import Constant, Guard, Policy, Retry, current_context
    from tests.support.storm import storm

    class Permits(Guard):
        '''Takes one in the last step of enter, gives it back in the first of exit.'''

        def __init__(self):
            self.free = [None] * 100
            self.taken = 0

        def enter(self, ctx):
            del self.free[-1]
            return 1

        def exit(self, ctx, token, outcome):
            self.free += [None]
            return outcome

    outer, inner = Permits(), Permits()
    policy = {policy}
    loose = Policy(outer, inner)

    def work():
        for _ in range(3):
            pass

    def block():
        with loose.execute() as ctx:
            work()

    def loop():
        for attempt in policy.execute():
            with attempt as ctx:
                work()
                if ctx.attempt == 1:
                    raise ValueError

    def call():
        policy.call(work)

    alone = Policy(Retry(2, Constant(0), handle=ValueError))
    fails = [False]

    def sometimes():
        fails[0] = not fails[0]
        if fails[0]:
            raise ValueError
        return work()

    decorated = alone(sometimes)

    def single():
        for run in (lambda: alone.call(sometimes), decorated):
            try:
                run()
            except ValueError:
                pass

    def check():
        assert current_context() is None, current_context()

    fired = storm({form}, {base}, seconds=0.5, longest=2e-4, check=check)
    print(fired, len(outer.free), len(inner.free))
"""


@pytest.mark.parametrize("base", ["Exception", "BaseException"])
@pytest.mark.parametrize("form", ["call", "block", "loop", "single"])
def test_a_handler_that_raises_leaks_nothing(form, base):
    done = run_python(
        STORM.format(
            base=base, form=form, policy="Policy(outer, Retry(2, Constant(0), handle=ValueError), inner)"
        )
    )
    fired, outer, inner = map(int, done.stdout.split())
    assert fired > 100
    assert (outer, inner) == (100, 100)


def test_a_handler_that_re_enters_the_policy():
    done = run_python(
        """
        import signal, time
        from pyresil import Constant, Policy, Retry, RetryBudget, current_context
        from tests.support.depth import storm

        budget = RetryBudget(ratio=10, min_per_second=1e6)
        policy = Policy(Retry(3, Constant(0), budget=budget), name="carrier")
        inside = [0]
        done = [0, 0]

        def flaky():
            box = [2]

            def work():
                if box[0]:
                    box[0] -= 1
                    raise ValueError
                return current_context().attempt

            return work

        def handler(number, frame):
            before = current_context()
            assert policy.call(flaky()) == 3
            for attempt in policy.execute():
                with attempt:
                    if attempt.number < 2:
                        raise ValueError
            assert current_context() is before, "restored"
            done[0] += 1

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 3e-3, 3e-3)
        for _ in storm(0.4, lambda: done[0] > 20 and done[1] > 100):
            assert policy.call(flaky()) == 3
            done[1] += 1
            for attempt in policy.execute():
                with attempt:
                    if attempt.number < 3:
                        raise ValueError
            assert current_context() is None
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(*done)
        """
    )
    handled, worked = map(int, done.stdout.split())
    assert handled > 20
    assert worked > 100


def test_a_handler_that_cancels_ends_the_wait():
    done = run_python(
        """
        import signal, time
        from pyresil import CancelledError, CancelToken, Constant, Policy, Retry

        for _ in range(20):
            token = CancelToken()
            signal.signal(signal.SIGALRM, lambda *_: token.cancel("closing"))
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            begun = time.monotonic()
            try:
                Policy(Retry(3, Constant("1m"))).options(cancel=token).call(int, "x")
            except CancelledError as error:
                assert error.reason == "closing"
            assert time.monotonic() - begun < 5
        print("ok")
        """
    )
    assert done.stdout.strip() == "ok"


def test_policies_and_subscriptions_work_in_a_forked_child():
    done = run_python(
        """
        import os, sys, threading, time
        from pyresil import Constant, Fallback, Policy, Retry, RetryBudget, subscribe
        from pyresil.events import Retried

        sys.setswitchinterval(1e-6)
        policy = Policy(Fallback("spare"), Retry(3, Constant(0), budget=RetryBudget(1, 1e6)), name="carrier")
        stop = False

        def busy():
            while not stop:
                end = subscribe(lambda event: None, "retry")
                assert policy.call(int, "x") == "spare"
                end()

        threads = [threading.Thread(target=busy, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        codes = []
        for _ in range(20):
            time.sleep(0.002)
            pid = os.fork()
            if pid == 0:
                seen = []
                subscribe(seen.append, "retry")
                ok = policy.call(int, "x") == "spare" and len(seen) == 2
                for attempt in Policy(Retry(2, Constant(0))).execute():
                    with attempt:
                        if attempt.number == 1:
                            raise ValueError
                os._exit(0 if ok else 1)
            codes.append(os.waitpid(pid, 0)[1])
        stop = True
        print(codes.count(0))
        """,
        flags=("-W", "ignore::DeprecationWarning"),
    )
    assert done.stdout.strip() == "20"
