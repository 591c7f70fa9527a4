"""A small click log as files, and all examples of a data set over some ranks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import csv, parquet

from sparring_train.columns import ColumnBatch, Label
from sparring_train.config.sections.table import TableData
from sparring_train.data.dataset import Dataset, OpenRequest
from sparring_train.data.table.dataset import open_table

__all__ = ["batches", "click_log", "opened", "rows_of", "section", "write_files"]


def click_log(num_rows: int) -> Any:
    """A table; users and items are strings, some missing, tags lists of strings, `at` the row."""
    random = np.random.default_rng(1)
    users = [f"user {n}" if n else None for n in random.integers(0, 40, num_rows)]
    items = [f"SKU_{n}" if n else "" for n in random.zipf(1.4, num_rows) % 99]
    tags = [[f"t{n}" for n in random.integers(0, 9, n)] for n in random.integers(0, 4, num_rows)]
    return pyarrow.table(
        {
            "user": pyarrow.array(users, pyarrow.string()),
            "item": items,
            "tags": pyarrow.array(tags, pyarrow.list_(pyarrow.string())),
            "clicked": random.integers(0, 2, num_rows),
            "at": np.arange(num_rows),
        }
    )


def write_files(folder: Path, table: Any, row_group_size: int = 70) -> None:
    """Writes `log.parquet` and `log.csv`."""
    parquet.write_table(table, folder / "log.parquet", row_group_size=row_group_size)
    tags = ["|".join(map(str, each)) for each in table.column("tags").to_pylist()]
    csv.write_csv(table.set_column(2, "tags", pyarrow.array(tags)), folder / "log.csv")


def section(path: Path | str, **keys: Any) -> TableData:
    """A section for files as `write_files` writes them."""
    given = {
        "label": "clicked",
        "categorical": ["user", "item", "tags"],
        "lists": ["tags"],
        "numeric": ["at"],
        "separator": "|",
        "batch_size": 64,
    }
    return TableData.model_validate({"kind": "table", "path": str(path), **given, **keys})


def opened(data: TableData, world_size: int = 1, label: Label | None = "binary") -> list[Dataset]:
    """The data set of each rank."""
    return [open_table(data, OpenRequest(3, label, rank, world_size)) for rank in range(world_size)]


def batches(parts: Iterable[Iterable[ColumnBatch]]) -> list[ColumnBatch]:
    """Returns the whole batches of all ranks."""
    whole = []
    for step in zip(*parts, strict=True):
        if step[0].total is None:
            whole.append(step[0])
            continue
        whole.append(ColumnBatch.joined(step))
        assert len({each.total for each in step}) == 1
    return whole


def rows_of(batch: ColumnBatch) -> list[tuple[Any, ...]]:
    """Rows as Python values, in order."""
    columns = []
    for column in batch.ids.values():
        ends = np.cumsum(column.counts)
        ids = column.ids.tolist()
        columns.append(
            [tuple(ids[end - n : end]) for end, n in zip(ends, column.counts, strict=True)]
        )
    labels = [] if batch.labels is None else [batch.labels.tolist()]
    return list(zip(*columns, batch.numbers[:, 0].tolist(), *labels, strict=True))
