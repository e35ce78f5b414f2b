"""What may be sent twice, how, and which of its answers and errors are whose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never

import requests
from urllib3.exceptions import HTTPError

from pyresil.errors import CancelledError, ConfigurationError, PyresilError, shown
from pyresil.integrations._http.errors import UNSENT
from pyresil.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from requests import PreparedRequest, Response

    from pyresil._validate import Checker
    from pyresil.context import Context
    from pyresil.strategy import Call

#: Methods of which a second request does no more than the first (RFC 9110, section 9.2.2).
REPEATABLE = frozenset(("GET", "HEAD", "OPTIONS", "PUT", "DELETE"))
#: Methods that ``idempotency_key="auto"`` gives a key to.
KEYED = frozenset(("POST", "PATCH"))

KEY_IN_USE = "IDEMPOTENCY_KEY_IN_USE"

#: Errors of requests that say nothing of the server: what was asked for cannot be sent, or was sent too far already.
_LOCAL = (
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidURL,
    requests.exceptions.URLRequired,
    requests.exceptions.InvalidHeader,
    requests.exceptions.TooManyRedirects,
    requests.exceptions.StreamConsumedError,
    requests.exceptions.UnrewindableBodyError,
)


class LocalError(CancelledError):
    """Carries an error that is not the server's through strategies: unjudged, so neither retried nor counted."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class KeyInUse(requests.RequestException):
    """An earlier request with the same idempotency key still runs: a failure to a retry or hedge, and to nothing inside it."""

    def __init__(self, answer: Response) -> None:
        super().__init__("a request with the same idempotency key still runs")
        self.answer = answer
        self.headers = answer.headers


class KeyInUseIsFailure(Strategy[Never]):
    """Stands just inside a retry: a 409 that says so is another try's business, and no failure of the server.

    And just inside a hedge: the copy that got it was not faster than the one that uses the key.
    """

    kind = "idempotency key in use"

    def run(self, call: Call[Any], ctx: Context) -> Any:
        """See `Strategy.run`."""
        answer = call()
        if is_key_in_use(answer):
            raise KeyInUse(answer)
        return answer


class KeyInUseIsAnswer(Strategy[Never]):
    """Stands just outside that retry or hedge, which has given up: to what is around it a 409 is an answer like any other."""

    kind = "idempotency key in use"

    def run(self, call: Call[Any], ctx: Context) -> Any:
        """See `Strategy.run`."""
        try:
            return call()
        except KeyInUse as in_use:
            return in_use.answer


def is_key_in_use(answer: Any) -> bool:
    """Whether an answer is a 409 problem with the code of a key in use; reads its body."""
    if getattr(answer, "status_code", None) != 409 or "json" not in answer.headers.get("Content-Type", ""):
        return False
    try:
        problem = answer.json()
    except ValueError:
        return False
    return isinstance(problem, dict) and problem.get("code") == KEY_IN_USE


def is_local(error: Exception) -> bool:
    """Whether an error of an attempt says nothing of the server."""
    if isinstance(error, _LOCAL):
        return True
    if getattr(error, "phase", None) == UNSENT:
        return True
    # What remains: connections, timeouts, bodies that are broken; and what strategies judge themselves.
    return not isinstance(error, (requests.RequestException, HTTPError, OSError, PyresilError))


def may_repeat(request: PreparedRequest, header: str) -> bool:
    """Whether a request may be sent again: by its method or its key, and its body can be sent once more."""
    declared = request.method in REPEATABLE or request.headers.get(header) is not None
    return declared and (is_plain(request) or _position(request) is not None)


def is_plain(request: PreparedRequest) -> bool:
    """Whether several copies of a request may be on their way at once: nothing of it is read while it is sent."""
    return request.body is None or isinstance(request.body, (str, bytes, bytearray, memoryview))


def _position(request: PreparedRequest) -> int | None:
    """Where a file to be sent stood, if it can be brought back there."""
    body: Any = request.body
    position = getattr(request, "_body_position", None)
    if not isinstance(position, int) or getattr(body, "seek", None) is None:
        return None
    seekable = getattr(body, "seekable", None)
    return position if seekable is None or seekable() else None


def rewind(request: PreparedRequest) -> None:
    """Bring the body back to where it stood, before it is sent again."""
    position = _position(request)
    if position is not None:
        body: Any = request.body
        try:
            body.seek(position)
        except OSError as error:
            raise requests.exceptions.UnrewindableBodyError(
                "the body cannot be brought back to its beginning", request=request
            ) from error


def checked_key(key: object) -> str:
    """An idempotency key that was given.

    Raises:
        ConfigurationError: It is not 1 to 255 visible ASCII characters.
    """
    if not (isinstance(key, str) and 1 <= len(key) <= 255 and all("!" <= char <= "~" for char in key)):
        raise ConfigurationError(
            f"request: idempotency_key must be 'auto' or 1 to 255 visible ASCII characters, got {shown(key)}"
        )
    return key


def check_header(check: Checker, header: object) -> None:
    """Note it where the header of idempotency keys is no name of a header (RFC 9110, section 5.1)."""
    allowed = "!#$%&'*+-.^_`|~"
    if not (isinstance(header, str) and header and header.isascii()) or not all(
        char.isalnum() or char in allowed for char in header
    ):
        check.fault("idempotency_header", "the name of a header", header)


def new_key() -> str:
    """A key that nobody else has."""
    import uuid

    return uuid.uuid4().hex


def with_key(request: PreparedRequest, header: str, make: Callable[[], str] = new_key) -> PreparedRequest:
    """The request with a key of its own where its method needs one and it has none; the one given stays as it is."""
    if request.method not in KEYED or request.headers.get(header) is not None:
        return request
    request = request.copy()
    request.headers[header] = make()
    return request
