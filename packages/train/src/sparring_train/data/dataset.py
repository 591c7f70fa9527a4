"""`Dataset`: the examples of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sparring_train.columns import ColumnBatch, Label, Schema

if TYPE_CHECKING:
    from sparring import PluginManager, State

__all__ = ["Dataset", "LabelRange", "OpenRequest", "PinnedDataset", "StreamedDataset"]


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Properties of the run that opens the data."""

    seed: int
    """Seed of the split and the order of examples."""
    label: Label | None
    """Kind of labels that the loss requires; None if it uses no labels."""
    rank: int = 0
    world_size: int = 1
    snapshots_url: str | None = None
    """Folder of the run's snapshots; None if it saves none."""
    is_saved: bool = False
    """Whether the data belong to a saved run that is open for predictions: nothing may be written."""
    gather: Callable[[bytes], list[bytes]] | None = None
    """Returns the bytes that each rank passes, in the order of ranks. All ranks call it at the same time.
    None: there is one rank."""
    plugin_manager: PluginManager | None = None
    """Finds parts that plugins register."""


@dataclass(frozen=True, slots=True)
class LabelRange:
    """Mean, minimum and maximum of the training labels."""

    mean: float
    minimum: float
    maximum: float


class Dataset(Protocol):
    """Training, validation and test examples of a run.

    A step uses the same examples for every number of ranks, except with `data.read: own`. A data set
    yields either whole batches, the same on all ranks, or this rank's part of each batch with
    `ColumnBatch.total`. It must not mix them, and must yield the same number of batches on each rank.
    """

    @property
    def schema(self) -> Schema:
        """Columns of the examples."""

    @property
    def steps_per_epoch(self) -> int | None:
        """Number of steps per epoch; None if it is unknown before the end of an epoch."""

    @property
    def label_range(self) -> LabelRange | None:
        """Range of the training labels; None if it is unknown without reading the examples."""

    def batches(self, epoch: int) -> Iterator[ColumnBatch]:
        """Yields all training examples once. The order may differ between epochs.

        Args:
            epoch: number of the epoch; the first one is 0.

        Raises:
            DataError: a file cannot be read, or contains an invalid value.
        """

    def test_batches(self) -> Iterator[ColumnBatch]:
        """Yields all test examples once, always in the same order. Raises like `batches`."""

    def validation_batches(self) -> Iterator[ColumnBatch]:
        """Yields all validation examples once, always in the same order. They are disjoint from the
        examples of `batches` and `test_batches`.

        Only called if `DataSection.has_validation` is true. Raises like `batches`.
        """

    def extra(self) -> Mapping[str, Any]:
        """Returns further results to show to a user, such as ``best_auc``, as JSON types.

        ``rows_skipped`` is the number of bad rows that this rank left out; it is summed over ranks.
        """


class PinnedDataset(Dataset, Protocol):
    """Examples of one version of a table."""

    @property
    def pinned(self) -> Mapping[str, Any]:
        """Values that identify the data, as JSON types; empty for other data. A run resumes only if they
        are equal."""


class StreamedDataset(Dataset, Protocol):
    """Examples of a stream, whose section has `has_epochs` = False.

    `batches` starts at the current positions. It yields batches with `ColumnBatch.cut`, and None, on all
    ranks, if there is no event yet.
    """

    def resume(
        self, step: int, positions: Mapping[str, int], states: Mapping[str, State], url: str
    ) -> None:
        """Continues at the positions of a snapshot.

        Args:
            step: number of steps before these positions.
            positions: partition → offset of the next event; empty if the snapshot was saved before the
                run had a stream. Other partitions start at their first event.
            states: states of the snapshot.
            url: URL of the snapshot.

        Raises:
            DataError: a partition is missing, or no longer contains the event at its position.
        """

    def states(self, step: int) -> Mapping[str, State]:
        """Returns further states to save in the snapshot of a step. All ranks call it.

        Args:
            step: the step, which may be earlier than the last batch that `batches` yielded.
        """

    def metrics(self) -> Mapping[str, Any]:
        """Returns further metrics of this rank for the section ``stream``, as JSON values."""

    def close(self) -> None:
        """Releases what `states` needs. Called once, after the last snapshot."""
