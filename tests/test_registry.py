"""The registry: defaults, presets, shared instances, TOML files, and all faults in one message."""

from __future__ import annotations

import functools

import pytest

from pyresil import (
    AdaptiveBulkhead,
    CircuitBreaker,
    ConfigurationError,
    Constant,
    Registry,
    Retry,
    Timeout,
    bulkhead,
    fallback,
    policy_of,
    retry,
)
from pyresil._merging import DEFAULT_NAMES


@pytest.fixture(autouse=True)
def _fresh_names():
    DEFAULT_NAMES.clear()
    yield
    DEFAULT_NAMES.clear()


def kinds(policy):
    return [strategy.kind for strategy in policy.strategies]


def fails():
    raise ConnectionError("down")


@pytest.fixture
def registry():
    return Registry(
        defaults={
            "retry": {"backoff": {"delay": "1ms"}, "attempts": 4},
            "circuit_breaker": {"open_for": "9s"},
        },
        presets={
            "carrier": {
                "timeout": "2s",
                "retry": True,
                "circuit_breaker": {"minimum_calls": 5},
                "bulkhead": 7,
            },
            "mail": {"retry": 2, "fallback": "queued"},
        },
    )


def test_a_preset_is_a_policy_in_canonical_order(registry):
    policy = registry.policy("carrier")
    assert policy.name == "carrier"
    assert [type(strategy).__name__ for strategy in policy.strategies[:3]] == [
        "Retry",
        "CircuitBreaker",
        "Bulkhead",
    ]
    assert registry.policy("carrier") is policy


def test_defaults_fill_in_and_never_turn_on(registry):
    carrier, mail = registry.policy("carrier"), registry.policy("mail")
    assert carrier.strategies[0].attempts == 4
    assert mail.strategies[1].attempts == 2  # the preset's over the default
    assert mail.strategies[1].backoff.delay == 0.001
    assert kinds(mail) == ["fallback", "retry"]


def test_a_decorator_wins_over_the_preset_and_the_preset_over_the_defaults(registry):
    @registry.resilience("mail")
    @retry(attempts=6)
    def fn():
        raise ConnectionError

    policy = policy_of(fn)
    assert kinds(policy) == ["fallback", "retry"]
    assert policy.strategies[1].attempts == 6
    assert policy.strategies[1].backoff.delay == 0.001
    assert fn() == "queued"


def test_the_preset_may_stand_inside_or_outside(registry):
    inside = fallback("mine")(registry.resilience("mail")(fails))
    outside = registry.resilience("mail")(fallback("mine")(fails))
    assert inside() == outside() == "mine"


def test_false_turns_an_inherited_stage_off(registry):
    calls = []

    @registry.resilience("mail")
    @retry(False)
    def fn():
        calls.append(1)
        raise ConnectionError

    assert fn() == "queued"
    assert len(calls) == 1
    assert kinds(policy_of(fn)) == ["fallback"]


def test_shared_stages_of_a_preset_are_one_instance(registry):
    one = policy_of(registry.resilience("carrier")(fails))
    two = policy_of(registry.resilience("carrier")(lambda: 1))
    assert one.strategies[1] is two.strategies[1] is registry.breaker("carrier")
    assert one.strategies[2] is registry.bulkhead("carrier")
    assert one.strategies[0] is not two.strategies[0]


def test_overriding_a_shared_stage_makes_a_private_instance(registry):
    mine = policy_of(bulkhead(max_concurrent=1)(registry.resilience("carrier")(fails)))
    assert mine.strategies[2] is not registry.bulkhead("carrier")
    assert mine.strategies[2].max_concurrent == 1
    assert mine.strategies[1] is registry.breaker("carrier")


def test_a_foreign_decorator_keeps_its_place(registry):
    seen = []

    def foreign(fn):
        @functools.wraps(fn)
        def wrapper():
            seen.append(1)
            return fn()

        return wrapper

    @registry.resilience("mail")
    @foreign
    @retry(attempts=3, backoff=Constant(0))
    def fn():
        raise ConnectionError

    assert fn() == "queued"
    assert len(seen) == 2


def test_two_presets_on_one_function_are_refused(registry):
    with pytest.raises(ConfigurationError, match="two presets, 'mail' and 'carrier'"):
        registry.resilience("carrier")(registry.resilience("mail")(fails))


def test_named_instances(registry):
    breaker = registry.breaker("fresh")
    assert breaker is registry.breaker("fresh")
    assert set(registry.breakers()) == {"carrier", "fresh"}
    assert set(registry.bulkheads()) == {"carrier"}
    assert registry.rate_limits() == {}
    with pytest.raises(ConfigurationError, match=r"rate_limit: limit must be given"):
        registry.rate_limit("api")
    limited = Registry(defaults={"rate_limit": {"limit": "5/s"}})
    assert limited.rate_limit("api") is limited.rate_limits()["api"]


def test_names_belong_to_their_registry(registry):
    other = Registry(presets={"carrier": {"bulkhead": 3}})
    assert other.bulkhead("carrier") is not registry.bulkhead("carrier")


def test_a_ready_strategy_is_taken_as_it_is():
    breaker = CircuitBreaker(name="mine")
    registry = Registry(presets={"carrier": {"circuit_breaker": breaker}})
    assert registry.policy("carrier").strategies == (breaker,)


def test_reset_closes_the_breakers(registry):
    breaker = registry.breaker("carrier")
    breaker.trip()
    registry.reset()
    assert breaker.state.value == "closed"


def test_an_unknown_preset_lists_the_known_ones(registry):
    for use in (registry.policy, registry.resilience):
        with pytest.raises(ConfigurationError, match="no preset 'nobody'; known are 'carrier', 'mail'"):
            use("nobody")


def test_all_faults_are_in_one_message():
    with pytest.raises(ConfigurationError) as caught:
        Registry(
            defaults={"retry": True, "timeout": {"limit": "soon"}, "bulkhead": False, "nothing": 1},
            presets={
                "a": {"retires": 3, "retry": {"attempt": 2}},
                "b": {"timeout": "x", "circuit_breaker": {"failure_rate": 2}},
                "c": 5,
                "d": {"bulkhead": {"name": "shared", "max_concurrent": 1}},
                "e": {"bulkhead": {"name": "shared", "max_concurrent": 2}},
                "f": {"retry": {"backoff": {"dely": "1s"}, "attempts": 0}},
            },
        )
    message = str(caught.value)
    for part in (
        "defaults: unknown stage 'nothing'; known are fallback, cache, lock, retry",
        "defaults.timeout: timeout: limit must be a duration",
        "defaults.bulkhead must be options (defaults turn no stage on or off), got False",
        "presets.a: unknown stage 'retires'",
        "presets.a.retry has no option 'attempt'; known are attempts, backoff",
        "presets.b.timeout: timeout: limit must be a duration",
        "presets.b.circuit_breaker: ",
        "failure_rate must be",
        "presets.c must be a mapping of stages",
        "presets.e.bulkhead: bulkhead 'shared' is in use with the options max_concurrent=1, and cannot have max_concurrent=2",
        "presets.f.retry backoff has no option 'dely'",
        "presets.f.retry: retry: attempts must be a positive integer, got 0",
    ):
        assert part in message


def test_a_registry_from_toml(tmp_path, monkeypatch):
    path = tmp_path / "resilience.toml"
    path.write_text(
        """
        [defaults.retry]
        attempts = "${ATTEMPTS}"

        [presets.carrier]
        timeout = "${LIMIT}s"
        retry = true
        bulkhead = { max_concurrent = 3, name = "carrier-${ZONE}" }
        """,
        encoding="utf-8",
    )
    monkeypatch.setenv("ATTEMPTS", "5")
    monkeypatch.setenv("LIMIT", "2")
    monkeypatch.setenv("ZONE", "eu")
    registry = Registry.from_toml(path)
    policy = registry.policy("carrier")
    assert policy.strategies[0].attempts == 5
    assert registry.bulkhead("carrier-eu").max_concurrent == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[presets.a]\nretry = '${NO_SUCH}'",
            "presets.a.retry: environment variable 'NO_SUCH' is not set, in '${NO_SUCH}'",
        ),
        (
            "[presets.a.retry]\nattempts = 'many'",
            "presets.a.retry: retry: attempts must be a positive integer, got 'many'",
        ),
        ("[preset.a]\nretry = 1", "unknown table 'preset'; known are 'defaults', 'presets'"),
        ("presets = 3", "presets must be a mapping of names to stages, got 3"),
        ("[presets", "registry file"),
    ],
)
def test_a_toml_fault_names_file_key_and_value(tmp_path, text, message):
    path = tmp_path / "resilience.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        Registry.from_toml(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_toml_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="no-such"):
        Registry.from_toml(tmp_path / "no-such.toml")


def test_a_fallbacks_value_and_using_stand_in_each_others_place():
    def two(error, ctx):
        return 2

    registry = Registry(
        defaults={"fallback": {"value": 0}},
        presets={
            "value": {"fallback": 1},
            "using": {"fallback": {"using": two}},
            "default": {"fallback": True},
        },
    )

    @registry.resilience("value")
    @fallback(using=two)
    def replaced():
        fails()

    @registry.resilience("using")
    @fallback(3)
    def replaced_too():
        fails()

    assert (replaced(), replaced_too()) == (2, 3)
    assert [registry.policy(name).call(replaced.__wrapped__) for name in ("value", "using", "default")] == [
        1,
        2,
        0,
    ]


@pytest.mark.parametrize("between", [lambda fn: fn, retry])
def test_names_below_a_preset_belong_to_its_registry(between):
    registries = [Registry(presets={"carrier": {"timeout": "2s"}}) for _ in range(2)]
    made = []
    for size, registry in enumerate(registries, 1):

        @registry.resilience("carrier")
        @between
        @bulkhead("exports", max_concurrent=size)
        def fn():
            return 1

        made.append(fn)
    assert [registry.bulkhead("exports").max_concurrent for registry in registries] == [1, 2]
    assert [
        registry.bulkhead("exports") in policy_of(fn).strategies
        for registry, fn in zip(registries, made, strict=True)
    ] == [True, True]


def test_names_stay_shared_while_stages_are_merged():
    @bulkhead("exports", max_concurrent=1)
    @retry
    def one():
        return 1

    @retry
    @bulkhead("exports")
    def two():
        return 2

    assert policy_of(one).strategies[-1] is policy_of(two).strategies[-1]
    with pytest.raises(ConfigurationError, match="in use with the options max_concurrent=1"):
        bulkhead("exports", max_concurrent=3)(fails)


def test_all_faults_of_a_file_are_in_one_message(tmp_path):
    path = tmp_path / "resilience.toml"
    path.write_text('[presets.a]\ntimeout = "${PYRESIL_NOT_SET}"\nretry = 0\n[other]\n')
    with pytest.raises(ConfigurationError) as caught:
        Registry.from_toml(path)
    for part in (
        "resilience.toml",
        "unknown table 'other'",
        "presets.a.timeout: environment variable",
        "presets.a.retry",
    ):
        assert part in str(caught.value)


def test_a_ready_strategy_of_another_stage_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"presets.carrier.retry must be a retry strategy, got CircuitBreaker"
    ):
        Registry(presets={"carrier": {"retry": CircuitBreaker(), "bulkhead": AdaptiveBulkhead()}})
    with pytest.raises(
        ConfigurationError, match="bulkhead: a ready strategy must be of that stage, got Timeout"
    ):
        bulkhead(Timeout("1s"))

    class Mine(Retry):
        pass

    registry = Registry(
        presets={"carrier": {"retry": Mine(), "bulkhead": AdaptiveBulkhead(), "timeout": Timeout("1s")}}
    )
    assert kinds(registry.policy("carrier")) == ["retry", "adaptive bulkhead", "timeout"]


def test_instances_may_come_while_all_are_listed():
    registry = Registry()
    registry.breaker("first")

    class Word(str):
        """Another thread makes an instance in the middle of the look."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            registry.breaker(f"another {len(registry._names._shared)}")
            return str.__eq__(self, other)

    assert list(registry._names.all(Word("circuit_breaker"))) == ["first"]
