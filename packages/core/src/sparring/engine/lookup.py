"""Lookups: ids of several tables to the rows of shadows, in one exchange between ranks.

ids (n) ──► dedup ──► keys (u) ──► pulled from their owners ──► rows (u, dim)
                                              │
        initial values where there was no row ┘
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.results import Keys, Rows
from sparring.engine.state import EngineState, Purpose, try_quiesce
from sparring.engine.tables import TableEntry
from sparring.errors import InvalidArgumentError, PeerFailure
from sparring.exchange.messages import Pulled, PullRequest

__all__ = ["Ids", "Lookup", "Plan", "completed", "look_up", "own_refusal_first", "readable"]

Ids = npt.NDArray[np.int64]


@dataclass(slots=True)
class Lookup:
    """Ids turned into the rows of a shadow."""

    keys: Keys
    """``(u,)`` in order of first occurrence."""
    inverse: Ids
    """``(n,)``: the row of each id."""
    rows: Rows
    """``(u, dim)`` of the computing dtype: the caller's own; storages hold other memory."""
    shadow_id: int | None
    """Under which to hand in a gradient; None where nothing was registered."""


def look_up(
    state: EngineState,
    requests: Sequence[tuple[str, Ids]],
    *,
    is_training: bool,
    refusal: Exception | None = None,
) -> list[Lookup]:
    """As `StepContainer.lookup_all`; nothing is registered.

    Args:
        is_training: gradients will come.
        refusal: why this rank cannot, for all ranks to raise.
    """
    found, why_not = readable(state, requests, refusal)
    plan = Plan(found)
    with state.span("look up"), own_refusal_first(why_not):
        pulled = state.exchange.pull_all(plan.pulls, is_training=is_training, error=why_not)
    return plan.lookups(pulled)


def readable(
    state: EngineState, requests: Sequence[tuple[str, Ids]], refusal: Exception | None
) -> tuple[list[tuple[TableEntry, Ids]], Exception | None]:
    """The tables of a lookup, ready to be read, and why this rank cannot, for others to be told.

    Raises:
        UnknownTableError: a table was not declared.
        Exception: as the second result, where there are no other ranks.
    """
    entries = [(state.tables.entry(table), ids) for table, ids in requests]
    why_not = try_quiesce(state, Purpose.READ, refusal)
    if why_not is None:
        try:
            for entry, ids in entries:
                _check_ids(entry.config.name, ids)
                state.tables.check_readable(entry)
        except Exception as error:
            why_not = error
    if why_not is None:
        return entries, None
    if state.collective.world_size == 1:
        raise why_not
    return [(entry, np.empty(0, np.int64)) for entry, _ in entries], why_not


class Plan:
    """Deduplicated ids of several tables, and the rows that are to be pulled for them."""

    def __init__(self, requests: Sequence[tuple[TableEntry, Ids]]) -> None:
        self.entries = [entry for entry, _ in requests]
        self.inverses: list[Ids] = []
        self.pulls: list[PullRequest] = []
        for entry, ids in requests:
            keys, inverse = _native.dedup(ids)
            self.inverses.append(inverse)
            self.pulls.append(PullRequest(entry.storage, entry.config, keys, entry.embedding))

    def lookups(self, pulled: Sequence[Pulled]) -> list[Lookup]:
        """Lookups of the rows that were pulled, with initial values where there was none."""
        result = []
        for entry, pull, inverse, found in zip(
            self.entries, self.pulls, self.inverses, pulled, strict=True
        ):
            rows = completed(entry, pull.keys, found.rows, found.found)
            result.append(Lookup(pull.keys, inverse, rows, None))
        return result


def completed(entry: TableEntry, keys: Keys, rows: Rows, found: npt.NDArray[np.bool_]) -> Rows:
    """Puts initial values where there was no row; returns rows of the computing dtype."""
    _native.initialize(rows, keys, found, entry.initializer, None)
    return _native.decode(rows) if entry.config.is_16_bit else rows


@contextmanager
def own_refusal_first(refusal: Exception | None) -> Iterator[None]:
    """Raises this rank's own refusal, also where the other ranks could not be told of it."""
    try:
        yield
    except PeerFailure as failure:
        if refusal is None:
            raise
        raise refusal from failure


def _check_ids(table: str, ids: npt.NDArray[np.int64]) -> None:
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype != np.int64:
        raise InvalidArgumentError(
            f"ids for table {table!r} must be one-dimensional int64, found "
            f"{type(ids).__name__}, shape {getattr(ids, 'shape', None)}, dtype "
            f"{getattr(ids, 'dtype', None)}; pass numpy.asarray(ids, numpy.int64)",
            table=table,
        )
