"""Many threads on one session, cancels from outside, and a pool that blocks."""

from __future__ import annotations

import contextlib
import dis
import itertools
import queue
import random
import sys
import threading
import time
import traceback

import pytest
import requests

from pyresil import CancelledError, CancelToken, Policy, TimeoutExceededError
from pyresil.clock import Parker
from pyresil.integrations._http import pools
from pyresil.integrations._http.budget import Budget
from pyresil.integrations._http.call import Call, active
from pyresil.integrations._http.pools import BoundQueue, Left
from pyresil.integrations.requests import ResilientAdapter, ResilientSession
from pyresil.testing import instant
from tests.support.depth import times
from tests.support.processes import run_python, wait_until

THREADS = 8
CALLS = times(120)  # of each thread, for each scheme


class Canceller:
    """A thread that cancels tokens of calls that are under way, again and again."""

    def __init__(self):
        self.tokens = [CancelToken() for _ in range(THREADS)]
        self.over = False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        chance = random.Random(1)
        while not self.over:
            time.sleep(chance.random() * 0.001)
            chance.choice(self.tokens).cancel("unlucky")

    def stop(self):
        self.over = True
        self.thread.join()


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_cancels_cut_nobody_elses_request(upstream, nothing_left, scheme, stream):
    session = requests.Session()
    session.trust_env = False
    session.verify = upstream.ca
    session.mount(f"{scheme}://", ResilientAdapter(pool_maxsize=THREADS))
    policy = Policy(name="stress")
    canceller = Canceller()
    wrong = []
    cancelled = [0] * THREADS

    def fetch(url):
        if not stream:
            return session.get(url).text
        with session.get(url, stream=True) as response:
            return b"".join(response.iter_content(700)).decode()

    def work(number):
        for call in range(CALLS):
            tag = f"{number}-{call}"
            url = upstream.url(scheme, f"/tag?n={tag}")
            canceller.tokens[number] = token = CancelToken()
            try:
                text = policy.options(cancel=token).call(fetch, url)
            except CancelledError:
                cancelled[number] += 1
                if not token.is_set():
                    wrong.append(f"{tag} was cancelled by somebody else's token")
            except Exception as error:
                wrong.append(f"{tag}: {''.join(traceback.format_exception(error))}")
            else:
                if text != (tag + ",") * 2000:
                    wrong.append(f"{tag} got {text[:60]!r}, {len(text)} characters")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    canceller.stop()
    session.close()
    assert wrong == []
    assert sum(cancelled) > 20, "the cancels came too late to test anything"


def test_a_cancel_after_the_end_leaves_the_connection_in_the_pool(session, upstream):
    adapter = session.get_adapter("http://")
    url = upstream.url("http", "/ok")
    for _ in range(5):
        token = CancelToken()
        assert Policy().options(cancel=token).call(session.get, url, timeout=5).text == "ok"
        token.cancel()
        assert session.get(url).text == "ok"
    (pool,) = [adapter.poolmanager.pools.get(key) for key in adapter.poolmanager.pools.keys()]  # noqa: SIM118
    assert (pool.num_connections, pool.num_requests) == (1, 10)


def test_a_token_keeps_nothing_of_a_call_that_is_over(session, upstream):
    token = CancelToken()
    policy = Policy().options(cancel=token)
    policy.call(session.get, upstream.url("http", "/ok"))
    with pytest.raises(TimeoutExceededError):
        policy.call(session.get, upstream.url("http", "/hang"), timeout=0.1)
    assert not token._callbacks


class TestBlockingPool:
    @pytest.fixture
    def narrow(self, upstream, nothing_left):
        with ResilientSession(pool_maxsize=1, pool_block=True) as session:
            session.trust_env = False
            yield session

    def test_the_wait_for_a_connection_is_bounded(self, narrow, upstream, watch):
        ok = upstream.url("http", "/ok")
        with narrow.get(upstream.url("http", "/big"), stream=True):
            with (
                watch() as timer,
                pytest.raises(requests.Timeout, match="while waiting for a connection of the pool"),
            ):
                narrow.get(ok, timeout=0.2)
            assert 0.2 <= timer.took < 5
            token = CancelToken()
            threading.Timer(0.2, token.cancel).start()
            with watch() as timer, pytest.raises(CancelledError):
                Policy().options(cancel=token).call(narrow.get, ok)
            assert timer.took < 5
        assert narrow.get(ok, timeout=5).text == "ok"

    def test_a_waiter_gets_the_connection_that_comes_back(self, narrow, upstream):
        ok = upstream.url("http", "/ok")
        response = narrow.get(upstream.url("http", "/big"), stream=True, timeout=20)
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(narrow.get(ok, timeout=10).text)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        assert answers == []
        response.close()
        for thread in threads:
            thread.join()
        assert answers == ["ok"] * 4

    def test_no_slot_is_lost_or_won(self, narrow, upstream):
        for _ in range(3):
            for path in ("/hang", "/drip-length"):
                with pytest.raises(requests.Timeout):
                    narrow.get(upstream.url("http", path), timeout=0.1)
            with (
                narrow.get(upstream.url("http", "/big"), stream=True, timeout=20),
                pytest.raises(requests.Timeout),
            ):
                narrow.get(upstream.url("http", "/ok"), timeout=0.05)
        adapter = narrow.get_adapter("http://")
        (pool,) = [adapter.poolmanager.pools.get(key) for key in adapter.poolmanager.pools.keys()]  # noqa: SIM118
        wait_until(lambda: pool.pool.qsize() == 1, 10, "the only slot")

    def test_unbounded_and_bounded_callers_share_the_queue(self, narrow, upstream):
        answers = []

        def fetch(timeout):
            answers.extend(narrow.get(upstream.url("http", "/ok"), timeout=timeout).text for _ in range(20))

        threads = [threading.Thread(target=fetch, args=(timeout,)) for timeout in (None, 10, None, 10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == ["ok"] * 80


class Interrupted(Budget):
    """That of a call into which a signal handler raises just as it is woken."""

    def park(self, parker):
        super().park(parker)
        raise KeyboardInterrupt


def raising_once(monkeypatch, owner, name, thread):
    """A signal handler raises at the start of the next call of a method on this thread."""
    stock = getattr(owner, name)

    def raising(*args, **kwargs):
        if threading.current_thread() is thread:
            monkeypatch.setattr(owner, name, stock)
            raise KeyboardInterrupt
        return stock(*args, **kwargs)

    monkeypatch.setattr(owner, name, raising)


@contextlib.contextmanager
def interrupted_wait():
    """What is done inside leaves the queue because a signal handler raised."""
    with pytest.raises(Left) as caught:
        yield
    assert isinstance(caught.value.reason, KeyboardInterrupt)


def waiting(idle, got, budget=None):
    """A thread that waits for a connection, and has begun to."""

    def wait():
        active.set(Call(budget or Budget((), 20.0), None))
        try:
            got.append(idle.get(timeout=None))
        except Left as left:
            got.append("interrupted" if isinstance(left.reason, KeyboardInterrupt) else "nothing")

    before = len(idle._waiting)
    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: len(idle._waiting) > before, 10, "a waiter")
    return thread


def test_a_waiter_that_is_woken_and_interrupted_wakes_the_next_one():
    idle, got = BoundQueue(), []
    threads = [waiting(idle, got, Interrupted()), waiting(idle, got)]
    idle.put("connection")
    for thread in threads:
        thread.join()
    assert sorted(got) == ["connection", "interrupted"]


@pytest.mark.parametrize("interrupted", ["get", "put"])
def test_who_is_interrupted_beside_a_connection_leaves_it_to_who_waits(interrupted):
    idle, got, others = BoundQueue(), [], []

    class Cut(list):
        def pop(self, index):
            if interrupted == "get" and threading.current_thread() is thread and not others:
                others.append(waiting(idle, got))
                idle.put("connection")  # which wakes us, who came first
                raise KeyboardInterrupt
            return super().pop(index)

        def append(self, item):
            if interrupted == "put":
                others.append(waiting(idle, got))
                super().append(item)
                raise KeyboardInterrupt
            super().append(item)

    thread = threading.current_thread()
    idle.queue = Cut()
    outer = active.get()
    active.set(Call(Budget(), None))
    try:
        with pytest.raises(KeyboardInterrupt) if interrupted == "put" else interrupted_wait():
            idle.get(timeout=None) if interrupted == "get" else idle.put("connection")
    finally:
        active.set(outer)
    others[0].join()
    assert got == ["connection"]


def test_a_signal_handler_that_raises_anywhere_closes_no_pool():
    run_python(
        """
        from pyresil.integrations._http.pools import BoundQueue, Left
        from tests.support.storm import storm

        idle = BoundQueue(2)

        def use():
            try:
                taken = idle.get()
            except Left as left:
                raise left.reason from None
            idle.put(taken)

        def check():
            idle.queue[:] = [None, None]  # what was in the hands of who was cut is gone

        check()
        storm(use, KeyboardInterrupt, seconds=0.5, longest=3e-4, check=check)
        """,
        timeout=60,
    )


def test_a_signal_handler_that_raises_between_any_two_steps_of_taking_one_loses_none():
    idle = BoundQueue()
    idle.put("connection")
    sys._getframe().f_trace_opcodes = True  # else Python 3.12 traces no other frame's either
    for last in itertools.count():
        steps = itertools.count()

        def trace(frame, event, argument, steps=steps, last=last):
            frame.f_trace_opcodes = frame.f_code.co_filename == pools.__file__
            # No handler runs just before a return.
            step = event == "opcode" and not dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith(
                "RETURN"
            )
            if step and next(steps) == last:
                raise KeyboardInterrupt
            return trace

        outer = sys.gettrace()
        sys.settrace(trace)
        try:
            got = idle.get()
        except (KeyboardInterrupt, Left):
            got = None
        finally:
            sys.settrace(outer)
        if got is not None:
            break
        assert idle.queue == ["connection"], f"cut at step {last}"
    assert last > 20


@pytest.mark.parametrize("timeout", [None, 20])
def test_who_is_interrupted_as_he_waits_puts_no_place_back(upstream, timeout):
    run_python(
        f"""
        import gc, signal, weakref
        from pyresil.integrations.requests import ResilientSession

        class Interrupt(BaseException):
            pass

        def interrupt(*args):
            raise Interrupt

        gc.disable()
        signal.signal(signal.SIGALRM, interrupt)
        url = {upstream.url("http", "/ok")!r}
        with ResilientSession(pool_maxsize=1, pool_block=True) as session:
            session.trust_env = False
            with session.get(url, stream=True) as response:
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                try:
                    session.get(url, timeout={timeout})
                except Interrupt as error:
                    kept = weakref.ref(error)
                else:
                    raise AssertionError("there was a second connection")
                assert kept() is None, "it is kept by a cycle"
                pools = session.get_adapter(url).poolmanager.pools
                (idle,) = [pools.get(key).pool for key in pools.keys()]
                assert idle.qsize() == 0
                assert response.text == "ok", "the pool was full"
            assert session.get(url, timeout=20).text == "ok"
            assert idle.qsize() == 1
        """
    )


def test_a_signal_handler_that_waits_in_the_waiting_thread_gets_what_comes():
    run_python(
        """
        import signal, threading, time
        from pyresil.integrations._http.pools import BoundQueue

        idle, got = BoundQueue(1), []

        def wait(*args):
            began = time.monotonic()
            got.append(idle.get(timeout=60))
            assert time.monotonic() - began < 30, "it was not woken"
            idle.put(got[-1])

        signal.signal(signal.SIGALRM, wait)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        threading.Timer(0.6, idle.put, ["connection"]).start()
        assert idle.get() == "connection"
        assert got == ["connection"]
        """,
        timeout=100,
    )


def test_who_waited_to_the_end_looks_once_more(monkeypatch):
    idle = BoundQueue(1)

    def late(waiter, timeout):
        idle.put("connection")
        return False

    monkeypatch.setattr(pools._Waiter, "wait", late)
    assert idle.get(timeout=0.01) == "connection"


def test_a_connection_that_cannot_be_closed_costs_no_place():
    class Stuck:
        def close(self):
            raise OSError

    idle = BoundQueue(2)
    idle.put(Stuck())
    idle.put(Stuck())
    for _ in range(2):
        with pytest.raises(OSError):
            idle.close_idle()
        assert idle.qsize() == 2
    idle.close_idle()
    assert idle.queue == [None, None]


@pytest.mark.parametrize("cut", [False, True])
def test_who_is_woken_but_has_one_already_wakes_the_next_one(monkeypatch, cut):
    idle, got, others = BoundQueue(), [], []

    class Met(list):
        def pop(self, index):
            found = super().pop(index)
            if not others:
                others.append(waiting(idle, got))
                idle.put("second")  # which wakes us: we are still listed, and came first
                if cut:
                    raising_once(monkeypatch, BoundQueue, "_wake_one", threading.current_thread())
            return found

    idle.queue = Met(["first"])
    if cut:
        with interrupted_wait():
            idle.get()
    else:
        assert idle.get() == "first"
    others[0].join(20)
    assert len(got) == 1
    assert sorted([*got, *idle.queue]) == (["first", "second"] if cut else ["second"])


def test_it_is_a_queue_to_who_looks():
    idle = BoundQueue(1)
    assert isinstance(idle, queue.LifoQueue)
    with idle.mutex:  # which nothing waits for
        assert (idle.empty(), idle.full(), idle.qsize()) == (True, False, 0)
        idle.put_nowait("connection")
        assert (idle.empty(), idle.full(), idle.qsize()) == (False, True, 1)
        assert idle.get_nowait() == "connection"


def test_a_wait_without_a_call_ends_in_time_too():
    idle, got = BoundQueue(1), []
    with pytest.raises(queue.Empty):
        idle.get(timeout=0.01)
    thread = threading.Thread(target=lambda: got.append(idle.get()))
    thread.start()
    wait_until(lambda: idle._waiting, 10, "a waiter")
    idle.put("connection")
    thread.join()
    assert got == ["connection"]


def test_a_full_pool_says_so():
    idle = BoundQueue(1)
    idle.put("connection")
    with pytest.raises(queue.Full):
        idle.put("another", block=False)
    assert (idle.qsize(), idle.get(block=False)) == (1, "connection")
    with pytest.raises(queue.Empty):
        idle.get(block=False)


@pytest.mark.parametrize(("owner", "name"), [(BoundQueue, "_wake_one"), (Parker, "unpark")])
def test_who_is_interrupted_as_he_wakes_a_waiter_wakes_it_all_the_same(monkeypatch, owner, name):
    idle, got = BoundQueue(), []
    waiter = waiting(idle, got)
    raising_once(monkeypatch, owner, name, threading.current_thread())
    with pytest.raises(KeyboardInterrupt):
        idle.put("connection")
    waiter.join()
    assert got == ["connection"]


@pytest.mark.parametrize("cut", ["as it looks again", "as it gives up"])
def test_a_waiter_that_is_woken_and_leaves_wakes_the_next_one_whatever_is_cut(monkeypatch, cut):
    idle, got, others = BoundQueue(), [], []

    class Woken(Budget):
        def park(self, parker):
            others.append(waiting(idle, got))
            idle.put("connection")  # which wakes us, who came first
            if cut == "as it gives up":
                raising_once(monkeypatch, BoundQueue, "_wake_one", threading.current_thread())
                raise TimeoutError
            raising_once(monkeypatch, pools, "_Waiter", threading.current_thread())

    outer = active.get()
    active.set(Call(Woken(), None))
    try:
        with interrupted_wait():
            idle.get(timeout=None)
    finally:
        active.set(outer)
    for other in others:
        other.join()
    assert got == ["connection"]


def test_who_gives_up_costs_nobody_else_a_place_in_the_queue():
    idle, got = BoundQueue(), []
    waiters = [waiting(idle, got) for _ in range(3)]
    listed = list(idle._waiting)
    outer = active.get()
    active.set(Call(Budget((), 0.01), None))
    try:
        with pytest.raises(queue.Empty):
            idle.get(timeout=None)
    finally:
        active.set(outer)
    assert list(idle._waiting) == listed
    for _ in waiters:
        idle.put("connection")
    for waiter in waiters:
        waiter.join()
    assert got == ["connection"] * 3


def test_two_connections_wake_two_waiters_also_where_both_choose_the_same(monkeypatch):
    idle, got = BoundQueue(), []
    waiters = [waiting(idle, got), waiting(idle, got)]
    stock = Parker.unpark

    def unpark(parker):
        # Another thread puts one, too, between the choice and the waking.
        monkeypatch.setattr(Parker, "unpark", stock)
        idle.put("second")
        stock(parker)

    monkeypatch.setattr(Parker, "unpark", unpark)
    idle.put("first")
    for waiter in waiters:
        waiter.join()
    assert sorted(got) == ["first", "second"]


class Counted(Budget):
    """Counts how often it was looked at."""

    looks = 0

    def left(self):
        Counted.looks += 1
        return super().left()


def test_a_wait_for_another_thread_does_not_spin_where_sleeps_are_left_out():
    parker = Parker()
    threading.Timer(0.1, parker.unpark).start()
    with instant():
        Counted((), 5.0).park(parker)
    assert Counted.looks < 10


@pytest.mark.parametrize("block", [False, True])
def test_no_connection_crosses_a_fork(block):
    done = run_python(
        f"""
        import http.server, os, threading
        from pyresil.integrations.requests import ResilientSession

        class Port(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                body = str(self.client_address[1]).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Port)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{{server.server_port}}/"
        with ResilientSession(timeout=5, pool_maxsize=1, pool_block={block}) as session:
            session.trust_env = False
            first = session.get(url).text
            child = os.fork()
            if child == 0:
                ports = {{session.get(url).text for _ in range(3)}}
                os._exit(0 if len(ports) == 1 and ports != {{first}} else 1)
            _, status = os.waitpid(child, 0)
            assert status == 0, "the child used the connection of its parent"
            assert session.get(url).text == first, "the parent lost its connection"
        """
    )
    assert done.returncode == 0, done.stderr


def test_what_the_parent_uses_never_gets_into_the_pool_of_a_child(upstream):
    run_python(
        f"""
        import os
        from pyresil.integrations.requests import ResilientSession

        url = {upstream.url("http", "/ok")!r}
        with ResilientSession(timeout=5, pool_maxsize=1) as session:
            session.trust_env = False
            theirs = session.get(url, stream=True)
            child = os.fork()
            if child == 0:
                pools = session.get_adapter(url).poolmanager.pools
                (idle,) = [pools.get(key).pool for key in pools.keys()]
                with session.get(url, stream=True):  # which leaves a place in the queue
                    theirs.raw.release_conn()
                    os._exit(idle.qsize())
            assert os.waitpid(child, 0)[1] == 0, "the child has the connection"
            assert theirs.text == "ok"
        """
    )


def test_a_child_that_a_signal_handler_forks_out_of_a_wait_waits_for_nobody():
    run_python(
        """
        import os, signal, threading
        from pyresil.integrations._http.pools import BoundQueue

        idle = BoundQueue(1)
        parent = os.getpid()

        def fork(*args):
            if os.fork():
                idle.put("connection")
            else:
                signal.alarm(20)

        signal.signal(signal.SIGUSR1, fork)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        threading.Timer(0.2, os.kill, [parent, signal.SIGUSR1]).start()
        got = idle.get()
        if os.getpid() != parent:
            os._exit(0 if got is None else 1)
        assert got == "connection"
        assert os.wait()[1] == 0, "the child waited on"
        """,
    )


@pytest.mark.parametrize("made", ["session", "pickle.loads(pickle.dumps(session))"])
@pytest.mark.parametrize(
    "lock", ["used.cookies._cookies_lock", "used.get_adapter(url).poolmanager.pools.lock"]
)
def test_no_lock_that_another_thread_holds_crosses_a_fork(upstream, lock, made):
    done = run_python(
        f"""
        import os, pickle, signal, threading
        from pyresil.integrations.requests import ResilientSession

        url = {upstream.url("http", "/ok")!r}
        session = ResilientSession(timeout=5)
        session.trust_env = False
        used = {made}
        held, over = threading.Event(), threading.Event()

        def hold():
            with {lock}:
                held.set()
                over.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            os._exit(0 if used.get(url).text == "ok" else 1)
        status = os.waitpid(child, 0)[1]
        over.set()
        thread.join()
        assert status == 0, f"the child hung, or failed: {{status}}"
        assert used.get(url).text == "ok"
        """
    )
    assert done.returncode == 0, done.stderr


def test_the_child_of_a_fork_may_close_a_response_of_its_parent(upstream):
    done = run_python(
        f"""
        import os
        from pyresil.integrations.requests import ResilientSession

        with ResilientSession(timeout=5, pool_maxsize=1, pool_block=True) as session:
            session.trust_env = False
            with session.get({upstream.url("http", "/ok")!r}, stream=True) as response:
                child = os.fork()
                if child == 0:
                    response.close()
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
                assert response.text == "ok"
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_response_that_nobody_closes_is_closed_with_the_object(upstream, nothing_left):
    with ResilientSession() as session:
        session.trust_env = False
        for _ in range(3):
            session.get(upstream.url("http", "/big"), stream=True, timeout=20)


def test_closing_a_session_leaves_calls_of_other_threads_alone(upstream, nothing_left):
    session = ResilientSession()
    session.trust_env = False
    response = session.get(upstream.url("http", "/big"), stream=True, timeout=20)
    session.close()
    assert len(response.content) == 20 * 1048576
    assert session.get(upstream.url("http", "/ok"), timeout=5).text == "ok"
    session.close()


def test_who_is_interrupted_as_he_gives_a_connection_back_has_it_no_more(session, upstream, monkeypatch):
    url = upstream.url("http", "/ok")
    other = session.get(url, stream=True, timeout=5)
    adapter = session.get_adapter(url)
    wake_one = BoundQueue._wake_one

    def raising(queue):
        monkeypatch.setattr(BoundQueue, "_wake_one", wake_one)
        raise KeyboardInterrupt

    with session.get(url, stream=True, timeout=5) as response:
        monkeypatch.setattr(BoundQueue, "_wake_one", raising)
        with pytest.raises(KeyboardInterrupt):
            _ = response.content
    (key,) = adapter.poolmanager.pools.keys()
    idle = [
        connection for connection in adapter.poolmanager.pools.get(key).pool.queue if connection is not None
    ]
    assert len(idle) == 1
    assert idle[0].sock is not None, "it was closed under whoever may have had it by then"
    assert other.text == "ok"
