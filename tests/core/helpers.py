"""Strategies and work that the tests of the core share."""

from __future__ import annotations

from pyresil import Failure, Guard, RejectedError, Stepper, Strategy


class Noted(Guard):
    """A guard that notes what it sees, may reject, and may put another outcome in the place of the one it gets."""

    kind = "noted"

    def __init__(self, notes=None, name="guard", reject=None, replace=None, fail=None):
        self.notes = [] if notes is None else notes
        self.name = name
        self.reject = reject
        self.replace = replace
        self.fail = fail
        self.inside = 0

    def enter(self, ctx):
        if self.reject is not None and self.reject():
            self.notes.append((self.name, "reject"))
            raise RejectedError(f"{self.name} is full")
        self.notes.append((self.name, "enter"))
        self.inside += 1
        return self.inside

    def exit(self, ctx, token, outcome):
        self.inside -= 1
        seen = outcome.error if isinstance(outcome, Failure) else outcome.value
        self.notes.append((self.name, type(seen).__name__ if isinstance(seen, BaseException) else seen))
        if self.fail is not None:
            raise self.fail
        return outcome if self.replace is None else self.replace(outcome)


class Again(Strategy):
    """A retry of a user's own: at once, so many times, whatever the error."""

    kind = "again"

    def __init__(self, attempts):
        self.attempts = attempts

    def run(self, call, ctx):
        for number in range(1, self.attempts + 1):
            try:
                return call()
            except Exception:
                if number == self.attempts:
                    raise
        raise AssertionError

    def stepper(self):
        return AgainSteps(self.attempts)


class AgainSteps(Stepper):
    def __init__(self, attempts):
        self.left = attempts

    def start(self, ctx):
        self.first = ctx

    def after(self, outcome):
        self.left -= 1
        return 0.0 if self.left and isinstance(outcome, Failure) else None


class Flaky:
    """Work that raises (or returns) its outcomes in turn, then succeeds."""

    def __init__(self, *outcomes, then="ok"):
        self.outcomes = list(outcomes)
        self.then = then
        self.calls = 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        outcome = self.outcomes.pop(0) if self.outcomes else self.then
        if isinstance(outcome, BaseException) or (
            isinstance(outcome, type) and issubclass(outcome, BaseException)
        ):
            raise outcome
        return outcome


class Response:
    def __init__(self, status_code, headers=None):
        self.status_code = status_code
        self.headers = headers or {}
        self.closed = False

    def close(self):
        self.closed = True
