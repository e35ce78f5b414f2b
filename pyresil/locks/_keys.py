"""Which keys of one `Locks` are what: a job's run, a job's owner, an election. One key is never two of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyresil.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pyresil.locks.election import Election
    from pyresil.locks.jobs import Ownership

#: What follows a job's key in that of the lease of its owner.
OWNER = ":owner"


class KeyBook:
    """The keys in use by jobs and elections of one `Locks` object."""

    def __init__(self) -> None:
        self._runs: dict[str, int] = {}
        self._defaults: dict[str, str] = {}
        self.owners: dict[str, Ownership] = {}
        self.elections: dict[str, Election] = {}

    def claim_job(self, key: str, subject: str, *, default: bool) -> None:
        """A job runs under ``key``; jobs may share a key that somebody gave them.

        Raises:
            ConfigurationError: The key is another job's default, the lease of a job's owner, or an election's.
        """
        fault = None
        if default and key in self._defaults:
            fault = f"{self._defaults[key]} has the same default key {key!r}: give one of them key="
        elif key in self.owners:
            fault = f"key {key!r} is the lease of another job's owner"
        elif key in self.elections:
            fault = f"key {key!r} is an election's"
        if fault is not None:
            raise ConfigurationError(f"{subject}: {fault}")
        self._runs[key] = self._runs.get(key, 0) + 1
        if default:
            self._defaults[key] = subject

    def release_job(self, key: str) -> None:
        """A job got another key."""
        left = self._runs.get(key, 0) - 1
        if left > 0:
            self._runs[key] = left
        else:
            self._runs.pop(key, None)
        self._defaults.pop(key, None)

    def claim_owner(self, job_key: str, subject: str, make: Callable[[str], Ownership]) -> Any:
        """The ownership of a job's key; shared by the jobs that share the key.

        Raises:
            ConfigurationError: Its key is a job's own, or an election's; or it is shared, and has other options.
        """
        key = job_key + OWNER
        if key in self._runs:
            raise ConfigurationError(f"{subject}: the lease of its owner, {key!r}, is the key of another job")
        if key in self.elections:
            raise ConfigurationError(f"{subject}: the lease of its owner, {key!r}, is an election's key")
        fresh = make(key)
        found = self.owners.setdefault(key, fresh)
        if found.options != fresh.options:
            (ttl, hold), (got_ttl, got_hold) = found.options, fresh.options
            raise ConfigurationError(
                f"{subject}: it shares its owner with another job of the key {job_key!r}, so ttl and min_hold must be"
                f" {ttl:g} s and {hold:g} s, got {got_ttl:g} s and {got_hold:g} s"
            )
        return found

    def discard_owner(self, owner: Ownership | None) -> None:
        """The job that it was made for got another key, before it ever ran."""
        if owner is not None:
            self.owners.pop(owner.key, None)

    def claim_election(self, key: str, election: Election) -> None:
        """An election runs on ``key``.

        Raises:
            ConfigurationError: The key is another election's, a job's, or the lease of a job's owner.
        """
        fault = None
        if key in self.elections:
            fault = "another election of the same Locks runs on this key; stop it first"
        elif key in self.owners:
            fault = "the key is the lease of a job's owner"
        elif key in self._runs:
            fault = "the key is a job's"
        if fault is not None:
            raise ConfigurationError(f"election {key!r}: {fault}")
        self.elections[key] = election

    def release_election(self, key: str, election: Election) -> None:
        """It is over."""
        if self.elections.get(key) is election:
            del self.elections[key]
