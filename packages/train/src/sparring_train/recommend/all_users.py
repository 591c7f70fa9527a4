"""Recommendations for all users, in parts that any number of processes compute.

A part contains a fixed block of users. Its bytes depend only on the snapshot, the options and the files:
vectors are computed on one thread, the vectors of the items are stored once and shared by all processes,
the search compares every item in a fixed order of additions, and the smaller key wins for equal scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow

from sparring import Snapshot, make_plugin_manager
from sparring.errors import DataError, InvalidArgumentError, UnsupportedError
from sparring_train.columns import Column, ColumnBatch, Schema
from sparring_train.config.run import RunConfig
from sparring_train.config.sections.kinds import Ranking
from sparring_train.hookspecs import OpenedModel
from sparring_train.loop.item_catalog import ItemCatalog, with_features
from sparring_train.loop.ranking_evaluation import drop_incomplete_examples
from sparring_train.recommend.item_filter import read_items
from sparring_train.recommend.item_vectors import ItemVectors, open_item_vectors
from sparring_train.recommend.names_of_ids import name_values
from sparring_train.recommend.part_files import PartFolder, make_absolute
from sparring_train.recommend.recommendations import Sides, find_needed_columns, find_sides
from sparring_train.recommend.row_blocks import RowBlocks
from sparring_train.recommend.seen_items import (
    SeenItems,
    find_positions,
    hash_arrays,
    join_jagged,
)
from sparring_train.run.saved_run import open_run
from sparring_train.run.snapshot_rows import read_keys

if TYPE_CHECKING:
    from sparring import PluginManager
    from sparring_packed import TopK

__all__ = ["RecommendationJob", "RecommendationOptions", "open_recommendations"]

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Jagged = tuple[Ids, Ids]

_BLOCK = 8192
"""Number of examples for which vectors are computed at a time."""
_SAMPLE_USERS = 256
"""Number of users for which the recall of an inexact index is measured."""


@dataclass(frozen=True, slots=True)
class RecommendationOptions:
    """Options of recommendations for all users."""

    users: str | None = None
    """Parquet files with one row per user: a file, folder, pattern, or URL of fsspec. None: all users of
    the run."""
    k: int = 10
    """Number of items per user."""
    item: str | None = None
    """Feature that contains items; None: determined by the model."""
    user: str | None = None
    """Feature that contains users; None: determined by the model or its name."""
    exclude_trained: bool = False
    """Whether to exclude the items of a user in the training data and in the history of its row."""
    exclude: str | None = None
    """Parquet files of interactions, whose items are excluded for their users."""
    items: str | None = None
    """Parquet files of the items that may be recommended."""
    where: tuple[str, ...] = ()
    """Conditions on columns of `items`, for example ``price<=20``."""
    factory: str | None = None
    """Index of Faiss, for example ``HNSW32``. None: exact search."""
    part_rows: int = 16_384
    """Number of users per part."""

    def __post_init__(self) -> None:
        if min(self.k, self.part_rows) < 1:
            raise InvalidArgumentError(
                f"RecommendationOptions: found k={self.k} and part_rows={self.part_rows}, expected at "
                "least 1; correct them"
            )

    def with_absolute_paths(self) -> RecommendationOptions:
        """Returns the same options for processes whose current folder is another one."""
        users, exclude, items = (
            None if path is None else make_absolute(path)
            for path in (self.users, self.exclude, self.items)
        )
        return replace(self, users=users, exclude=exclude, items=items)


class _Users(Protocol):
    """Users by position."""

    files: list[dict[str, Any]]
    """Properties of the files, or of the users of the run, for the plan."""

    def __len__(self) -> int: ...

    def read(self, begin: int, end: int) -> tuple[ColumnBatch, pyarrow.Array]:
        """Returns the features of some users, and their values in the output."""


@contextmanager
def open_recommendations(
    snapshot: Snapshot,
    output: str,
    options: RecommendationOptions,
    *,
    overrides: Sequence[str] = (),
    plugin_manager: PluginManager | None = None,
) -> Iterator[RecommendationJob]:
    """Opens the model of a snapshot, its items and users, to compute parts of recommendations.

    All processes that compute parts of one output pass the same arguments. The first one computes the
    vectors of the items and stores them in `output`; the others map this file.

    Args:
        snapshot: snapshot of a run, for example from `sparring.open_snapshot`.
        output: folder of the result, or URL of fsspec.
        options: users, items, and search.
        overrides: ``dotted.key=value`` for the configuration of the run, such as ``data.path=moved``.
        plugin_manager: finds kinds and backends; None: the installed plugins.

    Raises:
        ConfigError: see `open_run`.
        DataError: a file cannot be read, a column is missing or has a wrong type, or no item is left.
        InvalidArgumentError: the options do not fit the model, or `output` contains another result.
        UnsupportedError: the model has no vectors of users and items, or a package is missing.

    Examples:
        A worker that computes part 3::

            options = RecommendationOptions(users="s3://bucket/users", k=100)
            with open_recommendations(open_snapshot(url), "s3://bucket/best", options) as job:
                compute_parts(job, job.output, [3])    # or job.compute(3), a pyarrow.Table
    """
    if find_spec("sparring_packed") is None:
        raise UnsupportedError(
            "recommendations for all users need sparring-packed; run: pip install "
            "'sparring-train[ranking]'"
        )
    manager = plugin_manager or make_plugin_manager()
    # The bits of vectors may depend on the number of threads that compute them.
    with open_run(snapshot, [*overrides, "threads=1"], manager, in_order=True) as (config, model):
        ranking = config.model.ranking(config.data.columns)
        if ranking is None:
            raise UnsupportedError(
                f"{snapshot.url}: a model of kind {config.model.kind} scores pairs and has no vectors of "
                "users and items, which recommendations for all users require; train a model of kind "
                "two_towers or sequence, or run sparring predict for a file of pairs"
            )
        sides = find_sides(config, options.item, options.user)
        if sides.user is None:
            raise InvalidArgumentError(
                "recommendations for all users need the feature of users to name the rows of the result; "
                f"give --user-feature, one of {', '.join(f.name for f in config.data.columns.features)}"
            )
        yield RecommendationJob(snapshot, config, model, ranking, sides, options, output)


class RecommendationJob:
    """A `PartJob` whose parts contain the best items of a block of users.

    Each part has one row per user, in the order of the users: the user's id as in the file, the best
    items first, and their scores as float32. See ``docs/format/parts.md``.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        config: RunConfig,
        model: OpenedModel,
        ranking: Ranking,
        sides: Sides,
        options: RecommendationOptions,
        output: str,
    ) -> None:
        self.output = PartFolder(output)
        self._config, self._model, self._ranking = config, model, ranking
        self._sides, self._options, self._schema = sides, options, config.data.columns
        assert sides.user is not None
        self._user: str = sides.user
        self._of_user = [
            name
            for name in find_needed_columns(model, config)
            if name not in (*ranking.item, sides.user)
        ]
        self._users = self._open_users(snapshot)
        interactions = None
        if options.exclude is not None:
            interactions = RowBlocks(config, options.exclude, [self._user, sides.item])
        self._plan: dict[str, Any] = {
            "format": 1,
            "kind": "recommend",
            "snapshot": snapshot.manifest_hash,
            "step": snapshot.step,
            "features": [self._user, sides.item],
            "k": options.k,
            "index": options.factory or "exact",
            "rows": len(self._users),
            "part_rows": options.part_rows,
            "users": self._users.files,
            "exclude_trained": options.exclude_trained,
            "exclude": None if interactions is None else interactions.files,
            "arrow": pyarrow.__version__,
        }
        keys = self._select_items(snapshot)
        self._seen = [
            SeenItems(self._pairs(batches), keys)
            for batches in self._read_interactions(interactions)
        ]
        # Files may change without another name or number of rows.
        self._plan["selected_items"] = hash_arrays(keys)
        self._plan["excluded_pairs"] = [each.digest for each in self._seen]
        self._items = open_item_vectors(
            self.output, self._plan, lambda: self._compute_items(snapshot, keys)
        )
        if len(self._items.keys) < len(keys):
            for each in self._seen:
                each.renumber(keys, self._items.keys)
        self._places = np.arange(len(self._items.rows))
        self._faiss = self._make_index()

    @property
    def num_rows(self) -> int:
        """Number of users."""
        return len(self._users)

    @property
    def part_rows(self) -> int:
        """Number of users per part."""
        return self._options.part_rows

    @property
    def plan(self) -> Mapping[str, Any]:
        """See `PartJob.plan`."""
        return self._plan

    def compute(self, part: int) -> pyarrow.Table:
        """Computes the best items of the users of a part. Not thread-safe.

        Args:
            part: number of the part.

        Raises:
            DataError: the users cannot be read, or a row has no user.
        """
        begin = part * self.part_rows
        batch, names = self._users.read(begin, min(begin + self.part_rows, self.num_rows))
        vectors = self._vectors_of(batch)
        found = self._search(vectors, self._excluded(batch))
        is_filled = np.arange(found.keys.shape[1]) < found.counts[:, None]
        offsets = np.concatenate(([0], np.cumsum(found.counts))).astype(np.int32)
        items = self._items.names.take(pyarrow.array(found.keys[is_filled]))
        scores = pyarrow.array(found.scores[is_filled])
        return pyarrow.table(
            {
                self._user: names,
                self._sides.item: pyarrow.ListArray.from_arrays(offsets, items),
                "score": pyarrow.ListArray.from_arrays(offsets, scores),
            }
        )

    def measure_recall(self) -> float:
        """Returns the share of the exact results that the index finds, for up to 256 users at equal
        distances; 1 for the exact search."""
        if self._faiss is None:
            return 1.0
        count = min(_SAMPLE_USERS, self.num_rows)
        rows = [
            self._users.read(at, at + 1)[0]
            for at in np.linspace(0, self.num_rows - 1, count).astype(int).tolist()
        ]
        batch = ColumnBatch.joined(rows)
        vectors, excluded = self._vectors_of(batch), self._excluded(batch)
        exact = self._compare_all(vectors, excluded)
        found = self._faiss.top_k(vectors, self._options.k, exclude=excluded)
        hits = sum(
            len(np.intersect1d(mine[:size], theirs[:size]))
            for mine, theirs, size in zip(found.keys, exact.keys, exact.counts, strict=True)
        )
        return float(hits / max(1, exact.counts.sum()))

    # -- users ----------------------------------------------------------------------------

    def _open_users(self, snapshot: Snapshot) -> _Users:
        user, options = self._user, self._options
        if options.users is not None:
            return _UsersOfFiles(self._config, options.users, user, self._of_user, self._ranking)
        if not self._of_user and _table(self._schema, user) in snapshot.tables:
            keys = read_keys(snapshot, _table(self._schema, user))
            batch = ColumnBatch({user: Column(keys)}, np.zeros((len(keys), 0), np.float32))
        else:
            batch = self._users_of_data(user)
        names = name_values(snapshot, self._config, _table(self._schema, user), batch.ids[user].ids)
        return _UsersInMemory(batch, names)

    def _users_of_data(self, user: str) -> ColumnBatch:
        """Returns all users of the training data with the features of their last rows."""
        ranking = self._ranking
        more = [] if ranking.history is None else [self._sides.item]
        catalog = ItemCatalog([user, *self._of_user, *more], longest=ranking.history)
        for batch in self._model.source.data.batches(0):
            whole = drop_incomplete_examples(batch, replace(ranking, user=user))
            if len(whole):
                catalog.add(whole)
        users = catalog.items()
        if ranking.history is None:
            return users
        history, item = users.ids[ranking.history], users.ids[self._sides.item]
        joined = join_jagged([_jagged(history), _jagged(item)])
        column = Column(joined[0], np.diff(joined[1]))
        return replace(users, ids={**users.ids, ranking.history: column})

    def _vectors_of(self, users: ColumnBatch) -> Floats:
        names = [name for name in users.ids if name in (self._user, *self._of_user)]
        parts = []
        for begin in range(0, len(users), _BLOCK):
            block = users.take(slice(begin, begin + _BLOCK))
            block = replace(block, ids={name: block.ids[name] for name in names})
            parts.append(self._predict(block)[0])
        return np.concatenate(parts).astype(np.float32, copy=False)

    def _predict(self, block: ColumnBatch) -> Any:
        numbers = np.zeros((len(block), len(self._schema.numbers)), np.float32)
        return self._model.predict(ColumnBatch(with_features(block, self._schema), numbers))

    # -- items ----------------------------------------------------------------------------

    def _select_items(self, snapshot: Snapshot) -> Ids:
        options, item = self._options, self._sides.item
        if options.where and options.items is None:
            raise InvalidArgumentError(
                "--where selects items by columns of a file, but no file was given; add --items FILE"
            )
        keys = read_keys(snapshot, _table(self._schema, item))
        if options.items is not None:
            allowed = read_items(self._config, options.items, item, options.where)
            keys = np.intersect1d(keys, allowed, assume_unique=True)
        if not len(keys):
            raise DataError(
                "no item is left to recommend: no selected item has a row in the snapshot; check --items "
                "and --where"
            )
        return keys

    def _compute_items(self, snapshot: Snapshot, keys: Ids) -> ItemVectors:
        item = self._sides.item
        numbers = np.zeros((len(keys), 0), np.float32)
        items = ColumnBatch({item: Column(keys)}, numbers)
        if len(self._ranking.item) > 1:
            catalog = ItemCatalog(self._ranking.item)
            for batch in self._model.source.data.batches(0):
                catalog.add(drop_incomplete_examples(batch, self._ranking))
            items = catalog.items()
            items = items.take(np.isin(items.ids[item].ids, keys))
            keys = items.ids[item].ids
            if not len(keys):
                raise DataError(
                    "no item is left to recommend: no training row contains a selected item, so that "
                    f"{', '.join(self._ranking.item[1:])} of the items are unknown; check --items and "
                    "--where"
                )
        rows: Floats = np.empty((0, 0), np.float32)
        for at in range(0, len(keys), _BLOCK):
            vectors = self._predict(items.take(slice(at, at + _BLOCK)))[1]
            if not at:  # Filled block by block, because joining blocks would need twice the memory.
                rows = np.empty((len(keys), vectors.shape[1]), np.float32)
            rows[at : at + _BLOCK] = vectors
        table = _table(self._schema, item)
        return ItemVectors(keys, name_values(snapshot, self._config, table, keys), rows)

    def _read_interactions(self, interactions: RowBlocks | None) -> Iterator[Iterator[ColumnBatch]]:
        """Yields the sources of pairs of users and items that are excluded."""
        if self._options.exclude_trained:
            yield self._model.source.data.batches(0)
        if interactions is not None:
            ends = range(_BLOCK, len(interactions) + _BLOCK, _BLOCK)
            yield (interactions.read(e - _BLOCK, min(e, len(interactions)))[0] for e in ends)

    def _pairs(self, batches: Iterator[ColumnBatch]) -> Iterator[tuple[Ids, Ids]]:
        user, item = self._user, self._sides.item
        ranking = replace(self._ranking, user=user, query=None)
        for batch in batches:
            whole = drop_incomplete_examples(batch, ranking)
            yield whole.ids[user].ids, whole.ids[item].ids

    def _excluded(self, users: ColumnBatch) -> Jagged | None:
        parts = [each.of(users.ids[self._user].ids) for each in self._seen]
        history = self._ranking.history
        if self._options.exclude_trained and history is not None and history in users.ids:
            ids, offsets = _jagged(users.ids[history])
            place, is_known = find_positions(self._items.keys, ids)
            kept = np.concatenate(([0], np.cumsum(is_known)))[offsets]
            parts.append((place[is_known], kept))
        return join_jagged(parts) if parts else None

    # -- search ---------------------------------------------------------------------------

    def _make_index(self) -> Any:
        if self._options.factory is None:
            return None
        from sparring_packed import FaissIndex

        return FaissIndex([(self._places, self._items.rows)], factory=self._options.factory)

    def _search(self, vectors: Floats, excluded: Jagged | None) -> TopK:
        if self._faiss is None:
            return self._compare_all(vectors, excluded)
        return cast("TopK", self._faiss.top_k(vectors, self._options.k, exclude=excluded))

    def _compare_all(self, vectors: Floats, excluded: Jagged | None) -> TopK:
        from sparring_packed import top_k

        rows = [(self._places, self._items.rows)]
        return top_k(rows, vectors, self._options.k, exclude=excluded)


class _UsersInMemory:
    """Users with their features in memory."""

    def __init__(self, batch: ColumnBatch, names: pyarrow.Array) -> None:
        self._batch, self._names = batch, names
        columns = [each for column in batch.ids.values() for each in (column.ids, column.counts)]
        self.files = [
            {"name": "--all-users", "rows": len(batch), "xxh3_128": hash_arrays(*columns)}
        ]

    def __len__(self) -> int:
        return len(self._batch)

    def read(self, begin: int, end: int) -> tuple[ColumnBatch, pyarrow.Array]:
        return self._batch.take(slice(begin, end)), self._names.slice(begin, end - begin)


class _UsersOfFiles:
    """Users in Parquet files."""

    def __init__(
        self, config: RunConfig, path: str, user: str, features: Sequence[str], ranking: Ranking
    ) -> None:
        self._rows = RowBlocks(config, path, [user, *features])
        self._path, self._user = path, user
        self.files = self._rows.files

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, begin: int, end: int) -> tuple[ColumnBatch, pyarrow.Array]:
        batch, arrays = self._rows.read(begin, end)
        column = batch.ids[self._user]
        if not (column.counts == 1).all():
            row = begin + int(np.flatnonzero(column.counts != 1)[0]) + 1
            raise DataError(
                f"{self._path}: row {row:,} of all files has no value in column {self._user!r}, expected "
                "a user in each row; remove rows without a user"
            )
        ids = {**batch.ids, self._user: Column(column.ids)}
        return replace(batch, ids=ids), arrays[self._user]


def _jagged(column: Column) -> Jagged:
    return column.ids, np.concatenate(([0], np.cumsum(column.counts))).astype(np.int64)


def _table(schema: Schema, feature: str) -> str:
    found = schema.feature(feature)
    assert found is not None
    return found.table_name
