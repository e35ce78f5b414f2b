"""Several guards around one piece of work, for the block and loop forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil.context import UNSET
from pyresil.errors import report_exception
from pyresil.outcome import Failure
from pyresil.strategy import never_began

if TYPE_CHECKING:
    from pyresil.context import Context
    from pyresil.outcome import Outcome
    from pyresil.strategy import Guard


def unjudged(outcome: Outcome[Any]) -> bool:
    """Whether it is a ``BaseException`` that is no ``Exception``."""
    return isinstance(outcome, Failure) and not isinstance(outcome.error, Exception)


def left_early() -> Failure:
    """The outcome of a block or loop that was left without being told how."""
    return Failure(GeneratorExit("left early"))


def raise_other(after: Outcome[Any] | None, error: BaseException | None) -> None:
    """Raise the error that guards put in the place of ``error`` (or of a success), if they did."""
    other = after.error if isinstance(after, Failure) else error
    try:
        if other is not None and other is not error and (error is None or isinstance(error, Exception)):
            raise other from error
    finally:
        after = other = None  # the traceback holds this frame, and must not hold the error through it


class Guards:
    """Some guards around one piece of work, entered in order and left in reverse."""

    __slots__ = ("_ctx", "_guards", "_tokens")

    def __init__(self, guards: list[Guard[Any]]) -> None:
        self._guards = guards
        self._tokens: list[Any] = [UNSET] * len(guards)
        self._ctx: Context | None = None

    def enter(self, ctx: Context) -> None:
        """Enter all of them; where one rejects, leave those before it with its error, and raise what comes out."""
        self._ctx = ctx
        position = 0
        after: Outcome[Any] | None = None
        try:
            for guard in self._guards:
                # Kept by the very next step: a signal handler that raises finds it noted.
                self._tokens[position] = guard.enter(ctx)
                position += 1
        except BaseException as error:
            after = self.leave(Failure(error))
            raise_other(after, error)
            raise
        finally:
            after = None

    def leave(self, outcome: Outcome[Any]) -> Outcome[Any]:
        """Leave those that are entered, the innermost first; each once, whatever the others raise.

        Returns:
            The outcome that the guards make of it.

        Raises:
            BaseException: What one of them raised that is no ``Exception``.
        """
        after: Outcome[Any] | None = None
        try:
            for position in range(len(self._guards) - 1, -1, -1):
                token, guard = self._tokens[position], self._guards[position]
                if token is UNSET or self._ctx is None:
                    continue
                try:
                    self._tokens[position] = UNSET
                    after = guard.exit(self._ctx, token, outcome)
                except BaseException as error:
                    if never_began(guard.exit, error):
                        self._tokens[position] = token
                        raise
                    if not isinstance(error, Exception):
                        raise
                    if unjudged(outcome):
                        report_exception(f"exit() of a {guard.kind} raised")
                    after = Failure(error)
                if not unjudged(outcome):
                    outcome = after or outcome  # type: ignore[truthy-bool]  # a user's may return nothing
            return outcome
        except BaseException as error:
            # On its way out: those that are still entered see it, and do not judge it.
            self.leave(Failure(error))
            raise
        finally:
            del after, outcome  # an error's traceback leads to this frame, which must not hold the error
