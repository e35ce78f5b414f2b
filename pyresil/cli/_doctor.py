"""`pyresil-lock doctor`: does the store work, is it set up for leases, and what can this system do?"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, NamedTuple

from pyresil.cli import _kernel, _report, _text
from pyresil.cli._claim import who
from pyresil.cli._options import read_options
from pyresil.cli._report import clean
from pyresil.cli._store import meaning, open_store, store_url
from pyresil.clock import SYSTEM
from pyresil.errors import StoreError
from pyresil.stores._default import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from pyresil.stores.base import LockStore

_TTL_MS = 5_000
#: A round trip that takes longer leaves little of a short ttl.
_SLOW = 0.1


class Finding(NamedTuple):
    """One thing that was looked at; ``level`` is ok, warning or error."""

    level: str
    subject: str
    text: str


def doctor(words: list[str]) -> int:
    """Look at everything, print it, and say whether leases work."""
    found = read_options(_text.DOCTOR, words)
    option = found.get("store")
    url = store_url(option, os.environ)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    findings = [_source(option, url)]
    store: LockStore | None = None
    try:
        store = open_store(url)
        _leases(store, findings)
        findings += [Finding(*finding) for finding in store.diagnose()]
    except Exception as error:  # whatever the store or its client raises is a finding
        findings.append(Finding("error", "store", meaning(error)[1]))
        table_sql = getattr(store, "table_sql", None)
        if table_sql is not None:
            findings.append(Finding("ok", "table", f"made once with: {' '.join(table_sql().split())}"))
    findings += _system()
    _print(findings, _report.secrets_of(url), as_json=found.get("format") == "json")
    return _report.UNAVAILABLE if any(finding.level == "error" for finding in findings) else 0


def _leave(number: int, _frame: object) -> NoReturn:
    os._exit(128 + number)


def _source(option: object, url: str) -> Finding:
    if option is not None:
        return Finding("ok", "store", f"{url} (--store)")
    if os.environ.get(VARIABLE):
        return Finding("ok", "store", f"{url} ({VARIABLE})")
    return Finding("ok", "store", f"{url} (the default of user {os.geteuid()}; other users have another)")


def _leases(store: LockStore, findings: list[Finding]) -> None:
    """A lease's whole life, on a key of our own."""
    key = f"pyresil-doctor-{os.urandom(8).hex()}"
    owner, other = os.urandom(16).hex(), os.urandom(16).hex()
    timings: list[float] = []

    def timed(call: Callable[[], object]) -> object:
        began = SYSTEM.monotonic()
        result = call()
        timings.append(SYSTEM.monotonic() - began)
        return result

    store.inspect(key)  # connects, which is not measured
    granted = timed(lambda: store.acquire(key, owner, _TTL_MS, who()))
    token = getattr(granted, "token", 0)
    refused = timed(lambda: store.acquire(key, other, _TTL_MS, who()))
    renewed = timed(lambda: store.renew(key, owner, _TTL_MS))
    info = timed(lambda: store.inspect(key))
    released = timed(lambda: store.release(key, owner))
    again = store.acquire(key, other, _TTL_MS, who())
    store.release(key, other)
    right = {
        "a second owner was let in": hasattr(refused, "remaining_ms"),
        "the owner could not renew": renewed is True,
        "the lease cannot be seen": info is not None,
        "the owner could not release": released is True,
        "the token did not grow": getattr(again, "token", 0) > token > 0,
    }
    wrong = [what for what, fine in right.items() if not fine]
    if wrong:
        raise StoreError(f"the store does not keep leases: {', '.join(wrong)}")
    findings.append(Finding("ok", "lease", f"acquired (token {token}), refused to others, renewed, released"))
    slowest = max(timings)
    level = "warning" if slowest > _SLOW else "ok"
    middle = sorted(timings)[len(timings) // 2]
    findings.append(
        Finding(
            level,
            "round trip",
            f"{middle * 1000:.1f} ms, the slowest of {len(timings)} {slowest * 1000:.1f} ms",
        )
    )


def _system() -> list[Finding]:
    _kernel.load()
    complete = _kernel.become_subreaper() and _kernel.descendants(os.getpid()) is not None
    text = (
        "every process of a command is found and ended (subreaper, /proc)"
        if complete
        else "no subreaper or no /proc: processes that leave the command's process group are not ended"
    )
    return [Finding("ok" if complete else "warning", "processes", text)]


def _print(findings: list[Finding], secrets: list[str], *, as_json: bool) -> None:
    safe = []
    for finding in findings:
        text = clean(finding.text)
        for secret in secrets:
            text = text.replace(secret, "***")
        safe.append(finding._replace(text=text))
    if as_json:
        from json import dumps

        _report.write(1, dumps([finding._asdict() for finding in safe]) + "\n")
        return
    for finding in safe:
        _report.write(1, f"{finding.level:<8} {finding.subject + ':':<12} {finding.text}\n")
