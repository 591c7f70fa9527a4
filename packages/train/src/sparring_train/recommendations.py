"""The best items of a saved model for one user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_train.config.run import RunConfig
from sparring_train.data.columns import Column, ColumnBatch, Schema
from sparring_train.hookspecs import OpenedModel

__all__ = ["Given", "Sides", "recommended", "seen_items", "sides_of"]

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
    user: str | None = getattr(model, "user", None)
    known: str | None = getattr(model, "item", None)
    if model.loss == "ranking":
        ranking = model.ranking(schema)
        user, known = ranking.user or ranking.query, ranking.item[0]
    chosen = item or known
    names = [feature.name for feature in schema.features]
    if chosen is None:
        raise InvalidArgumentError(
            f"model.kind: {model.kind} does not say which feature has the items; give one by --item, of "
            f"{', '.join(names)}"
        )
    if chosen not in names:
        raise InvalidArgumentError(f"--item {chosen}: the features are {', '.join(names)}")
    if user is None and "user" in names:
        user = "user"
    return Sides(user, chosen)


def recommended(
    model: OpenedModel,
    config: RunConfig,
    sides: Sides,
    given: Given,
    items: Ids,
    k: int,
) -> tuple[Ids, npt.NDArray[np.floating]]:
    """The k best of `items` and their scores, best first; of equal scores the smaller key.

    Args:
        model: of the run.
        config: of the run.
        sides: which feature has the items.
        given: of the user, and what else is known.
        items: ``(n,)`` keys.
        k: at least 1.

    Raises:
        InvalidArgumentError: the model needs an id of a feature that is not given.
        UnsupportedError: items have further features, which only the data know.
    """
    schema = config.data.columns
    scores = np.empty(len(items), np.float64)
    query: npt.NDArray[np.floating] | None = None
    if config.model.loss == "ranking":
        ranking = cast(Any, config.model).ranking(schema)
        if len(ranking.item) > 1:
            raise UnsupportedError(
                f"model.kind: {config.model.kind} has several features of an item, "
                f"{', '.join(ranking.item)}, which a snapshot does not have for each item; publish the "
                "vectors of items and ask a service, or train with one feature of items"
            )
        query = model.predict(_examples(schema, given, sides.item, items[:1]))[0][0]
    for begin in range(0, len(items), _BLOCK):
        block = items[begin : begin + _BLOCK]
        found = model.predict(_examples(schema, given, sides.item, block))
        scores[begin : begin + len(block)] = found if query is None else found[1] @ query
    scores[np.isnan(scores)] = -np.inf
    best = np.lexsort((items, -scores))[:k]
    return items[best], scores[best]


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


def _examples(schema: Schema, given: Given, item: str, items: Ids) -> ColumnBatch:
    """One example for each item."""
    count = len(items)
    ids = {}
    for feature in schema.features:
        if feature.name == item:
            one_each = feature.is_list or feature.may_be_missing
            ids[item] = Column(items, np.ones(count, np.int64) if one_each else None)
            continue
        own = given.ids.get(feature.name, np.empty(0, np.int64))
        if len(own) != 1 and not feature.is_list and (len(own) or not feature.may_be_missing):
            raise InvalidArgumentError(
                f"feature {feature.name!r}: found {len(own)} ids, the model needs one; give it: "
                f"--with {feature.name}=…"
            )
        lengths = np.full(count, len(own), np.int64)
        is_plain = not feature.is_list and not feature.may_be_missing
        ids[feature.name] = Column(np.tile(own, count), None if is_plain else lengths)
    numbers = np.array([given.numbers.get(name, 0.0) for name in schema.numbers], np.float32)
    return ColumnBatch(ids, np.tile(numbers, (count, 1)))
