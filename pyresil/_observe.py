"""The `Executed` event: built only where somebody listens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyresil.context import Context, current_context
from pyresil.events import Executed, emit
from pyresil.outcome import Failure, Success

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.context import Owner
    from pyresil.outcome import Outcome
    from pyresil.strategy import Run

__all__ = ["fresh_context", "observed", "observed_call", "tell"]


def fresh_context(owner: Owner) -> Context:
    """A fresh context of a policy, inside the current one."""
    ctx = Context()
    ctx._owner = owner
    outer = current_context()
    if outer is not None:
        ctx._inherit(outer)
    return ctx


def tell(ctx: Context, begun: float, outcome: Outcome[Any]) -> None:
    """Emit the event of an execution that began at ``begun``, if somebody listens."""
    if Executed.listeners:
        clock = ctx.clock
        duration = clock.monotonic() - begun
        emit(
            Executed(
                policy=ctx.policy, source=ctx.source, at=clock.wall(), duration=duration, outcome=outcome
            )
        )


def observed(ctx: Context, run: Run) -> Any:
    """Run a context that is ready, and tell how it ended; a ``BaseException`` is not told."""
    begun = ctx.clock.monotonic()
    outcome: Outcome[Any] | None = None
    try:
        value = ctx._enter(run)
        outcome = Success(value)
        return value
    except Exception as error:
        outcome = Failure(error)
        raise
    finally:
        ctx._close()
        if outcome is not None:
            tell(ctx, begun, outcome)
        outcome = None  # an error whose traceback holds this frame must not be held by it


def observed_call(
    owner: Owner, run: Run, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`observed`, from the start."""
    ctx = fresh_context(owner)
    ctx._work = (fn, args, kwargs)
    return observed(ctx, run)
