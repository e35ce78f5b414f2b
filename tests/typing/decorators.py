"""What type checkers infer of decorated functions, caches, hedges, locks and registries. Checked, never run."""

from __future__ import annotations

from typing import assert_type

from pyresil import (
    Cache,
    Fallback,
    Hedge,
    Lock,
    Policy,
    Registry,
    Retry,
    Timeout,
    bulkhead,
    cached,
    circuit_breaker,
    fallback,
    hedge,
    locked,
    rate_limit,
    retry,
    timeout,
)


@retry
def bare(url: str) -> int:
    return len(url)


@retry(attempts=5)
@timeout("2s")
@circuit_breaker(failure_rate=0.5)
@bulkhead("exports", max_concurrent=1)
@rate_limit("5/s")
@hedge(delay="p95", max_hedges=2)
def stacked(url: str, *, tries: int = 3) -> int:
    return len(url) * tries


@cached(ttl="1m")
def kept(url: str) -> list[int]:
    return [len(url)]


@locked("export", ttl="30s")
def alone(url: str) -> bytes:
    return url.encode()


@fallback(None)
def or_none(url: str) -> int:
    return len(url)


@fallback(using=lambda error, ctx: "spare")
@retry(3)
def or_text(url: str) -> int:
    return len(url)


@fallback(Fallback("spare"))
@retry(Retry(3))
@timeout(Timeout("2s"))
@hedge(Hedge("p95"))
@locked(Lock("export", wait=None))
def ready(url: str) -> int:
    return len(url)


@locked("export", wait=None)
def patient(url: str) -> int:
    return len(url)


assert_type(ready("u"), int | str)
assert_type(patient("u"), int)
assert_type(bare("u"), int)
assert_type(stacked("u", tries=2), int)
assert_type(kept("u"), list[int])
assert_type(alone("u"), bytes)
assert_type(or_none("u"), int | None)
assert_type(or_text("u"), int | str)


class Service:
    @retry(attempts=2)
    def method(self, number: int) -> str:
        return str(number)


assert_type(Service().method(1), str)


def work() -> int:
    return 1


assert_type(Policy(Cache(lambda ctx: "k", ttl="1m"), Lock("k"), Hedge("p95")).call(work), int)

registry = Registry(presets={"carrier": {"retry": 3, "timeout": "2s"}})


@registry.resilience("carrier")
def preset(url: str) -> int:
    return len(url)


assert_type(preset("u"), int)

# -- wrong uses --------------------------------------------------------------------------------------------------------------

bare(5)  # type: ignore[arg-type]
stacked("u", trys=2)  # type: ignore[call-arg]
kept()  # type: ignore[call-arg]
or_none("u") + 1  # type: ignore[operator]
retry(attempt=3)  # type: ignore[call-overload]
