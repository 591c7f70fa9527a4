"""The best items for a user, according to a saved model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_train.columns import Column, ColumnBatch, Schema
from sparring_train.config.run import RunConfig
from sparring_train.config.sections.model import MatrixFactorizationModel
from sparring_train.data.column_names import ITEMS, USERS, find_first_named
from sparring_train.hookspecs import OpenedModel
from sparring_train.recommend.item_index import Index, UsedIndex, chooses_faiss
from sparring_train.recommend.known_columns import KnownColumns, known_columns, read_items_and_user

__all__ = [
    "Given",
    "RecommendationResult",
    "Sides",
    "compute_recommendations",
    "read_seen_items",
    "find_needed_columns",
    "find_sides",
]

Ids = npt.NDArray[np.int64]
_BLOCK = 8192
"""Number of items that are scored at a time."""


@dataclass(frozen=True, slots=True)
class Sides:
    """Features of the user and the item in a model."""

    user: str | None
    item: str


@dataclass(frozen=True, slots=True)
class Given:
    """Known columns of an example, except the item."""

    ids: Mapping[str, Ids]
    """Feature → ids; features that are missing have none."""
    numbers: Mapping[str, float]
    """Column of numbers → value; columns that are missing are 0."""


def find_sides(
    config: RunConfig, item: str | None, user: str | None = None, *, needs_user: bool = False
) -> Sides:
    """Returns the features of users and items, determined by the model, the options, or their names.

    Args:
        config: configuration of the run.
        item: feature of items, if set by the user.
        user: feature of users, if set by the user.
        needs_user: whether the feature of users is required.

    Raises:
        InvalidArgumentError: a feature is unknown; the message contains all that are missing.
    """
    schema, model = config.data.columns, cast(Any, config.model)
    names = [feature.name for feature in schema.features]
    known_user: str | None = getattr(model, "user", None)
    known: str | None = getattr(model, "item", None)
    if model.loss == "ranking":
        ranking = model.ranking(schema)
        known_user, known = ranking.user or ranking.query, ranking.item[0]
        if item not in (None, known):
            raise InvalidArgumentError(
                f"--item: found {item}, but a model of kind {model.kind} ranks the items of {known}; "
                "remove --item"
            )
    for option, given in (("--item", item), ("--user-feature", user)):
        if given is not None and given not in names:
            raise InvalidArgumentError(
                f"{option}: found {given}, expected one of {', '.join(names)}"
            )
    of_user = user or known_user
    of_item = item or known or find_first_named((name for name in names if name != of_user), ITEMS)
    if of_user is None:
        of_user = find_first_named((name for name in names if name != of_item), USERS)
    single = [feature.name for feature in schema.features if not feature.is_list]
    if len(single) == 2 and (of_item is None) != (of_user is None):
        # If there are two features, one is the user and the other the item.
        other = next(name for name in single if name not in (of_item, of_user))
        of_item, of_user = of_item or other, of_user or other
    missing = [] if of_item is not None else ["--item FEATURE"]
    missing += ["--user-feature FEATURE"] if of_user is None and needs_user else []
    if of_item is None or missing:
        raise InvalidArgumentError(
            f"model.kind: {model.kind} and the names of the features do not determine the feature of "
            f"{'users and items' if len(missing) > 1 else 'users' if of_item else 'items'}; give "
            f"{' '.join(missing)}, one of {', '.join(names)}"
        )
    return Sides(of_user, of_item)


@dataclass(frozen=True, slots=True)
class RecommendationResult:
    """The best items, best first; items with equal scores are sorted by key."""

    keys: Ids
    scores: npt.NDArray[np.floating]
    index: UsedIndex
    """The index that was used."""
    empty: tuple[str, ...] = ()
    """Features and numbers that were left empty or 0, because their values are unknown."""
    num_unknown: int = 0
    """Number of items with a row that were excluded, because no training row contains their features."""
    is_by_popularity: bool = False
    """Whether scores are numbers of training rows, because nothing is known about the user."""


def compute_recommendations(
    model: OpenedModel,
    config: RunConfig,
    sides: Sides,
    given: Given,
    items: Ids,
    k: int,
    index: Index,
) -> RecommendationResult:
    """Computes the k best of `items`.

    Args:
        model: model of the run.
        config: configuration of the run.
        sides: features of users and items.
        given: known ids and numbers, such as the user.
        items: ``(n,)`` keys.
        k: number of results, at least 1.
        index: search method.

    Raises:
        InvalidArgumentError: the model needs ids of features that are not given.
        DataError: there are further features, and the training rows cannot be read.
        UnsupportedError: Faiss is requested but not installed, or the model has no vectors.
    """
    schema = config.data.columns
    if config.model.loss != "ranking":
        if index == "faiss":
            raise UnsupportedError(
                f"--index: found faiss, but a model of kind {config.model.kind} scores pairs and has no "
                "vectors of items; choose --index exact"
            )
        return _best_of_pairs(model, config, sides, given, items, k)
    uses_faiss = chooses_faiss(index)
    ranking = cast(Any, config.model).ranking(schema)
    used = find_needed_columns(model, config)
    of_user = [each for each in used if each not in (*ranking.item, sides.user)]
    others = [each for each in of_user if each not in given.ids]
    user = _one_id(given, sides.user)
    if ranking.history in others and user is None:
        raise InvalidArgumentError(
            f"a model of kind {config.model.kind} needs earlier items; give --with "
            f"{ranking.history}=ITEM,ITEM, oldest first, or --user"
        )
    catalogue, last = None, None
    if len(ranking.item) > 1 or (others and user is not None):
        batches = model.source.data.batches(0)
        catalogue, last = read_items_and_user(
            batches, ranking.item, sides.user, user, history=ranking.history
        )
    if ranking.history in others and last is None:
        return _most_popular(model, sides, items, k)
    if last is not None:
        found = {name: last.ids[name].ids for name in others}
        if ranking.history in others:
            before = (found[ranking.history], last.ids[sides.item].ids)
            found[ranking.history] = np.concatenate(before)
        given = Given({**found, **given.ids}, given.numbers)
    empty = tuple(name for name in others if not len(given.ids.get(name, ())))
    of_items = _one_each(schema, sides.item, items)
    if len(ranking.item) > 1:
        assert catalogue is not None
        of_items = catalogue.take(np.isin(catalogue.ids[sides.item].ids, items))
    keys = of_items.ids[sides.item].ids
    if not len(keys):
        return replace(_best(keys, [], k), empty=empty, num_unknown=len(items))
    first = _examples(schema, given, of_items.take(slice(0, 1)), used, sides.user)
    query = model.predict(first)[0][0]
    blocks = (_examples(schema, given, each, used, sides.user) for each in _blocks(of_items))
    vectors = (model.predict(each)[1] for each in blocks)
    if uses_faiss:
        best = _search_with_faiss(keys, np.concatenate(list(vectors)), query, k)
    else:
        best = _best(keys, [each @ query for each in vectors], k)
    return replace(best, empty=empty, num_unknown=len(items) - len(keys))


def find_needed_columns(model: OpenedModel, config: RunConfig) -> tuple[str, ...]:
    """Returns the features that the model looks up, and the numbers that it reads."""
    schema, tables = config.data.columns, model.source.container.tables
    features = [each.name for each in schema.features if each.table_name in tables]
    reads_numbers = config.model.loss != "ranking" and not isinstance(
        config.model, MatrixFactorizationModel
    )
    return (*features, *(schema.numbers if reads_numbers else ()))


def _one_id(given: Given, name: str | None) -> int | None:
    ids = given.ids.get(name or "", np.empty(0, np.int64))
    return int(ids[0]) if len(ids) else None


def _search_with_faiss(
    keys: Ids, vectors: npt.NDArray[Any], query: npt.NDArray[Any], k: int
) -> RecommendationResult:
    from sparring_packed import FaissIndex

    found = FaissIndex([(keys, vectors)]).top_k(query[None], k)
    count = int(found.counts[0])
    return RecommendationResult(found.keys[0, :count], found.scores[0, :count], "faiss")


def _most_popular(model: OpenedModel, sides: Sides, items: Ids, k: int) -> RecommendationResult:
    """Returns the items with the most training rows, for a user about whom nothing is known."""
    counts = np.zeros(len(items), np.int64)
    for batch in model.source.data.batches(0):
        ids = batch.ids[sides.item].ids
        ids = ids[np.isin(ids, items)]
        np.add.at(counts, np.searchsorted(items, ids), 1)
    return replace(_best(items, [counts.astype(np.float64)], k), is_by_popularity=True)


def _best_of_pairs(
    model: OpenedModel, config: RunConfig, sides: Sides, given: Given, items: Ids, k: int
) -> RecommendationResult:
    """Returns the best items by predictions, with columns of user and items from the training rows."""
    schema, used = config.data.columns, find_needed_columns(model, config)
    asked = {sides.item, sides.user, *given.ids, *given.numbers}
    of_items = _one_each(schema, sides.item, items)
    if others := [name for name in used if name not in asked]:
        batches = model.source.data.batches(0)
        known = known_columns(batches, schema, sides.item, sides.user, _one_id(given, sides.user))
        is_wanted = np.isin(known.items.ids[sides.item].ids, items)
        of_items = _with_columns(known.items.take(is_wanted), known, others, sides.item, schema)
        given = _with_user(given, known, others, schema)
        others = [name for name in others if name not in known.of_item]
    empty = tuple(each for each in others if each not in given.ids and each not in given.numbers)
    keys = of_items.ids[sides.item].ids
    examples = (_examples(schema, given, block, used, sides.user) for block in _blocks(of_items))
    scores = [model.predict(each) for each in examples]
    num_unknown = len(items) - len(keys)
    return replace(_best(keys, scores, k), empty=empty, num_unknown=num_unknown)


def _with_columns(
    items: ColumnBatch, known: KnownColumns, others: Sequence[str], item: str, schema: Schema
) -> ColumnBatch:
    """Returns items with the other columns that belong to items; other numbers are NaN."""
    wanted = [name for name in others if name in known.of_item]
    keys = items.ids[item].ids
    ids = dict(_one_each(schema, item, keys).ids)
    ids |= {name: items.ids[name] for name in wanted if name in items.ids}
    numbers = np.full((len(keys), len(schema.numbers)), np.nan, np.float32)
    for place, name in enumerate(schema.numbers):
        if name in wanted:
            numbers[:, place] = items.numbers[:, place]
    return ColumnBatch(ids, numbers)


def _with_user(given: Given, known: KnownColumns, others: Sequence[str], schema: Schema) -> Given:
    """Adds the columns of the user's last row."""
    if known.user is None:
        return given
    wanted = [name for name in others if name in known.of_user]
    ids = {name: known.user.ids[name].ids for name in wanted if name in known.user.ids}
    numbers = {
        name: float(known.user.numbers[0, place])
        for place, name in enumerate(schema.numbers)
        if name in wanted
    }
    return Given({**ids, **given.ids}, {**numbers, **given.numbers})


def read_seen_items(model: OpenedModel, sides: Sides, user: int) -> Ids:
    """Reads the training examples, and returns the items of a user in them."""
    assert sides.user is not None
    parts = [np.empty(0, np.int64)]
    for batch in model.source.data.batches(0):
        users, items = batch.ids[sides.user], batch.ids[sides.item]
        owner = np.repeat(np.arange(len(batch)), items.counts)
        is_users = np.zeros(len(batch), np.bool_)
        is_users[np.repeat(np.arange(len(batch)), users.counts)[users.ids == user]] = True
        parts.append(items.ids[is_users[owner]])
    return np.unique(np.concatenate(parts))


def _best(keys: Ids, scores: list[npt.NDArray[np.floating]], k: int) -> RecommendationResult:
    joined = np.concatenate(scores).astype(np.float64) if scores else np.empty(0)
    joined[np.isnan(joined)] = -np.inf
    best = np.lexsort((keys, -joined))[:k]
    return RecommendationResult(keys[best], joined[best], "exact")


def _one_each(schema: Schema, item: str, items: Ids) -> ColumnBatch:
    """Returns items without features except their key."""
    feature = schema.feature(item)
    assert feature is not None
    has_lengths = feature.is_list or feature.may_be_missing
    column = Column(items, np.ones(len(items), np.int64) if has_lengths else None)
    return ColumnBatch({item: column}, np.empty((len(items), 0), np.float32))


def _blocks(items: ColumnBatch) -> Iterator[ColumnBatch]:
    return (items.take(slice(begin, begin + _BLOCK)) for begin in range(0, len(items), _BLOCK))


def _examples(
    schema: Schema, given: Given, items: ColumnBatch, used: Sequence[str], user: str | None
) -> ColumnBatch:
    """Returns one example per item; features that the model does not look up stay empty.

    Raises:
        InvalidArgumentError: required features are missing; the message contains all of them.
    """
    count = len(items)
    ids = dict(items.ids)
    missing = []
    for feature in schema.features:
        if feature.name in ids:
            continue
        own = given.ids.get(feature.name, np.empty(0, np.int64))
        is_plain = not feature.is_list and not feature.may_be_missing
        if feature.name not in used:
            own = np.zeros(int(is_plain), np.int64)
        elif len(own) != 1 and not feature.is_list and (len(own) or is_plain):
            missing.append((feature.name, len(own)))
        lengths = np.full(count, len(own), np.int64)
        ids[feature.name] = Column(np.tile(own, count), None if is_plain else lengths)
    if missing:
        found = ", ".join(f"{count} ids of feature {name!r}" for name, count in missing)
        advice = " ".join("--user=…" if name == user else f"--with {name}=…" for name, _ in missing)
        raise InvalidArgumentError(f"found {found}; the model needs one of each, give: {advice}")
    numbers = np.array([given.numbers.get(name, 0.0) for name in schema.numbers], np.float32)
    tiled = np.tile(numbers, (count, 1))
    if items.numbers.shape[1] == len(schema.numbers):
        tiled = np.where(np.isnan(items.numbers), tiled, items.numbers)
    return ColumnBatch(ids, tiled)
