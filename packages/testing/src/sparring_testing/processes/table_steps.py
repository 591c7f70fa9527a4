"""Tables in a container, steps that train them, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import StepContainer, StorageChoice, open_snapshot, scan_rows
from sparring.adapter import parse_hyper, resolve_method
from sparring.contracts import ScanChunk, TableConfig
from sparring.contracts.storage.updates import MethodChoice

__all__ = [
    "RowBytes",
    "accumulate",
    "choose_method",
    "declare_tables",
    "descend",
    "join_rows",
    "open_tables",
    "read_arrays",
    "read_chunks",
    "read_embeddings",
    "read_rows",
    "read_snapshot",
    "read_tables",
    "train_ids",
]

RowBytes = dict[int, bytes]
"""Key → the bytes of the whole row."""


def open_tables(*tables: TableConfig, storage: Any = "memory", **options: Any) -> StepContainer:
    """Creates a container with the given tables.

    Args:
        tables: configurations of the tables.
        storage: name of a backend, a `StorageChoice`, or an open storage.
        options: arguments of `StepContainer`.
    """
    container = StepContainer(**options)
    declare_tables(container, tables, storage)
    return container


def declare_tables(
    container: StepContainer,
    tables: Iterable[TableConfig],
    storage: Any = "memory",
    method: str | None = None,
    **hyper: Any,
) -> dict[str, MethodChoice]:
    """Declares tables, and the state of an update method if one is given.

    Returns:
        The update method of each table for `StepContainer.apply_methods`; empty without a method.
    """
    chosen = StorageChoice(storage) if isinstance(storage, str) else storage
    for table in tables:
        container.declare(table, chosen)
        if method is not None:
            known = resolve_method(method)
            given = parse_hyper(known, hyper)
            state = known.initial_state(table.dim, given, table.computing_dtype)
            container.set_state(table.name, state, method)
    return {} if method is None else choose_method(container, method, **hyper)


def choose_method(
    container: StepContainer, method: str = "sgd", step: int = 1, **hyper: Any
) -> dict[str, MethodChoice]:
    """Returns one update method for all tables of a container."""
    known = resolve_method(method)
    return dict.fromkeys(container.tables, MethodChoice(known, parse_hyper(known, hyper), step))


def accumulate(
    container: StepContainer, ids: Mapping[str, npt.ArrayLike], gradient: float = 1.0
) -> None:
    """Looks up ids of tables one by one, and accumulates the same gradient for each key."""
    for table, each in ids.items():
        found = container.lookup(table, np.array(each, np.int64))
        assert found.shadow_id is not None
        container.resources.accumulate(found.shadow_id, np.full_like(found.rows, gradient))


def train_ids(
    container: StepContainer,
    ids: Mapping[str, npt.ArrayLike],
    gradient: float = 1.0,
    method: str = "sgd",
    **hyper: Any,
) -> None:
    """Trains one step with the same gradient for each key; the default learning rate is 1."""
    accumulate(container, ids, gradient)
    choices = choose_method(
        container, method, container.counters.steps + 1, **({"lr": 1.0} | hyper)
    )
    container.apply_methods(choices)


def descend(rate: float = 0.1, counted: float = 0.0) -> Callable[[Sequence[Any]], None]:
    """Returns a gradient descent for `StepContainer.apply`; the state grows by `counted` per update."""

    def update(updates: Sequence[Any]) -> None:
        for each in updates:
            each.rows[:, : each.table.dim] -= rate * each.gradients
            each.rows[:, each.table.dim :] += counted

    return update


def read_embeddings(container: StepContainer, table: str, ids: npt.ArrayLike) -> npt.NDArray[Any]:
    """Returns the current embedding of each id, ``(n, dim)``."""
    found = container.lookup(table, np.array(ids, np.int64), is_registered=False)
    embeddings: npt.NDArray[Any] = found.rows[found.inverse]
    return embeddings


def read_chunks(chunks: Iterable[ScanChunk]) -> dict[int, tuple[bytes, int]]:
    """Returns the row and the score of each key; fails if a key occurs twice."""
    found: dict[int, tuple[bytes, int]] = {}
    for chunk in chunks:
        for key, row, score in zip(chunk.keys, chunk.rows, chunk.scores, strict=True):
            assert int(key) not in found, f"key {key} occurs twice"
            found[int(key)] = row.tobytes(), int(score)
    return found


def read_rows(container: StepContainer, table: str) -> RowBytes:
    """Returns this rank's rows of a table."""
    if not container.num_rows(table):
        return {}
    found = read_chunks(container.storage(table).scan())
    return {key: row for key, (row, _) in found.items()}


def read_arrays(container: StepContainer, table: str) -> dict[int, npt.NDArray[Any]]:
    """Returns this rank's rows of a table, each as an array with the optimizer's state."""
    dtype = container.tables[table].numpy_dtype
    return {key: np.frombuffer(row, dtype) for key, row in read_rows(container, table).items()}


def read_tables(container: StepContainer) -> dict[str, RowBytes]:
    """Returns this rank's rows of all tables."""
    return {name: read_rows(container, name) for name in container.tables}


def read_snapshot(url: str, table: str) -> RowBytes:
    """Returns the rows of a table of a snapshot."""
    # All chunks first, because a snapshot may report only at its end that it returned a key twice.
    found = read_chunks(list(scan_rows(open_snapshot(url), table)))
    return {key: row for key, (row, _) in found.items()}


def join_rows(
    parts: Sequence[Mapping[str, Mapping[int, Any]]], replicated: Sequence[str] = ()
) -> dict[str, dict[int, Any]]:
    """Joins the rows of all ranks.

    Args:
        parts: the rows of each rank, by table.
        replicated: tables whose rows are equal on all ranks; the ranks share no key of other tables.
    """
    joined: dict[str, dict[int, Any]] = {}
    for name in parts[0]:
        joined[name] = {key: row for part in parts for key, row in part[name].items()}
        if name in replicated:
            assert all(part[name] == joined[name] for part in parts)
        else:
            assert sum(len(part[name]) for part in parts) == len(joined[name]), "a key on two ranks"
    return joined
