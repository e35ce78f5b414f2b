"""`Cache`: results kept for a while, loaded once for all who miss them together, served stale while they are refreshed."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, Never, TypeVar

from pyresil._cache_keys import ArgumentsKey, freeze, shortcut, told, unbound, unwrapped
from pyresil._cache_values import Packing, whole_ms
from pyresil._flat import Inline
from pyresil._functions import describe_function
from pyresil._single_flight import AGAIN, LOADING, Load, Loads, start_refresh
from pyresil._validate import Checker
from pyresil.clock import Clock
from pyresil.context import Context
from pyresil.errors import CancelledError, ConfigurationError, TimeoutExceededError, shown
from pyresil.events import CacheHit, CacheMiss, CacheRefreshFailed, CacheStale, emit
from pyresil.outcome import Failure, Judge, Success
from pyresil.stores.cache import CacheStore, MemoryCacheStore
from pyresil.strategy import Forkable, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from pyresil._cache_values import Entry
    from pyresil._single_flight import Mark
    from pyresil.durations import Duration
    from pyresil.outcome import Outcome
    from pyresil.strategy import Call, Run

__all__ = ["Cache"]

T = TypeVar("T")

#: Options that `describe` gives as they are.
_PLAIN = ("ttl", "stale_ttl", "max_entries", "refresh", "stale_if_error", "negative_ttl", "codec")

#: After a refresh failed, the stale value is served this long (or ``ttl``, if shorter) before the next try, in seconds.
COOLDOWN = 5.0


class Cache(Strategy[Never], Forkable):
    """Keep results by key.

    Concurrent misses of a key run the work once; the others wait and get its value, or its error. After ``ttl`` a value is
    stale: for ``stale_ttl`` more it is still served while one refresh runs. ``None`` and other falsy results are values.
    Every caller but the one that loaded gets a copy. Results that are judged a failure are not kept.

    Args:
        key: The key of an execution: a function of the context that gives something hashable (or lists, dicts and sets of
            such), or None for the arguments of the call, bound to their parameters and typed.
        ttl: How long a value is fresh (a duration). Default: 60 s.
        stale_ttl: How much longer it may be served stale (a duration). Default: 0, never.
        name: Shown in events as ``source``.
        store: A `MemoryCacheStore`, which caches may share: what ``key=`` gives is then shared too, keys made of arguments are
            kept apart by function. Default: one of its own.
        max_entries: The size of that default store. Default: 1024.
        refresh: ``"background"`` (the default): a stale value is served and refreshed in a thread of the library;
            ``"inline"``: the first caller refreshes it, the others get it stale.
        stale_if_error: Where an inline refresh fails (a result judged a failure too), serve the stale value, and let the
            dependency rest. Default: True.
        negative_ttl: Keep errors (failures and client errors) this long too, but not in the place of a stale value (a
            duration). Default: None, never.
        codec: How values are copied: None for pickle, ``"json"`` for JSON.
        handle: Which errors count for ``negative_ttl`` and ``stale_if_error``. Default: all but rejections and
            cancellations for the former, all for the latter.
        handle_result: Predicate of the value: what is not kept. Default: a ``status_code`` of 408, 425, 429, 500 and above.
        lock_store: Loads once per fleet; this version has no shared cache stores, and only None is accepted.
        clock: Default: the policy's.

    Raises:
        ConfigurationError: An option is out of range or of the wrong type. In a call: a key is not hashable, or a result
            cannot be copied.
        RecursiveLoadError: In a call: the work waits for the key that it loads.

    Events: `CacheHit`, `CacheStale`, `CacheMiss`, `CacheRefreshFailed`.
    """

    kind = "cache"
    _dropped = ("_loads", "_refreshing")

    def __init__(
        self,
        key: Callable[[Context], Any] | None = None,
        ttl: Duration = "60s",
        *,
        stale_ttl: Duration = 0,
        name: str | None = None,
        store: Any = None,
        max_entries: int = 1024,
        refresh: str = "background",
        stale_if_error: bool = True,
        negative_ttl: Duration | None = None,
        codec: str | None = None,
        handle: type[BaseException] | tuple[type[BaseException], ...] | Callable[[Any], object] | None = None,
        handle_result: Callable[[Any], object] | None = None,
        lock_store: Any = None,
        clock: Clock | None = None,
    ) -> None:
        check = Checker("cache", name)
        self.name = check.name(name)
        self.key = check.function("key", key)
        self.ttl = check.duration("ttl", ttl)
        self.stale_ttl = check.duration("stale_ttl", stale_ttl, positive=False)
        self.max_entries = check.integer("max_entries", max_entries)
        self.refresh = check.choice("refresh", refresh, ("background", "inline"))
        self.stale_if_error = check.boolean("stale_if_error", stale_if_error)
        self.negative_ttl = check.optional_duration("negative_ttl", negative_ttl)
        self.codec = None if codec is None else check.choice("codec", codec, ("json",))
        if store is not None and (not isinstance(store, CacheStore) or store.shared):
            check.fault("store", "a store inside the process, such as MemoryCacheStore", store)
        if lock_store is not None:
            check.fault("lock_store", "None (loading once per fleet needs a shared cache store)", lock_store)
        self.judge = Judge(handle, handle_result, check)
        self._clock = check.instance("clock", clock, Clock, "a Clock or None")
        check.done()
        self._packing = Packing(self.codec, self._subject)
        self._store: CacheStore | None = store
        self._given, self._loads = store is not None, Loads()
        self._refreshing: set[Mark] = set()
        self._arguments: ArgumentsKey | None = None
        self._watch_forks()

    def run(self, call: Call[T], ctx: Context) -> T:
        """See `Strategy.run`."""
        return self.compile(call, ctx.clock)(ctx)  # type: ignore[no-any-return]  # compiled closures are untyped

    def compile(self, inner: Run, clock: Clock) -> Run:
        """See `Strategy.compile`."""
        strategy, get = self, self.store.get
        monotonic, key_of = self.clock.monotonic, self._key

        def run(ctx: Context) -> Any:
            key = key_of(ctx)
            entry, generation = get(key)
            if entry is None:
                return strategy._miss(inner, ctx, key, generation)
            if monotonic() < entry.fresh_until:
                if CacheHit.listeners:
                    strategy._tell(CacheHit, ctx, key)
                if entry.plain:
                    return entry.packed
                return strategy._packing.unpack(entry)
            return strategy._stale(inner, ctx, key, entry, generation)

        return run

    def inline(self, inner: Run, clock: Clock) -> Inline | None:
        """See `Strategy.inline`: nothing inside is inlined, but a decorated function's hits need no context."""
        if type(self).compile is not Cache.compile:
            return None
        names = {"run": self.compile(inner, clock)}
        return Inline("value = $run(context(cell))", names, shortcut=None if self.key else self._shortcut)

    def _shortcut(self, function: Callable[..., Any]) -> tuple[str, dict[str, Any]] | None:
        store = self.store
        if type(store) is not MemoryCacheStore or not isinstance(function, FunctionType):
            return None
        names = {"entries": store._entries, "now": self.clock.monotonic, "hit": CacheHit}
        return shortcut(self._arguments_key(function), names)

    @property
    def store(self) -> CacheStore:
        """Where the values are."""
        if self._store is None:
            fresh = MemoryCacheStore(self.max_entries, clock=self.clock)
            if self._store is None:
                self._store = fresh
        return self._store

    def invalidate(self, key: Any) -> None:
        """Drop the value under ``key``. A load of it that runs now is not kept, and nobody joins it any more.

        Args:
            key: What the key function gives for it.

        Raises:
            ConfigurationError: It cannot be a key, or a cache with a store of its own has no key function.
        """
        self._drop(self._frozen(key), self.key is not None, "invalidate_call(fn, …)")

    def invalidate_call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Drop the value of one call of ``fn``, decorated or not, where the arguments are the key; else `ConfigurationError`."""
        function, args = unbound(unwrapped(fn, self._arguments), args)
        # Before the first call, which says whose cache this is: nothing is remembered.
        first = self._arguments is None
        make = ArgumentsKey(function, apart=self._given) if first else self._arguments_key(function)
        self._drop(make(args, kwargs), self.key is None, "invalidate(key)")

    def _drop(self, key: Hashable, fits: bool, instead: str) -> None:
        if not fits and not self._given:
            raise ConfigurationError(f"{self._subject}: no value has such a key; use {instead}")
        self.store.invalidate(key)
        self._loads.forget(key)

    def _key(self, ctx: Context) -> Hashable:
        if self.key is not None:
            return self._frozen(self.key(ctx))
        function, args, kwargs = ctx._work
        if function is None:
            raise ConfigurationError(f"{self._subject}: a block has no arguments to make a key of; give key=")
        function, args = unbound(function, args)
        return self._arguments_key(function)(args, kwargs)

    def _arguments_key(self, function: Callable[..., Any]) -> ArgumentsKey:
        found = self._arguments
        if found is None:
            fresh = ArgumentsKey(function, apart=self._given)
            # Test and assignment with no call in between: of two functions at once only one comes through.
            if self._arguments is None:
                self._arguments = fresh
            found = self._arguments
        if found.function is not function and found.function != function:
            raise ConfigurationError(
                f"{self._subject}: two functions cannot share a cache without key=, got {shown(function)}"
            )
        return found

    def _frozen(self, key: Any) -> Hashable:
        try:
            return freeze(key)
        except TypeError as error:
            text = f"{self._subject}: key must be hashable, got {shown(key)} ({error})"
            raise ConfigurationError(text) from error

    @property
    def _subject(self) -> str:
        return f"cache {self.name!r}" if self.name else "cache"

    def _stale(self, inner: Run, ctx: Context, key: Hashable, entry: Entry, generation: int) -> Any:
        """A value that is due for a refresh: one caller sees to it, and everybody gets the value."""
        now = self.clock.monotonic()
        # A store keeps it a little longer than it may be served, or much longer where its clock is another one.
        if entry.is_error or now >= entry.fresh_until + self.stale_ttl:
            return self._miss(inner, ctx, key, generation)
        load, handed = Load(ctx), False
        load.alone = self.refresh == "background"
        try:
            if now >= entry.retry_at and self._loads.claim(key, load, served=True) is load:
                # Somebody may have finished between our look and our claim.
                newer, generation = self.store.get(key)
                if newer is not None and self.clock.monotonic() < newer.fresh_until:
                    return self._packing.unpack(newer)
                if self.refresh == "background":
                    handed = self._refresh(inner, ctx, key, load, entry, generation)
                else:
                    try:
                        value = self._lead(inner, ctx, key, load, generation, keep=not self.stale_if_error)
                        if not self.stale_if_error or not load.refused:
                            return value
                        self._refresh_failed(ctx, key, entry)
                    except Exception as error:
                        if not self.stale_if_error or not self._covers(error):
                            raise
                        self._refresh_failed(ctx, key, entry, error)
        finally:
            if not handed:
                try:
                    self._loads.let_go(key, load)
                except BaseException:
                    self._loads.let_go(key, load)  # a signal handler may have raised at its start
                    raise
            del load  # it holds the outcome, whose error's traceback holds this frame
        if CacheStale.listeners:
            self._tell(CacheStale, ctx, key)
        return self._packing.unpack(entry)

    def _miss(self, inner: Run, ctx: Context, key: Hashable, generation: int) -> Any:
        if CacheMiss.listeners:
            self._tell(CacheMiss, ctx, key)
        while True:
            fresh = Load(ctx)
            try:
                load = self._loads.claim(key, fresh)
                if load is fresh:
                    # Somebody may have finished between our look and our claim.
                    entry, generation = self.store.get(key)
                    if entry is not None and self.clock.monotonic() < entry.fresh_until:
                        return self._packing.unpack(entry)
                    del load  # it holds the outcome, whose error's traceback holds this frame
                    return self._lead(inner, ctx, key, fresh, generation)
            finally:
                try:
                    self._loads.let_go(key, fresh)
                except BaseException:
                    self._loads.let_go(key, fresh)  # as above
                    raise
                del fresh
            outcome = self._loads.wait(ctx, lambda: self._told(key), load)
            if outcome is AGAIN:
                continue
            if isinstance(outcome, Success):
                return self._packing.unpack(outcome.value)
            try:
                raise outcome.error
            finally:
                del outcome, load

    def _lead(
        self, inner: Run, ctx: Context, key: Hashable, load: Load, generation: int, *, keep: bool = True
    ) -> Any:
        """Run the work for everybody who waits; with ``keep`` an error may be kept too, in the place of a stale value."""
        outcome: Outcome[Any] = AGAIN
        around = LOADING.get()
        try:
            LOADING.set((*around, load.mark))
            value = inner(ctx)
            LOADING.set(around)
            entry = self._packing.pack(value, self.clock.monotonic() + self.ttl)
            load.refused = self.judge.value(value)
            if not load.refused and self._loads.keeps(key, load, self.store, self.clock.monotonic()):
                self.store.set(key, entry, whole_ms(self.ttl + self.stale_ttl), generation)
            outcome = Success(entry)
            return value
        except Exception as error:
            # A caller that was cancelled, or whose own time was up, says nothing of the work to the others.
            own = isinstance(error, CancelledError) or (
                isinstance(error, TimeoutExceededError) and ctx.remaining() == 0.0
            )
            if not own and not (ctx._stoppable() and ctx.cancel.reason is error):
                outcome = Failure(error)
                if keep and self._loads.keeps(key, load, self.store):
                    self._keep_error(key, error, generation)
            raise
        finally:
            LOADING.set(around)
            self._loads.finish(key, load, outcome)
            del outcome, load

    def _covers(self, error: Exception) -> bool:
        return self.judge.default_errors or bool(self.judge.error(error))

    def _keep_error(self, key: Hashable, error: Exception, generation: int) -> None:
        if self.negative_ttl is not None and self.judge.error(error) is not None:
            entry = self._packing.pack_error(error, self.clock.monotonic() + self.negative_ttl)
            if entry is not None:
                self.store.set(key, entry, whole_ms(self.negative_ttl), generation)

    def _refresh(
        self, inner: Run, ctx: Context, key: Hashable, load: Load, entry: Entry, generation: int
    ) -> bool:
        """Load in the background, without the caller's deadline; where too many do so already, the next caller sees to it.

        Returns whether it runs, and so ends the load.
        """
        fresh = Context()
        fresh._owner, fresh._work, fresh.key, fresh.source = ctx._owner, ctx._work, ctx.key, ctx.source
        load.ctx = fresh

        def work() -> None:
            try:
                LOADING.set(())  # nobody waits for this thread: it may wait for what its caller loads
                fresh._enter(lambda inside: self._lead(inner, inside, key, held[0], generation, keep=False))
                if held[0].refused:
                    self._refresh_failed(fresh, key, entry)
            except Exception as error:
                self._refresh_failed(fresh, key, entry, error)
            finally:
                refreshing.discard(mark)
                fresh._close()
                held.clear()  # it holds the outcome, whose error's traceback holds these frames

        held, refreshing, mark = [load], self._refreshing, load.mark
        return start_refresh(self.clock, work, refreshing, mark, self._subject)

    def _refresh_failed(
        self, ctx: Context, key: Hashable, entry: Entry, error: Exception | None = None
    ) -> None:
        entry.retry_at = self.clock.monotonic() + min(self.ttl, COOLDOWN)
        if CacheRefreshFailed.listeners:
            self._tell(CacheRefreshFailed, ctx, key, error=error)

    def _tell(self, kind: Any, ctx: Context, key: Hashable, **more: Any) -> None:
        source, at = self.name or ctx.source, ctx.clock.wall()
        emit(kind(policy=ctx.policy, source=source, at=at, key=self._told(key), **more))

    def _told(self, key: Hashable) -> Any:
        return told(key, None if self.key else self._arguments)

    def _after_fork(self) -> None:
        self._loads, self._refreshing = Loads(), set()

    def describe(self) -> dict[str, Any]:
        """Plain data: the effective options."""
        key = "arguments" if self.key is None else describe_function(self.key)
        store = repr(self._store) if self._given else "memory"
        plain = {name: getattr(self, name) for name in _PLAIN} | {"store": store, "lock_store": None}
        return {**super().describe(), "key": key, **plain, **self.judge.describe()}

    def __repr__(self) -> str:
        return f"Cache(ttl={self.ttl!r}, stale_ttl={self.stale_ttl!r}, name={self.name!r})"
