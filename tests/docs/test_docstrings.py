"""The docstrings of strategies and their like describe every option, with the default that the code has."""

from __future__ import annotations

import inspect
import re

import pytest

import pyresil
from pyresil import testing

CLASSES = [
    pyresil.AdaptiveBulkhead, pyresil.Bulkhead, pyresil.Cache, pyresil.CircuitBreaker, pyresil.Constant, pyresil.Decorrelated,
    pyresil.Exponential, pyresil.Fallback, pyresil.Hedge, pyresil.Linear, pyresil.Lock, pyresil.Locks, pyresil.MemoryCacheStore,
    pyresil.MemoryCircuitStore, pyresil.MemoryLimiterStore, pyresil.RateLimit, pyresil.Retry, pyresil.RetryBudget,
    pyresil.Timeout, testing.InjectFault, testing.InjectLatency, testing.InjectResult,
]  # fmt: skip


def described(cls):
    """The text of each option in the ``Args`` of a class."""
    args = re.search(r"^Args:\n(.*?)(?:\n\n|\Z)", inspect.getdoc(cls), re.DOTALL | re.MULTILINE)[1]
    entries = re.split(r"^    (\w+): ", args, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}


def spelled(default):
    """How a default is written."""
    if isinstance(default, str):
        return re.sub(r"^(\d+)(ms|s)$", r"\1 \2", default)
    return (
        f"{default:,}"
        if type(default) is int and default > 9_999
        else f"{default:g}"
        if type(default) is float
        else str(default)
    )


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_option_is_described_with_its_default(cls):
    told = described(cls)
    parameters = inspect.signature(cls).parameters
    assert set(told) == set(parameters)
    for name, parameter in parameters.items():
        default = parameter.default
        if default is parameter.empty or default is None or "UNSET" in repr(default):
            continue
        text = told[name]
        assert re.search(r"\bdefault\b", text, re.IGNORECASE), f"{name}: {text}"
        assert spelled(default) in text.replace("1,000", "1000"), f"{name}: {text}"
