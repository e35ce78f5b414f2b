"""The typed options of the decorators are those that the strategies take."""

from __future__ import annotations

import inspect

import pytest

import pyresil
from pyresil import _stage_options

STAGES = ["Retry", "Timeout", "CircuitBreaker", "Bulkhead", "RateLimit", "Hedge", "Fallback", "Cache", "Lock"]

#: What the decorators' overloads ask for themselves, since it is required, and what only decorators have.
BY_OVERLOAD = {"Timeout": {"limit"}, "RateLimit": {"limit"}, "Fallback": {"value", "using"}, "Lock": {"key"}}
ONLY_HERE = {"Retry": {"idempotent"}}


@pytest.mark.parametrize("stage", STAGES)
def test_the_options_of_a_decorator(stage):
    typed = set(getattr(_stage_options, f"{stage}Options").__annotations__)
    taken = set(inspect.signature(getattr(pyresil, stage)).parameters)
    assert typed - ONLY_HERE.get(stage, set()) == taken - BY_OVERLOAD.get(stage, set())
