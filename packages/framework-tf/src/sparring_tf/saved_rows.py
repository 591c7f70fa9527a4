"""Rows inside a saved model: what `model.save("….keras")` keeps of a layer's tables.

For each table the layer's folder of assets has ``<table>.json``, which says what a row is, and arrays
without pickle: ``<table>.keys.npy`` (n) int64, ``<table>.rows.npy`` (n, row bytes) uint8,
``<table>.scores.npy`` (n) uint64, ``<table>.state.npy``, the state of a new row.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from sparring import StepContainer
from sparring.errors import DataError, InvalidArgumentError, UnsupportedError
from sparring.table import TableConfig

__all__ = ["MOST_BYTES", "load_rows", "save_rows"]

MOST_BYTES = 1 << 30
"""Of the rows of one table that a model holds inside: they are in memory while it is saved."""


def save_rows(container: StepContainer, table: str, folder: Path) -> None:
    """Writes the rows of a table, their state and scores.

    Raises:
        UnsupportedError: rows lie on other ranks too, or are more than `MOST_BYTES`.
    """
    if container.collective.world_size > 1 and not container.tables[table].is_replicated:
        raise UnsupportedError(
            f"the rows of table {table!r} lie on {container.collective.world_size} ranks, and a "
            "Keras file is written by one; save weights only: model.save_weights(…)",
            table=table,
        )
    config = container.tables[table]
    num_bytes = container.num_rows(table) * config.row_bytes
    if num_bytes > MOST_BYTES:
        raise UnsupportedError(
            f"the rows of table {table!r} take {num_bytes:,} bytes, and a Keras file holds up to "
            f"{MOST_BYTES:,}; save weights only: model.save_weights(…)",
            table=table,
        )
    chunks = list(container.storage(table).scan()) if container.num_rows(table) else []
    rows = [np.ascontiguousarray(each.rows).view(np.uint8) for each in chunks]
    initial = container.entry(table).initial_state
    arrays: dict[str, Any] = {
        "keys": _joined([each.keys for each in chunks], np.empty(0, np.int64)),
        "rows": _joined(rows, np.empty((0, config.row_bytes), np.uint8)),
        "scores": _joined([each.scores for each in chunks], np.empty(0, np.uint64)),
        "state": np.empty(0, config.computing_dtype) if initial is None else initial,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{table}.{name}.npy", array, allow_pickle=False)
    described = {**_described(config), "num_rows": len(arrays["keys"])}
    (folder / f"{table}.json").write_text(json.dumps(described, indent=1) + "\n")


def load_rows(container: StepContainer, table: str, folder: Path) -> None:
    """Replaces the rows of a table by those that `save_rows` wrote.

    Raises:
        DataError: they are missing, or not of one length.
        InvalidArgumentError: they are of another dim or dtype, or have another optimizer's state.
    """
    try:
        found = json.loads((folder / f"{table}.json").read_text())
        keys, rows, scores, state = (
            np.load(folder / f"{table}.{name}.npy", allow_pickle=False)
            for name in ("keys", "rows", "scores", "state")
        )
    except (OSError, ValueError) as error:
        raise DataError(
            f"the saved model lacks the rows of table {table!r}: {error}; save it again, whole",
            table=table,
        ) from error
    config = container.tables[table]
    wanted = _described(config)
    for name in ("dim", "dtype", "initializer", "seed"):
        if found.get(name) != wanted[name]:
            raise InvalidArgumentError(
                f"table {table!r}: the saved rows have {name} {found.get(name)!r}, the layer's table "
                f"{wanted[name]!r}; nothing was loaded",
                table=table,
            )
    method = str(found.get("state_method"))
    if config.state_method not in ("", method):
        raise InvalidArgumentError(
            f"table {table!r}: the saved rows have the state of {method!r}, and are updated by "
            f"{config.state_method!r}; compile the model with the optimizer that it was saved with, "
            "or load it with compile=False",
            table=table,
        )
    container.set_state(table, state, method)
    width = container.tables[table].row_bytes
    if rows.shape != (len(keys), width) or len(scores) != len(keys) or rows.dtype != np.uint8:
        raise DataError(
            f"the saved rows of table {table!r} have shape {rows.shape}, expected "
            f"{(len(keys), width)}; the file is damaged",
            table=table,
        )
    storage = container.storage(table)
    storage.clear()
    takes_scores = storage.capabilities.scores == "given"
    typed = rows.view(container.tables[table].numpy_dtype)
    storage.upsert(keys, typed, scores if takes_scores else None)


def _described(config: TableConfig) -> dict[str, Any]:
    initializer: Any = config.initializer
    return {
        "dim": config.dim,
        "dtype": config.dtype,
        "state_method": config.state_method,
        "initializer": initializer.as_dict(),
        "seed": config.seed,
    }


def _joined(parts: list[Any], none: Any) -> Any:
    return np.concatenate(parts) if parts else none
