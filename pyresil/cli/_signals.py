"""Signals of the wrapper: turned into numbers on a pipe, so that one poll waits for everything."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

#: Told to the command. All but the last two mean that it should end, and go to its whole process group.
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
#: Those of them that ask for an end.
ENDING = frozenset(FORWARDED[:4])
#: Stops that a terminal sends.
TERMINAL_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)

#: What the wrapper's main thread takes.
CAUGHT = (*FORWARDED, signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD)
#: What a command may inherit as ignored from whoever started us: `nohup`, or a shell that runs it in the background.
_INHERITABLE = (*FORWARDED, *TERMINAL_STOPS)
#: What Python itself, or this command, sets to "ignored" and the command must not inherit.
_RESET = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGCONT)


def _noted(number: int, frame: FrameType | None) -> None:
    """Nothing: the number is on the wake-up pipe by now."""


class Signals:
    """Takes over the signals of this process for the rest of its life.

    A signal that was ignored when we were started stays ignored, here and in the command; but for SIGCHLD, without which
    no exit status is ever known. A signal mask that was inherited is emptied.
    """

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        for fd in (self.reader, self._writer):
            os.set_blocking(fd, False)
        self.ignored = frozenset(
            number for number in _INHERITABLE if signal.getsignal(number) == signal.SIG_IGN
        )
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in CAUGHT:
            if number not in self.ignored:
                signal.signal(number, _noted)
        self._continued = 0
        signal.signal(signal.SIGCONT, self._note_continued)
        # Giving a terminal to the command is done from the background.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def take(self) -> list[int]:
        """The numbers of the signals that came since the last call, in their order."""
        try:
            return list(os.read(self.reader, 4096))
        except BlockingIOError:
            return []

    def put_back(self, numbers: list[int]) -> None:
        """Have `take` return these once more."""
        os.write(self._writer, bytes(numbers))

    def watch_in_child(self, wake: int) -> None:
        """In the forked guard: only ``wake`` and ended children are noted, everything else is ignored."""
        signal.set_wakeup_fd(-1)
        os.close(self.reader)
        os.close(self._writer)
        self.reader, self._writer = os.pipe()
        for fd in (self.reader, self._writer):
            os.set_blocking(fd, False)
        for ignored in {*CAUGHT, *_INHERITABLE, signal.SIGPIPE} - {wake, signal.SIGCHLD}:
            signal.signal(ignored, signal.SIG_IGN)
        signal.signal(wake, _noted)
        signal.signal(signal.SIGCHLD, _noted)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def restore_for_command(self) -> None:
        """In the forked command, before it is executed: every signal as whoever started us meant it."""
        signal.set_wakeup_fd(-1)
        for number in {*_INHERITABLE, *_RESET}:
            signal.signal(number, signal.SIG_IGN if number in self.ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def stop_self(self, *, alone: bool = False) -> bool:
        """Stop the whole job as Ctrl-Z would; returns when it is continued.

        Args:
            alone: Only this process, as the others of the job got the signal themselves.

        Returns:
            False where it was not stopped, because nobody is there who could continue it.
        """
        if signal.SIGTSTP in self.ignored:
            return False
        before = signal.getsignal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        earlier = self._continued
        if alone:
            os.kill(os.getpid(), signal.SIGTSTP)
        else:
            os.killpg(os.getpgrp(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, before)
        return self._continued != earlier

    def _note_continued(self, number: int, frame: FrameType | None) -> None:
        self._continued += 1
