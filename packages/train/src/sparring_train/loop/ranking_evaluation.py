"""Full-sort evaluation of models with the loss `ranking`, over all ranks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np
import numpy.typing as npt

from sparring_train.columns import Column, ColumnBatch
from sparring_train.config.sections.kinds import Ranking
from sparring_train.data.dataset import Dataset
from sparring_train.loop.item_catalog import ItemCatalog, with_features
from sparring_train.loop.model import Predict
from sparring_train.quality.full_sort import full_sort
from sparring_train.quality.rankings import select_queries
from sparring_train.report.id_counts import IdCounts
from sparring_train.run.ranks import Ranks

__all__ = ["HeldOut", "RankingEvaluation", "drop_incomplete_examples"]

HeldOut = Literal["test", "validation"]
"""Parts of the data that are not used for training."""

Ids = npt.NDArray[np.int64]
Jagged = tuple[Ids, Ids]

_log = logging.getLogger(__name__)

_CUTOFF = 10
_BLOCK = 4096
"""Number of queries to rank, and of items to embed, at a time."""


@dataclass(frozen=True, slots=True)
class _Queries:
    """Queries of this rank."""

    users: Ids
    """``(q,)``; arbitrary numbers if the model has no user."""
    vectors: npt.NDArray[np.floating]
    """``(q, dim)``"""
    relevant: Jagged
    history: Jagged | None


class RankingEvaluation:
    """Ranks all items of the training examples for each query, except those that the user has seen, if
    `Ranking.ranks_seen` is false.

    Each rank evaluates a part of the queries. The first evaluation reads the training examples once more.
    It keeps in memory the features of each item, and the training items of the users in this rank's
    queries.

    A user has seen the items of the training examples, and in the test also the items of the
    validation examples.

    Args:
        ranking: names the columns to use.
        data: data of the run.
        has_validation: whether the data contain validation examples.
        measures_popularity: whether the first evaluation of the test examples computes `popularity`.
    """

    def __init__(
        self,
        ranking: Ranking,
        data: Dataset,
        *,
        has_validation: bool = False,
        measures_popularity: bool = False,
    ) -> None:
        self._ranking, self._data, self._schema = ranking, data, data.schema
        self._has_validation = has_validation
        self._items: ColumnBatch | None = None
        self._has_warned = False
        self.num_queries = 0
        """Number of queries of all ranks in the last evaluation."""
        self._seen: dict[HeldOut, tuple[Ids, Jagged]] = {}
        """Part → its users, sorted, and the items that each user has seen."""
        self.popularity: dict[str, float] = {}
        """Metrics on the test examples if items are ranked by their number of training examples, for
        comparison with the model; empty if they are not measured."""
        self._item_counts = IdCounts() if measures_popularity else None
        self.explain_undefined: str | None = None
        """The reason if the last evaluation had no query, so that its metrics are NaN."""

    def metrics(self, predict: Predict, ranks: Ranks, part: HeldOut = "test") -> dict[str, float]:
        """Computes the means of recall, NDCG, reciprocal rank and hit rate at 10 over all queries. If
        users have seen some of the relevant items, also their share, `repeat_share`; and if each query
        has one item, the recall of these, `repeat_recall@10`, and of the others, `new_recall@10`. All
        ranks call it.

        Raises:
            UnsupportedError: sparring-packed is not installed.
        """
        queries = self._queries(predict, ranks, part)
        if part not in self._seen:
            self._read_seen_pairs(np.unique(queries.users), ranks, part)
        keys, vectors = self._item_vectors(predict, ranks)
        metrics, num_queries = self._ranked(queries, keys, vectors, ranks, part)
        self.num_queries = num_queries
        self.explain_undefined = None if num_queries else self._explain_no_queries(part)
        counts, self._item_counts = self._item_counts, None if part == "test" else self._item_counts
        # If not all items were counted, the baseline would be too low.
        if counts is not None and part == "test" and counts.one_in == 1:
            ones = np.ones((len(queries.users), 1), np.float32)
            popular = replace(queries, vectors=ones)
            frequencies = counts.of(keys).astype(np.float32)[:, None]
            self.popularity, _ = self._ranked(popular, keys, frequencies, ranks, part)
        repeats = self._repeats(queries, keys, vectors, ranks, part, metrics["recall@10"])
        return {**metrics, **repeats}

    def _repeats(
        self,
        queries: _Queries,
        keys: Ids,
        vectors: npt.NDArray[np.floating],
        ranks: Ranks,
        part: HeldOut,
        recall: float,
    ) -> dict[str, float]:
        """Returns metrics of relevant items that users have seen; empty if there are none."""
        items, offsets = queries.relevant
        is_repeat = np.zeros(len(items), np.bool_)
        for begin in range(0, len(queries.users), _BLOCK):
            block = np.arange(begin, min(begin + _BLOCK, len(queries.users)))
            seen = self._list_seen(queries, block, part)
            if seen is not None:
                some = slice(offsets[begin], offsets[block[-1] + 1])
                is_repeat[some] = _is_among(select_queries(queries.relevant, block), seen)
        repeats, total = ranks.sum(np.array([is_repeat.sum(), len(items)], np.float64)).tolist()
        if not repeats:
            return {}
        found = {"repeat_share": repeats / total}
        if not self._ranking.ranks_seen and not self._has_warned and ranks.rank == 0:
            self._has_warned = True
            _log.warning(
                "%d of %d %s items were not ranked, because their users had them before; no ranking "
                "finds them, so recall@%d is at most %.4g. A model of kind sequence ranks such items",
                repeats,
                total,
                part,
                _CUTOFF,
                1 - repeats / total,
            )
        if self._ranking.query is not None:
            return found
        # Each query has one item.
        places = np.flatnonzero(is_repeat)
        known = replace(queries, relevant=_jagged(places, items[places], len(items)))
        known_recall = 0.0
        if self._ranking.ranks_seen:
            means, _ = self._ranked(known, keys, vectors, ranks, part)
            known_recall = means[f"recall@{_CUTOFF}"]
        found[f"repeat_recall@{_CUTOFF}"] = known_recall
        if repeats < total:
            new = (recall * total - known_recall * repeats) / (total - repeats)
            found[f"new_recall@{_CUTOFF}"] = max(new, 0.0)  # rounding
        return found

    def _ranked(
        self,
        queries: _Queries,
        keys: Ids,
        vectors: npt.NDArray[np.floating],
        ranks: Ranks,
        part: HeldOut,
    ) -> tuple[dict[str, float], int]:
        """Returns the metrics of all ranks, and the number of their queries."""
        sums = np.zeros(5)
        for begin in range(0, len(queries.users), _BLOCK):
            block = np.arange(begin, min(begin + _BLOCK, len(queries.users)))
            found = full_sort(
                queries.vectors[block],
                keys,
                vectors,
                relevant=select_queries(queries.relevant, block),
                seen=None if self._ranking.ranks_seen else self._list_seen(queries, block, part),
                cutoffs=(_CUTOFF,),
            )[_CUTOFF]
            means = (found.recall, found.ndcg, found.mrr, found.hit_rate, 1.0)
            if found.num_queries:
                sums += found.num_queries * np.array(means)
        sums = ranks.sum(sums)
        values = (sums[:4] / sums[4] if sums[4] else np.full(4, np.nan)).tolist()
        names = ("recall", "ndcg", "mrr", "hit_rate")
        found_metrics = {
            f"{name}@{_CUTOFF}": each for name, each in zip(names, values, strict=True)
        }
        return found_metrics, int(sums[4])

    def _explain_no_queries(self, part: HeldOut) -> str:
        if self._ranking.positive is None:
            return f"there is no {part} row"
        return f"no {part} row has a label of at least {self._ranking.positive:g} (model.positive)"

    def _queries(self, predict: Predict, ranks: Ranks, part: HeldOut) -> _Queries:
        """Returns the queries of this rank with their vectors."""
        ranking = self._ranking
        known: dict[int, int] = {}
        users, vectors, places, items, histories = [], [], [], [], []
        count = position = 0
        is_test = part == "test"
        given = self._data.test_batches() if is_test else self._data.validation_batches()
        for batch in self._whole(given, ranks, None):
            wanted = self._positive(batch)
            item = batch.ids[ranking.item[0]].ids
            if ranking.query is None:
                numbers = position + np.arange(len(batch))
                mine = wanted & (numbers % ranks.world_size == ranks.rank)
                first = np.flatnonzero(mine)
                at = count + np.arange(len(first))
            else:
                query = batch.ids[ranking.query].ids
                mine = wanted & (query % ranks.world_size == ranks.rank)
                at = np.empty(int(mine.sum()), np.int64)
                new = []
                for number, place in enumerate(np.flatnonzero(mine).tolist()):
                    if query[place] not in known:
                        known[query[place]] = len(known)
                        new.append(place)
                    at[number] = known[query[place]]
                first = np.array(new, np.int64)
            position += len(batch)
            count += len(first)
            # All ranks call `predict` together, even without a query.
            examples = batch.take(first)
            vectors.append(predict(replace(examples, total=len(batch)))[0])
            users.append(first if ranking.user is None else examples.ids[ranking.user].ids)
            places.append(at)
            items.append(item[mine])
            if ranking.history is not None:
                histories.append(examples.ids[ranking.history])
        relevant = _jagged(_joined(places), _joined(items), count)
        return _Queries(
            _joined(users),
            np.concatenate(vectors) if vectors else np.empty((0, 1), np.float32),
            relevant,
            _column_as_jagged(histories) if histories else None,
        )

    def _read_seen_pairs(self, users: Ids, ranks: Ranks, part: HeldOut) -> None:
        """Reads all items with their latest features in the training examples, and the items that
        `users` have seen before the examples of `part`."""
        ranking = self._ranking
        catalogue = ItemCatalog(ranking.item)
        pairs: list[tuple[Ids, Ids]] = []
        names = {*ranking.item, ranking.user}
        trained = ((batch, True) for batch in self._whole(self._data.batches(0), ranks, names))
        later: Iterator[tuple[ColumnBatch, bool]] = iter(())
        if part == "test" and self._has_validation:
            given = self._whole(self._data.validation_batches(), ranks, names)
            later = ((batch, False) for batch in given)
        for batch, is_trained in chain(trained, later):
            item = batch.ids[ranking.item[0]].ids
            if ranking.user is not None and len(users):
                user = batch.ids[ranking.user].ids
                places = np.minimum(np.searchsorted(users, user), len(users) - 1)
                mine = users[places] == user
                pairs.append((places[mine], item[mine]))
            if is_trained:
                catalogue.add(batch)
                # Read only once: by the first evaluation, of either part.
                if self._items is None and self._item_counts is not None:
                    self._item_counts.add(item)
        self._items = catalogue.items()  # Not empty, because a run trains before it evaluates.
        if ranking.user is not None:
            places, seen = (_joined([pair[side] for pair in pairs]) for side in (0, 1))
            self._seen[part] = users, _jagged(places, seen, len(users))
        else:
            self._seen[part] = users, _jagged(_joined([]), _joined([]), len(users))

    def _item_vectors(self, predict: Predict, ranks: Ranks) -> tuple[Ids, npt.NDArray[np.floating]]:
        """Returns ids and vectors of all items on every rank. Each rank computes a part of them."""
        assert self._items is not None
        items, vectors = self._items, []
        for begin in range(0, len(items), _BLOCK):
            block = items.take(slice(begin, begin + _BLOCK))
            whole = replace(block, ids=with_features(block, self._schema))
            found = predict(ranks.part(whole))[1]
            vectors.append(ranks.gathered(np.ascontiguousarray(found)))
        return items.ids[self._ranking.item[0]].ids, np.concatenate(vectors)

    def _list_seen(self, queries: _Queries, block: Ids, part: HeldOut) -> Jagged | None:
        """Returns the items that each query of a block has seen."""
        parts = []
        if queries.history is not None:
            parts.append(select_queries(queries.history, block))
        if self._ranking.user is not None:
            users, seen = self._seen[part]
            parts.append(select_queries(seen, np.searchsorted(users, queries.users[block])))
        if not parts:
            return None
        places = [np.repeat(np.arange(len(block)), np.diff(offsets)) for _, offsets in parts]
        return _jagged(_joined(places), _joined([values for values, _ in parts]), len(block))

    def _positive(self, batch: ColumnBatch) -> npt.NDArray[np.bool_]:
        if self._ranking.positive is None or batch.labels is None:
            return np.ones(len(batch), np.bool_)
        is_positive: npt.NDArray[np.bool_] = batch.labels >= self._ranking.positive
        return is_positive

    def _whole(
        self, batches: Iterator[ColumnBatch], ranks: Ranks, names: set[str | None] | None
    ) -> Iterator[ColumnBatch]:
        """Yields the same examples on every rank, with some features or all."""
        for given in batches:
            batch = drop_incomplete_examples(given, self._ranking)
            ids = {name: each for name, each in batch.ids.items() if names is None or name in names}
            if batch.total is None or ranks.world_size == 1:
                yield replace(batch, ids=ids, total=None)
                continue
            labels = batch.labels
            yield ColumnBatch(
                {name: _gathered(column, ranks) for name, column in ids.items()},
                ranks.gathered(np.ascontiguousarray(batch.numbers)),
                None if labels is None else ranks.gathered(np.ascontiguousarray(labels)),
            )


def drop_incomplete_examples(batch: ColumnBatch, ranking: Ranking) -> ColumnBatch:
    """Selects the examples that have an item, and a user and a query if the model uses them."""
    wanted = dict.fromkeys((ranking.item[0], ranking.user, ranking.query))
    names = [name for name in wanted if name is not None]
    counts = [batch.ids[name].counts == 1 for name in names]
    if not all(each.all() for each in counts):
        batch = batch.take(np.logical_and.reduce(counts))
    one_each = {name: Column(batch.ids[name].ids) for name in names}
    return replace(batch, ids={**batch.ids, **one_each})


def _gathered(column: Column, ranks: Ranks) -> Column:
    ids = ranks.gathered(np.ascontiguousarray(column.ids))
    return Column(ids, None if column.lengths is None else ranks.gathered(column.lengths))


def _jagged(places: Ids, values: Ids, count: int) -> Jagged:
    """Groups values by their place, of which there are `count`, in order."""
    order = np.argsort(places, kind="stable")
    counts = np.bincount(places, minlength=count)
    return values[order], np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _is_among(given: Jagged, others: Jagged) -> npt.NDArray[np.bool_]:
    """Returns for each given value whether the other values of its place contain it."""
    distinct, numbers = np.unique(np.concatenate([given[0], others[0]]), return_inverse=True)
    places = [
        np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)) for _, offsets in (given, others)
    ]
    pairs = np.concatenate(places) * len(distinct) + numbers
    found: npt.NDArray[np.bool_] = np.isin(pairs[: len(given[0])], pairs[len(given[0]) :])
    return found


def _column_as_jagged(columns: list[Column]) -> Jagged:
    counts = _joined([each.counts for each in columns])
    ids = _joined([each.ids for each in columns])
    return ids, np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _joined(parts: list[Ids]) -> Ids:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
