"""The windows of a circuit breaker, against lists that are counted anew every time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyresil._engine.windows import FAILED, SLOW, Rules

bits = st.integers(0, 3)


def rates(calls, rules):
    """Whether a rate is reached by these calls."""
    if len(calls) < rules.minimum_calls:
        return False
    failures = sum(1 for call in calls if call & FAILED)
    slow = sum(1 for call in calls if call & SLOW)
    return failures / len(calls) >= rules.failure_rate or slow / len(calls) >= rules.slow_rate


def counts(window):
    return window.calls, window.failures, window.slow


def counted(calls):
    return (
        len(calls),
        sum(1 for call in calls if call & FAILED),
        sum(1 for call in calls if call & SLOW),
    )


@given(
    calls=st.lists(bits, max_size=60),
    size=st.integers(1, 12),
    minimum=st.integers(1, 12),
    rate=st.sampled_from([0.07, 0.3, 0.5, 1.0]),
)
def test_a_count_window_is_the_last_calls(calls, size, minimum, rate):
    rules = Rules(size, None, min(minimum, size), rate, 0.7)
    window = rules.window()
    for position, call in enumerate(calls):
        reached = window.record(call, 0.0)
        last = calls[: position + 1][-size:]
        assert counts(window) == counted(last)
        assert reached == rates(last, rules)
        assert window.calm == (len(last) == size and not any(last))


@given(
    steps=st.lists(st.tuples(st.floats(0.0, 12.0), bits), max_size=60),
    begin=st.floats(0.0, 1e9),
    minimum=st.integers(1, 12),
)
def test_a_time_window_is_the_calls_of_the_last_ten_segments(steps, begin, minimum):
    span = 10.0
    rules = Rules(None, span, minimum, 0.5, 0.7)
    window = rules.window()
    now, calls = begin, []
    for step, call in steps:
        now += step
        reached = window.record(call, now)
        calls.append((now, call))
        # The youngest segment is the one that `end` closes; a call counts while its own is one of the last ten.
        young = window.end - span / 10
        inside = [bits for when, bits in calls if when // 1.0 > young // 1.0 - 10]
        assert young <= now < window.end
        assert counts(window) == counted(inside)
        assert reached == rates(inside, rules)
        # What everybody is promised, whatever the segments.
        assert window.calls >= sum(1 for when, _ in calls if now - when < 0.9 * span)
        assert window.calls <= sum(1 for when, _ in calls if now - when <= span)


def test_an_exact_rate_is_reached_in_spite_of_floating_point():
    # 0.07 * 100 is 7.000000000000001
    window = Rules(100, None, 100, 0.07, 1.0).window()
    reached = [window.record(FAILED if position < 7 else 0, 0.0) for position in range(100)]
    assert reached == [False] * 99 + [True]


def test_a_time_window_empties_with_time_alone_and_stays_small():
    window = Rules(None, 10.0, 1, 1.0, 1.0).window()
    for second in range(1_000):
        window.record(FAILED, float(second))
        assert len(window.past) <= 9
    assert counts(window) == (10, 10, 0)
    window.age(1_004.0)
    assert counts(window) == (5, 5, 0)
    window.age(5_000.0)
    assert counts(window) == (0, 0, 0)
    assert not window.past
