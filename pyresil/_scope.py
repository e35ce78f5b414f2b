"""What contexts share: what they know of their policy, and the token of a copy of the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.clock import Clock
    from pyresil.context import Context

__all__ = ["Owner", "Scope", "scopes"]


class Scope:
    """The token of one copy of the work and of its later attempts: a child, so that the copy can be cancelled alone.

    It is made when somebody asks for it. ``away``: the copy runs in a worker, where its caller may leave it behind.
    """

    __slots__ = ("_above", "_token", "_under", "away", "left")

    def __init__(self, above: Context, *, away: bool = False, under: Scope | None = None) -> None:
        self._above = above
        #: The scope that ``above`` itself was in, where this one takes its place (a lease's, for as long as it is held).
        self._under = under
        self.away = away
        #: Whoever waited for the copy has left, and nobody gets what it brings.
        self.left = False
        self._token: CancelToken | None = None

    def token(self) -> CancelToken:
        """It, the same every time."""
        if self._token is None:
            above = self._above
            fresh = CancelToken._make(above.clock, (above.cancel,), above.policy)
            waker = (above._origin or above)._waker
            if waker is not None:
                fresh._notify(waker)
            # Test and assignment with no call in between: two threads cannot both do it.
            if self._token is None:
                self._token = fresh
        return self._token

    def close(self) -> None:
        """The copy has ended."""
        if self._token is not None:
            self._token._close()


def scopes(ctx: Context | None) -> list[Scope]:
    """Those of the copies in workers that the work of a context is in, the innermost first."""
    found: list[Scope] = []
    while ctx is not None:
        scope = ctx._scope
        while scope is not None and scope._above is ctx:
            scope = scope._under
        if scope is None:
            ctx = ctx.parent
        else:
            if scope.away:
                found.append(scope)
            ctx = scope._above
    return found


class Owner:
    """What a policy tells its contexts: its name, its clock, and, where it decorates one, its function."""

    #: The budgets in which the policy's retries count each call.
    counting: tuple[object, ...] = ()

    def __init__(self, name: str | None, clock: Clock, fn: Callable[..., Any] | None = None) -> None:
        self.name = name
        self.clock = clock
        self.fn = fn
