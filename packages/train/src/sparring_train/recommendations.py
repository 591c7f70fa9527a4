"""The best items of a saved model for one user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_train.column_names import ITEMS, USERS, first_named
from sparring_train.config.run import RunConfig
from sparring_train.data.columns import Column, ColumnBatch, Schema
from sparring_train.hookspecs import OpenedModel
from sparring_train.item_index import Index, UsedIndex, chooses_faiss
from sparring_train.known_columns import KnownColumns, known_columns
from sparring_train.loop.item_catalogue import ItemCatalogue

__all__ = ["Given", "Recommended", "Sides", "recommended", "seen_items", "sides_of"]

Ids = npt.NDArray[np.int64]
_BLOCK = 8192
"""Items that are scored at once."""


@dataclass(frozen=True, slots=True)
class Sides:
    """Features of a model that items are ranked by."""

    user: str | None
    item: str


@dataclass(frozen=True, slots=True)
class Given:
    """Known columns of an example, apart from its item."""

    ids: Mapping[str, Ids]
    """Feature → its ids; one that is left out has none."""
    numbers: Mapping[str, float]
    """Column of numbers → value; one that is left out is 0."""


def sides_of(config: RunConfig, item: str | None) -> Sides:
    """Which feature has the user, and which the item.

    Args:
        config: of the run.
        item: the feature that a person says has the item; None: the model knows.

    Raises:
        InvalidArgumentError: the model does not know, or has no such feature.
    """
    schema, model = config.data.columns, cast(Any, config.model)
    names = [feature.name for feature in schema.features]
    user: str | None = getattr(model, "user", None)
    known: str | None = getattr(model, "item", None)
    if model.loss == "ranking":
        ranking = model.ranking(schema)
        user, known = ranking.user or ranking.query, ranking.item[0]
        if item not in (None, known):
            raise InvalidArgumentError(
                f"--item {item}: a model of kind {model.kind} ranks the items of {known}; leave --item "
                "out"
            )
    chosen = item or known or first_named(names, ITEMS)
    if chosen is None:
        raise InvalidArgumentError(
            f"model.kind: {model.kind} does not say which feature has the items; give one by --item, of "
            f"{', '.join(names)}"
        )
    if chosen not in names:
        raise InvalidArgumentError(f"--item {chosen}: the features are {', '.join(names)}")
    if user is None:
        user = first_named((name for name in names if name != chosen), USERS)
    return Sides(user, chosen)


@dataclass(frozen=True, slots=True)
class Recommended:
    """The best items, best first; of equal scores the smaller key."""

    keys: Ids
    scores: npt.NDArray[np.floating]
    index: UsedIndex
    """The index that compared them."""
    empty: tuple[str, ...] = ()
    """Features and numbers that were left empty, or 0, because nothing determines them."""


def recommended(
    model: OpenedModel,
    config: RunConfig,
    sides: Sides,
    given: Given,
    items: Ids,
    k: int,
    index: Index,
) -> Recommended:
    """The k best of `items`.

    Args:
        model: of the run.
        config: of the run.
        sides: which feature has the items.
        given: of the user, and what else is known.
        items: ``(n,)`` keys.
        k: at least 1.
        index: what compares them.

    Raises:
        InvalidArgumentError: the model needs ids of features that are not given.
        DataError: there are further features, and the training rows cannot be read.
        UnsupportedError: Faiss is asked for, and is not installed, or the model has no vectors.
    """
    schema = config.data.columns
    if config.model.loss != "ranking":
        if index == "faiss":
            raise UnsupportedError(
                f"--index faiss: a model of kind {config.model.kind} scores pairs and has no vectors "
                "of items; choose --index exact"
            )
        return _best_of_pairs(model, schema, sides, given, items, k)
    uses_faiss = chooses_faiss(index)
    of_items = _one_each(schema, sides.item, items)
    names = cast(Any, config.model).ranking(schema).item
    if len(names) > 1:
        catalogue = _catalogue(model, names)
        of_items = catalogue.take(np.isin(catalogue.ids[sides.item].ids, items))
    keys = of_items.ids[sides.item].ids
    if not len(keys):
        return _best(keys, [], k)
    query = model.predict(_examples(schema, given, of_items.take(slice(0, 1))))[0][0]
    vectors = (model.predict(_examples(schema, given, each))[1] for each in _blocks(of_items))
    if not uses_faiss:
        return _best(keys, [each @ query for each in vectors], k)
    from sparring_packed import FaissIndex

    found = FaissIndex([(keys, np.concatenate(list(vectors)))]).top_k(query[None], k)
    count = int(found.counts[0])
    return Recommended(found.keys[0, :count], found.scores[0, :count], "faiss")


def _best_of_pairs(
    model: OpenedModel, schema: Schema, sides: Sides, given: Given, items: Ids, k: int
) -> Recommended:
    """The best items by predictions, with the columns that training rows have of user and items."""
    names = [*(feature.name for feature in schema.features), *schema.numbers]
    asked = {sides.item, sides.user, *given.ids, *given.numbers}
    of_items = _one_each(schema, sides.item, items)
    if others := [name for name in names if name not in asked]:
        user = given.ids.get(sides.user or "", np.empty(0, np.int64))
        user_id = int(user[0]) if len(user) else None
        batches = model.source.data.batches(0)
        known = known_columns(batches, schema, sides.item, sides.user, user_id)
        is_wanted = np.isin(known.items.ids[sides.item].ids, items)
        of_items = _with_columns(known.items.take(is_wanted), known, others, sides.item, schema)
        given = _with_user(given, known, others, schema)
        others = [name for name in others if name not in known.of_item]
    empty = tuple(each for each in others if each not in given.ids and each not in given.numbers)
    keys = of_items.ids[sides.item].ids
    scores = [model.predict(_examples(schema, given, block)) for block in _blocks(of_items)]
    return replace(_best(keys, scores, k), empty=empty)


def _with_columns(
    items: ColumnBatch, known: KnownColumns, others: Sequence[str], item: str, schema: Schema
) -> ColumnBatch:
    """Items with those of the other columns that belong to items; NaN stands for other numbers."""
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


def seen_items(model: OpenedModel, sides: Sides, user: int) -> Ids:
    """Items of one user in the training examples, which are read for it."""
    assert sides.user is not None
    parts = [np.empty(0, np.int64)]
    for batch in model.source.data.batches(0):
        users, items = batch.ids[sides.user], batch.ids[sides.item]
        owner = np.repeat(np.arange(len(batch)), items.counts)
        is_users = np.zeros(len(batch), np.bool_)
        is_users[np.repeat(np.arange(len(batch)), users.counts)[users.ids == user]] = True
        parts.append(items.ids[is_users[owner]])
    return np.unique(np.concatenate(parts))


def _best(keys: Ids, scores: list[npt.NDArray[np.floating]], k: int) -> Recommended:
    joined = np.concatenate(scores).astype(np.float64) if scores else np.empty(0)
    joined[np.isnan(joined)] = -np.inf
    best = np.lexsort((keys, -joined))[:k]
    return Recommended(keys[best], joined[best], "exact")


def _catalogue(model: OpenedModel, names: Sequence[str]) -> ColumnBatch:
    """Items of the training examples, which are read for it, with these features."""
    catalogue = ItemCatalogue(names)
    for batch in model.source.data.batches(0):
        column = batch.ids[names[0]]
        has_item = batch.take(column.counts == 1)
        one_each = {**has_item.ids, names[0]: Column(has_item.ids[names[0]].ids)}
        catalogue.add(replace(has_item, ids=one_each))
    return catalogue.items()


def _one_each(schema: Schema, item: str, items: Ids) -> ColumnBatch:
    """Items with no feature but their key."""
    feature = schema.feature(item)
    assert feature is not None
    has_lengths = feature.is_list or feature.may_be_missing
    column = Column(items, np.ones(len(items), np.int64) if has_lengths else None)
    return ColumnBatch({item: column}, np.empty((len(items), 0), np.float32))


def _blocks(items: ColumnBatch) -> Iterator[ColumnBatch]:
    return (items.take(slice(begin, begin + _BLOCK)) for begin in range(0, len(items), _BLOCK))


def _examples(schema: Schema, given: Given, items: ColumnBatch) -> ColumnBatch:
    """One example for each item.

    Raises:
        InvalidArgumentError: with all features that the model needs and that are not given.
    """
    count = len(items)
    ids = dict(items.ids)
    missing = []
    for feature in schema.features:
        if feature.name in ids:
            continue
        own = given.ids.get(feature.name, np.empty(0, np.int64))
        if len(own) != 1 and not feature.is_list and (len(own) or not feature.may_be_missing):
            missing.append((feature.name, len(own)))
        lengths = np.full(count, len(own), np.int64)
        is_plain = not feature.is_list and not feature.may_be_missing
        ids[feature.name] = Column(np.tile(own, count), None if is_plain else lengths)
    if missing:
        found = ", ".join(f"{count} ids of feature {name!r}" for name, count in missing)
        advice = " ".join(f"--with {name}=…" for name, _ in missing)
        raise InvalidArgumentError(f"found {found}; the model needs one of each; give: {advice}")
    numbers = np.array([given.numbers.get(name, 0.0) for name in schema.numbers], np.float32)
    tiled = np.tile(numbers, (count, 1))
    if items.numbers.shape[1] == len(schema.numbers):
        tiled = np.where(np.isnan(items.numbers), tiled, items.numbers)
    return ColumnBatch(ids, tiled)
