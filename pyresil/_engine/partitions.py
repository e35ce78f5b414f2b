"""Many limits of one kind, by key: bounded, and the idle ones let go first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pyresil._engine.limiters import Limiter, Spec


class Partitions:
    """The states of the keys in use.

    When there are ``maximum`` of them, the next new key lets go of those that are as good as fresh; where that is less than a
    tenth, also of those with permits left that were used least recently, and only then of exhausted ones.

    Args:
        spec: What each of them limits.
        maximum: The most that are kept.
        phase: See `Spec.state`.
    """

    __slots__ = ("_maximum", "_phase", "_spec", "states")

    def __init__(self, spec: Spec, maximum: int, phase: float) -> None:
        self._spec = spec
        self._maximum = maximum
        self._phase = phase
        self.states: dict[Hashable, Limiter] = {}

    def get(self, key: Hashable, now: float) -> Limiter:
        """The state of a key, a fresh one where there is none."""
        state = self.states.get(key)
        if state is None:
            if len(self.states) >= self._maximum:
                self._make_room(now)
            # Two threads make one each; only the first is kept.
            state = self.states.setdefault(key, self._spec.state(self._phase))
        return state

    def _make_room(self, now: float) -> None:
        states = list(self.states.items())
        surplus = len(states) - self._maximum + max(1, self._maximum // 10)
        ranked = sorted(
            (
                (not state.is_idle(now), _is_exhausted(state, now), state.used(), n)
                for n, (_, state) in enumerate(states)
            )
        )
        for rank, (busy, _, _, position) in enumerate(ranked):
            if busy and rank >= surplus:
                break
            key, state = states[position]
            if self.states.get(key) is state:
                self.states.pop(key, None)


def _is_exhausted(state: Limiter, now: float) -> bool:
    return state.blocked > now or state.remaining(now) <= 0
