"""What the page shows: a training snapshot or a serving snapshot, behind one interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_cli import TableDifference
from sparring_train.view.numbers import Floats, Histogram, NumberSummary

__all__ = ["MAX_NEIGHBORS", "Keys", "OnProgress", "RowChunk", "Source", "TableFacts", "TableSample"]

Keys = npt.NDArray[np.int64]
OnProgress = Callable[[float], None]
"""Receives the completed share of a computation. It may raise to stop the computation."""

MAX_NEIGHBORS = 1_000


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts about a table that the manifests contain.

    Args:
        name: Name of the table.
        dim: Elements per embedding.
        dtype: Dtype of embeddings.
        state: Update method and width of the optimizer state; empty without state.
        most_rows: Number of rows; an upper bound for a chain of deltas.
        is_exact: Whether `most_rows` is the exact number.
        size_bytes: Size of the files of the table over the chain.
        num_written: Rows that the newest delta changed or created; None for a full snapshot.
        num_erased: Keys that the newest delta erased; None for a full snapshot.
        numbers: Names of the numbers that are recorded for each row.
    """

    name: str
    dim: int
    dtype: str
    state: str
    most_rows: int
    is_exact: bool
    size_bytes: int
    num_written: int | None
    num_erased: int | None
    numbers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Some rows.

    Args:
        keys: ``(n,)``.
        embeddings: ``(n, dim)``, without parts such as a bias.
        numbers: Name → ``(n,)`` float64.
    """

    keys: Keys
    embeddings: npt.NDArray[Any]
    numbers: Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class TableSample:
    """A sample of a table: its rows, and the number of rows of the table; see `RowSample`."""

    rows: RowChunk
    num_rows: int
    is_exact: bool


class Source(ABC):
    """Tables that the page shows. Any number of threads may use it.

    `kind` is the name of the format, `url` the URL of the snapshot, `step` its training step, `version`
    the hash of its manifest, and `time` the time of the save in seconds since 1970, if it is known.
    """

    kind: str
    url: str
    step: int
    version: str
    time: float | None
    has_ages = False
    """Whether the snapshot stores the last steps of the rows of some tables."""

    @abstractmethod
    def describe_tables(self) -> Sequence[TableFacts]:
        """Returns facts from the manifests, without reading data files."""

    @abstractmethod
    def chain(self) -> Sequence[str]:
        """Returns the names of the snapshot and its bases."""

    @abstractmethod
    def sample(self, table: str) -> TableSample:
        """Reads a sample of the rows of a table.

        Raises:
            SparringError: There is no such table, or a file is damaged.
        """

    @abstractmethod
    def chunks(self, table: str) -> Iterator[RowChunk]:
        """Yields all rows of a table."""

    @abstractmethod
    def ages(self, table: str, keys: Keys) -> Floats | None:
        """Returns for each key the number of steps since it was trained, NaN if unknown; None if the
        snapshot does not contain them. May read a state that is as large as the keys of the table."""

    @abstractmethod
    def row(self, table: str, text: str) -> dict[str, Any]:
        """Returns the row of an id or string that a user entered; ``found`` tells whether it exists."""

    @abstractmethod
    def names(self, table: str, keys: Keys) -> list[str]:
        """Returns the strings of keys, or their numbers if no strings are stored."""

    @abstractmethod
    def versions(self) -> Sequence[Mapping[str, Any]]:
        """Returns the snapshots in the same folder, oldest first: ``name``, ``step`` and ``is_shown``."""

    @abstractmethod
    def open_version(self, name: str) -> Source:
        """Opens one of `versions` by its name.

        Raises:
            NotFoundError: There is no such version in the folder.
        """

    @abstractmethod
    def previous(self) -> str | None:
        """Returns the name of the version before this one, if it is in the folder."""

    @abstractmethod
    def compare(
        self, other: Source, table: str, top: int, on_progress: OnProgress
    ) -> TableDifference:
        """Compares a table of an older version, `other`, with this one.

        Raises:
            InvalidArgumentError: `other` is of another kind, or the tables cannot be compared.
            UnknownTableError: One of them has no such table.
        """

    @abstractmethod
    def history(self, table: str, text: str) -> Sequence[Mapping[str, Any]]:
        """Returns the changes of a row over the kept versions, oldest first.

        Raises:
            UnsupportedError: The format does not keep them.
        """

    def facts(self, table: str) -> TableFacts:
        """Returns the facts about one table.

        Raises:
            UnknownTableError: There is no such table.
        """
        self.check_table(table)
        return next(each for each in self.describe_tables() if each.name == table)

    @abstractmethod
    def check_table(self, table: str) -> None:
        """Raises UnknownTableError if there is no such table."""

    @abstractmethod
    def embedding(self, table: str, key: int) -> npt.NDArray[Any] | None:
        """Returns the embedding ``(dim,)`` of a key, or None if it has no row."""

    @abstractmethod
    def close(self) -> None:
        """Releases files."""

    def neighbors(
        self, table: str, key: int, k: int, metric: str, on_progress: OnProgress
    ) -> list[dict[str, Any]]:
        """Returns the nearest rows of a row, nearest first, by comparing it with all rows.

        Raises:
            InvalidArgumentError: `k` or `metric` is invalid, or the key has no row.
            UnsupportedError: sparring-packed is not installed.
        """
        if not 1 <= k <= MAX_NEIGHBORS:
            raise InvalidArgumentError(
                f"neighbors: found k={k}, expected 1 to {MAX_NEIGHBORS:,}; fix it"
            )
        try:
            from sparring_packed import top_k
        except ImportError:
            raise UnsupportedError(
                "neighbors need sparring-packed; run: pip install 'sparring-train[ranking]'"
            ) from None
        query = self.embedding(table, key)
        if query is None:
            raise InvalidArgumentError(f"neighbors: key {key} has no row in table {table!r}")
        itself = (np.array([key]), np.array([0, 1]))
        rows = ((each.keys, each.embeddings) for each in self._tracked(table, on_progress))
        best = top_k(rows, query[None], k, metric=cast(Any, metric), exclude=itself)
        count = int(best.counts[0])
        keys = best.keys[0][:count]
        return [
            {"key": str(found), "name": name, "score": float(score)}
            for found, name, score in zip(
                keys.tolist(), self.names(table, keys), best.scores[0], strict=False
            )
        ]

    def measure(self, table: str, sample: TableSample, on_progress: OnProgress) -> dict[str, Any]:
        """Returns the exact number of rows, and a summary of each number of all rows."""
        shown = dict(sample.rows.numbers)
        if (ages := self.ages(table, sample.rows.keys)) is not None:
            shown["age"] = ages
        summaries = {name: NumberSummary(Histogram(each)) for name, each in shown.items()}
        num_rows = num_dead = 0
        for chunk in self._tracked(table, on_progress):
            num_rows += len(chunk.keys)
            for name, numbers in chunk.numbers.items():
                summaries[name].add(numbers)
            ages = self.ages(table, chunk.keys)
            if ages is not None:
                summaries["age"].add(ages)
                num_dead += int((ages > self.step / 2).sum())
        return {
            "rows": num_rows,
            "dead": num_dead if "age" in summaries else None,
            "numbers": {name: each.as_dict() for name, each in summaries.items()},
        }

    def _tracked(self, table: str, on_progress: OnProgress) -> Iterator[RowChunk]:
        most, done = max(1, self.facts(table).most_rows), 0
        for chunk in self.chunks(table):
            yield chunk
            done += len(chunk.keys)
            on_progress(min(1.0, done / most))
