"""The slots engine against a naive model: a counter and a deque."""

from __future__ import annotations

import collections

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyresil._engine.slots import Slots, Waiter
from tests.support.depth import times


class SlotsMachine(RuleBasedStateMachine):
    """Takes, joins, leaves, gives back and resizes in any order."""

    def __init__(self):
        super().__init__()
        self.size = 3
        self.slots = Slots(self.size)
        self.nameless = 0  # taken without waiting
        self.queue = collections.deque()
        self.holders = []  # waiters that were granted a slot and keep it
        self.woken = []

    @property
    def active(self):
        return self.nameless + len(self.holders)

    def waiter(self):
        waiter = Waiter(lambda: self.woken.append(waiter))
        return waiter

    def grant_next(self):
        """The model: whoever is first gets what is free."""
        while self.queue and self.active < self.size:
            self.holders.append(self.queue.popleft())

    @rule()
    def take(self):
        got = self.slots.take()
        assert got == (self.active < self.size)
        self.nameless += got

    @rule(limit=st.integers(0, 4))
    def join(self, limit):
        waiter = self.waiter()
        got = self.slots.join(waiter, limit)
        if self.active < self.size:
            assert got
            assert waiter.granted
            self.holders.append(waiter)
        elif len(self.queue) < limit:
            assert got
            assert not waiter.granted
            self.queue.append(waiter)
        else:
            assert not got
            self.slots.leave(waiter)

    @precondition(lambda self: self.nameless)
    @rule()
    def release(self):
        self.slots.release()
        self.nameless -= 1
        self.grant_next()

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def give_up_waiting(self, data):
        waiter = data.draw(st.sampled_from(list(self.queue)))
        self.slots.leave(waiter)
        self.queue.remove(waiter)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def give_up_what_was_granted(self, data):
        waiter = data.draw(st.sampled_from(self.holders))
        self.holders.remove(waiter)
        self.slots.leave(waiter)
        self.grant_next()

    @rule(size=st.integers(1, 6))
    def resize(self, size):
        self.size = size
        self.slots.resize(size)
        self.grant_next()

    @invariant()
    def agrees_with_the_model(self):
        assert self.slots.active == self.active
        assert list(self.slots.queue) == list(self.queue)
        assert not (self.slots.queue and self.slots.permits), "a free slot while somebody waits"
        assert all(waiter.granted for waiter in self.holders)
        assert not any(waiter.granted for waiter in self.queue)


TestSlots = SlotsMachine.TestCase
TestSlots.settings = settings(max_examples=times(60), stateful_step_count=40)


def test_a_slot_goes_to_the_first_who_waits_and_wakes_only_it():
    slots = Slots(1)
    woken = []
    first, second = Waiter(lambda: woken.append(1)), Waiter(lambda: woken.append(2))
    assert slots.take()
    assert slots.join(first, 2)
    assert slots.join(second, 2)
    slots.release()
    assert woken == [1]
    assert first.granted
    assert not second.granted
    assert not slots.take(), "a newcomer overtook those who wait"


def test_waking_somebody_who_is_awake_already_is_no_error():
    slots = Slots(1)
    assert slots.take()

    def awake():
        raise RuntimeError("release unlocked lock")

    waiter = Waiter(awake)
    assert slots.join(waiter, 1)
    slots.release()
    assert waiter.granted


def test_fewer_slots_take_effect_as_they_come_back():
    slots = Slots(3)
    assert [slots.take() for _ in range(3)] == [True, True, True]
    slots.resize(1)
    assert slots.active == 3
    slots.release()
    slots.release()
    assert slots.active == 1
    assert not slots.take()
    slots.release()
    assert slots.active == 0
    assert slots.take()
    assert not slots.take()
