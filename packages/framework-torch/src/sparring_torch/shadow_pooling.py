"""Whole batches to embeddings by way of shadows.

For tables whose rows lie on other ranks: all features of all tables are looked up in one exchange. Those
of a table are joined, so an id that two of them hold travels once.
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
    groups = _by_table(features)
    all_spans = [
        [_span(bags, bags.places[member]) for member in members] for members in groups.values()
    ]
    requests = [
        (table, np.concatenate([bags.ids[span] for span in spans]))
        for (table, _), spans in zip(groups, all_spans, strict=True)
    ]
    shadows = agent.lookup_all(requests, is_training=is_training)
    parts: dict[int, Tensor] = {}
    for ((_, mode), members), spans, shadow in zip(groups.items(), all_spans, shadows, strict=True):
        lengths = np.concatenate([_lengths(bags, bags.places[member]) for member in members])
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
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
    groups = _by_table(features)
    all_spans = [[slice(*ids.spans[member]) for member in members] for members in groups.values()]
    requests = [
        (table, np.concatenate([ids.ids[span] for span in spans]))
        for (table, _), spans in zip(groups, all_spans, strict=True)
    ]
    shadows = agent.lookup_all(requests, is_training=is_training)
    parts: dict[int, Tensor] = {}
    for members, spans, shadow in zip(groups.values(), all_spans, shadows, strict=True):
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
