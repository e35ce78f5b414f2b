from __future__ import annotations

import gc
import logging
import threading
import time
import weakref

import pytest

from pyresil import _dispatch
from pyresil._dispatch import Dispatcher
from tests.support.processes import run_python, wait_until


@pytest.fixture
def dispatcher():
    return Dispatcher()


def test_the_thread_starts_with_the_first_post(dispatcher):
    assert dispatcher.flush(0.0) is True
    assert dispatcher._thread is None
    dispatcher.post(lambda: None)
    assert dispatcher._thread.daemon
    assert dispatcher.flush(5)


def test_jobs_run_in_the_order_of_posting_on_one_thread(dispatcher):
    seen = []
    for number in range(1000):
        dispatcher.post(lambda number=number: seen.append((number, threading.current_thread())))
    assert dispatcher.flush(5)
    assert [number for number, _ in seen] == list(range(1000))
    assert {thread for _, thread in seen} == {dispatcher._thread}


def test_eight_threads_start_one_thread_and_keep_their_own_order(dispatcher):
    seen = []
    barrier = threading.Barrier(8)

    def post(who):
        barrier.wait()
        for number in range(200):
            dispatcher.post(lambda number=number: seen.append((who, number)))

    before = sum(thread.name == "pyresil-dispatch" for thread in threading.enumerate())
    threads = [threading.Thread(target=post, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dispatcher.flush(5)
    assert sum(thread.name == "pyresil-dispatch" for thread in threading.enumerate()) == before + 1
    for who in range(8):
        assert [number for other, number in seen if other == who] == list(range(200))


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_job_that_raises_is_logged_with_its_traceback_and_the_next_one_runs(dispatcher, caplog, error):
    def bad():
        raise error("boom")

    seen = []
    dispatcher.post(bad)
    dispatcher.post(lambda: seen.append(1))
    assert dispatcher.flush(5)
    assert seen == [1]
    assert "a callback raised" in caplog.text
    assert "boom" in caplog.text


@pytest.mark.parametrize("error", [LookupError, SystemExit])
def test_a_log_filter_that_raises_does_not_end_dispatching(dispatcher, monkeypatch, capfd, error):
    def refuse(record):
        raise error("of a filter")

    monkeypatch.setattr(logging.getLogger("pyresil"), "filters", [refuse])
    seen = []
    dispatcher.post(lambda: 1 / 0)
    dispatcher.post(lambda: seen.append(1))
    assert dispatcher.flush(5)
    assert seen == [1]
    told = capfd.readouterr().err
    assert "ZeroDivisionError" in told
    assert f"{error.__name__}: of a filter" in told


def test_flush_gives_up_and_does_not_hang_on_its_own_thread(dispatcher):
    go_on = threading.Event()
    dispatcher.post(lambda: go_on.wait(10))
    assert dispatcher.flush(0.05) is False
    answers = []
    dispatcher.post(lambda: answers.append(dispatcher.flush(5)))
    go_on.set()
    assert dispatcher.flush(5) is True
    assert answers == [False]


def test_a_job_is_let_go_when_it_has_run(dispatcher):
    class Thing:
        def act(self):
            pass

    thing = Thing()
    gone = weakref.ref(thing)
    dispatcher.post(thing.act)
    del thing
    assert dispatcher.flush(5)
    wait_until(lambda: gc.collect() is not None and gone() is None)


def test_a_job_may_post(dispatcher):
    seen = []
    done = threading.Event()
    dispatcher.post(lambda: (seen.append(1), dispatcher.post(lambda: (seen.append(2), done.set()))))
    assert done.wait(5)
    assert seen == [1, 2]


def test_without_threads_a_job_waits_for_the_next_post(dispatcher, monkeypatch, caplog):
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(
            threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no thread"))
        )
        dispatcher.post(lambda: seen.append(1))
    assert seen == []
    assert "cannot be started" in caplog.text
    dispatcher.post(lambda: seen.append(2))
    assert dispatcher.flush(5)
    assert seen == [1, 2]


def test_a_handler_that_raises_in_the_start_does_not_end_dispatching(dispatcher, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dispatcher.post(lambda: None)
    seen = []
    dispatcher.post(lambda: seen.append(1))
    assert dispatcher.flush(5)
    assert seen == [1]


def test_one_for_the_process():
    seen = []
    _dispatch.post(lambda: seen.append(1))
    first = _dispatch.dispatcher()
    assert first.flush(5)
    assert seen == [1]
    assert _dispatch.dispatcher() is first


def test_a_forked_child_has_its_own():
    run_python(
        """
        import os, threading, time
        from pyresil import _dispatch
        seen = []
        go = threading.Event()
        _dispatch.post(lambda: go.wait(30))
        _dispatch.post(lambda: seen.append(os.getpid()))    # waits behind it: runs in the parent alone
        pid = os.fork()
        if pid == 0:
            _dispatch.post(lambda: seen.append("child"))
            ok = _dispatch.dispatcher().flush(5) and seen == ["child"]
            time.sleep(0.5)
            os._exit(0 if ok and seen == ["child"] else 1)
        assert os.waitpid(pid, 0)[1] == 0
        go.set()
        assert _dispatch.dispatcher().flush(5) and seen == [os.getpid()]
        """,
        flags=("-W", "ignore::DeprecationWarning"),
    )


def test_the_end_of_the_process_is_not_held_up():
    begun = time.monotonic()
    run_python(
        "import time; from pyresil import _dispatch; _dispatch.post(lambda: time.sleep(60))", timeout=40
    )
    assert time.monotonic() - begun < 30
