"""Lookups of a batch that begin before the step of the batch before it has ended.

    this thread     … │ forward, backward of batch i │ step i │ finish │ forward of batch i+1 …
    thread beside     │ look up batch i+1 │                        │
                                                                   └ again: the keys that step i changed

So results are exact: what `finish` returns is, bit for bit, what a lookup would return that began
then.

On several ranks the exchange belongs to one thread at a time. Whoever needs it, a step or another
lookup, first waits for the lookup beside: `StepContainer.join_ahead`. So the exchanges of a rank
follow each other as its calls do, and in one order on all ranks that make the same calls.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.declared_table import DeclaredTable
from sparring.errors import InvalidArgumentError, PeerFailure
from sparring.exchange import ChangedKeys, Pulled, PullRecord, PullRequest
from sparring.row_parts import computing_embeddings
from sparring.step_results import Lookup
from sparring.storage.contract import Keys, Rows

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["AheadCounters", "Aheads", "LookupAhead", "looked_up", "own_refusal_first"]

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Deduplicated ids, and what is to be pulled for them."""

    entries: list[DeclaredTable]
    pulls: list[PullRequest]
    inverses: list[Ids]

    def lookups(self, pulled: Sequence[Pulled]) -> list[Lookup]:
        """What was pulled, with initial values where there was no row; nothing is registered."""
        result = []
        for entry, pull, inverse, found in zip(
            self.entries, self.pulls, self.inverses, pulled, strict=True
        ):
            rows = _completed(entry, pull.keys, found.rows, found.found)
            result.append(Lookup(pull.keys, inverse, rows, None))
        return result


def _prepare(requests: Sequence[tuple[DeclaredTable, Ids]]) -> _Prepared:
    """Deduplicates ids of several tables."""
    entries, pulls, inverses = [], [], []
    for entry, ids in requests:
        keys, inverse = _native.dedup(ids)
        entries.append(entry)
        inverses.append(inverse)
        pulls.append(PullRequest(entry.storage, entry.config, keys, entry.embedding))
    return _Prepared(entries, pulls, inverses)


def _completed(entry: DeclaredTable, keys: Keys, rows: Rows, found: npt.NDArray[np.bool_]) -> Rows:
    _native.initialize(rows, keys, found, entry.initializer, None)
    return computing_embeddings(entry.config, rows)


@dataclass(slots=True)
class AheadCounters:
    """What lookups ahead did since the container was made."""

    lookups: int = 0
    """That were finished."""
    rows: int = 0
    """That they gave."""
    rows_refreshed: int = 0
    """Of these, read again because a step had changed them."""
    wait_seconds: float = 0.0
    """For which the driving thread waited for them."""


class LookupAhead:
    """A lookup under way beside the thread that drives steps; see `StepContainer.look_up_ahead`.

    `finish` or `drop` ends it. On several ranks all of them end it in the same way at the same
    time.
    """

    def __init__(
        self,
        container: StepContainer,
        requests: Sequence[tuple[DeclaredTable, Ids]],
        refusal: Exception | None,
    ) -> None:
        self._container = container
        self._requests = list(requests)
        self._refusal = refusal
        self._step = container.counters.steps
        self._num_loads = container.loads.num_begun
        self._storages = [entry.storage for entry, _ in requests]
        self._changed: dict[str, ChangedKeys] = {
            entry.config.name: ChangedKeys() for entry, _ in requests
        }
        self._record = PullRecord()
        self._prepared: _Prepared | None = None
        self._lookups: list[Lookup] = []
        self._is_over = False
        self._future: Future[None] | None = None

    def begin(self, future: Future[None]) -> None:
        """Says what `pull` runs as; only `Aheads` calls it."""
        self._future = future

    def pull(self) -> None:
        """What runs beside; only `Aheads` calls it."""
        container = self._container
        with container.span("look up ahead"):
            self._prepared = _prepare(self._requests)
            with own_refusal_first(self._refusal):
                pulled = container.exchange.pull_all(
                    self._prepared.pulls, record=self._record, error=self._refusal
                )
            self._lookups = self._prepared.lookups(pulled)

    def note(self, table: str, keys: Keys | None) -> None:
        """A step changes rows of `table`: those of `keys`, or, if None, any."""
        known = self._changed.get(table)
        if known is None:
            return
        if keys is None:
            known.are_all = True
        else:
            known.parts.append(keys)

    @property
    def is_done(self) -> bool:
        """Whether `join` would return at once."""
        return self._future is None or self._future.done()

    def join(self) -> BaseException | None:
        """Waits until nothing runs beside. Returns what went wrong there."""
        if self._future is None:
            return None
        if not self._future.done():
            begin = time.perf_counter()
            with self._container.span("wait for lookup ahead"):
                error = self._future.exception()
            self._container.aheads.counters.wait_seconds += time.perf_counter() - begin
            return error
        return self._future.exception()

    def finish(self) -> list[Lookup]:
        """The lookups, in the order of the requests, as if they were made now; not registered.

        Raises:
            InvalidArgumentError: it was finished or dropped before.
            SparringError: as `StepContainer.lookup_all`.
        """
        if self._is_over:
            raise InvalidArgumentError(
                "this lookup ahead was finished or dropped already; begin another by look_up_ahead"
            )
        self._is_over = True
        container = self._container
        container.check_open()
        error = self.join()
        container.aheads.forget(self)
        if error is not None:
            raise error
        assert self._prepared is not None
        if container.loads.num_begun != self._num_loads:
            # All rows are others now, and may be a part of them.
            self._lookups = container.lookup_all(
                [(entry.config.name, ids) for entry, ids in self._requests], is_registered=False
            )
        elif self._must_refresh():
            self._refresh(self._prepared)
        counters = container.aheads.counters
        counters.lookups += 1
        counters.rows += sum(len(each.keys) for each in self._lookups)
        return self._lookups

    def drop(self) -> None:
        """Ends it without a result."""
        if not self._is_over:
            self._is_over = True
            self.join()
            self._container.aheads.forget(self)

    def _must_refresh(self) -> bool:
        for (entry, _), storage in zip(self._requests, self._storages, strict=True):
            if entry.storage is not storage:
                # Another one was opened since, which may hold anything.
                self._changed[entry.config.name].are_all = True
        if self._container.collective.world_size > 1:
            # All ranks must decide alike, and each knows what changed in its own shard only.
            return self._container.counters.steps != self._step
        return any(each.are_all or each.parts for each in self._changed.values())

    def _refresh(self, prepared: _Prepared) -> None:
        container = self._container
        container.join_ahead()
        pulls = [
            PullRequest(entry.storage, entry.config, pull.keys, pull.columns)
            for entry, pull in zip(prepared.entries, prepared.pulls, strict=True)
        ]
        changed = [self._changed[entry.config.name] for entry in prepared.entries]
        with container.span("refresh"):
            refreshed = container.exchange.refresh_all(pulls, self._record, changed)
            for entry, lookup, each in zip(prepared.entries, self._lookups, refreshed, strict=True):
                keys = lookup.keys[each.places]
                rows = _completed(entry, keys, each.rows, each.found)
                _native.place_rows(rows, each.places, lookup.rows)
                container.aheads.counters.rows_refreshed += len(keys)


class Aheads:
    """The lookups ahead of a container, and the thread that they run on."""

    def __init__(self, container: StepContainer) -> None:
        self.counters = AheadCounters()
        self._container = container
        self._unfinished: list[LookupAhead] = []
        self._threads: ThreadPoolExecutor | None = None

    def begin(
        self, requests: Sequence[tuple[DeclaredTable, Ids]], refusal: Exception | None
    ) -> LookupAhead:
        """Begins one; the others have been joined.

        Args:
            refusal: why this rank cannot look them up, for all ranks to raise.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="sparring-ahead")
        ahead = LookupAhead(self._container, requests, refusal)
        self._unfinished.append(ahead)
        ahead.begin(self._threads.submit(ahead.pull))
        return ahead

    def join(self) -> BaseException | None:
        """Waits until nothing runs beside. Returns what went wrong there first."""
        errors = [ahead.join() for ahead in self._unfinished]
        return next((error for error in errors if error is not None), None)

    def forget(self, ahead: LookupAhead) -> None:
        """It is over."""
        self._unfinished.remove(ahead)

    @property
    def are_any(self) -> bool:
        """Whether anybody wants to know which rows change."""
        return bool(self._unfinished)

    def note(self, table: str, keys: Keys | None) -> None:
        """Rows of `table` change: those of `keys`, or, if None, any."""
        for ahead in self._unfinished:
            ahead.note(table, keys)

    def close(self) -> None:
        """Waits for the thread."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None


def looked_up(
    container: StepContainer,
    requests: Sequence[tuple[DeclaredTable, Ids]],
    *,
    is_training: bool,
    refusal: Exception | None = None,
) -> list[Lookup]:
    """Looks several tables up now; nothing is registered.

    Args:
        refusal: why this rank cannot, for all ranks to raise.
    """
    made = _prepare(requests)
    with container.span("look up"), own_refusal_first(refusal):
        pulled = container.exchange.pull_all(made.pulls, is_training=is_training, error=refusal)
    return made.lookups(pulled)


@contextmanager
def own_refusal_first(refusal: Exception | None) -> Iterator[None]:
    """This rank's own refusal is what it raises, also where others could not be told of it."""
    try:
        yield
    except PeerFailure as failure:
        if refusal is None:
            raise
        raise refusal from failure
