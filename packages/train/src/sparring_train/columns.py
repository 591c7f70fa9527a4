"""Batches of examples by column, the interface between kinds of data and kinds of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = [
    "Column",
    "ColumnBatch",
    "Cut",
    "CutRange",
    "CutRead",
    "Feature",
    "Label",
    "Origin",
    "Schema",
]

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Selection = slice | npt.NDArray[np.bool_] | Ids

Label = Literal["binary", "number"]
"""Kind of labels: 0 and 1, or any finite number."""

Origin = Literal["integer", "string"]
"""Source of ids: integers that are used unchanged, or strings hashed by `sparring.hash_strings`."""


@dataclass(frozen=True, slots=True)
class Feature:
    """A column of ids."""

    name: str
    table: str = ""
    """Table of its embeddings; default: the feature's name. Several features may share a table."""
    is_list: bool = False
    """Whether an example may have several ids, whose order matters. Otherwise it has at most
    one."""
    may_be_missing: bool = False
    """Whether an example may have no id."""
    origin: Origin | None = None
    """Source of its ids, if the files determine it. Stored in snapshots, so that files for prediction
    are read in the same way."""

    @property
    def table_name(self) -> str:
        return self.table or self.name


@dataclass(frozen=True, slots=True)
class Schema:
    """Columns of a data set. Known before an example is read.

    Examples:
        >>> from sparring_train import Feature, Schema
        >>> schema = Schema((Feature("viewed", table="item"), Feature("bought", table="item")))
        >>> schema.table_names
        ('item',)
    """

    features: tuple[Feature, ...]
    numbers: tuple[str, ...] = ()
    """Names of the columns of `ColumnBatch.numbers`."""
    label: Label | None = None
    """Kind of labels. None: examples have no label; each is a positive one."""
    has_weights: bool = False

    def feature(self, name: str) -> Feature | None:
        """Returns the feature with this name, or None.

        Args:
            name: name of the feature.
        """
        return next((each for each in self.features if each.name == name), None)

    @property
    def origins(self) -> dict[str, Origin]:
        """Feature → source of its ids, for features where it is known."""
        return {each.name: each.origin for each in self.features if each.origin is not None}

    def with_origins(self, origins: Mapping[str, Origin]) -> Schema:
        """Returns the same columns with the given sources of ids.

        Args:
            origins: feature → source of its ids. Features that it does not contain get no source.
        """
        features = (replace(each, origin=origins.get(each.name)) for each in self.features)
        return replace(self, features=tuple(features))

    @property
    def is_matrix(self) -> bool:
        """Whether each example has exactly one id per feature."""
        return not any(each.is_list or each.may_be_missing for each in self.features)

    @property
    def table_names(self) -> tuple[str, ...]:
        """Names of all tables without duplicates, in the order of features."""
        return tuple(dict.fromkeys(each.table_name for each in self.features))


@dataclass(frozen=True, slots=True)
class Column:
    """Ids of one feature.

    Examples:
        >>> import numpy as np
        >>> from sparring_train import Column
        >>> viewed = Column(np.array([7, 8, 9]), lengths=np.array([2, 0, 1]))
        >>> viewed.take(np.array([2, 0])).ids.tolist()
        [9, 7, 8]
    """

    ids: Ids
    """``(n,)``, concatenated over the examples."""
    lengths: npt.NDArray[np.int64] | None = None
    """``(b,)``, number of ids per example; None: one per example, that is, n = b."""

    def __len__(self) -> int:
        return len(self.ids if self.lengths is None else self.lengths)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Number of ids per example, ``(b,)``."""
        return np.ones(len(self.ids), np.int64) if self.lengths is None else self.lengths

    def take(self, selection: Selection) -> Column:
        """Returns the selected examples, in the order of `selection`.

        Args:
            selection: a slice, a mask ``(b,)``, or positions of examples.
        """
        if self.lengths is None:
            return Column(self.ids[selection])
        ends = np.cumsum(self.lengths)
        lengths = self.lengths[selection]
        if isinstance(selection, slice) and selection.step in (None, 1):
            begin = selection.indices(len(self.lengths))[0]
            first = ends[begin - 1] if begin else 0
            return Column(self.ids[first : first + lengths.sum()], lengths)
        begins = (ends - self.lengths)[selection]
        # Position of each id: the position of its example's first id, plus its index in the example.
        places = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Column(self.ids[np.repeat(begins, lengths) + places], lengths)


@dataclass(frozen=True, slots=True)
class CutRange:
    """Events of one partition of a stream that one step trains."""

    partition: str
    begin: int
    """Offset of the first message, or an earlier one."""
    end: int
    """Offset after the last message."""
    num_events: int
    read_time: float | None = field(default=None, compare=False)
    """Time at which the messages were read, in seconds since 1970; None if it was not recorded."""


@dataclass(frozen=True, slots=True)
class CutRead:
    """Events that a step of a join reads at a time."""

    ranges: tuple[CutRange, ...]
    """The events, which may be none."""
    watermark: float
    """Time up to which events are joined after the read, or -infinity."""
    max_examples: int
    """See `data.batch_size`."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Events of a stream that one step trains, over all ranks."""

    ranges: tuple[CutRange, ...]
    """Ranges of the partitions from which the step has events."""
    positions: Mapping[str, int]
    """Partition → offset of the first event after the cut, for all partitions."""
    event_time: float | None = None
    """Time of the newest event in seconds since 1970; None if it is unknown."""
    reads: tuple[CutRead, ...] = ()
    """Reads of which a cut of a join consists."""

    @property
    def num_events(self) -> int:
        return sum(each.num_events for each in self.ranges)


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """Examples of a step by column: all of them, or one rank's part.

    Examples:
        >>> import numpy as np
        >>> from sparring_train import Column, ColumnBatch
        >>> user = Column(np.array([7, 8, 9]))
        >>> batch = ColumnBatch({"user": user}, np.zeros((3, 0), np.float32))
        >>> part = batch.part(rank=1, world_size=2)
        >>> len(part), part.num_examples
        (2, 3)
    """

    ids: Mapping[str, Column]
    """Feature → ids."""
    numbers: Floats
    """``(b, k)``, finite."""
    labels: Floats | None = None
    """``(b,)``; None if the schema has no label."""
    weights: Floats | None = None
    """``(b,)``, weights of the examples in the loss; None: 1 each."""
    given: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """Feature → Arrow array of the values before hashing, if kept for predictions. Not kept in parts of
    a batch."""
    total: int | None = field(default=None, kw_only=True)
    """Number of examples of the step over all ranks, if this batch is one rank's part."""
    is_good: npt.NDArray[np.bool_] | None = field(default=None, kw_only=True)
    """``(b,)``, False for a row with an invalid value, which gets no prediction; None: all are good. Not
    kept in parts of a batch."""
    cut: Cut | None = field(default=None, kw_only=True)
    """Events of the step, if the examples are a stream."""
    event_times: npt.NDArray[np.float64] | None = field(default=None, kw_only=True)
    """``(b,)``, times of the events in seconds since 1970, if the examples are a stream; NaN for a
    correcting example of a join."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def num_examples(self) -> int:
        """Number of examples of the step, over all ranks."""
        return len(self) if self.total is None else self.total

    def take(self, selection: Selection) -> ColumnBatch:
        """Returns the selected examples, in the order of `selection`.

        Args:
            selection: a slice, a mask ``(b,)``, or positions of examples.
        """
        return replace(
            self,
            ids={name: column.take(selection) for name, column in self.ids.items()},
            numbers=self.numbers[selection],
            labels=None if self.labels is None else self.labels[selection],
            weights=None if self.weights is None else self.weights[selection],
            event_times=None if self.event_times is None else self.event_times[selection],
            given={},
        )

    def part(self, rank: int, world_size: int) -> ColumnBatch:
        """Returns the part of one rank; a batch that already is a part is returned unchanged.

        Args:
            rank: the rank.
            world_size: number of ranks.
        """
        if self.total is not None:
            return self
        ends = (len(self) * each // world_size for each in (rank, rank + 1))
        return replace(self.take(slice(*ends)), total=len(self))

    def split(self, count: int) -> list[ColumnBatch]:
        """Splits the batch into `count` consecutive batches of nearly equal size, some of which may
        be empty.

        Args:
            count: number of batches, at least 1.
        """
        ends = [len(self) * each // count for each in range(count + 1)]
        parts = [self.take(slice(begin, end)) for begin, end in pairwise(ends)]
        if self.total is None:
            return parts
        totals = [self.total * each // count for each in range(count + 1)]
        # Ranks skip a part if its total is 0, so a total of 0 must mean that no rank has an example.
        return [
            replace(part, total=max(end - begin, 1))
            for part, (begin, end) in zip(parts, pairwise(totals), strict=True)
        ]

    @staticmethod
    def joined(batches: Sequence[ColumnBatch]) -> ColumnBatch:
        """Returns one batch with all examples, in order.

        Args:
            batches: at least one, all with the same columns.
        """
        first = batches[0]
        if len(batches) == 1:
            return first

        def column(name: str) -> Column:
            parts = [batch.ids[name] for batch in batches]
            ids = np.concatenate([each.ids for each in parts])
            if all(each.lengths is None for each in parts):
                return Column(ids)
            return Column(ids, np.concatenate([each.counts for each in parts]))

        def floats(name: Literal["labels", "weights", "event_times"]) -> Any:
            parts = [getattr(batch, name) for batch in batches]
            return None if any(each is None for each in parts) else np.concatenate(parts)

        return ColumnBatch(
            ids={name: column(name) for name in first.ids},
            numbers=np.concatenate([batch.numbers for batch in batches]),
            labels=floats("labels"),
            weights=floats("weights"),
            event_times=floats("event_times"),
        )
