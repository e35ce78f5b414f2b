"""A circuit breaker whose state is shared between processes through a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pyresil._engine.circuit import HALF_OPEN, OPEN, CircuitState
from pyresil.errors import StoreError, shown
from pyresil.events import CircuitStoreError, emit
from pyresil.stores.circuits import CircuitSnapshot, VersionedCircuit

if TYPE_CHECKING:
    from pyresil._engine.circuit import Origin
    from pyresil.stores.circuits import CircuitStateStore
    from pyresil.strategies.circuit_breaker.control import CircuitControl

#: The store is read at most so often, in seconds; after a failure a little later.
_EVERY = 1.0
_AFTER_FAILURE = 5.0
#: Seconds that one request may take.
_TIMEOUT = 1.0
#: Writes in a row that may find another version.
_TRIES = 10
#: A version that no store answers with.
_UNKNOWN = -1


class Share:
    """Keeps one breaker and its row in a store together.

    What this breaker decides is written, if nobody wrote since it last looked; else the other decision is taken over. What is
    set by hand is written in any case. While the store cannot be reached the breaker goes on by itself, and what it decided then
    is written when the store is back, if nobody else wrote meanwhile. A round of probes belongs to the process that wrote
    half-open; for the others the circuit is open until it ends, or until its time is up.
    """

    __slots__ = ("_due", "_failing", "_id", "_key", "_store", "_unwritten", "_version")

    def __init__(self, store: CircuitStateStore, key: str) -> None:
        self._store = store
        self._key = key
        self._id = ""
        self._version = 0
        self._due = float("-inf")
        self._failing = False
        self._unwritten = False

    def forget(self, *, probing: bool) -> None:
        """In a forked child, which is another writer. A round that was on (``probing``) is the parent's: the next call looks."""
        self._id = ""
        if probing:
            self._version = _UNKNOWN
            self._due = float("-inf")

    def refresh(self, breaker: CircuitControl, origin: Origin) -> None:
        """Look what others decided, if that is due."""
        now = breaker._now()
        if now < self._due:
            return
        # One thread goes; the others go on with what is known.
        self._due = now + _EVERY
        known = self._version
        try:
            current = _checked(self._store.read(self._key, timeout=_TIMEOUT))
        except StoreError as error:
            self._failed(breaker, origin, error)
            return
        self._failing = False
        if self._version != known:
            return  # this breaker wrote meanwhile
        foreign = self._foreign(current)
        if foreign is None or current.version == known:
            self._version = current.version
            if self._unwritten:
                self.publish(breaker, origin)
        else:
            self._take_over(breaker, origin, current.version, foreign)

    def claim(self, breaker: CircuitControl, origin: Origin, lease: float) -> bool:
        """The break is over: ask for the round of probes. False where somebody else has it, or decided otherwise."""
        for _ in range(_TRIES):
            # The version first. Another thread may have had the round, and ended it, since the caller looked: then nothing is left
            # to ask for; and if it does so after this look, the write finds another version.
            version = self._version
            if not breaker._circuit.is_over(breaker._now()):
                return True
            wanted = CircuitSnapshot(HALF_OPEN.value, _ms(lease), breaker._circuit.opened, self._writer())
            try:
                current = _checked(self._store.write(self._key, wanted, version, timeout=_TIMEOUT))
            except StoreError as error:
                self._failed(breaker, origin, error)
                return True  # by itself
            foreign = self._foreign(current)
            if foreign is not None:
                self._take_over(breaker, origin, current.version, foreign)
                return False
            self._version = current.version
            if _is_written(wanted, current, version):
                return True
            # What stands there is of another thread, or was written by a request whose answer got lost: the round is not ours yet.
        return False

    def publish(self, breaker: CircuitControl, origin: Origin, *, by_hand: bool = False) -> None:
        """Tell the others the state of this breaker."""
        self._unwritten = True
        for _ in range(_TRIES):
            # The version first: whoever writes in between makes this write fail, and it is done again.
            version = self._version
            circuit, now = breaker._circuit, breaker._now()
            left = circuit.until - now if circuit.state is OPEN else 0.0
            snapshot = CircuitSnapshot(circuit.state.value, _ms(left), circuit.opened, self._writer())
            try:
                current = _checked(self._store.write(self._key, snapshot, version, timeout=_TIMEOUT))
            except StoreError as error:
                self._failed(breaker, origin, error)
                return
            if _is_written(snapshot, current, version):
                self._version = current.version
                self._unwritten = False
                return
            foreign = self._foreign(current)
            if foreign is not None and not by_hand:
                self._take_over(breaker, origin, current.version, foreign)
                return
            self._version = current.version

    def _foreign(self, current: VersionedCircuit) -> CircuitSnapshot | None:
        """What is there, where somebody else wrote it; None where it is this breaker's, or the store has nothing (any more)."""
        snapshot = current.snapshot
        return None if snapshot is None or snapshot.writer == self._id else snapshot

    def _take_over(
        self, breaker: CircuitControl, origin: Origin, version: int, snapshot: CircuitSnapshot
    ) -> None:
        state = CircuitState(snapshot.state)
        until = breaker._now() + snapshot.remaining_ms / 1000.0
        post = breaker._post(origin)
        # Before the circuit follows: what another thread decides from then on is written over this version.
        self._version = version
        self._unwritten = False
        try:
            breaker._circuit.follow(OPEN if state is HALF_OPEN else state, until, snapshot.opened, post)
        except BaseException:
            self._version = _UNKNOWN  # a signal handler raised: the next look has to follow
            raise
        breaker._announce()

    def _failed(self, breaker: CircuitControl, origin: Origin, error: StoreError) -> None:
        self._due = breaker._now() + _AFTER_FAILURE
        if not self._failing:
            self._failing = True
            breaker._log().warning("%s: the store failed, it goes on by itself: %s", breaker._label(), error)
        if CircuitStoreError.listeners:
            at = breaker.clock.wall()
            emit(CircuitStoreError(policy=origin[0], source=breaker.name or origin[1], at=at, error=error))

    def _writer(self) -> str:
        if not self._id:
            from os import urandom

            fresh = urandom(16).hex()
            if not self._id:
                self._id = fresh
        return self._id


def _is_written(wanted: CircuitSnapshot, current: VersionedCircuit, expected: int) -> bool:
    """Whether a write arrived; under the same version there may be one of before, whose answer got lost."""
    return (
        current.version == expected + 1
        and current.snapshot is not None
        and current.snapshot._replace(remaining_ms=wanted.remaining_ms) == wanted
    )


def _ms(seconds: float) -> int:
    return max(0, int(seconds * 1000.0 + 0.999))


def _checked(given: Any) -> VersionedCircuit:
    """What a store answered, if it can be right.

    Raises:
        StoreError: It cannot.
    """
    if isinstance(given, VersionedCircuit):
        snapshot, version = cast("tuple[object, object]", given)
        if isinstance(version, int) and version >= 0 and (snapshot is None or _is_plausible(snapshot)):
            return given
    raise StoreError(f"a circuit store answered {shown(given)}")


def _is_plausible(snapshot: object) -> bool:
    if not isinstance(snapshot, CircuitSnapshot):
        return False
    state, remaining_ms, opened, writer = cast("tuple[object, ...]", snapshot)
    return (
        state in _STATES
        and isinstance(remaining_ms, int)
        and isinstance(opened, int)
        and isinstance(writer, str)
    )


_STATES = frozenset(state.value for state in CircuitState)
