"""`Dataset`: examples of a run, as a kind of data opens them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sparring_train.columns import ColumnBatch, Label, Schema

__all__ = ["Dataset", "LabelRange", "OpenRequest"]


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Facts about the run that opens a kind of data."""

    seed: int
    """Determines the split and the order of examples."""
    label: Label | None
    """Values that the loss takes as labels; None: it takes none."""
    rank: int = 0
    world_size: int = 1
    snapshots_url: str | None = None
    """The folder of the run's snapshots; None: it saves none."""
    is_saved: bool = False
    """The run has ended, and its model is asked: nothing may be written."""


@dataclass(frozen=True, slots=True)
class LabelRange:
    """Labels of the training examples."""

    mean: float
    minimum: float
    maximum: float


class Dataset(Protocol):
    """Examples to train on and to test on.

    Batches of a step hold the same examples at every world size. A data set gives whole batches,
    the same on all ranks, or this rank's part of each, with `ColumnBatch.total`: one or the other
    for all batches, and as many batches on each rank.
    """

    @property
    def schema(self) -> Schema:
        """Its columns."""

    @property
    def steps_per_epoch(self) -> int | None:
        """None where it is unknown before the end."""

    @property
    def label_range(self) -> LabelRange | None:
        """None where examples would have to be read to know it."""

    def batches(self, epoch: int) -> Iterator[ColumnBatch]:
        """All training examples once; an epoch may have an order of its own.

        Raises:
            DataError: a file cannot be read, or holds what its columns do not allow.
        """

    def test_batches(self) -> Iterator[ColumnBatch]:
        """All test examples once, always in the same order. Raises as `batches`."""

    def validation_batches(self) -> Iterator[ColumnBatch]:
        """All examples for validation once, always in the same order: none of them is among those of
        `batches` or `test_batches`.

        It is called only if `DataSection.has_validation` is true. Raises as `batches`.
        """

    def extra(self) -> Mapping[str, Any]:
        """Further results worth showing a person, JSON types only: best AUC, …

        ``rows_skipped`` counts bad rows that were left out, on this rank; ranks add up.
        """
