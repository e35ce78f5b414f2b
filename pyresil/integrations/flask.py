"""`Pyresil`, the Flask extension: errors of pyresil become HTTP answers.

An error of any view, decorated or not: a timeout is 504; an open circuit and a used-up rate limit of a dependency are 503 with
``Retry-After`` (whole seconds, rounded up); a full bulkhead, too many abandoned calls and a store that is down are 503; a
view's own ``@rate_limit`` is 429. Lock errors are left to the view. The body is ``application/problem+json`` (RFC 9457) with a
``code`` and a fixed text, never an exception's own.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyresil._logs import logger
from pyresil._merging import markers_of
from pyresil._validate import Checker, Configured
from pyresil.errors import (
    BulkheadFullError,
    CircuitOpenError,
    ConfigurationError,
    RateLimitedError,
    StoreUnavailableError,
    TimeoutExceededError,
    TimeoutSaturatedError,
    shown,
)

try:
    from flask import Flask, Response, current_app, has_request_context, request
except ImportError as error:
    raise ImportError('pyresil.integrations.flask needs Flask: pip install "pyresil[flask]"') from error

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyresil.context import Context
    from pyresil.errors import (
        PyresilError,
    )

__all__ = ["Pyresil"]


class _Answer(NamedTuple):
    status: int
    title: str
    text: str


_UNAVAILABLE = _Answer(503, "Service Unavailable", "Service temporarily unavailable")
_ANSWERS: Final[dict[type[PyresilError], _Answer]] = {
    TimeoutExceededError: _Answer(504, "Gateway Timeout", "The operation timed out"),
    CircuitOpenError: _UNAVAILABLE,
    BulkheadFullError: _Answer(503, "Service Unavailable", "Server is at capacity"),
    RateLimitedError: _Answer(503, "Service Unavailable", "Rate limit of a dependency exceeded"),
    TimeoutSaturatedError: _UNAVAILABLE,
    StoreUnavailableError: _UNAVAILABLE,
}
_TOO_MANY = _Answer(429, "Too Many Requests", "Rate limit exceeded")


_MAP_ERRORS: Final = "PYRESIL_MAP_ERRORS"
#: Environment variables of the library, which are no configuration of the extension but may be loaded into it.
_ENVIRONMENT: Final = ("PYRESIL_STORE", "PYRESIL_LOCK_")


class Pyresil(Configured):
    """The extension.

    Args:
        app: The application, or None to call `init_app` later.
        registry: The `Registry` whose presets the application uses; found again as ``app.extensions["pyresil"].registry``.
        idempotency: Reserved for idempotency keys, which this version does not have; only None is accepted.
        map_errors: Turn errors of pyresil into answers. The config key ``PYRESIL_MAP_ERRORS`` wins.

    Raises:
        ConfigurationError: An option has the wrong type, or an application is initialised twice.
    """

    def __init__(
        self,
        app: Flask | None = None,
        registry: Any = None,
        idempotency: object = None,
        map_errors: bool = True,
    ) -> None:
        check = Checker("Pyresil")
        check.instance("app", app, Flask, "a Flask application or None")
        self.registry = registry
        if registry is not None and not callable(getattr(registry, "resilience", None)):
            check.fault("registry", "a Registry or None", registry)
        if idempotency is not None:
            check.fault("idempotency", "None (this version has no idempotency keys)", idempotency)
        self.map_errors = check.boolean("map_errors", map_errors)
        check.done()
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Set an application up; the same object may serve several.

        Raises:
            ConfigurationError: It is none, or was set up before, ``PYRESIL_MAP_ERRORS`` is not a bool, or the configuration has another key
                that begins with ``PYRESIL_`` and is no environment variable of the library.
        """
        if not isinstance(app, Flask):
            raise ConfigurationError(f"Pyresil: app must be a Flask application, got {shown(app)}")
        if "pyresil" in app.extensions:
            raise ConfigurationError(f"Pyresil: application {app.name!r} is set up already")
        check = Checker("Pyresil")
        map_errors = check.boolean(_MAP_ERRORS, app.config.get(_MAP_ERRORS, self.map_errors))
        for key in app.config:
            ours = isinstance(key, str) and key.startswith("PYRESIL_") and not key.startswith(_ENVIRONMENT)
            if ours and key != _MAP_ERRORS:  # its value may be a secret
                check.faults.append(f"no config key {key!r}; known is {_MAP_ERRORS}")
        check.done()
        app.extensions["pyresil"] = self
        _watch_views(app)
        if map_errors:
            own = app.error_handler_spec[None][None]
            for kind, answer in _ANSWERS.items():
                if kind not in own:  # what the application registered before stays
                    app.register_error_handler(kind, _handler(answer))


#: Methods for which a view may be run again without being asked (RFC 9110, section 9.2.1).
_SAFE: Final = frozenset(("GET", "HEAD", "OPTIONS"))


def _watch_views(app: Flask) -> None:
    """Before the first request: a retry on a view is held to safe methods, unless it says ``idempotent=True``."""
    looked = False

    def look() -> None:
        nonlocal looked
        if looked:
            return
        for rule in app.url_map.iter_rules():
            unsafe = sorted(set(rule.methods or ()) - _SAFE)
            for marker in _markers(app.view_functions.get(rule.endpoint)):
                stage = marker.made.get("retry")
                entry = marker.given.get("retry")
                if stage is None or (isinstance(entry, dict) and entry.get("idempotent")):
                    continue
                _hold_to_safe_methods(stage[1], marker.fn)
                if entry is not None and unsafe:
                    logger().warning(
                        "view %r: @retry reruns it for GET, HEAD and OPTIONS only; give idempotent=True where %s may be repeated",
                        rule.endpoint,
                        ", ".join(unsafe),
                    )

        looked = True  # only now: another first request must not run before

    app.before_request(look)


def _hold_to_safe_methods(retry: Any, view: Callable[..., Any]) -> None:
    """Have a retry rerun a view for safe methods only. Several views may share it, also those of several applications."""
    # By id: not every callable can be hashed.
    views: dict[int, Callable[..., Any]] = retry.__dict__.setdefault("_views", {})
    views[id(view)] = view

    def may_repeat(ctx: Context) -> bool:
        return not has_request_context() or request.method in _SAFE or id(ctx._work[0]) not in views

    retry.__dict__["may_repeat"] = may_repeat


def _markers(view: Any) -> list[Any]:
    """What our decorators left on a view function, or on the methods of a class-based view."""
    found = [*markers_of(view), *markers_of(getattr(type(view), "__call__", None))]  # noqa: B004 - the function itself
    cls = getattr(view, "view_class", None)
    if cls is not None:
        for name in ("dispatch_request", "get", "head", "options", "post", "put", "patch", "delete"):
            found += markers_of(getattr(cls, name, None))
    return found


def _handler(answer: _Answer) -> Callable[[Any], Response]:
    def handle(error: PyresilError) -> Response:
        return _respond(_TOO_MANY if _is_own_limit(error) else answer, error)

    return handle


def _is_own_limit(error: PyresilError) -> bool:
    """Whether a rate limit belongs to the view itself, and not to something the view called."""
    return isinstance(error, RateLimitedError) and any(
        strategy.kind == "rate limit" and (strategy.name, marker.policy.name) == (error.name, error.policy)
        for marker in _markers(current_app.view_functions.get(request.endpoint or ""))
        for strategy in marker.policy.strategies
    )


def _respond(answer: _Answer, error: PyresilError) -> Response:
    body = {
        "type": "about:blank",
        "title": answer.title,
        "status": answer.status,
        "detail": answer.text,
        "code": error.code,
    }
    response = Response(json.dumps(body), answer.status, mimetype="application/problem+json")
    retry_after = getattr(error, "retry_after", None)
    wanted = isinstance(error, (CircuitOpenError, RateLimitedError))
    if wanted and retry_after is not None and math.isfinite(retry_after):
        response.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
    return response
