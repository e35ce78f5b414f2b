"""How a Redis server is set up, as far as leases depend on it: eviction, persistence, replication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    Finding = tuple[str, str, str]


def diagnose(ask: Callable[[tuple[str, ...]], Any]) -> list[tuple[str, str, str]]:
    """What there is to say about the server that ``ask`` sends commands to.

    Returns:
        Triples of ``"ok"`` or ``"warning"``, what was looked at, and a sentence.
    """
    try:
        facts = _facts(ask(("INFO",)))
    except StoreError as error:
        return [("warning", "server", f"INFO is refused, so nothing is known of its set-up: {error}")]
    version = facts.get("valkey_version") or facts.get("redis_version", "?")
    name = "Valkey" if "valkey_version" in facts else "Redis"
    found = [("ok", "server", f"{name} {version}, role {facts.get('role', '?')}"), _eviction(facts, ask)]
    found.append(_persistence(facts))
    if facts.get("role") == "master" and facts.get("connected_slaves", "0") != "0":
        text = "replication is asynchronous: a failover can lose a lease that was just granted (its token still grows)"
        found.append(("ok", "replicas", f"{facts['connected_slaves']}; {text}"))
    return found


def _facts(reply: object) -> dict[str, str]:
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _eviction(facts: dict[str, str], ask: Callable[[tuple[str, ...]], Any]) -> Finding:
    policy = facts.get("maxmemory_policy")
    if policy is None:
        try:
            reply = ask(("CONFIG", "GET", "maxmemory-policy"))
            policy = reply[1].decode()
        except (StoreError, TypeError, LookupError, AttributeError):
            return ("warning", "eviction", "maxmemory-policy cannot be read: it must be noeviction")
    if policy == "noeviction":
        return ("ok", "eviction", "maxmemory-policy noeviction")
    text = f"maxmemory-policy {policy} evicts leases and counters when memory is short: set noeviction"
    return ("warning", "eviction", text)


def _persistence(facts: dict[str, str]) -> Finding:
    if facts.get("aof_enabled") == "1":
        return ("ok", "persistence", "append-only file")
    if facts.get("rdb_last_save_time", "0") != "0" and facts.get("rdb_saves", "0") != "0":
        text = "snapshots only: a restart forgets the leases since the last one: set appendonly yes"
    else:
        text = "no append-only file: a restart may forget every lease, and two may run: set appendonly yes"
    return ("warning", "persistence", text)
