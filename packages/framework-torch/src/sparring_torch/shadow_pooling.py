"""Whole batches to embeddings by way of shadows, table after table.

For tables whose rows lie on other ranks, where each lookup is an exchange: all features of a table
are looked up together, so an id that two of them hold travels once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sparring_torch.batch_lookup import Bags, Ids
from sparring_torch.pooling import gather, pool

if TYPE_CHECKING:
    from sparring_torch.train_agent import TrainAgent

__all__ = ["gather_features", "pool_features"]

Features = Sequence[tuple[str, str]]


def pool_features(agent: TrainAgent, features: Features, bags: Bags, is_training: bool) -> Tensor:
    """As `TrainAgent.pool`."""
    parts: dict[int, Tensor] = {}
    for (table, mode), members in _by_table(features).items():
        spans = [_span(bags, bags.places[member]) for member in members]
        ids = np.concatenate([bags.ids[span] for span in spans])
        lengths = np.concatenate([_lengths(bags, bags.places[member]) for member in members])
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        shadow = agent.lookup(table, ids, is_training=is_training)
        weights = bags.weights
        if weights is not None:
            weights = torch.cat([weights[span] for span in spans]).to("cpu", shadow.rows.dtype)
        pooled = pool(shadow.rows, shadow.inverse, offsets, weights, mode=mode)
        parts.update(zip(members, pooled.view(len(members), bags.num_bags, -1), strict=True))
    return torch.cat([parts[member] for member in range(len(features))], dim=1)


def gather_features(
    agent: TrainAgent, features: Features, ids: Ids, is_training: bool
) -> list[Tensor]:
    """As `TrainAgent.gather`."""
    parts: dict[int, Tensor] = {}
    for (table, _), members in _by_table(features).items():
        spans = [slice(*ids.spans[member]) for member in members]
        joined = np.concatenate([ids.ids[span] for span in spans])
        shadow = agent.lookup(table, joined, is_training=is_training)
        embeddings = gather(shadow.rows, shadow.inverse)
        counts = [span.stop - span.start for span in spans]
        parts.update(zip(members, torch.split(embeddings, counts), strict=True))
    return [parts[member] for member in range(len(features))]


def _by_table(features: Features) -> dict[tuple[str, str], list[int]]:
    members: dict[tuple[str, str], list[int]] = {}
    for number, feature in enumerate(features):
        members.setdefault(feature, []).append(number)
    return members


def _span(bags: Bags, place: int) -> slice:
    first = place * bags.num_bags
    return slice(int(bags.offsets[first]), int(bags.offsets[first + bags.num_bags]))


def _lengths(bags: Bags, place: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    first = place * bags.num_bags
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]] = np.diff(
        bags.offsets[first : first + bags.num_bags + 1]
    )
    return lengths
