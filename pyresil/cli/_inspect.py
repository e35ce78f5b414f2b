"""`pyresil-lock status`, `list` and `release`: looking at leases from outside."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from pyresil.cli import _report, _text
from pyresil.cli._options import UsageError, check_key, read_options
from pyresil.cli._report import clean
from pyresil.cli._store import meaning, open_store, store_url
from pyresil.clock import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from pyresil.stores.base import LockInfo, LockStore

#: Between two looks of `list --watch`, in seconds.
_INTERVAL = 2.0


def status(words: list[str]) -> int:
    """Who holds a key."""
    found = read_options(_text.STATUS, words)
    key = check_key(_text.STATUS, found["positional"] or "", "KEY")

    def work(store: LockStore) -> str:
        info = store.inspect(key)
        if found.get("format") == "json":
            return _json(_record(info) if info else {"key": key, "held": False})
        return f"{clean(key)}: {_sentence(info)}"

    return _with_store(found.get("store"), lambda store: _print(work(store)))


def listing(words: list[str]) -> int:
    """All held keys, once or again and again."""
    found = read_options(_text.LIST, words)
    prefix = found["positional"] or ""
    if prefix:
        check_key(_text.LIST, prefix, "PREFIX")
    as_json = found.get("format") == "json"

    def once(store: LockStore) -> str:
        infos = store.scan(prefix)
        return _json([_record(info) for info in infos]) if as_json else _table(infos)

    def watch(store: LockStore) -> int:
        clear = "\x1b[H\x1b[2J" if os.isatty(1) and not as_json else ""
        while _report.write(1, f"{clear}{once(store)}\n"):
            SYSTEM.sleep(_INTERVAL)
        return 0

    return _with_store(found.get("store"), watch if "watch" in found else lambda store: _print(once(store)))


def release(words: list[str]) -> int:
    """Free a key by force."""
    found = read_options(_text.RELEASE, words)
    key = check_key(_text.RELEASE, found["positional"] or "", "KEY")
    if "force" not in found:
        raise UsageError(
            f"{key!r} may belong to a command that still runs: add --force if you know that it does not"
        )

    def work(store: LockStore) -> int:
        was_held = store.force_release(key)
        return _print(f"{clean(key)}: {'released' if was_held else 'was free'}")

    return _with_store(found.get("store"), work)


def _print(text: str) -> int:
    return 0 if _report.write(1, text + "\n") else 1


def _with_store(option: str | None, work: Callable[[LockStore], int]) -> int:
    """What ``work`` returns; an error of the store is one line and its status."""
    url = store_url(option, os.environ)
    # The usual end of --watch; and a store that hangs must not hold anybody.
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _leave)
    try:
        return work(open_store(url))
    except Exception as error:  # whatever the store or its client raises is reported the same way
        code, text = meaning(error)
        _report.Reporter(secrets=_report.secrets_of(url)).say(_report.ERROR, "store", text)
        return code


def _leave(number: int, _frame: object) -> NoReturn:
    os._exit(128 + number)


def _record(info: LockInfo) -> dict[str, object]:
    return {
        "key": info.key,
        "held": bool(info.owner),
        "token": info.token,
        "owner": info.owner,
        "remaining": info.remaining_ms / 1000.0,
        "meta": info.meta,
    }


def _json(value: object) -> str:
    from json import dumps

    return dumps(value, ensure_ascii=True)


def _sentence(info: LockInfo | None) -> str:
    if info is None:
        return "free"
    left = f"{info.remaining_ms / 1000.0:.1f} s"
    if not info.owner:
        return f"released, and closed for {left} more (minimum hold)"
    return f"held by {clean(info.meta) or 'somebody'}, token {info.token}, for {left} more unless renewed"


def _table(infos: list[LockInfo]) -> str:
    rows = [("KEY", "TOKEN", "LEFT", "HOLDER")]
    for info in infos:
        holder = clean(info.meta) if info.owner else "(minimum hold)"
        rows.append((clean(info.key), str(info.token), f"{info.remaining_ms / 1000.0:.1f}s", holder))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        for row in rows
    )
