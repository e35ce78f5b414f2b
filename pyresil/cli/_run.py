"""`pyresil-lock run`: a command under a lease, once."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from pyresil.cli import _report
from pyresil.cli._glance import reporter, say_busy
from pyresil.cli._report import DETAIL, ERROR
from pyresil.cli._signals import FORWARDED
from pyresil.cli._store import meaning, store_url
from pyresil.cli._supervisor import Supervisor
from pyresil.clock import SYSTEM

if TYPE_CHECKING:
    from pyresil.cli._options import Settings


def run(settings: Settings) -> int:
    """Run the command if the key is free.

    Returns:
        The exit status, as the manual's table says.
    """
    supervisor = opened(settings)
    if supervisor is None:
        return _report.NOT_EXECUTABLE
    try:
        status = _acquire(supervisor)
        return _hold(supervisor) if status is None else status
    finally:
        supervisor.close()


def opened(settings: Settings) -> Supervisor | None:
    """A supervisor with its guard; None where the system refuses another process, which was said."""
    url = store_url(settings.store, os.environ)
    report = reporter(settings, url)
    try:
        supervisor = Supervisor(settings, url, report)
        supervisor.open()
    except OSError as error:
        report.say(ERROR, "not-started", f"no process can be started: {error}; the command did not run")
        return None
    return supervisor


def _acquire(supervisor: Supervisor) -> int | None:
    """Wait for the lease; the exit status where there will be none."""
    settings, claim = supervisor.settings, supervisor.claim
    begin: float | None = SYSTEM.boottime()
    if settings.jitter and begin is not None:
        begin += settings.jitter * SYSTEM.random()
    while True:
        now = SYSTEM.boottime()
        if begin is not None and now >= begin:
            begin = None
            claim.ask(now, settings.wait)
        for number in supervisor.wait(begin):
            if number in FORWARDED:
                supervisor.abandon()
                text = f"signal {number} came before the lock was acquired; the command did not run"
                supervisor.report.say(DETAIL, "interrupted", text)
                return 128 + number
            if number == signal.SIGTSTP:
                supervisor.stop_idle(waiting=True)
        if claim.state == "held":
            text = f"acquired {claim.key!r} with token {claim.token}"
            supervisor.report.say(DETAIL, "acquired", text, key=claim.key, token=claim.token)
            return None
        if claim.state == "busy":
            holder = claim.holder
            say_busy(
                supervisor.report, claim.key, None if holder is None else (holder.remaining_ms, holder.meta)
            )
            return settings.busy_exit
        if claim.state in ("failed", "done"):
            status, text = meaning(claim.error)
            supervisor.report.say(ERROR, "store", f"{text}; the command did not run")
            return status


def _hold(supervisor: Supervisor) -> int:
    """Run the command while the lease lasts, and give it back."""
    settings, claim = supervisor.settings, supervisor.claim
    supervisor.start()
    limit = None if settings.timeout is None else SYSTEM.boottime() + settings.timeout
    ending: int | None = None
    while supervisor.busy:
        running = supervisor.status is None
        if running and ending is None:
            if claim.state == "lost":
                ending = settings.lost_exit
                supervisor.chain.end()  # before it is said: whoever reads that may be slow
                supervisor.tell_loss()
            elif limit is not None and SYSTEM.boottime() >= limit:
                ending = _report.TIMED_OUT
                text = f"the command ran for {settings.timeout:g} s (--timeout) and is ended"
                supervisor.chain.end()
                supervisor.report.say(ERROR, "timeout", text, key=claim.key)
        for number in supervisor.wait(limit if running and ending is None else None):
            supervisor.pass_on(number)
    if ending is None and supervisor.uncovered:
        ending = settings.lost_exit
        supervisor.tell_loss()
    status = supervisor.status if supervisor.status is not None else _report.NOT_EXECUTABLE
    supervisor.give_back()
    return status if ending is None else ending
