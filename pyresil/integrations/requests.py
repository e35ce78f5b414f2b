"""HTTP with requests: a timeout that is the time a call takes, real cancellation, and a policy per host.

`ResilientSession` is a ``requests.Session``; `ResilientAdapter` is mounted on a session that you have. Without a policy both
only add deadlines and cancellation: the deadline and the cancel token of the current context, and ``timeout=``, bound the whole
call, from name resolution to the last byte of the body, also with ``stream=True``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import requests
except ImportError as error:
    raise ImportError(
        'pyresil.integrations.requests needs requests: pip install "pyresil[requests]"'
    ) from error

from pyresil._validate import Configured
from pyresil.errors import ConfigurationError, shown
from pyresil.integrations._http.adapter import Attempt, BoundAdapter, current_attempt, limits_of
from pyresil.integrations._http.budget import current_budget
from pyresil.integrations._http.errors import RequestCancelledError, RequestTimeoutError
from pyresil.integrations._http.forks import watch_session
from pyresil.integrations._http.hosts import host_key, policies_of
from pyresil.integrations._http.rules import checked_key, new_key, with_key

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from requests import PreparedRequest, Response

    from pyresil.durations import Duration
    from pyresil.integrations._http.hosts import HostPolicies
    from pyresil.policy import BoundPolicy, Policy
    from pyresil.registry import Registry
    from pyresil.strategy import Strategy

    #: A policy for all hosts, or a function that makes one for a host.
    PolicyLike = Policy[Any] | BoundPolicy[Any] | Strategy[Any] | Callable[..., Policy[Any]]

__all__ = ["RequestCancelledError", "RequestTimeoutError", "ResilientAdapter", "ResilientSession", "host_key"]


class ResilientAdapter(Configured, BoundAdapter):
    """A transport adapter for any ``requests.Session``: ``session.mount("https://", ResilientAdapter())``.

    ``timeout=`` of a request is the time that it takes in all (a duration: seconds, ``"1.5s"``, a timedelta). A pair
    ``(connect, rest)`` bounds the making of the connection in all, and everything after it in all. The current context's
    deadline and cancel token bound it too. Where time is up or the call is cancelled, it ends within milliseconds, its
    connection is closed, and `RequestTimeoutError` or `RequestCancelledError` is raised, by the call itself or by whatever
    reads the body. A cancel after the body was read leaves the connection in the pool.

    With a policy every request that passes here is an execution, and each redirect is a request of its own: use
    `ResilientSession` to have redirects inside the attempt.

    Args:
        policy: A policy (or strategy) for all hosts together; or a function that makes one for each host, of no argument or
            of the host's key, which gives every host its own breaker, bulkhead and rate limit.
        registry: A `Registry`, instead of ``policy``: each host gets the stages of its preset.
        preset: The name of that preset.
        key: What tells hosts apart: a function of the prepared request. Default: `host_key`.
        max_hosts: The most policies that are kept; idle ones are let go first.
        idempotency_key: ``"auto"`` gives every POST and PATCH without a key one of its own, the same in all its attempts.
        idempotency_header: The header with the key.
        pool_connections: As in requests: how many hosts' connections are kept.
        pool_maxsize: As in requests: how many idle connections are kept for a host.
        pool_block: As in requests: whether there are never more. The wait for one is bounded like the rest of a call.
        max_retries: 0: urllib3's own retries are off, or they would multiply with those of a policy.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type.
    """

    __attrs__ = [*requests.adapters.HTTPAdapter.__attrs__, "_policies", "_auto_key", "_header"]  # noqa: RUF012 - as the stock

    def __init__(
        self,
        policy: PolicyLike | None = None,
        *,
        registry: Registry | None = None,
        preset: str | None = None,
        key: Callable[[PreparedRequest], Hashable] | None = None,
        max_hosts: int = 1000,
        idempotency_key: str | None = None,
        idempotency_header: str = "Idempotency-Key",
        pool_connections: int = 10,
        pool_maxsize: int = 10,
        pool_block: bool = False,
        max_retries: int = 0,
    ) -> None:
        if max_retries != 0:
            raise ConfigurationError(
                f"requests adapter: max_retries must be 0, got {shown(max_retries)}: urllib3's retries know no deadline; "
                "put a Retry into the policy"
            )
        self._header = idempotency_header
        self._auto_key = _auto(idempotency_key)
        self._policies: HostPolicies | None = policies_of(
            policy,
            registry,
            preset,
            key=key,
            max_hosts=max_hosts,
            header=idempotency_header,
            pool_connections=pool_connections,
            pool_maxsize=pool_maxsize,
            pool_block=pool_block,
        )
        super().__init__(pool_connections=pool_connections, pool_maxsize=pool_maxsize, pool_block=pool_block)

    def policy_for(self, host: Hashable) -> Policy[Any] | BoundPolicy[Any] | None:
        """The policy of a host by its key, such as ``"https://api.example.com:443"``; made where there is none."""
        return None if self._policies is None else self._policies.policy_for(host)

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> Response:
        """Send a request; called by the session.

        Raises:
            RequestTimeoutError: The time was up.
            RequestCancelledError: The current context was cancelled.
            RejectedError: A strategy did not let it through.
            requests.RequestException: As in requests.
        """
        if self._policies is None and not self._auto_key:
            return self._exchange(request, stream, timeout, verify, cert, proxies)
        if self._auto_key:
            request = with_key(request, self._header)
        if self._policies is None:
            return self._exchange(request, stream, timeout, verify, cert, proxies)

        def attempt() -> Response:
            response = self._exchange(request, stream, timeout, verify, cert, proxies)
            if not stream:
                response.content  # noqa: B018 - read inside the attempt, so that a broken body is its failure
            return response

        return self._policies.run(request, attempt)


class ResilientSession(Configured, requests.Session):
    """A ``requests.Session`` whose calls have deadlines, can be cancelled, and run under a policy of their host.

    A call is one execution; redirects, and what authentication sends, are inside its attempts, and ``timeout=`` bounds one
    attempt in all. Only GET, HEAD, OPTIONS, PUT and DELETE are sent again, POST and PATCH only with an idempotency key, and
    none whose body cannot be brought back to its beginning. A failure is an error of the connection, a timeout, a broken
    body, and a status of 408, 425, 429, 500 and above; the last response is returned, whatever its status.

    Args:
        policy: As of `ResilientAdapter`.
        registry: As of `ResilientAdapter`.
        preset: As of `ResilientAdapter`.
        timeout: The ``timeout=`` of calls that give none.
        key: As of `ResilientAdapter`.
        max_hosts: As of `ResilientAdapter`.
        idempotency_key: As of `ResilientAdapter`; a call's own ``idempotency_key=`` goes before.
        idempotency_header: As of `ResilientAdapter`.
        pool_connections: As of `ResilientAdapter`.
        pool_maxsize: As of `ResilientAdapter`.
        pool_block: As of `ResilientAdapter`.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type.
    """

    __attrs__ = [*requests.Session.__attrs__, "timeout", "_policies", "_auto_key", "_header"]  # noqa: RUF012 - as the stock

    def __init__(
        self,
        policy: PolicyLike | None = None,
        *,
        registry: Registry | None = None,
        preset: str | None = None,
        timeout: Duration | tuple[Duration | None, Duration | None] | None = None,
        key: Callable[[PreparedRequest], Hashable] | None = None,
        max_hosts: int = 1000,
        idempotency_key: str | None = None,
        idempotency_header: str = "Idempotency-Key",
        pool_connections: int = 10,
        pool_maxsize: int = 10,
        pool_block: bool = False,
    ) -> None:
        super().__init__()
        limits_of(timeout)
        self.timeout = timeout
        self._header = idempotency_header
        self._auto_key = _auto(idempotency_key)
        self._policies: HostPolicies | None = policies_of(
            policy,
            registry,
            preset,
            key=key,
            max_hosts=max_hosts,
            header=idempotency_header,
            pool_connections=pool_connections,
            pool_maxsize=pool_maxsize,
            pool_block=pool_block,
        )
        for scheme in ("https://", "http://"):
            adapter = ResilientAdapter(
                pool_connections=pool_connections, pool_maxsize=pool_maxsize, pool_block=pool_block
            )
            self.mount(scheme, adapter)
        watch_session(self)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]  # unknown to the stubs
        watch_session(self)

    def policy_for(self, host: Hashable) -> Policy[Any] | BoundPolicy[Any] | None:
        """The policy of a host by its key, such as ``"https://api.example.com:443"``; made where there is none."""
        return None if self._policies is None else self._policies.policy_for(host)

    def request(
        self,
        method: Any,
        url: Any,
        params: Any = None,
        data: Any = None,
        headers: Any = None,
        *args: Any,
        idempotency_key: str | None = None,
        **kwargs: Any,
    ) -> Response:
        """As the stock method.

        Args:
            method: As in requests.
            url: As in requests.
            params: As in requests.
            data: As in requests.
            headers: As in requests.
            *args: As in requests.
            idempotency_key: Sent with every attempt of this call, whose request may then be sent again whatever its method;
                ``"auto"`` for one of its own.
            **kwargs: As in requests.
        """
        if idempotency_key is not None:
            value = new_key() if idempotency_key == "auto" else checked_key(idempotency_key)
            headers = {**(headers or {}), self._header: value}
        return super().request(method, url, params, data, headers, *args, **kwargs)

    # The verbs are here for their types alone: durations as ``timeout=``, and ``idempotency_key=``.

    def get(self, url: Any, **kwargs: Any) -> Response:
        """As `request`."""
        return super().get(url, **kwargs)

    def options(self, url: Any, **kwargs: Any) -> Response:
        """As `request`."""
        return super().options(url, **kwargs)

    def head(self, url: Any, **kwargs: Any) -> Response:
        """As `request`; follows no redirects unless asked."""
        return super().head(url, **kwargs)

    def post(self, url: Any, data: Any = None, json: Any = None, **kwargs: Any) -> Response:
        """As `request`."""
        return super().post(url, data, json, **kwargs)

    def put(self, url: Any, data: Any = None, **kwargs: Any) -> Response:
        """As `request`."""
        return super().put(url, data, **kwargs)

    def patch(self, url: Any, data: Any = None, **kwargs: Any) -> Response:
        """As `request`."""
        return super().patch(url, data, **kwargs)

    def delete(self, url: Any, **kwargs: Any) -> Response:
        """As `request`."""
        return super().delete(url, **kwargs)

    def send(self, request: PreparedRequest, **kwargs: Any) -> Response:
        """Send a prepared request: an execution of the host's policy.

        Raises:
            RequestTimeoutError: The time was up.
            RequestCancelledError: The current context was cancelled.
            RejectedError: A strategy did not let it through.
            requests.RequestException: As in requests.
        """
        around = current_attempt.get()
        if around is not None and around.session is self and kwargs.get("allow_redirects") is False:
            return super().send(request, **kwargs)  # a redirect of the attempt that runs
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = self.timeout
        limits = limits_of(kwargs["timeout"])
        kwargs["timeout"] = limits.plain()
        if self._auto_key:
            request = with_key(request, self._header)
        send = super().send

        def attempt() -> Response:
            budget = current_budget(limits.whole(), None if around is None else around.budget)
            outer = current_attempt.get()
            mine = Attempt(self, budget)
            current_attempt.set(mine)
            try:
                return send(request, **kwargs)
            finally:
                mine.session = mine.budget = None  # whoever copied the context is no longer in it
                current_attempt.set(outer)  # not `reset`, see `active`

        return attempt() if self._policies is None else self._policies.run(request, attempt)


def _auto(idempotency_key: object) -> bool:
    if idempotency_key not in (None, "auto"):
        raise ConfigurationError(
            f"requests: idempotency_key must be 'auto' or None, got {shown(idempotency_key)}; a key itself belongs to one call"
        )
    return idempotency_key == "auto"
