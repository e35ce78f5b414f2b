"""Clients from URLs: one server, a master behind Sentinel, a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from pyresil.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from urllib.parse import SplitResult

FORMS = "redis://host:6379/0, rediss://…, unix://path, redis+sentinel://host:26379,host2:26379/service/0, redis+cluster://host:7000"


def _refuse(must: str) -> NoReturn:
    raise ConfigurationError(f"Redis store: url must be one of {FORMS}; {must}")


def client_maker(url: str, timeout: float) -> Callable[[], Any]:
    """A function that makes the client of a URL. Nothing is opened here.

    Options that redis-py's ``from_url`` knows may follow in the query. For Sentinel and Cluster: ``username`` and ``password``
    stand before the hosts, ``ssl=true`` turns on TLS; ``sentinel_username`` and ``sentinel_password`` log in to the sentinels.

    Args:
        url: The URL.
        timeout: Seconds that one socket operation may take.

    Raises:
        ConfigurationError: The URL is at fault. No password is shown.
        ImportError: redis is not installed.
    """
    try:
        import redis
    except ImportError:
        raise ImportError('redis is not installed: pip install "pyresil[redis]"', name="redis") from None
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
    except ValueError:
        _refuse("it does not parse")
    behind = parts.path + parts.fragment + parts.query.partition("=")[0]
    if parts.scheme != "unix" and "@" in behind:
        # Half of a password was taken for a port and half for a database, and both would be shown.
        _refuse("an @ stands behind the host: write / ? # and @ in a password as %2F %3F %23 and %40")
    if parts.scheme == "redis+sentinel":
        return _sentinel(parts, timeout)
    if parts.scheme == "redis+cluster":
        return _cluster(parts, timeout)
    if parts.scheme not in {"redis", "rediss", "unix"}:
        _refuse(f"got scheme {parts.scheme!r}")
    db = parts.path.removeprefix("/")
    if parts.scheme != "unix" and db and not (db.isascii() and db.isdecimal()):
        _refuse(f"a number of a database follows the host, got {db!r}")  # redis-py would take database 0
    try:
        client = redis.Redis.from_url(url)
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # opens nothing, and knows which options there are
    except (ValueError, TypeError, redis.RedisError) as error:
        _refuse(_without(str(error), parts))
    return lambda: client


def _without(text: str, parts: SplitResult) -> str:
    if "@" in parts.query and not parts.password:
        return "it does not parse"  # or what looks like a port is half of a password
    return text.replace(parts.password, "***") if parts.password else text


def _hosts(parts: SplitResult, default: int) -> list[tuple[str, int]]:
    found = []
    for item in parts.netloc.rpartition("@")[2].split(","):
        host, colon, port = item.rpartition(":") if not item.endswith("]") else (item, "", "")
        if not colon:
            host, port = item, str(default)
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            _refuse(f"got the address {item!r}")
        found.append((host.strip("[]"), int(port)))
    return found


def _login(parts: SplitResult) -> dict[str, Any]:
    from urllib.parse import unquote

    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    return {name: unquote(value) for name, value in (("username", user), ("password", password)) if value}


def _options(parts: SplitResult, known: tuple[str, ...]) -> dict[str, str]:
    from urllib.parse import parse_qsl

    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - set(known))
    if unknown:
        _refuse(f"got the options {', '.join(unknown)}, known are {', '.join(known)}")
    return options


def _flag(options: dict[str, str], name: str) -> bool:
    value = options.get(name, "false").lower()
    if value not in {"true", "false", "1", "0"}:
        _refuse(f"{name} must be true or false, got {value!r}")
    return value in {"true", "1"}


def _sentinel(parts: SplitResult, timeout: float) -> Callable[[], Any]:
    from redis.backoff import NoBackoff
    from redis.retry import Retry
    from redis.sentinel import Sentinel

    options = _options(parts, ("ssl", "sentinel_username", "sentinel_password"))
    service, _, db = parts.path.removeprefix("/").partition("/")
    if not service or (db and not db.isdecimal()):
        _refuse("the service's name and a number of a database follow the sentinels")
    # Several sentinels are asked in turn, one of which may be gone without a word.
    patience: dict[str, Any] = {
        "socket_timeout": max(timeout / 5.0, 0.1),
        "socket_connect_timeout": max(timeout / 5.0, 0.1),
        "retry": Retry(NoBackoff(), 0),
    }
    for name in ("username", "password"):
        if f"sentinel_{name}" in options:
            patience[name] = options[f"sentinel_{name}"]
    hosts = _hosts(parts, 26379)
    login = _login(parts)
    if _flag(options, "ssl"):
        login["ssl"] = True

    def make() -> Any:
        sentinel: Any = Sentinel  # without types of its own
        return sentinel(hosts, sentinel_kwargs=patience, db=int(db or 0), **login).master_for(service)

    return make


def _cluster(parts: SplitResult, timeout: float) -> Callable[[], Any]:
    from redis.backoff import NoBackoff
    from redis.cluster import ClusterNode, RedisCluster
    from redis.retry import Retry

    options = _options(parts, ("ssl",))
    if parts.path.strip("/") not in {"", "0"}:
        _refuse("a cluster has only database 0")
    hosts = _hosts(parts, 6379)
    login = _login(parts)
    if _flag(options, "ssl"):
        login["ssl"] = True

    # The nodes are asked in turn, and may all be gone without a word.
    patience = max(timeout / 2.0 / len(hosts), 0.1)

    def make() -> Any:
        node: Any = ClusterNode  # without types of its own
        nodes = [node(host, port) for host, port in hosts]
        return RedisCluster(
            startup_nodes=nodes,
            socket_timeout=patience,
            socket_connect_timeout=patience,
            retry=Retry(NoBackoff(), 0),
            **login,
        )

    return make
