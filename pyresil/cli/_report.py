"""What the command says, made for the mail that cron sends: one line each on standard error, nothing on success."""

from __future__ import annotations

import os

from pyresil.clock import SYSTEM

TYPE_CHECKING = False  # importing it from typing would cost a start 2.5 ms

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Said always; unless --quiet; only with --verbose.
ERROR, NOTE, DETAIL = "error", "note", "detail"

# Exit statuses. Those from 64 on are the system's (sysexits.h): unavailable, temporary failure, and the one behind it.
USAGE = 2
UNAVAILABLE = 69
BUSY = 75
LOST = 76
TIMED_OUT = 124
NOT_EXECUTABLE = 126
NOT_FOUND = 127


def clean(text: object) -> str:
    """Text in one line that does nothing to a terminal: whatever is not printable is escaped."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in plain
    )


def write(fd: int, text: str) -> bool:
    """Write all of ``text``; False when nobody reads it any more."""
    data = text.encode("utf-8", "backslashreplace")
    while data:
        try:
            data = data[os.write(fd, data) :]
        except OSError:
            return False
    return True


def secrets_of(url: str) -> list[str]:
    """The passwords in a URL, as written and decoded."""
    found = []
    authority = url.partition("//")[2]
    for part in (authority.partition("/")[0], authority):
        user, at, _ = part.rpartition("@")
        password = user.partition(":")[2] if at else ""
        if password:
            from urllib.parse import unquote

            found += [password, unquote(password)]
    if "password=" in url:
        found.append(url.partition("password=")[2].partition("&")[0])
    return sorted({secret for secret in found if secret}, key=len, reverse=True)


class Reporter:
    """Writes messages to standard error.

    Args:
        quiet: Only errors.
        verbose: Details, too.
        json: One JSON object a line instead of text.
        secrets: Strings that never appear.
    """

    def __init__(
        self, *, quiet: bool = False, verbose: bool = False, json: bool = False, secrets: Iterable[str] = ()
    ) -> None:
        self._levels = {ERROR} if quiet else {ERROR, NOTE, DETAIL} if verbose else {ERROR, NOTE}
        self._json = json
        self._secrets = list(secrets)

    def say(self, level: str, event: str, text: str, **fields: object) -> None:
        """One message.

        Args:
            level: ERROR, NOTE or DETAIL.
            event: A stable word for JSON readers.
            text: What happened and, where it helps, what to do.
            **fields: More for JSON readers.
        """
        if level not in self._levels:
            return
        line = clean(text)
        for secret in self._secrets:
            line = line.replace(secret, "***")
        if self._json:
            from json import dumps

            record = {
                "time": round(SYSTEM.wall(), 3),
                "level": level,
                "event": event,
                "message": line,
                **fields,
            }
            write(2, dumps(record, ensure_ascii=True) + "\n")
        else:
            write(2, f"pyresil-lock: {line}\n")
