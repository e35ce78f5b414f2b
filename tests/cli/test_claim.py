"""One lease in the command's main loop, without a store: what each answer and each moment makes of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pyresil.cli._claim import Claim
from pyresil.cli._worker import Answer
from pyresil.errors import StoreError, StoreUnavailableError
from pyresil.stores.base import Granted, Held

DOWN = StoreUnavailableError("the store is down")


class FakeWorker:
    """Notes the jobs that it is given."""

    def __init__(self):
        self.jobs = []

    def give(self, job, work):
        self.jobs.append(job)
        self.work = work

    def owner(self):
        """The owner id that the last job gives to the store."""
        found = []

        def called(key, owner, *args, **options):
            found.append(owner)

        self.work(SimpleNamespace(acquire=called, release=called))
        return found[0]

    def released_with(self):
        """The minimum hold of the last job, a release, in milliseconds."""
        found = []
        self.work(SimpleNamespace(release=lambda key, owner, hold, *, timeout: found.append(hold)))
        return found[0]


class Story:
    """A claim and what happened to it; times are seconds."""

    def __init__(self, **options):
        self.worker = FakeWorker()
        self.claim = Claim(self.worker, "k", options.pop("ttl", 3.0), **options)

    def answer(self, job, value=None, *, sent, now=None, error=None):
        assert self.worker.jobs.pop(0) == job
        self.claim.answered(Answer(job, sent, value, error), sent if now is None else now)

    def held(self):
        self.claim.ask(0.0, 0.0)
        self.answer("acquire", Granted(7), sent=0.0)
        assert self.claim.state == "held"
        return self


def test_a_grant_counts_from_before_it_was_asked_for():
    story = Story()
    story.claim.ask(0.0, 0.0)
    story.answer("acquire", Granted(7), sent=0.5, now=1.0)
    assert (story.claim.state, story.claim.token, story.claim.deadline) == ("held", 7, 3.5)


def test_a_grant_that_took_longer_than_the_lease_is_given_back():
    story = Story()
    story.claim.ask(0.0, 0.0)
    story.answer("acquire", Granted(7), sent=0.0, now=3.0)
    assert story.claim.state == "releasing"
    story.answer("release", value=True, sent=3.0)
    assert story.claim.state == "failed"
    assert "took longer than the lease lasts" in str(story.claim.error)


@pytest.mark.parametrize("patient", [True, False])
def test_who_waits_goes_on_after_a_grant_that_came_too_late(patient):
    """The host was suspended, say, while the question was on its way."""
    story = Story()
    story.claim.ask(0.0, 600.0, patient=patient)
    if not patient:
        story.answer("acquire", Held(1500, 3, ""), sent=0.0)
        story.answer("watch", value=True, sent=0.0)
        story.claim.tick(0.0)
    story.answer("acquire", Granted(7), sent=0.0, now=100.0)
    story.answer("release", value=False, sent=100.0)
    assert story.claim.state == "pausing"
    story.claim.tick(story.claim.tick(100.0))
    story.answer("acquire", Granted(8), sent=101.0)
    assert (story.claim.state, story.claim.token, story.claim.error) == ("held", 8, None)


def test_a_late_release_of_a_late_grant_cannot_hit_the_next_one():
    story = Story()
    story.claim.ask(0.0, 600.0, patient=True)
    asked = story.worker.owner()
    story.answer("acquire", Granted(7), sent=0.0, now=100.0)
    assert story.worker.owner() == asked
    story.answer("release", sent=100.0, error=DOWN)  # it may still be on its way
    story.claim.tick(story.claim.tick(101.0))
    assert story.worker.jobs == ["acquire"]
    assert story.worker.owner() == story.claim.owner != asked


def test_a_lease_that_was_not_used_is_not_held_for_its_minimum():
    story = Story(min_hold=60.0).held()
    for used, hold in ((True, 60_000), (False, 0)):
        story.claim.give_back(1.0, used=used)
        assert story.worker.released_with() == hold


def test_held_without_waiting_is_busy_and_names_the_holder():
    story = Story()
    story.claim.ask(0.0, 0.0)
    story.answer("acquire", Held(1500, 3, "host=a"), sent=0.0)
    assert story.claim.state == "busy"
    assert story.claim.holder == Held(1500, 3, "host=a")


def test_waiting_on_a_store_that_cannot_wait_pauses_longer_and_longer():
    story = Story()
    story.claim.ask(0.0, 60.0)
    now, pauses = 0.0, []
    for _ in range(8):
        story.answer("acquire", Held(1500, 3, ""), sent=now)
        story.answer("watch", value=False, sent=now)
        due = story.claim.tick(now)
        assert story.claim.state == "pausing"
        pauses.append(due - now)
        now = due
        story.claim.tick(now)
    assert 0.025 <= pauses[0] <= 0.05
    assert pauses[0] < pauses[2] < pauses[4]
    assert max(pauses) <= 1.0


def test_a_release_that_was_watched_for_is_tried_at_once():
    story = Story()
    story.claim.ask(0.0, 60.0)
    story.answer("acquire", Held(1500, 3, ""), sent=0.0)
    story.answer("watch", value=True, sent=0.0, now=0.7)
    story.claim.tick(0.7)
    assert story.worker.jobs == ["acquire"]


def test_waiting_ends_with_a_last_try():
    story = Story()
    story.claim.ask(0.0, 2.0)
    story.answer("acquire", Held(9000, 3, ""), sent=0.0)
    story.claim.tick(2.0)
    assert story.worker.jobs == ["watch", "acquire"]
    story.worker.jobs.pop(0)
    story.answer("acquire", Held(7000, 3, ""), sent=2.0)
    assert story.claim.state == "busy"


def test_a_store_that_is_down_from_the_start_is_final():
    story = Story()
    story.claim.ask(0.0, 60.0)
    story.answer("acquire", sent=0.0, error=DOWN)
    assert (story.claim.state, story.claim.error) == ("failed", DOWN)


@pytest.mark.parametrize(("error", "state"), [(DOWN, "pausing"), (StoreError("refused"), "failed")])
def test_a_store_that_goes_down_while_waiting_may_come_back(error, state):
    story = Story()
    story.claim.ask(0.0, 60.0)
    story.answer("acquire", Held(1500, 3, ""), sent=0.0)
    story.answer("watch", value=True, sent=0.0, now=1.0)
    story.claim.tick(1.0)
    story.answer("acquire", sent=1.0, error=error)
    assert story.claim.state == state


def test_a_store_that_never_answers_is_given_up():
    story = Story()
    story.claim.ask(0.0, 0.0)
    due = story.claim.tick(0.0)
    assert due == pytest.approx(10.0)
    story.claim.tick(due)
    assert story.claim.state == "failed"
    # What it grants in the end is not used.
    story.answer("acquire", Granted(7), sent=0.0, now=11.0)
    assert story.worker.jobs == ["release"]


def test_renewal_every_third_moves_the_deadline_from_when_it_was_sent():
    story = Story().held()
    assert story.claim.tick(0.0) == pytest.approx(1.0)
    story.claim.tick(1.0)
    assert story.claim.tick(1.1) == 3.0, "while it is on its way only the deadline matters"
    story.answer("renew", value=True, sent=1.2, now=1.5)
    assert story.claim.deadline == pytest.approx(4.2)
    assert story.claim.tick(1.5) == pytest.approx(2.2)


def test_a_failed_renewal_is_tried_again_until_the_deadline():
    story = Story().held()
    now = 1.0
    while story.claim.tick(now) is not None:
        if story.worker.jobs:
            story.answer("renew", sent=now, error=DOWN)
        now += 0.1
    assert (story.claim.state, story.claim.detected_by) == ("lost", "deadline")
    assert now == pytest.approx(3.0, abs=0.15)


def test_a_renewal_that_hangs_does_not_hide_the_deadline():
    story = Story().held()
    story.claim.tick(1.0)
    assert story.claim.tick(2.9) == 3.0
    assert story.claim.tick(3.0) is None
    assert story.claim.detected_by == "deadline"
    story.answer("renew", value=True, sent=1.0, now=3.5)
    assert story.claim.state == "lost", "lost is final"


def test_a_refused_renewal_is_a_loss():
    story = Story().held()
    story.claim.tick(1.0)
    story.answer("renew", value=False, sent=1.0)
    assert (story.claim.state, story.claim.detected_by) == ("lost", "refused")


def test_max_hold_ends_a_lease_that_could_be_renewed():
    story = Story(max_hold=1.5).held()
    story.claim.tick(1.0)
    story.answer("renew", value=True, sent=1.0)
    assert story.claim.tick(1.2) == 1.5
    story.claim.tick(1.5)
    assert (story.claim.state, story.claim.detected_by) == ("lost", "max-hold")
