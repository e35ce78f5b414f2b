"""An interactive bash on a pseudo-terminal, typed at by a test."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

PROMPT = "READY>"


class Terminal:
    """bash with job control, as a person at a terminal has it.

    Args:
        env: Its environment.
        cwd: Its working folder.
        command: What to start in its place, as the leader of the terminal's session.
    """

    def __init__(self, env, cwd, command=None):
        words = command or ["bash", "--norc", "--noprofile", "--noediting", "-i"]
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execvpe(words[0], words, {**env, "PS1": PROMPT, "TERM": "dumb"})
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.seen = ""
        self.ended = None
        if command is None:
            self.expect(re.escape(PROMPT))

    def type(self, text):
        """Types it; \\x03 is Ctrl-C, \\x1a is Ctrl-Z."""
        os.write(self.fd, text.encode())

    def run(self, line):
        """Types a line and waits for the next prompt; what came in between, the echo not included."""
        self.type(line + "\n")
        self.expect(re.escape(line) + r"\r\n")
        return self.expect(re.escape(PROMPT))[0]

    def stop_job(self):
        """Ctrl-Z; what the shell said.

        Not at once: a shell that was stopped in the middle of a vfork() hangs until it is continued, under any parent.
        """
        time.sleep(0.3)
        self.type("\x1a")
        return self.expect(re.escape(PROMPT))[0]

    def expect(self, pattern, timeout=15.0):
        """Waits until the pattern was printed; what came before it, and the match."""
        end = time.monotonic() + timeout
        while True:
            match = re.search(pattern, self.seen)
            if match:
                before = self.seen[: match.start()]
                self.seen = self.seen[match.end() :]
                return before, match
            left = end - time.monotonic()
            ready = left > 0 and select.select([self.fd], [], [], left)[0]
            try:
                data = os.read(self.fd, 4096) if ready else b""
            except OSError:
                data = b""
            assert data, f"no {pattern!r} on the terminal, only {self.seen!r}"
            self.seen += data.decode("utf-8", "replace")

    def status(self):
        """Its exit status, once it ended."""
        if self.ended is None:
            self.ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.ended

    def close(self):
        if self.ended is None:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.fd)
        self.status()
