"""Batches of click logs, and rebatching of streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError

__all__ = [
    "ClickBatch",
    "check_batch_size",
    "concatenate",
    "rebatch",
    "take",
]

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ClickBatch:
    """Rows of a click log in Criteo format."""

    dense: Floats
    """``(b, 13)``, transformed: see `sparring_train.data.criteo_format.transform_integers`."""
    ids: Ids
    """``(b, 26)``, not hashed. A missing id is the element of `criteo_format.MISSING_IDS` for its
    feature."""
    labels: Floats
    """``(b,)``, 1 for a click, otherwise 0."""

    def __len__(self) -> int:
        return len(self.labels)


class Columnar(Protocol):
    """A dataclass of arrays with equal lengths."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __len__(self) -> int: ...


Batch = TypeVar("Batch", bound=Columnar)


def take(batch: Batch, selection: slice | npt.NDArray[np.bool_] | Ids) -> Batch:
    """Returns the selected rows, in the order of `selection`."""
    columns = {field.name: getattr(batch, field.name)[selection] for field in fields(batch)}
    return type(batch)(**columns)


def concatenate(batches: list[Batch]) -> Batch:
    """Returns one batch with all rows, in order. Requires at least one batch."""
    if len(batches) == 1:
        return batches[0]
    kind = type(batches[0])
    names = [field.name for field in fields(kind)]
    return kind(
        **{name: np.concatenate([getattr(batch, name) for batch in batches]) for name in names}
    )


def rebatch(batches: Iterator[Batch], batch_size: int) -> Iterator[Batch]:
    """Yields the same rows in the same order, `batch_size` per batch; the last batch may be smaller.

    Raises:
        InvalidArgumentError: `batch_size` is less than 1.
    """
    check_batch_size(batch_size)
    return _rebatch(batches, batch_size)


def _rebatch(batches: Iterator[Batch], batch_size: int) -> Iterator[Batch]:
    waiting: list[Batch] = []
    num_waiting = 0
    for batch in batches:
        waiting.append(batch)
        num_waiting += len(batch)
        if num_waiting < batch_size:
            continue
        joined = concatenate(waiting)
        num_whole = num_waiting - num_waiting % batch_size
        for begin in range(0, num_whole, batch_size):
            yield take(joined, slice(begin, begin + batch_size))
        waiting, num_waiting = [take(joined, slice(num_whole, None))], num_waiting - num_whole
    if num_waiting:
        yield concatenate(waiting)


def check_batch_size(batch_size: int) -> None:
    """Raises `InvalidArgumentError` unless `batch_size` is at least 1."""
    if batch_size < 1:
        raise InvalidArgumentError(f"batch_size: found {batch_size}, must be at least 1")
