"""Examples by column: what any kind of data gives, and any kind of model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["Column", "ColumnBatch", "Feature", "Label", "Origin", "Schema"]

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Selection = slice | npt.NDArray[np.bool_] | Ids

Label = Literal["binary", "number"]
"""Values of a label: 0 and 1, or any finite number."""

Origin = Literal["integer", "string"]
"""Values that ids are made of: whole numbers as they are, or strings by `sparring.hash_strings`."""


@dataclass(frozen=True, slots=True)
class Feature:
    """A column of ids."""

    name: str
    table: str = ""
    """The table of its embeddings; without it the feature's own name. Features may share one."""
    is_list: bool = False
    """An example may have any number of ids, in an order; otherwise at most one."""
    may_be_missing: bool = False
    """An example may have no id."""
    origin: Origin | None = None
    """Of its ids, where files that were opened say it. A snapshot keeps it, so that files that the
    model is asked about later are read alike."""

    @property
    def table_name(self) -> str:
        return self.table or self.name


@dataclass(frozen=True, slots=True)
class Schema:
    """Columns of a data set: known before any example is read."""

    features: tuple[Feature, ...]
    numbers: tuple[str, ...] = ()
    """Names of the columns of `ColumnBatch.numbers`."""
    label: Label | None = None
    """None: examples have no label; each is one that happened."""
    has_weights: bool = False

    def feature(self, name: str) -> Feature | None:
        """The feature of that name, if there is one."""
        return next((each for each in self.features if each.name == name), None)

    @property
    def origins(self) -> dict[str, Origin]:
        """Feature → where its ids come from, of those that say it."""
        return {each.name: each.origin for each in self.features if each.origin is not None}

    def with_origins(self, origins: Mapping[str, Origin]) -> Schema:
        """The same columns, with what their ids are made of."""
        features = (replace(each, origin=origins.get(each.name)) for each in self.features)
        return replace(self, features=tuple(features))

    @property
    def is_matrix(self) -> bool:
        """Whether each example has exactly one id of each feature."""
        return not any(each.is_list or each.may_be_missing for each in self.features)

    @property
    def table_names(self) -> tuple[str, ...]:
        """Each table once, in the order of features."""
        return tuple(dict.fromkeys(each.table_name for each in self.features))


@dataclass(frozen=True, slots=True)
class Column:
    """Ids of one feature."""

    ids: Ids
    """``(n,)``, example after example."""
    lengths: npt.NDArray[np.int64] | None = None
    """``(b,)``, ids of each example; None: one each, so n is b."""

    def __len__(self) -> int:
        return len(self.ids if self.lengths is None else self.lengths)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Ids of each example, ``(b,)``."""
        return np.ones(len(self.ids), np.int64) if self.lengths is None else self.lengths

    def take(self, selection: Selection) -> Column:
        """The examples that `selection` picks, in its order."""
        if self.lengths is None:
            return Column(self.ids[selection])
        ends = np.cumsum(self.lengths)
        lengths = self.lengths[selection]
        if isinstance(selection, slice) and selection.step in (None, 1):
            begin = selection.indices(len(self.lengths))[0]
            first = ends[begin - 1] if begin else 0
            return Column(self.ids[first : first + lengths.sum()], lengths)
        begins = (ends - self.lengths)[selection]
        # Position of each id: that of its example's first, and its place in the example.
        places = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Column(self.ids[np.repeat(begins, lengths) + places], lengths)


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """Examples of a step, by column: all of them, or one rank's part."""

    ids: Mapping[str, Column]
    """Feature → its ids."""
    numbers: Floats
    """``(b, k)``; NaN and infinity do not occur."""
    labels: Floats | None = None
    """``(b,)``; None where the schema has no label."""
    weights: Floats | None = None
    """``(b,)``, of examples in the loss; None: 1 each."""
    given: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """Feature → Arrow array of the values that its ids were made of, if they were kept for predictions;
    parts of a batch have none."""
    total: int | None = field(default=None, kw_only=True)
    """Examples of the step over all ranks, where these are one rank's part of them."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def num_examples(self) -> int:
        """Examples of the step, over all ranks."""
        return len(self) if self.total is None else self.total

    def take(self, selection: Selection) -> ColumnBatch:
        """The examples that `selection` picks, in its order."""
        return replace(
            self,
            ids={name: column.take(selection) for name, column in self.ids.items()},
            numbers=self.numbers[selection],
            labels=None if self.labels is None else self.labels[selection],
            weights=None if self.weights is None else self.weights[selection],
            given={},
        )

    def part(self, rank: int, world_size: int) -> ColumnBatch:
        """The part of one rank; a batch that is one already is left as it is."""
        if self.total is not None:
            return self
        ends = (len(self) * each // world_size for each in (rank, rank + 1))
        return replace(self.take(slice(*ends)), total=len(self))

    def split(self, count: int) -> list[ColumnBatch]:
        """`count` batches of nearly one size, which may be 0, in order."""
        ends = [len(self) * each // count for each in range(count + 1)]
        parts = [self.take(slice(begin, end)) for begin, end in pairwise(ends)]
        if self.total is None:
            return parts
        totals = [self.total * each // count for each in range(count + 1)]
        # All ranks skip a part that none of them has: so one that has an example says at least 1.
        return [
            replace(part, total=max(end - begin, 1))
            for part, (begin, end) in zip(parts, pairwise(totals), strict=True)
        ]

    @staticmethod
    def joined(batches: Sequence[ColumnBatch]) -> ColumnBatch:
        """One batch of all examples, in order.

        Args:
            batches: at least one, all of the same columns.
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

        def floats(name: Literal["labels", "weights"]) -> Floats | None:
            parts = [getattr(batch, name) for batch in batches]
            return None if parts[0] is None else np.concatenate(parts)

        return ColumnBatch(
            ids={name: column(name) for name in first.ids},
            numbers=np.concatenate([batch.numbers for batch in batches]),
            labels=floats("labels"),
            weights=floats("weights"),
        )
