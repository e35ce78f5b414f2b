"""`CircuitBreaker`: stop calling a dependency that fails, and probe whether it is back.

The state machine is `pyresil._engine.circuit`. Around it: ``control`` has state, transitions and how they are told,
``breaker`` the options and the calls, ``last_failure`` what is remembered of an error.
"""

from __future__ import annotations

from pyresil._engine.circuit import CircuitState
from pyresil.strategies.circuit_breaker.breaker import CircuitBreaker
from pyresil.strategies.circuit_breaker.control import CircuitStats

__all__ = ["CircuitBreaker", "CircuitState", "CircuitStats"]
