"""A function that was written for the call's argument and gets the context gives no key."""

from __future__ import annotations

import pytest

from pyresil import Cache, ConfigurationError, Lock, Policy, RateLimit, current_context

STRATEGIES = {
    "lock": Lock,
    "cache": lambda key: Cache(key),
    "rate limit": lambda key: RateLimit("5/s", per=key),
}
each_strategy = pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)


@each_strategy
def test_the_context_itself(make):
    with pytest.raises(
        ConfigurationError,
        match=r"(hashable|what the context tells|a string of 1 to 500 characters).*got <Context",
    ):
        Policy(make(lambda order_id: order_id)).call(str, 7)


@each_strategy
def test_the_context_in_a_tuple(make):
    with pytest.raises(ConfigurationError, match=r"got \('eu', \('order', <Context"):
        Policy(make(lambda order_id: ("eu", ("order", order_id)))).call(str, 7)


@each_strategy
@pytest.mark.parametrize("text", ["order:{}", "order:{:>9}"])
def test_a_text_with_the_context(make, text):
    with pytest.raises(TypeError, match=r"a Context is no part of a key: take ctx\.key, ctx\.args"):
        Policy(make(lambda order_id: text.format(order_id))).call(str, 7)


@each_strategy
def test_what_the_context_tells(make):
    assert Policy(make(lambda ctx: f"order:{ctx.args[0]}")).call(str, 7) == "7"


def test_it_can_be_shown():
    with Policy(name="carrier").execute() as ctx:
        assert current_context() == ctx
        assert f"{ctx!r}" == str(ctx) == "%s" % ctx == "<Context policy='carrier' attempt=1>"  # noqa: UP031 - as logging does
