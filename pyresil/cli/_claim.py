"""One lease on one key, as seen from the command's main loop: asked for, waited for, kept, lost, given back.

Nothing here blocks: the store is asked through the `Worker`, and `now` (seconds since boot, which count suspend) is an
argument. The deadline is counted from before the request was sent, and moves only when the store confirmed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyresil.clock import SYSTEM
from pyresil.errors import StoreUnavailableError

if TYPE_CHECKING:
    from pyresil.cli._worker import Answer, Worker
    from pyresil.stores.base import Held

#: Seconds after which a store that does not even keep its own time limit counts as unreachable.
_ASK_LIMIT = 10.0
#: Waiting looks again after 50 ms, doubling to 1 s.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: A store that can wait for a release is asked to for so long at a time.
_WATCH = 5.0


def who() -> str:
    """What this process says of itself to those that find the key held: host and process id, in ASCII."""
    host = os.uname().nodename.encode("ascii", "replace").decode()
    return f"host={host} pid={os.getpid()}"


class Claim:
    """The life of one lease.

    ``state`` goes from ``"new"`` over ``"asking"`` and ``"pausing"`` to ``"held"``, ``"busy"`` or ``"failed"``; a held one
    becomes ``"lost"``; ``"releasing"`` ends in ``"done"``, or in ``"failed"`` where a grant came too late to be used.

    Args:
        worker: Talks to the store.
        key: The key.
        ttl: Seconds.
        min_hold: Seconds for which the key stays closed after the acquisition, also when it was released.
        max_hold: Seconds after which the lease is given up although the command still runs, or None.
    """

    def __init__(
        self, worker: Worker, key: str, ttl: float, min_hold: float = 0.0, max_hold: float | None = None
    ) -> None:
        self._worker = worker
        self.key = key
        self.ttl = ttl
        self._ttl_ms = max(1, int(ttl * 1000))
        self._min_hold_ms = int(min_hold * 1000)
        self._max_hold = max_hold
        self.owner = os.urandom(16).hex()
        self.state = "new"
        self.token = 0
        self.deadline = 0.0
        #: Why it was lost: refused, deadline or max-hold.
        self.detected_by = ""
        self.holder: Held | None = None
        self.error: Exception | None = None
        self._give_up_at = 0.0
        self._patient = False
        self._asked_at = 0.0
        self._pause = _FIRST_PAUSE
        self._delay = _FIRST_PAUSE
        self._next = 0.0
        self._renewing = False
        self._drop_at: float | None = None

    def ask(self, now: float, wait: float, *, patient: bool = False) -> None:
        """Begin to acquire, and go on trying for ``wait`` seconds while the key is held.

        Args:
            now: The time.
            wait: Seconds; infinity for ever.
            patient: Go on, too, while the store is out of reach from the start.
        """
        self._give_up_at = now + wait
        self._patient = patient
        self._try(now)

    def _try(self, now: float) -> None:
        self.state = "asking"
        self._asked_at = now
        key, owner, ttl_ms, meta = self.key, self.owner, self._ttl_ms, who()
        self._worker.give("acquire", lambda store: store.acquire(key, owner, ttl_ms, meta))

    def answered(self, answer: Answer, now: float) -> None:
        """Take in what came of a job."""
        if answer.job == "acquire":
            if self.state == "asking":
                self._acquired(answer, now)
            elif self.state == "failed" and _token(answer):
                self._refuse(now)
        elif answer.job == "watch":
            if self.state == "pausing":
                # False comes at once from a store that cannot wait: then the pause stands.
                again = answer.value is True
                self._next = now if again else max(now, answer.sent + self._delay)
        elif answer.job == "renew":
            self._renewing = False
            if self.state == "held":
                self._renewed(answer, now)
        elif answer.job == "release" and self.state == "releasing":
            if self.token:
                self.error = answer.error
                self.state = "done"
            elif self._may_wait(now):
                self._wait(now)
            else:
                self.state = "failed"

    def _acquired(self, answer: Answer, now: float) -> None:
        if answer.error is not None:
            self.error = answer.error
            if isinstance(answer.error, StoreUnavailableError) and self._may_wait(now):
                self._wait(now)
            else:
                self.state = "failed"
            return
        self.error = None
        token = _token(answer)
        if token:
            self.token = token
            self.deadline = answer.sent + self.ttl
            self._next = answer.sent + self.ttl / 3.0
            if self._max_hold is not None:
                self._drop_at = answer.sent + self._max_hold
            self.state = "held"
            if now >= self.deadline:
                self.error = StoreUnavailableError(
                    f"the grant took longer than the lease lasts ({self.ttl:g} s)"
                )
                self._refuse(now)
            return
        self.holder = answer.value  # type: ignore[assignment]  # the other answer of acquire
        if now < self._give_up_at:
            self._wait(now)
        else:
            self.state = "busy"

    def _may_wait(self, now: float) -> bool:
        # Down from the start is final; while we wait, it may come back.
        return (self._patient or self.holder is not None) and now < self._give_up_at

    def _refuse(self, now: float) -> None:
        """Give back a grant that came too late to be used."""
        self.token = 0
        self.give_back(now, used=False)
        # That release may arrive at any time: it must not hit what is granted next.
        self.owner = os.urandom(16).hex()

    def _wait(self, now: float) -> None:
        self.state = "pausing"
        left = self._give_up_at - now
        self._delay = min(left, self._pause * (0.5 + SYSTEM.random() / 2.0))
        self._pause = min(_LONGEST_PAUSE, self._pause * 2.0)
        self._next = now + self._delay
        if self.error is None:
            key, limit = self.key, min(left, _WATCH)
            self._worker.give(
                "watch", lambda store: store.can_wait and store.wait_for_release(key, timeout=limit)
            )
            self._next = now + limit

    def _renewed(self, answer: Answer, now: float) -> None:
        self.error = answer.error
        if answer.error is not None:
            self._next = now + min(1.0, self.ttl / 10.0)
        elif answer.value is True:
            self.deadline = answer.sent + self.ttl
            self._next = answer.sent + self.ttl / 3.0
        else:
            self._lose("refused")

    def _lose(self, detected_by: str) -> None:
        self.state = "lost"
        self.detected_by = detected_by

    def expired(self) -> None:
        """The guard ended the command at the deadline that it knew: what was confirmed since then comes too late."""
        if self.state == "held":
            self._lose("deadline")

    def tick(self, now: float) -> float | None:
        """Do what is due.

        Returns:
            When to call again, or None while only an answer can change anything.
        """
        if self.state == "asking":
            if self._patient:
                return None
            if now < self._asked_at + _ASK_LIMIT:
                return self._asked_at + _ASK_LIMIT
            self.error = StoreUnavailableError(f"the store did not answer for {_ASK_LIMIT:g} s")
            self.state = "failed"
        elif self.state == "pausing":
            if now < self._next:
                return self._next
            self._try(now)
            return self._asked_at + _ASK_LIMIT
        elif self.state == "held":
            return self._keep(now)
        return None

    def _keep(self, now: float) -> float | None:
        if now >= self.deadline:
            self._lose("deadline")
            return None
        if self._drop_at is not None and now >= self._drop_at:
            self._lose("max-hold")
            return None
        if now >= self._next and not self._renewing:
            self.renew(now)
        ends = self.deadline if self._drop_at is None else min(self.deadline, self._drop_at)
        return ends if self._renewing else min(ends, self._next)

    def renew(self, now: float) -> None:
        """Renew now, unless a renewal is on its way."""
        if self._renewing or self.state != "held":
            return
        self._renewing = True
        key, owner, ttl_ms = self.key, self.owner, self._ttl_ms
        limit = max(0.05, min(5.0, self.ttl / 3.0, self.deadline - now))
        self._worker.give("renew", lambda store: store.renew(key, owner, ttl_ms, timeout=limit))

    @property
    def renewing(self) -> bool:
        """Whether a renewal is on its way."""
        return self._renewing

    def give_back(self, now: float, *, used: bool = True) -> None:
        """Release, held or not: the store refuses what is not ours.

        Args:
            now: The time.
            used: Whether the command was started; where it was not, the minimum hold does not keep the key from others.
        """
        self.state = "releasing"
        key, owner, min_hold_ms = self.key, self.owner, self._min_hold_ms if used else 0
        limit = 1.0 if self.detected_by or not self.token else 5.0
        self._worker.give("release", lambda store: store.release(key, owner, min_hold_ms, timeout=limit))


def _token(answer: Answer) -> int:
    """The token of a grant, or 0."""
    from pyresil.stores.base import Granted

    return answer.value.token if isinstance(answer.value, Granted) else 0
