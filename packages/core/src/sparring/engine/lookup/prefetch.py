"""Prefetches: lookups of a batch that start before the step of the previous batch has ended.

    this thread     … │ forward, backward of batch i │ step i │ finish │ forward of batch i+1 …
    prefetch thread   │ look up batch i+1 │                        │
                                                                   └ again: the keys that step i changed

Results are exact: `finish` returns, bit for bit, the rows of a lookup at that time.

On several ranks, one thread at a time uses the exchange. A step or another lookup that needs it first
joins the prefetch (`quiesce`). Therefore the exchanges of a rank are in the order of its calls, which
is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparring import _native
from sparring.contracts.device.kernels import Dedup, DeviceArray
from sparring.engine.lookup.lookup import (
    Lookup,
    PlannedLookup,
    complete_lookups,
    fill_and_decode,
    look_up,
    own_error_first,
    plan_lookups,
    prepare_reads,
)
from sparring.engine.lookup.transfer import log_row_lookups
from sparring.engine.state import EngineState, Purpose, join_prefetch, quiesce
from sparring.errors import InvalidArgumentError
from sparring.exchange.messages import PullResult
from sparring.exchange.refresh import PullRecord

__all__ = ["Prefetch"]


class Prefetch:
    """A lookup in progress on the prefetch thread; see `StepContainer.prefetch`.

    Call `finish` or `drop` to end it. All ranks must end it in the same way at the same time.

    Args:
        state: state of the engine.
        requests: as for `StepContainer.prefetch`.
        own_error: as for `StepContainer.prefetch`.
        dedup: function that the prefetch thread calls in place of deduplicating the ids of each request.
            It returns the distinct ids of each request, and the ids in `requests` are ignored.
    """

    def __init__(
        self,
        state: EngineState,
        requests: Sequence[tuple[str, DeviceArray]],
        own_error: Exception | None = None,
        dedup: Callable[[], Sequence[Dedup]] | None = None,
    ) -> None:
        state.check_open()
        found, self._own_error = prepare_reads(state, requests, own_error)
        log_row_lookups(state, (entry for entry, _ in found))
        self._state = state
        self._requests = found
        self._dedup = dedup
        self._step = state.counters.steps
        self._num_loads = state.loads.num_begun
        self._parts = [part for entry, _ in found for part in entry.parts]
        self._storages = [part.storage for part in self._parts]
        self._record = PullRecord()
        self._plans: list[PlannedLookup] = []
        self._lookups: list[Lookup] = []
        self._has_ended = False
        names = [part.config.name for part in self._parts]
        self._running = state.prefetches.begin(names, self._pull)

    def _pull(self) -> None:
        """Runs on the prefetch thread."""
        state = self._state
        with state.span("prefetch"):
            self._plans = self._plan()
            with own_error_first(self._own_error):
                pulled = state.exchange.pull_all(
                    [pull for each in self._plans for pull in each.pulls()],
                    record=self._record,
                    error=self._own_error,
                )
            self._lookups = complete_lookups(self._plans, pulled)

    def _plan(self) -> list[PlannedLookup]:
        if self._dedup is None or self._own_error is not None:
            return plan_lookups(self._requests)
        return [
            PlannedLookup(entry, each.keys, each.inverse)
            for (entry, _), each in zip(self._requests, self._dedup(), strict=True)
        ]

    def finish(self) -> list[Lookup]:
        """Returns the lookups in the order of the requests, as if they were made now. They are not
        registered.

        Raises:
            InvalidArgumentError: the prefetch was already finished or dropped.
            SparringError: as `StepContainer.lookup_all`.
        """
        if self._has_ended:
            raise InvalidArgumentError(
                "finish: this prefetch was already finished or dropped; start another one with prefetch"
            )
        state = self._state
        state.process.check()
        self._has_ended = True
        state.check_open()
        error = join_prefetch(state, self._running)
        state.prefetches.end(self._running)
        if error is not None:
            raise error
        if state.loads.num_begun != self._num_loads:
            # A load during the prefetch has replaced all rows, and may have failed.
            again = [(plan.entry.config.name, plan.keys) for plan in self._plans]
            self._lookups = look_up(state, again, is_training=False, are_distinct=True)
            for plan, lookup in zip(self._plans, self._lookups, strict=True):
                lookup.inverse = plan.inverse
        elif self._must_refresh():
            self._refresh()
        counters = state.prefetches.counters
        counters.lookups += 1
        counters.rows += sum(len(each.keys) for each in self._lookups)
        return self._lookups

    def drop(self) -> None:
        """Ends the prefetch without a result."""
        if not self._has_ended and self._state.process.is_own:
            self._has_ended = True
            join_prefetch(self._state, self._running)
            self._state.prefetches.end(self._running)

    def _must_refresh(self) -> bool:
        changed = self._running.changed
        for part, storage in zip(self._parts, self._storages, strict=True):
            if part.storage is not storage:
                # Another storage was opened during the prefetch, and its rows may differ.
                changed[part.config.name].are_all = True
        if self._state.collective.world_size > 1:
            # All ranks must take the same decision, but each knows only the changes of its own shard.
            return self._state.counters.steps != self._step
        return any(each.are_all or each.parts for each in changed.values())

    def _refresh(self) -> None:
        state = self._state
        quiesce(state, Purpose.MEET)
        pulls = [pull for each in self._plans for pull in each.pulls()]
        changed = [self._running.changed[part.config.name] for part in self._parts]
        owners = [
            lookup
            for plan, lookup in zip(self._plans, self._lookups, strict=True)
            for _ in plan.entry.parts
        ]
        with state.span("refresh"):
            refreshed = state.exchange.refresh_all(pulls, self._record, changed)
            for part, lookup, each in zip(self._parts, owners, refreshed, strict=True):
                keys = lookup.keys[each.positions]
                rows = fill_and_decode(part, keys, PullResult(each.rows, each.found))
                if part.block is None:
                    _native.place_rows(rows, each.positions, lookup.rows)
                else:
                    columns = part.block.columns
                    lookup.rows[each.positions, columns.begin : columns.end] = rows
                state.prefetches.counters.rows_refreshed += len(keys) if part.is_first else 0
