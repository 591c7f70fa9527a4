"""Sample data for the kit, and functions that read and check the contents of a storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pytest

from sparring.contracts import Keys, Rows, Storage, TableConfig

__all__ = [
    "EXTREME_KEYS",
    "MakeStorage",
    "Row",
    "assert_contains_rows",
    "read_contents",
    "distinct_keys",
    "random_rows",
    "require",
    "row_bytes",
    "make_table",
]

EXTREME_KEYS = np.array([0, -1, -2, -3, 1, 2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1], np.int64)
"""Keys that hash tables often reserve for their own use."""


class MakeStorage(Protocol):
    """Opens an empty storage. The options are passed to the backend."""

    def __call__(self, table: TableConfig, **options: Any) -> Storage: ...


@dataclass(frozen=True, slots=True)
class Row:
    """Row and score of one key, in a form that compares bit for bit."""

    data: bytes
    score: int


def make_table(dim: int = 4, dtype: str = "float32", state_width: int = 0) -> TableConfig:
    """Creates the configuration of a table."""
    return TableConfig("kit", dim, dtype=dtype, state_width=state_width)


def distinct_keys(rng: np.random.Generator, count: int) -> Keys:
    """Returns ``(count,)`` distinct int64 keys from the whole range, in random order."""
    bounds = np.iinfo(np.int64)
    drawn = np.unique(rng.integers(bounds.min, bounds.max, 2 * count, np.int64, endpoint=True))
    return rng.permutation(drawn)[:count]


def random_rows(rng: np.random.Generator, count: int, table: TableConfig) -> Rows:
    """Returns ``(count, width)`` finite rows without zeros."""
    shape = (count, table.width)
    if table.dtype == "int8":
        return rng.integers(1, 128, shape, np.int8)
    return rng.uniform(0.5, 1.5, shape).astype(table.numpy_dtype)


def row_bytes(rows: Rows) -> list[bytes]:
    """Returns the bytes of each row."""
    return [row.tobytes() for row in rows]


def read_contents(storage: Storage) -> dict[int, Row]:
    """Reads all rows with a scan; fails if a key occurs twice."""
    held: dict[int, Row] = {}
    for chunk in storage.scan():
        pairs: list[tuple[int, bytes, int]] = list(
            zip(chunk.keys.tolist(), row_bytes(chunk.rows), chunk.scores.tolist(), strict=True)
        )
        for key, data, score in pairs:
            assert key not in held, f"scan returned key {key} twice without concurrent writes"
            held[key] = Row(data, score)
    return held


def assert_contains_rows(storage: Storage, keys: npt.ArrayLike, rows: Rows) -> None:
    """Fails unless every key is found with exactly these bits."""
    result = storage.find(keys)
    assert result.found.all(), f"{int((~result.found).sum())} of {len(rows)} keys were not found"
    pairs = zip(row_bytes(result.rows), row_bytes(rows), strict=True)
    wrong = [place for place, (found, wanted) in enumerate(pairs) if found != wanted]
    # Compares positions: pytest would spend minutes on the difference of two long lists of bytes.
    assert not wrong, f"{len(wrong)} of {len(rows)} rows differ, the first at position {wrong[0]}"


def require(condition: bool, reason: str) -> None:
    """Skips the test with a reason unless the condition holds."""
    if not condition:
        pytest.skip(reason)
