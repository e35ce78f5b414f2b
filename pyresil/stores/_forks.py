"""How often this process is a fork's child: what is opened in one generation is not used in the next.

Cheaper than asking the kernel for the process id on every call.
"""

from __future__ import annotations

import os

#: Read it as ``_forks.generation``; it grows in every forked child.
generation = 0


def _next_generation() -> None:
    global generation
    generation += 1


os.register_at_fork(after_in_child=_next_generation)
