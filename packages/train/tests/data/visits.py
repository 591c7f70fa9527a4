"""A kind of data for tests: visits of planted sessions, in memory.

Items are in groups; in a group, each item leads to the next, and each user has a group. A history
contains the earlier visits of the user, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from sparring.contracts import hookimpl
from sparring_train.columns import Column, ColumnBatch, Feature, Schema
from sparring_train.config.sections.kinds import DataSection
from sparring_train.data.dataset import OpenRequest
from sparring_train.hookspecs import DataDescriptor

__all__ = ["VisitsData", "VisitsPlugin"]

NUM_GROUPS, GROUP_SIZE, LONGEST = 8, 10, 5


class VisitsData(DataSection):
    """Each user's visits, of which the last is the test."""

    kind: Literal["visits"]
    users: int = 60
    visits: int = 8
    batch_size: int = 64
    label: Literal["binary", "number"] | None = None
    """With one, each visit comes again with an item of another group, and the label 0."""
    missing: bool = False
    """Each visit comes again without a user, and without an item."""
    parts: bool = False
    """Each rank is given its part of a batch."""

    @property
    def columns(self) -> Schema:
        features = (
            Feature("user", may_be_missing=self.missing),
            Feature("history", table="item", is_list=True, may_be_missing=True),
            Feature("item", may_be_missing=self.missing),
            Feature("group", may_be_missing=True),
        )
        return Schema(features, label=self.label)


class VisitsDataset:
    label_range = None

    def __init__(self, section: VisitsData, request: OpenRequest) -> None:
        self.schema = section.columns
        self._section, self._request = section, request
        random = np.random.default_rng(request.seed)
        rows: list[tuple[int, list[int], int, float, bool]] = []
        for user in range(section.users):
            group = user % NUM_GROUPS
            at, visited = int(random.integers(GROUP_SIZE)), []
            for visit in range(section.visits):
                item = 1000 + group * GROUP_SIZE + at
                is_test = visit == section.visits - 1
                rows.append((user, visited[-LONGEST:], item, 1.0, is_test))
                if section.label is not None:
                    other = 1000 + int(random.integers(NUM_GROUPS * GROUP_SIZE))
                    if (other - 1000) // GROUP_SIZE != group:
                        rows.append((user, visited[-LONGEST:], other, 0.0, is_test))
                visited.append(item)
                at = (at + 1) % GROUP_SIZE
        self.train = [each for each in rows if not each[4]]
        self.test = [each for each in rows if each[4]]

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.train) // self._section.batch_size)

    def batches(self, epoch: int) -> Iterator[ColumnBatch]:
        order = np.random.default_rng((self._request.seed, epoch)).permutation(len(self.train))
        return self._batches([self.train[place] for place in order])

    def test_batches(self) -> Iterator[ColumnBatch]:
        return self._batches(self.test)

    def extra(self) -> Mapping[str, Any]:
        return {}

    def _batches(
        self, rows: list[tuple[int, list[int], int, float, bool]]
    ) -> Iterator[ColumnBatch]:
        for begin in range(0, len(rows), self._section.batch_size):
            batch = self._columns(rows[begin : begin + self._section.batch_size])
            if self._section.missing:
                batch = _with_missing(batch)
            if self._section.parts:
                batch = batch.part(self._request.rank, self._request.world_size)
            yield batch

    def _columns(self, rows: list[tuple[int, list[int], int, float, bool]]) -> ColumnBatch:
        users, histories, items, labels, _ = zip(*rows, strict=True)
        ids = np.array(items, np.int64)
        is_known = ids % 3 != 0
        columns = {
            "user": Column(np.array(users, np.int64)),
            "history": Column(
                np.array([each for history in histories for each in history], np.int64),
                np.array([len(history) for history in histories], np.int64),
            ),
            "item": Column(ids),
            "group": Column(((ids - 1000) // GROUP_SIZE)[is_known], is_known.astype(np.int64)),
        }
        return ColumnBatch(
            columns,
            numbers=np.empty((len(rows), 0), np.float32),
            labels=None if self.schema.label is None else np.array(labels, np.float32),
        )


def _with_missing(batch: ColumnBatch) -> ColumnBatch:
    parts = [batch]
    for name in ("user", "item"):
        none = Column(np.empty(0, np.int64), np.zeros(len(batch), np.int64))
        parts.append(replace(batch, ids={**batch.ids, name: none}))
    return ColumnBatch.joined(parts)


class VisitsPlugin:
    @hookimpl(optionalhook=True)
    def sparring_register_data(self) -> list[DataDescriptor]:
        return [
            DataDescriptor(
                name="visits", api_version=(1, 0), section=VisitsData, open=VisitsDataset
            )
        ]
