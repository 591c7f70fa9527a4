"""Tables whose bags are pooled by the owners of their rows: lookups, and gradients of the pools.

    look_up_bags ──► pools (b, dim) ──► model, loss ──► ResourceManager.accumulate_bags
                                                             │ stored until the step
    gradients of this rank's own keys ◄── owners expand ◄────┘ take_bag_gradients

Owners add the summed gradients to their accumulators, as if they had looked up these keys themselves.
Therefore the rest of a step does not depend on the transfer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.storage.results import Keys, Rows
from sparring.contracts.tables.table import TableConfig
from sparring.engine.lookup.lookup import own_error_first, prepare_reads
from sparring.engine.lookup.transfer import find_transfer, pools_at_owners
from sparring.engine.state import EngineState, NonFinite, Purpose, quiesce
from sparring.engine.tables.column_blocks import fill_new_rows
from sparring.engine.tables.entry import TableEntry
from sparring.errors import InvalidArgumentError
from sparring.exchange.bags import BagRequest, RequestedBags
from sparring.exchange.pooled import Gradients
from sparring.kernels.cpu import HOST

__all__ = [
    "BagLookup",
    "PooledLookup",
    "bag_weight_gradients",
    "look_up_bags",
    "take_bag_gradients",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BagLookup:
    """Bags of one table.

    Args:
        table: name of the table.
        ids: ``(n,)`` int64; they may repeat.
        offsets: ``(b + 1,)`` int64, non-decreasing, from 0 to n.
        mode: ``sum``, or ``mean``, which divides each sum by the number of ids in its bag.
        weights: ``(n,)`` of the table's computing dtype, or None.
        trains_weights: whether `bag_weight_gradients` will be called.
    """

    table: str
    ids: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    mode: str = "sum"
    weights: npt.NDArray[Any] | None = None
    trains_weights: bool = False


@dataclass(frozen=True, slots=True)
class PooledLookup:
    """Result of a lookup of bags."""

    pools: Rows
    """``(b, dim)`` of the computing dtype, which the caller may change; zeros for empty bags."""
    shadow_id: int | None = None
    """Id for `ResourceManager.accumulate_bags`; None if the lookup was not registered."""


def look_up_bags(
    state: EngineState, requests: Sequence[BagLookup], *, is_training: bool
) -> list[PooledLookup]:
    """Looks up bags, which the owners of their rows pool. Changes no table.

    All ranks must call it for the same tables in the same order. `find_transfer` must return ``pooled``
    for each of them.

    Args:
        state: state of the engine.
        requests: bags of each table.
        is_training: whether a backward pass follows. If so, the lookup is recorded in the batch-inputs
            map.

    Raises:
        UnknownTableError: a table was not declared.
        InvalidArgumentError: on any rank, ids, offsets or weights have the wrong shape or dtype, or
            a table is transferred by rows.
        PeerFailure: a rank is gone, does not respond, is in another operation, or could not read its
            rows.
    """
    state.check_open()
    found, own_error = prepare_reads(state, [(each.table, each.ids) for each in requests], None)
    if own_error is None:
        try:
            for entry, each in zip((entry for entry, _ in found), requests, strict=True):
                _check(state, entry, each)
        except Exception as error:
            own_error = error
    wanted: list[BagRequest] = []
    for (entry, _), each in zip(found, requests, strict=True):
        if own_error is not None:
            each = BagLookup(each.table, np.empty(0, np.int64), np.zeros(1, np.int64))  # noqa: PLW2901
        trains_weights = each.trains_weights and is_training
        wanted += [_make_request(part, each, trains_weights=trains_weights) for part in entry.parts]
    resources = state.resources
    with state.span("look up"), own_error_first(own_error):
        pooled = state.exchange.pooling.pull(
            wanted, is_training=is_training, first_alive=resources.first_bags(), error=own_error
        )
    lookups, rest = [], iter(pooled)
    for entry, _ in found:
        blocks = [next(rest) for _ in entry.parts]
        pools = [each.pools for each in blocks]
        requested = [each.requested for each in blocks if each.requested is not None]
        shadow_id = resources.register_bags(entry.config.name, requested) if requested else None
        lookups.append(
            PooledLookup(pools[0] if len(pools) == 1 else np.concatenate(pools, axis=1), shadow_id)
        )
    return lookups


def _make_request(part: TableEntry, given: BagLookup, *, trains_weights: bool) -> BagRequest:
    """Creates the request for a table, or for a block of its columns."""

    def fill(rows: Rows, keys: Keys, found: npt.NDArray[np.bool_]) -> None:
        fill_new_rows(part, rows, keys, found, HOST)

    return BagRequest(
        part.storage,
        part.config,
        given.ids,
        given.offsets,
        given.mode == "mean",
        given.weights,
        trains_weights,
        None if part.block is None else fill,
    )


def bag_weight_gradients(
    state: EngineState, lookups: Sequence[PooledLookup], gradients: Sequence[Rows | None]
) -> list[npt.NDArray[Any]]:
    """Returns the gradients ``(n,)`` of the weights of one `look_up_bags` call that trains weights.

    All ranks must call it in the backward pass, because the owners of the rows compute the gradients.

    Args:
        state: state of the engine.
        lookups: all results of that call.
        gradients: gradient ``(b, dim)`` of each lookup's pools, or None if there is none.

    Raises:
        InvalidArgumentError: the step of the lookup is over.
        PeerFailure: a rank is gone, does not respond, or is in another operation, for example because
            its backward pass did not reach a weight.
    """
    quiesce(state, Purpose.MEET)
    requested: list[RequestedBags] = []
    given: list[Rows | None] = []
    sizes = []
    for lookup, gradient in zip(lookups, gradients, strict=True):
        if lookup.shadow_id is None:
            raise InvalidArgumentError(
                "gradients of weights: this lookup was not registered, so it accepts no gradient; look "
                "the bags up with is_training=True"
            )
        blocks: list[tuple[RequestedBags, Rows | None]] = [
            (each, None) for each in state.resources.bags(lookup.shadow_id).parts
        ]
        if gradient is not None:
            blocks = [*state.resources.split_gradient(lookup.shadow_id, gradient)]
        requested += [each for each, _ in blocks]
        given += [each for _, each in blocks]
        sizes.append(len(blocks))
    with state.span("backward"):
        rest = iter(state.exchange.pooling.weight_gradients(requested, given))
    return [np.sum([next(rest) for _ in range(size)], axis=0) for size in sizes]


def take_bag_gradients(
    state: EngineState, own_error: BaseException | None, *, ends_step: bool
) -> BaseException | None:
    """Sends the gradients of pools to the owners of their rows, which sum them by key.

    All ranks must call it. Without a lookup of such tables since the last step it does nothing.

    Args:
        state: state of the engine.
        own_error: error of this rank, if it cannot apply the step.
        ends_step: whether these are the last gradients of earlier lookups.

    Returns:
        The error because of which this rank cannot apply the step: `own_error`, the error of another
        rank, or an error of this function.
    """
    pooling = state.exchange.pooling
    if not pooling.has_lookups:
        return own_error
    entries = [each for each in state.tables.declared.values() if pools_at_owners(state, each)]
    tables = [part.config for each in entries for part in each.parts]
    given = [] if own_error is not None else state.resources.take_bags()
    try:
        with state.span("push"):
            # Sums that are requested before the end of the step may contain NaN and infinity.
            skips = ends_step and state.non_finite is NonFinite.SKIP
            error = pooling.push(tables, given, partial(_add, state, skips), own_error)
    except Exception as found:
        error = found
    if ends_step:
        pooling.forget()
    return own_error or error


def _add(state: EngineState, skips: bool, rank: int, table: TableConfig, found: Gradients) -> None:
    """Adds the gradients of one rank for a table by key. If `skips`, non-finite gradients are
    omitted."""
    keys, gradients = _sum_by_key(table, found)
    if skips and not _native.is_finite(gradients):
        # Skipped per rank, as if each rank had summed its own gradients.
        is_good = _native.finite_rows(gradients)
        if state.tables.entries[table.name].is_first:
            state.counters.rows_skipped_non_finite += int(np.count_nonzero(~is_good))
        _log.debug("table %r: gradients of rank %d are not finite", table.name, rank)
        keys, gradients = keys[is_good], np.ascontiguousarray(gradients[is_good])
    state.resources.add(table.name, keys, gradients)


def _sum_by_key(table: TableConfig, found: Gradients) -> tuple[Keys, Rows]:
    if len(found) == 1:
        ((kept, gradient),) = found
        return kept.keys, kept.by_key(gradient)
    sums = _native.GradientAccumulator(table.dim, table.computing_dtype.name)
    for kept, gradient in found:
        sums.add(kept.keys, kept.by_key(gradient))
    keys, gradients = sums.take()
    return keys, gradients


def _check(state: EngineState, entry: TableEntry, given: BagLookup) -> None:
    table = entry.config
    if not pools_at_owners(state, entry):
        _, why = find_transfer(state, table.name)
        raise InvalidArgumentError(
            f"lookup: bags of table {table.name!r} are not pooled by their owners: {why}; look its "
            "rows up with lookup_all",
            table=table.name,
        )
    if given.mode not in ("sum", "mean"):
        raise InvalidArgumentError(
            f"lookup of bags of table {table.name!r}: mode must be 'sum' or 'mean', found {given.mode!r}",
            table=table.name,
        )
    _native.check_offsets(given.offsets, len(given.ids), f"offsets of table {table.name!r}")
    weights, dtype = given.weights, table.computing_dtype
    if weights is not None and (weights.shape != given.ids.shape or weights.dtype != dtype):
        raise InvalidArgumentError(
            f"lookup: weights for table {table.name!r} must have shape {given.ids.shape} and dtype "
            f"{dtype}, found {weights.shape} {weights.dtype}; pass one weight per id",
            table=table.name,
        )
