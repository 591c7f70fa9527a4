"""Lookups: convert ids of several tables to rows of shadows, in one exchange between ranks.

ids (n) ──► dedup ──► keys (u) ──► pulled from their owners ──► rows (u, dim)
                                              │
               initial values of missing rows ┘
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.device.kernels import DeviceArray
from sparring.contracts.ranks.exchange_options import WireDtype
from sparring.engine.lookup.transfer import log_row_lookups
from sparring.engine.state import EngineState, Purpose, try_quiesce
from sparring.engine.tables.column_blocks import fill_new_rows, join_rows
from sparring.engine.tables.entry import TableEntry
from sparring.errors import InvalidArgumentError, PeerFailure
from sparring.exchange.messages import PullRequest, PullResult
from sparring.kernels.cpu import HOST

__all__ = [
    "PlannedLookup",
    "Lookup",
    "fill_and_decode",
    "complete_lookups",
    "look_up",
    "own_error_first",
    "plan_lookups",
    "pulls_on_device",
    "prepare_reads",
    "failure_reports",
]


_NOTHING = np.empty(0, np.int64)


@dataclass(slots=True)
class PlannedLookup:
    """Deduplicated ids of one table in a batch."""

    entry: TableEntry
    keys: DeviceArray
    """``(u,)`` in order of first occurrence."""
    inverse: DeviceArray
    """``(n,)``: the key of each id."""

    def pulls(self) -> list[PullRequest]:
        """Returns the requests for the embeddings, one per block of columns."""
        return [
            PullRequest(part.storage, part.config, self.keys, part.embedding)
            for part in self.entry.parts
        ]


@dataclass(slots=True)
class Lookup:
    """Result of a lookup: the rows of a shadow. The arrays belong to the kernels of the lookup."""

    keys: DeviceArray
    """``(u,)`` in order of first occurrence."""
    inverse: DeviceArray
    """``(n,)``: the row of each id."""
    rows: DeviceArray
    """``(u, dim)`` of the computing dtype: a copy that the caller may change."""
    shadow_id: int | None = None
    """Id for `ResourceManager.accumulate`; None if the lookup was not registered."""


def look_up(
    state: EngineState,
    requests: Sequence[tuple[str, DeviceArray]],
    *,
    kernels: KernelSet = HOST,
    is_training: bool,
    own_error: Exception | None = None,
    are_distinct: bool = False,
) -> list[Lookup]:
    """Implements `StepContainer.lookup_all`, without registering the lookups.

    On a device, the host waits for the number of keys and the number of keys per owner.

    Args:
        state: state of the engine.
        requests: table and ids ``(n,)`` int64; the same tables in the same order on all ranks.
        kernels: kernels of the device of ids and tables; rows stay there.
        is_training: whether a backward pass follows.
        own_error: error of this rank, which all ranks raise in place of the lookup. The ids of this
            rank are ignored.
        are_distinct: whether the ids of each request are distinct, so that they are the keys. The
            lookups then have no inverse.

    Raises:
        Exception: `own_error`, or the error of another rank, with that rank's number.
        UnknownTableError: a table was not declared.
        BackgroundError: the last load in the background failed.
        InterruptedLoadError, InvalidArgumentError: as `StepContainer.lookup_all`, on any rank.
        PeerFailure: a rank is gone, does not respond, is in another operation, or could not read its
            rows.
        DeviceMemoryError: a device has no memory for keys or rows, on any rank.
    """
    state.check_open()
    found, own_error = prepare_reads(state, requests, own_error, kernels)
    if is_training and own_error is None:
        log_row_lookups(state, (entry for entry, _ in found))
    plans: list[PlannedLookup] = []
    if own_error is None:
        try:
            if are_distinct:
                plans = [PlannedLookup(entry, keys, _NOTHING) for entry, keys in found]
            else:
                plans = plan_lookups(found, kernels)
        except Exception as error:
            if state.collective.world_size == 1:
                raise
            own_error = error
    if own_error is not None:
        plans = [PlannedLookup(entry, _NOTHING, _NOTHING) for entry, _ in found]
    with state.span("look up"), own_error_first(own_error):
        pulled = state.exchange.pull_all(
            [pull for each in plans for pull in each.pulls()],
            kernels=kernels,
            is_training=is_training,
            error=own_error,
        )
    with failure_reports(state, kernels, [table for table, _ in requests]):
        return complete_lookups(plans, pulled, kernels)


def prepare_reads(
    state: EngineState,
    requests: Sequence[tuple[str, DeviceArray]],
    own_error: Exception | None,
    kernels: KernelSet = HOST,
) -> tuple[list[tuple[TableEntry, DeviceArray]], Exception | None]:
    """Prepares the tables of a lookup for reading.

    Returns:
        The entries with their ids, and the error of this rank, which is to be raised on all ranks. If
        there is an error, the ids are empty.

    Raises:
        UnknownTableError: a table was not declared.
        Exception: the error of this rank, if there is only one rank.
    """
    entries = [(state.tables.entry(table), ids) for table, ids in requests]
    own_error = try_quiesce(state, Purpose.READ, own_error)
    if own_error is None:
        try:
            for entry, ids in entries:
                if kernels is HOST:
                    _check_ids(entry.config.name, ids)
                state.tables.check_readable(entry)
        except Exception as error:
            own_error = error
    if own_error is None:
        return entries, None
    if state.collective.world_size == 1:
        raise own_error
    return [(entry, np.empty(0, np.int64)) for entry, _ in entries], own_error


def plan_lookups(
    requests: Sequence[tuple[TableEntry, DeviceArray]], kernels: KernelSet = HOST
) -> list[PlannedLookup]:
    """Deduplicates the ids of each table. A GPU is synchronized once per table."""
    plans = []
    for entry, ids in requests:
        found = kernels.dedup(ids)
        plans.append(PlannedLookup(entry, found.keys, found.inverse))
    return plans


def complete_lookups(
    plans: Sequence[PlannedLookup], pulled: Sequence[PullResult], kernels: KernelSet = HOST
) -> list[Lookup]:
    """Completes lookups with the pulled rows, and fills missing rows with their initial values.

    Args:
        plans: planned lookups.
        pulled: results of their `PlannedLookup.pulls`, in order.
        kernels: kernels of the arrays.
    """
    lookups, rest = [], iter(pulled)
    for plan in plans:
        whole = join_rows(plan.entry, [next(rest) for _ in plan.entry.parts])
        rows = fill_and_decode(plan.entry, plan.keys, whole, kernels)
        lookups.append(Lookup(plan.keys, plan.inverse, rows))
    return lookups


def fill_and_decode(
    entry: TableEntry, keys: DeviceArray, pulled: PullResult, kernels: KernelSet = HOST
) -> DeviceArray:
    """Fills missing rows with their initial values, and returns rows of the computing dtype.

    Args:
        entry: entry of a table, or of a block of its columns.
        keys: ``(u,)`` keys of the rows.
        pulled: the rows.
        kernels: kernels of the arrays.
    """
    if len(keys):
        found = kernels.arrays.view(pulled.found, "bool")
        if entry.block is None:
            kernels.initialize(pulled.rows, keys, found, entry.config)
        else:
            fill_new_rows(entry, pulled.rows, keys, found, kernels)
    return kernels.decode(pulled.rows) if entry.config.is_narrow else pulled.rows


def pulls_on_device(state: EngineState, tables: Iterable[str]) -> bool:
    """Whether rows of tables are transferred between devices without a copy to the host; the same on
    all ranks.

    Args:
        state: state of the engine.
        tables: names of declared tables.
    """
    return state.exchange.options.row_wire_dtype is WireDtype.EXACT and all(
        state.tables.entry(table).kernels is not None for table in tables
    )


def failure_reports(
    state: EngineState, kernels: KernelSet, tables: Sequence[str]
) -> AbstractContextManager[None]:
    """Returns a context for work on pulled rows on a device. It reports a failure to the other ranks.

    Args:
        state: state of the engine.
        kernels: kernels of the device of the rows.
        tables: names of the tables whose rows were pulled.
    """
    if kernels is HOST or state.collective.world_size == 1:
        return nullcontext()
    configs = [state.tables.entry(table).config for table in tables]
    return state.exchange.report_failure(kernels, configs)


@contextmanager
def own_error_first(own_error: Exception | None) -> Iterator[None]:
    """Context that raises this rank's own error, even if it could not be reported to the other
    ranks."""
    try:
        yield
    except PeerFailure as failure:
        if own_error is None:
            raise
        raise own_error from failure


def _check_ids(table: str, ids: npt.NDArray[np.int64]) -> None:
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype != np.int64:
        raise InvalidArgumentError(
            f"lookup: ids for table {table!r} must be one-dimensional int64, found "
            f"{type(ids).__name__}, shape {getattr(ids, 'shape', None)}, dtype "
            f"{getattr(ids, 'dtype', None)}; pass numpy.asarray(ids, numpy.int64)",
            table=table,
        )
