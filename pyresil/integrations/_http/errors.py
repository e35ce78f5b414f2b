"""The errors of a bounded call: those of pyresil, which requests' own handlers catch as well."""

from __future__ import annotations

from typing import Any, ClassVar

import requests

from pyresil.errors import CancelledError, TimeoutExceededError

#: The phase of a call whose budget was spent before it began.
UNSENT = "before anything was sent"


class _OfRequest:
    """What both errors say of their call."""

    subject: str | None = None
    phase: str | None = None
    request: Any = None
    response: Any = None
    #: Its headers carry credentials, and its body may be of any size.
    _left_out: ClassVar[tuple[str, ...]] = ("deadline", "request")

    def __str__(self) -> str:
        text = super().__str__()
        if self.subject is None:
            return text
        return f"{self.subject}: {text} {self.phase}" if self.phase else f"{self.subject}: {text}"


class RequestTimeoutError(_OfRequest, TimeoutExceededError, requests.Timeout):
    """The time of a call was up: a `TimeoutExceededError` that is a ``requests.Timeout`` too.

    Attributes:
        limit: The limit in seconds that was exceeded.
        subject: Method and URL.
        phase: What the call was doing, such as ``"while connecting"`` or ``"while reading the body"``.
        request: The prepared request, or None after unpickling.
        response: None: there is no whole response.
    """


class RequestCancelledError(_OfRequest, CancelledError, requests.RequestException):
    """A call was cancelled through its context: a `CancelledError` that is a ``requests.RequestException`` too.

    Attributes:
        reason: What was given to ``cancel()``, or None.
        subject: Method and URL.
        phase: What the call was doing.
        request: The prepared request, or None after unpickling.
        response: None: there is no whole response.
    """


def about_request(error: TimeoutExceededError | CancelledError, request: Any, subject: str) -> Any:
    """The error of requests' own kind for one that a strategy raised, while it waited between or before attempts."""
    told: RequestTimeoutError | RequestCancelledError
    if isinstance(error, TimeoutExceededError):
        told = RequestTimeoutError(error.limit, error.policy)
        told.deadline = error.deadline
    else:
        told = RequestCancelledError(error.reason, error.policy)
    told.subject, told.request = subject, request
    return told
