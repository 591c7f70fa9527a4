"""Training jobs on a few threads with tables that are sharded by a plan: batches, steps and rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sparring import StepContainer, StorageChoice
from sparring.adapter import parse_hyper, resolve_method
from sparring.contracts.ranks.collective import Collective, Reduction
from sparring.contracts.ranks.layout import TableSharding
from sparring.contracts.ranks.rendezvous import Membership
from sparring.contracts.storage.column_block import ColumnBlock
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

__all__ = [
    "DIM",
    "KINDS",
    "Rows",
    "make_batch",
    "make_gradients",
    "join_pieces",
    "open_container",
    "collect_pieces",
    "train",
]

DIM, STEPS = 4, 5
Rows = dict[int, tuple[bytes, int]]
"""Key → the whole row and its score."""
Pieces = list[tuple[ColumnBlock, TableConfig, dict[int, Any]]]
"""Pieces of rows on one rank: the columns, the table, and key → the columns of the row and its score."""


class _NodesRendezvous(ThreadRendezvous):
    """Ranks on nodes of two ranks, or on one node if the number of ranks is odd."""

    def membership(self) -> Membership:
        size = self.shard_map().world_size
        return Membership(0, size, local_world_size=2 if size % 2 == 0 else size)


def _two_columns(size: int) -> TableSharding:
    return TableSharding("column_wise", (size - 1, 0), columns=2)


def _two_per_node(_: int) -> TableSharding:
    return TableSharding("table_column_wise", columns=2)


def _grid(size: int) -> TableSharding:
    if size < 4:
        return TableSharding("grid", (0, size - 1, size - 1, 0)[: 4 if size > 1 else 2], columns=2)
    return TableSharding("grid", columns=2)


KINDS: Mapping[str, Callable[[int], Any]] = {
    "row_wise": lambda _: "row_wise",
    "table_wise": lambda size: TableSharding("table_wise", (size - 1,)),
    "table_row_wise": lambda size: TableSharding("table_row_wise", tuple({0, size - 1})),
    "data_parallel": lambda _: "data_parallel",
    "column_wise": _two_columns,
    "table_column_wise": _two_per_node,
    "grid": _grid,
}


def open_container(
    collective: Collective | None,
    kind: str,
    method: str = "adagrad",
    sharding: TableSharding | None = None,
    **more: Any,
) -> StepContainer:
    """Creates a container with the table ``user``.

    Args:
        collective: collective of this rank; None for a single process.
        kind: sharding kind, one of `KINDS`.
        method: name of the update method.
        sharding: replaces the sharding of `kind`.
        more: more arguments of `TableConfig`.
    """
    world_size = 1 if collective is None else collective.world_size
    plan = {} if collective is None else {"user": sharding or KINDS[kind](world_size)}
    container = StepContainer(
        collective=collective,
        rendezvous=_NodesRendezvous(world_size) if collective else None,
        reduction=Reduction.SUM,
        plan=plan,
    )
    table = TableConfig("user", DIM, initializer=Uniform(-1, 1), seed=5, **more)
    container.declare(table, StorageChoice("memory", {"policy": "lfu"}))
    made = resolve_method(method)
    state = made.initial_state(DIM, parse_hyper(made, {}), table.computing_dtype)
    container.set_state("user", state, method)
    return container


def make_gradients(step: int, rank: int) -> tuple[Any, Any]:
    """Returns ids of a rank, and gradients whose sums are exact in any order."""
    random = np.random.default_rng((step, rank))
    ids = random.integers(-20, 20, 0 if (step + rank) % 4 == 3 else 12 + rank)
    return ids, random.integers(-64, 65, (len(ids), DIM)).astype(np.float32) / 64


def make_batch(step: int, ranks: Sequence[int]) -> tuple[Any, Any]:
    """Returns the concatenated ids and gradients of the given ranks; empty if there are none."""
    batches = [make_gradients(step, rank) for rank in ranks]
    ids = np.concatenate([np.empty(0, np.int64), *(each for each, _ in batches)])
    return ids, np.concatenate([np.empty((0, DIM), np.float32), *(each for _, each in batches)])


def train(
    container: StepContainer,
    ranks: Sequence[int],
    method: str = "adagrad",
    steps: Sequence[int] = range(STEPS),
    prefetches: bool = False,
) -> list[Any]:
    """Trains steps with the joined batches of `ranks`; returns the rows of each lookup."""
    made, seen = resolve_method(method), []
    following = None
    for step in steps:
        ids, given = make_batch(step, ranks)
        if following is not None:
            found = following.finish()[0]
            found.shadow_id = container.resources.register("user", found.keys, found.inverse)
        else:
            found = container.lookup("user", ids)
        seen.append(found.rows[found.inverse])
        if prefetches and step + 1 in steps:
            following = container.prefetch([("user", make_batch(step + 1, ranks)[0])])
        sums = np.zeros(found.rows.shape, found.rows.dtype)
        np.add.at(sums, found.inverse, given)
        assert found.shadow_id is not None
        container.resources.accumulate(found.shadow_id, sums)
        choice = MethodChoice(made, parse_hyper(made, {"lr": 0.125}), step + 1)
        assert container.apply_methods({"user": choice}) in (["user"], [])
    return seen


def collect_pieces(container: StepContainer) -> Pieces:
    """Returns the rows on this rank, by columns."""
    pieces = []
    for part in container.entry("user").parts:
        columns = ColumnBlock(0, DIM) if part.block is None else part.block.columns
        rows: dict[int, Any] = {}
        if part.storage is not None:
            for chunk in part.storage.scan():
                values = zip(np.array(chunk.rows), chunk.scores.tolist(), strict=True)
                rows |= dict(zip(chunk.keys.tolist(), values, strict=True))
        pieces.append((columns, container.tables["user"], rows))
    return pieces


def join_pieces(held: Sequence[Pieces]) -> Rows:
    """Joins the pieces of all ranks to whole rows, and checks that replicas are equal."""
    whole: dict[int, dict[int, tuple[ColumnBlock, Any, int]]] = {}
    table = held[0][0][1]
    for pieces in held:
        for columns, _, rows in pieces:
            for key, (row, score) in rows.items():
                own = whole.setdefault(key, {})
                if columns.begin in own:
                    assert columns.width == DIM
                    assert own[columns.begin][1].tobytes() == row.tobytes()
                own[columns.begin] = columns, row, score
    result = {}
    for key, parts in whole.items():
        made = np.zeros((1, table.width), table.numpy_dtype)
        for columns, row, _ in parts.values():
            columns.put(table, made, row[None])
        assert sum(columns.width for columns, *_ in parts.values()) == DIM, "a piece is missing"
        (score,) = {score for *_, score in parts.values()}
        result[key] = made.tobytes(), score
    return result
