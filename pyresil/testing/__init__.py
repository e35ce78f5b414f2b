"""The testing toolkit: time that moves by hand, recorded events, contract suites, fault injection.

It is part of the public API, for the tests of applications that use pyresil and of stores and strategies written against
it. Parts are loaded when their name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyresil.testing._instant import InstantClock as InstantClock
    from pyresil.testing._instant import instant as instant
    from pyresil.testing.chaos import InjectFault as InjectFault
    from pyresil.testing.chaos import InjectLatency as InjectLatency
    from pyresil.testing.chaos import InjectResult as InjectResult
    from pyresil.testing.clock import ManualClock as ManualClock
    from pyresil.testing.recording import RecordedEvents as RecordedEvents
    from pyresil.testing.recording import record_events as record_events
    from pyresil.testing.state import fresh_state as fresh_state

#: Where each name lives.
_HOMES = {
    "pyresil.testing.chaos": ("InjectFault", "InjectLatency", "InjectResult"),
    "pyresil.testing.clock": ("ManualClock",),
    "pyresil.testing._instant": ("InstantClock", "instant"),
    "pyresil.testing.recording": ("RecordedEvents", "record_events"),
    "pyresil.testing.state": ("fresh_state",),
}

_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF]  # noqa: PLE0604 - grouped by module in _HOMES


def __getattr__(name: str) -> object:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
