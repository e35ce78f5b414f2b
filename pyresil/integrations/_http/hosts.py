"""A policy for each host, and the execution of one request under it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests

from pyresil._validate import Checker
from pyresil.context import current_context
from pyresil.errors import CancelledError, ConfigurationError, TimeoutExceededError, shown
from pyresil.integrations._http.budget import Budget, subject_of
from pyresil.integrations._http.errors import UNSENT, about_request
from pyresil.integrations._http.rules import (
    KeyInUseIsAnswer,
    KeyInUseIsFailure,
    LocalError,
    check_header,
    is_local,
    is_plain,
    may_repeat,
    rewind,
)
from pyresil.policy import BoundPolicy, Policy
from pyresil.registry import Registry
from pyresil.strategies.circuit_breaker import CircuitBreaker, CircuitState
from pyresil.strategies.rate_limit import RateLimit
from pyresil.strategies.retry import Retry
from pyresil.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from requests import PreparedRequest, Response

_PORTS = {"http": 80, "https": 443}


def host_key(request: PreparedRequest) -> str:
    """Scheme, host and port of a request as one string, such as ``"https://api.example.com:443"``."""
    parts = urlsplit(str(request.url))
    scheme = parts.scheme.lower()
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}:{parts.port or _PORTS.get(scheme, 0)}"


class HostPolicies:
    """Policies by host, made when a host is first asked for, and let go when there are too many.

    Args:
        policy: A policy for all hosts together, or a function that makes one for a host (of no argument, or of the key).
        key: What tells hosts apart: a function of the prepared request. Default: scheme, host and port.
        max_hosts: The most policies that are kept. Idle ones go first, the one used longest ago before others.
        header: The header of idempotency keys.

    Raises:
        ConfigurationError: An option has the wrong type.
    """

    def __init__(
        self,
        policy: Any,
        *,
        key: Callable[[PreparedRequest], Hashable] | None = None,
        max_hosts: int = 1000,
        header: str = "Idempotency-Key",
    ) -> None:
        check = Checker("requests policies")
        self._header = header
        self._max = max_hosts
        self._key: Callable[[PreparedRequest], Hashable] = key or host_key
        self._make: Callable[[Hashable], Any] | None = None
        self._common: _Entry | None = None
        if isinstance(policy, Strategy):
            self._common = _Entry(_as_policy(policy))
        elif callable(policy):
            self._make = _of_one_argument(policy)
        else:
            check.fault("policy", "a policy, or a function that makes one for a host", policy)
        check.done()
        self._entries: dict[Hashable, _Entry] = {}
        self._uses = itertools.count()

    def policy_for(self, key: Hashable) -> Policy[Any] | BoundPolicy[Any]:
        """The policy of a host, by its key; made where there is none."""
        return self._entry(key).policy

    def known(self) -> list[Hashable]:
        """The keys of all hosts that have a policy."""
        return list(self._entries)

    def run(self, request: PreparedRequest, attempt: Callable[[], Response]) -> Response:
        """Run ``attempt`` under the policy of the request's host.

        Returns:
            The last response, also where it is a failure; or what a fallback yields.
        """
        ctx = current_context()
        if ctx is not None and ctx.cancel.is_set():
            raise Budget((ctx.cancel,)).error(request, UNSENT)
        key = self._key(request)
        entry = self._common or self._entry(key)
        again = may_repeat(request, self._header)
        keyed = again and request.headers.get(self._header) is not None
        policy = entry.form(again=again, copies=again and is_plain(request), keyed=keyed)
        if isinstance(policy, Policy):
            policy = policy.options(key=key, source=str(key) or None)
        entry.active += 1
        try:
            return _Execution(request, attempt).run(policy)
        finally:
            entry.active -= 1
            entry.used = next(self._uses)

    def _entry(self, key: Hashable) -> _Entry:
        if self._common is not None:
            return self._common
        found = self._entries.get(key)
        if found is None:
            assert self._make is not None
            # User code: not under a lock. Two threads may both make one for a new host; the first one stays.
            fresh = _Entry(_as_policy(self._make(key)))
            fresh.used = next(self._uses)
            found = self._entries.setdefault(key, fresh)
            if len(self._entries) > self._max:
                self._evict(keep=found)
        return found

    def _evict(self, keep: _Entry) -> None:
        unused = [
            (entry.used, key, entry)
            for key, entry in list(self._entries.items())
            if entry is not keep and not entry.active
        ]
        unused.sort(key=lambda found: found[0])
        idle = (found for found in unused if not found[2].has_news(found[1]))
        for _, key, _ in itertools.chain(idle, unused):
            if len(self._entries) <= self._max:
                return
            self._entries.pop(key, None)


def policies_of(
    policy: Any,
    registry: Any,
    preset: str | None,
    *,
    key: Callable[[PreparedRequest], Hashable] | None,
    max_hosts: int,
    header: str,
    pool_connections: int,
    pool_maxsize: int,
    pool_block: bool,
) -> HostPolicies | None:
    """The policies that the options of an adapter or a session ask for; None where they ask for none.

    Raises:
        ConfigurationError: They contradict one another, or are wrong.
    """
    check = Checker("requests policies")
    check.function("key", key)
    check.integer("max_hosts", max_hosts)
    check_header(check, header)
    check.integer("pool_connections", pool_connections)
    check.integer("pool_maxsize", pool_maxsize)
    check.boolean("pool_block", pool_block)
    check.done()
    if registry is None:
        if preset is not None:
            raise ConfigurationError(f"requests policies: preset {preset!r} needs registry=")
        if policy is None:
            return None
        return HostPolicies(policy, key=key, max_hosts=max_hosts, header=header)
    if not isinstance(registry, Registry) or policy is not None or preset is None:
        raise ConfigurationError(
            "requests policies: registry= must be a Registry, goes with preset=, and goes without policy="
        )
    return HostPolicies(_of_preset(registry, preset), key=key, max_hosts=max_hosts, header=header)


def _of_preset(registry: Registry, preset: str) -> Callable[[Hashable], Any]:
    """A function that makes the policy of a host from a preset, with instances of its own."""
    registry.policy(preset)  # raises where there is none

    def make(key: Hashable) -> Policy[Any]:
        return registry._policy_apart(preset, f"{preset} {key}")

    return make


class _Entry:
    """The policy of a host, and forms of it without what may not be done to a request."""

    __slots__ = ("_forms", "active", "policy", "used")

    def __init__(self, policy: Policy[Any] | BoundPolicy[Any]) -> None:
        self.policy = policy
        self.active = 0
        self.used = 0
        self._forms: dict[tuple[bool, bool, bool], Policy[Any] | BoundPolicy[Any]] = {}

    def form(self, *, again: bool, copies: bool, keyed: bool) -> Policy[Any] | BoundPolicy[Any]:
        """The policy for requests that may be sent ``again``, of which ``copies`` may be under way, that are ``keyed``."""
        found = self._forms.get((again, copies, keyed))
        if found is None:
            reduced = _reduced(self.policy, again=again, copies=copies, keyed=keyed)
            found = self._forms.setdefault((again, copies, keyed), reduced)
        return found

    def has_news(self, key: Hashable) -> bool:
        """Whether the policy knows something that a fresh one would not: an open breaker, a limiter that is used up."""
        return any(_has_news(strategy, key) for strategy in _flat(self.policy))


def _flat(policy: Any) -> list[Any]:
    inside = policy.policy if isinstance(policy, BoundPolicy) else policy
    found: list[Any] = []
    for strategy in inside.strategies:
        found += _flat(strategy) if isinstance(strategy, (Policy, BoundPolicy)) else [strategy]
    return found


def _has_news(strategy: Any, key: Hashable) -> bool:
    if isinstance(strategy, RateLimit):
        return 0 in (strategy.stats().remaining, strategy.stats(key).remaining)
    return isinstance(strategy, CircuitBreaker) and strategy.state is not CircuitState.CLOSED


def _as_policy(made: Any) -> Policy[Any] | BoundPolicy[Any]:
    if isinstance(made, (Policy, BoundPolicy)):
        return made
    if isinstance(made, Strategy):
        return Policy(made)
    raise ConfigurationError(f"requests policies: policy must make a Policy, got {shown(made)}")


def _of_one_argument(make: Callable[..., Any]) -> Callable[[Hashable], Any]:
    import inspect

    try:
        inspect.signature(make).bind("key")
    except TypeError:
        return lambda _: make()
    except ValueError:
        pass  # a callable without a signature
    return make


def _reduced(
    policy: Policy[Any] | BoundPolicy[Any], *, again: bool, copies: bool, keyed: bool
) -> Policy[Any] | BoundPolicy[Any]:
    """A policy for one kind of request. Its guards are those of the given one, and so is their state.

    What would send a request twice is left out where that must not be. A retry closes the responses that it gives up.
    """
    if isinstance(policy, BoundPolicy):
        return _reduced(policy.policy, again=again, copies=copies, keyed=keyed).options(
            key=policy._key,
            source=policy._source,
            cancel=policy._cancel,
            deadline=policy._limit,
            properties=policy._properties,
        )
    kept: list[Any] = []
    for strategy in policy.strategies:
        if isinstance(strategy, (Policy, BoundPolicy)):
            kept.append(_reduced(strategy, again=again, copies=copies, keyed=keyed))
            continue
        repeats, hedges = strategy.stepper() is not None, strategy.kind == "hedge"
        if (repeats and not again) or (hedges and not copies):
            continue
        if (repeats or hedges) and keyed:
            kept += (KeyInUseIsAnswer(), _closing(strategy), KeyInUseIsFailure())
        else:
            kept.append(_closing(strategy))
    return Policy(*kept, name=policy.name, clock=policy._clock)


def _closing(strategy: Strategy[Any]) -> Strategy[Any]:
    """A retry that closes the responses it gives up, where it was not told to do something else with them."""
    if not isinstance(strategy, Retry) or strategy.discard is not None:
        return strategy
    import copy

    closing = copy.copy(strategy)
    closing.discard = _close
    return closing


def _close(given_up: Any) -> None:
    close = getattr(given_up, "close", None)
    if close is not None:
        close()


class _Execution:
    """One request under a policy: its attempts, and the responses that have to be closed."""

    __slots__ = ("_attempt", "_over", "_refused", "_request", "_responses", "_sent")

    def __init__(self, request: PreparedRequest, attempt: Callable[[], Response]) -> None:
        self._request = request
        self._attempt = attempt
        #: With the number of the attempt each came of; copies of a hedge have one number.
        self._responses: list[tuple[int, Response]] = []
        #: The same for responses that an error brought (a hook calls `raise_for_status`). The last one's is the caller's, if raised.
        self._refused: list[tuple[int, Response]] = []
        self._sent = False
        self._over = False

    def run(self, policy: Policy[Any] | BoundPolicy[Any]) -> Response:
        """Send it, as often as the policy wants."""
        answer: Any = None
        local: Exception | None = None
        try:
            answer = policy.call(self._once)
            self._responses += self._refused  # nobody gets the errors that brought them
        except LocalError as carried:
            local = carried.error
        except (TimeoutExceededError, CancelledError) as error:
            if isinstance(error, requests.RequestException):
                raise
            raise about_request(error, self._request, subject_of(self._request)) from error
        finally:
            self._over = True
            self._close_others(answer)
        if local is not None:
            try:
                raise local
            finally:
                local = None  # its traceback holds this frame
        return answer  # type: ignore[no-any-return]  # a response, or what a fallback yields

    def _once(self) -> Response:
        """One attempt."""
        ctx = current_context()
        assert ctx is not None
        self._close_before(ctx.attempt)
        if self._sent and not is_plain(self._request):
            rewind(self._request)
        self._sent = True
        try:
            answer = self._attempt()
        except Exception as error:
            if is_local(error) or (ctx.cancel.is_set() and ctx.cancel.reason is error):
                raise LocalError(error) from None
            refused = getattr(error, "response", None)
            if isinstance(refused, requests.Response):
                self._refused.append((ctx.attempt, refused))
                if self._over:
                    refused.close()  # a copy that comes too late
            raise
        self._responses.append((ctx.attempt, answer))
        if self._over:
            answer.close()  # a copy that comes too late: this one alone, the caller's may be in the list still
        return answer

    def _close_before(self, attempt: int) -> None:
        """What earlier attempts brought was given up: it holds connections until it is closed."""
        for given_up in (self._responses, self._refused):
            for item in list(given_up):
                if item[0] < attempt:
                    try:
                        given_up.remove(item)
                    except ValueError:
                        continue  # another copy of this attempt was faster
                    item[1].close()

    def _close_others(self, answer: Any) -> None:
        while self._responses:
            try:
                _, response = self._responses.pop()
            except IndexError:
                return
            if response is not answer:
                response.close()
