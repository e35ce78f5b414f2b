"""Job control: whose turn the terminal is."""

from __future__ import annotations

import os


class Terminal:
    """The controlling terminal, or nothing where there is none (cron, systemd, a pipe over ssh)."""

    def __init__(self) -> None:
        self._fd: int | None = None
        try:
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            pass
        #: Whether the command was given the foreground.
        self.given = False

    @property
    def present(self) -> bool:
        """Whether there is a terminal at all."""
        return self._fd is not None

    def ours(self) -> bool:
        """Whether our job is in the foreground."""
        return self._group() == os.getpgrp()

    def whole(self) -> bool:
        """Whether our job is in the foreground, and both reads from and writes to a terminal.

        In a pipeline the neighbours may need the terminal as much as the command: it gets it when it asks.
        """
        return self.ours() and os.isatty(0) and os.isatty(1)

    def give(self, group: int) -> None:
        """Put the command's process group into the foreground."""
        self.given = self._set(group)

    def take_back(self, group: int) -> None:
        """Put our own job into the foreground again, unless somebody else took it from the command."""
        if self.given and self._group() == group:
            self._set(os.getpgrp())
        self.given = False

    def _group(self) -> int | None:
        if self._fd is None:
            return None
        try:
            return os.tcgetpgrp(self._fd)
        except OSError:
            return None  # it hung up

    def _set(self, group: int) -> bool:
        if self._fd is None:
            return False
        try:
            os.tcsetpgrp(self._fd, group)
        except OSError:
            return False
        return True
