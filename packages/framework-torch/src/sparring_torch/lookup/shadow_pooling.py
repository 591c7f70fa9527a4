"""Looks up whole batches by gathering rows into arrays.

Used for tables whose rows are on other ranks or were prefetched. All features of all tables share one
exchange. The features of a table are looked up together, so an id in two of them is sent once.

    Bags, Ids ──► Plan: ids per table ──► Shadows, one per group ──► pool_bags, gather_ids
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparring.adapter import pool_backward, pool_weight_gradient, segment_sum
from sparring.contracts import Dedup
from sparring_torch.lookup.batch_lookup import Bags, Ids
from sparring_torch.lookup.pooling import gather, pool

__all__ = [
    "Plan",
    "Shadow",
    "compute_bag_gradients",
    "gather_ids",
    "group_bags",
    "compute_id_gradients",
    "join_parts",
    "plan_bags",
    "plan_ids",
    "pool_bags",
    "pool_parts",
    "compute_weight_gradients",
]

Features = Sequence[tuple[str, str]]


@dataclass(slots=True)
class Shadow:
    """Leaf tensor with the rows of one lookup, which stands in for the table in autograd."""

    rows: Tensor
    """``(u, dim)``; requires a gradient if the lookup is registered."""
    inverse: npt.NDArray[np.int64]
    """``(n,)``: index of the row of each id."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Lookups for several features."""

    groups: dict[tuple[str, str], list[int]]
    """(table, pooling) → numbers of its features."""
    spans: list[list[slice]]
    """Per group: the range of ids of each of its features."""
    requests: list[tuple[str, npt.NDArray[np.int64]]]
    """Per group: table and a copy of the ids."""

    def part(self, is_wanted: Sequence[bool]) -> Plan:
        """Returns the lookups of the selected groups; feature numbers stay unchanged."""
        groups = dict(compress(self.groups.items(), is_wanted))
        spans, requests = compress(self.spans, is_wanted), compress(self.requests, is_wanted)
        return Plan(groups, list(spans), list(requests))


def plan_bags(features: Features, bags: Bags) -> Plan:
    """Returns the lookups for bags."""
    return _plan(
        features, bags.ids, [_span(bags, bags.positions[member]) for member in range(len(features))]
    )


def plan_ids(features: Features, ids: Ids) -> Plan:
    """Returns the lookups for ids without pooling."""
    return _plan(features, ids.ids, [slice(*span) for span in ids.spans])


def pool_bags(plan: Plan, bags: Bags, shadows: Sequence[Shadow]) -> Tensor:
    """Returns one embedding per bag, features side by side: ``(num_bags, sum of dims)``.

    Args:
        plan: plan of these bags.
        shadows: one per group of the plan.
    """
    return join_parts(pool_parts(plan, bags, shadows))


def join_parts(parts: Mapping[int, Tensor]) -> Tensor:
    """Concatenates the embeddings of all features in the order of the features."""
    return torch.cat([parts[member] for member in range(len(parts))], dim=1)


def pool_parts(plan: Plan, bags: Bags, shadows: Sequence[Shadow]) -> dict[int, Tensor]:
    """Returns one embedding per bag, ``(num_bags, dim)``, for each feature of the plan.

    Args:
        plan: plan of these bags.
        shadows: one per group of the plan.
    """
    parts: dict[int, Tensor] = {}
    for ((_, mode), members), spans, shadow in zip(
        plan.groups.items(), plan.spans, shadows, strict=True
    ):
        offsets, weights = group_bags(bags, members, spans, shadow.rows.dtype)
        result = pool(shadow.rows, shadow.inverse, offsets, weights, mode=mode)
        # torch cannot infer the last dimension of an empty tensor.
        dim = result.shape[1]
        parts.update(zip(members, result.view(len(members), bags.num_bags, dim), strict=True))
    return parts


def compute_bag_gradients(
    plan: Plan, bags: Bags, parts: Sequence[Tensor], found: Sequence[Dedup]
) -> list[Any]:
    """Computes gradients for the rows of each group, ``(u, dim)``; the backward of `pool_bags`.

    Args:
        parts: gradient of each feature's bags, ``(num_bags, dim)``.
        found: deduplicated ids of each group.
    """
    result = []
    for ((_, mode), members), spans, each in zip(
        plan.groups.items(), plan.spans, found, strict=True
    ):
        gradient = torch.cat([parts[member] for member in members])
        offsets, weights = group_bags(bags, members, spans, gradient.dtype)
        result.append(
            pool_backward(
                gradient.numpy(),
                each.inverse,
                offsets,
                len(each.keys),
                mode,
                None if weights is None else weights.numpy(),
            )
        )
    return result


def compute_id_gradients(plan: Plan, parts: Sequence[Tensor], found: Sequence[Dedup]) -> list[Any]:
    """Computes gradients for the rows of each group, ``(u, dim)``; the backward of `gather_ids`.

    Args:
        parts: gradient of each feature's embeddings, ``(ids of the feature, dim)``.
        found: deduplicated ids of each group.
    """
    return [
        segment_sum(
            torch.cat([parts[member] for member in members]).numpy(), each.inverse, len(each.keys)
        )
        for members, each in zip(plan.groups.values(), found, strict=True)
    ]


def compute_weight_gradients(
    plan: Plan, bags: Bags, parts: Sequence[Tensor], shadows: Sequence[Shadow]
) -> Tensor:
    """Computes the gradient of the weights of bags, ``(n,)``.

    Args:
        parts: gradient of each feature's bags, ``(num_bags, dim)``.
    """
    assert bags.weights is not None
    result = torch.zeros(len(bags.ids), dtype=shadows[0].rows.dtype)
    for ((_, mode), members), spans, shadow in zip(
        plan.groups.items(), plan.spans, shadows, strict=True
    ):
        gradient = torch.cat([parts[member] for member in members])
        offsets, _ = group_bags(bags, members, spans, gradient.dtype)
        of_group = torch.from_numpy(
            pool_weight_gradient(
                gradient.numpy(), shadow.rows.numpy(), shadow.inverse, offsets, mode
            )
        )
        sizes = [span.stop - span.start for span in spans]
        for span, part in zip(spans, torch.split(of_group, sizes), strict=True):
            result[span] += part  # a feature may be looked up in two tables
    return result.to(bags.weights.dtype)


def group_bags(
    bags: Bags, members: Sequence[int], spans: Sequence[slice], dtype: torch.dtype
) -> tuple[npt.NDArray[np.int64], Tensor | None]:
    """Returns offsets ``(b + 1,)`` and weights ``(n,)`` of a group."""
    lengths = np.concatenate([_lengths(bags, bags.positions[member]) for member in members])
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if bags.weights is None:
        return offsets, None
    return offsets, torch.cat([bags.weights[span] for span in spans]).to("cpu", dtype)


def gather_ids(plan: Plan, shadows: Sequence[Shadow]) -> list[Tensor]:
    """Returns one embedding per id, ``(ids of the feature, dim)``, for each feature."""
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


def _span(bags: Bags, position: int) -> slice:
    first = position * bags.num_bags
    return slice(int(bags.offsets[first]), int(bags.offsets[first + bags.num_bags]))


def _lengths(bags: Bags, position: int) -> npt.NDArray[np.int64]:
    first = position * bags.num_bags
    lengths: npt.NDArray[np.int64] = np.diff(bags.offsets[first : first + bags.num_bags + 1])
    return lengths
