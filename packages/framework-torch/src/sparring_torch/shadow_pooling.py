"""Whole batches to embeddings via rows in arrays.

For tables whose rows are on other ranks, or were prefetched. All features of all tables are looked
up in one exchange: those of a table are joined, so an id that two of them hold travels once.

    Bags, Ids ──► Plan: which ids of which table ──► Shadows, one for each ──► pooled, gathered
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparring_torch.batch_lookup import Bags, Ids
from sparring_torch.pooling import gather, pool

__all__ = ["Plan", "Shadow", "gathered", "plan_bags", "plan_ids", "pooled"]

Features = Sequence[tuple[str, str]]


@dataclass(slots=True)
class Shadow:
    """Stand-in for a table in one forward pass."""

    rows: Tensor
    """``(u, dim)``: a leaf, which requires a gradient where the lookup was registered."""
    inverse: npt.NDArray[np.int64]
    """``(n,)``: the row of each id."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Lookups for some features."""

    groups: dict[tuple[str, str], list[int]]
    """Table and pooling → the features that have these."""
    spans: list[list[slice]]
    """Of each group: where the ids of each of its features are."""
    requests: list[tuple[str, npt.NDArray[np.int64]]]
    """Of each group: table and ids, in memory of their own."""

    def is_same(self, other: Plan) -> bool:
        """Whether both look up the same ids for the same features."""
        return self.groups == other.groups and all(
            len(mine) == len(theirs) and np.array_equal(mine, theirs)
            for (_, mine), (_, theirs) in zip(self.requests, other.requests, strict=True)
        )


def plan_bags(features: Features, bags: Bags) -> Plan:
    """Plans the lookups of bags."""
    return _plan(
        features, bags.ids, [_span(bags, bags.places[member]) for member in range(len(features))]
    )


def plan_ids(features: Features, ids: Ids) -> Plan:
    """Plans the lookups of ids, one embedding each."""
    return _plan(features, ids.ids, [slice(*span) for span in ids.spans])


def pooled(plan: Plan, bags: Bags, shadows: Sequence[Shadow]) -> Tensor:
    """One embedding for each bag of each feature, side by side: ``(num_bags, sum of dims)``.

    Args:
        plan: of these bags.
        shadows: one for each of its groups.
    """
    parts: dict[int, Tensor] = {}
    for ((_, mode), members), spans, shadow in zip(
        plan.groups.items(), plan.spans, shadows, strict=True
    ):
        lengths = np.concatenate([_lengths(bags, bags.places[member]) for member in members])
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        weights = bags.weights
        if weights is not None:
            weights = torch.cat([weights[span] for span in spans]).to("cpu", shadow.rows.dtype)
        result = pool(shadow.rows, shadow.inverse, offsets, weights, mode=mode)
        # Where there is no bag, torch cannot tell the last dimension by itself.
        dim = result.shape[1]
        parts.update(zip(members, result.view(len(members), bags.num_bags, dim), strict=True))
    return torch.cat([parts[member] for member in range(len(parts))], dim=1)


def gathered(plan: Plan, shadows: Sequence[Shadow]) -> list[Tensor]:
    """One embedding for each id: ``(ids of the feature, dim)`` of each feature."""
    parts: dict[int, Tensor] = {}
    for members, spans, shadow in zip(plan.groups.values(), plan.spans, shadows, strict=True):
        embeddings = gather(shadow.rows, shadow.inverse)
        counts = [span.stop - span.start for span in spans]
        parts.update(zip(members, torch.split(embeddings, counts), strict=True))
    return [parts[member] for member in range(len(parts))]


def _plan(features: Features, ids: npt.NDArray[np.int64], spans: Sequence[slice]) -> Plan:
    groups: dict[tuple[str, str], list[int]] = {}
    for number, feature in enumerate(features):
        groups.setdefault(feature, []).append(number)
    all_spans = [[spans[member] for member in members] for members in groups.values()]
    requests = [
        (table, np.concatenate([ids[span] for span in each]))
        for (table, _), each in zip(groups, all_spans, strict=True)
    ]
    return Plan(groups, all_spans, requests)


def _span(bags: Bags, place: int) -> slice:
    first = place * bags.num_bags
    return slice(int(bags.offsets[first]), int(bags.offsets[first + bags.num_bags]))


def _lengths(bags: Bags, place: int) -> npt.NDArray[np.int64]:
    first = place * bags.num_bags
    lengths: npt.NDArray[np.int64] = np.diff(bags.offsets[first : first + bags.num_bags + 1])
    return lengths
