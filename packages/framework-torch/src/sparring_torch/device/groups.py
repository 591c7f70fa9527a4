"""Groups the bags of a batch on a device, so that each table is looked up once per pooling.

    features of a batch ──► groups: bags of one table with one pooling, one after another

Adjacent features of a batch that share a table and a pooling form a group without a copy; other
features are copied together within the device. The numbers of ids per feature determine the memory
range of each feature. If the batch does not know these numbers yet, the host waits for the device once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparring_torch.jagged.ids import to_device_ids
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor

__all__ = [
    "DeviceGroup",
    "build_bag_groups",
    "single_id_offsets",
    "build_id_groups",
    "split_by_feature",
]

Features = Sequence[tuple[str, str]]


@dataclass(slots=True)
class DeviceGroup:
    """Bags of one table on the table's device."""

    table: str
    mode: str
    members: list[int]
    """The features that the bags belong to, in the order of their bags."""
    ids: Tensor
    """``(n,)`` int64"""
    offsets: Tensor
    """``(b + 1,)`` int64, non-decreasing from 0 to n."""
    weights: Tensor | None = None
    """``(n,)``; it may require a gradient."""

    @property
    def num_bags(self) -> int:
        return len(self.offsets) - 1


def build_bag_groups(
    features: Features, batch: KeyedJaggedTensor, positions: Sequence[int], weights: Tensor | None
) -> list[DeviceGroup]:
    """Groups the bags of a batch by table and pooling.

    Args:
        features: table and pooling of each looked-up feature.
        batch: a batch on the device.
        positions: position in the batch of each looked-up feature.
        weights: weights of the batch; None if bags are not weighted.
    """
    ids = _ids(batch)
    offsets = batch.offsets().to(torch.int64)
    begins, stride = _find_starts(batch), batch.stride()
    groups = []
    for (table, mode), members in _group_features(features):
        spans = list(_find_runs([positions[member] for member in members]))
        bags: list[Tensor] = []
        count = 0
        for first, last in spans:
            starts = offsets[first * stride : last * stride + 1]
            shift = count - begins[first]
            starts = starts + shift if shift else starts
            bags.append(starts if not bags else starts[1:])
            count += begins[last] - begins[first]
        cuts = [slice(begins[first], begins[last]) for first, last in spans]
        groups.append(
            DeviceGroup(
                table,
                mode,
                members,
                _concatenate([ids[cut] for cut in cuts]),
                _concatenate(bags),
                None if weights is None else _concatenate([weights[cut] for cut in cuts]),
            )
        )
    return groups


def build_id_groups(
    features: Features, batch: KeyedJaggedTensor, positions: Sequence[int]
) -> list[DeviceGroup]:
    """Groups the ids of a batch by table; each id is a separate bag."""
    ids = _ids(batch)
    begins = _find_starts(batch)
    groups = []
    for (table, _), members in _group_features(features):
        spans = _find_runs([positions[member] for member in members])
        own = _concatenate([ids[begins[first] : begins[last]] for first, last in spans])
        groups.append(DeviceGroup(table, "sum", members, own, single_id_offsets(own)))
    return groups


def split_by_feature(
    groups: Sequence[DeviceGroup], outputs: Sequence[Tensor], counts: Sequence[int]
) -> list[Tensor]:
    """Splits outputs of groups into one output per feature, in the order of the features.

    Args:
        groups: groups whose members cover all features.
        outputs: ``(bags of the group, dim)`` per group.
        counts: number of bags per feature.
    """
    parts: dict[int, Tensor] = {}
    for group, output in zip(groups, outputs, strict=True):
        own = [counts[member] for member in group.members]
        pieces = [output] if len(own) == 1 else torch.split(output, own)
        parts.update(zip(group.members, pieces, strict=True))
    return [parts[member] for member in range(len(parts))]


def single_id_offsets(ids: Tensor) -> Tensor:
    """Returns offsets ``(n + 1,)`` that make each id a bag."""
    return torch.arange(len(ids) + 1, device=ids.device)


def _group_features(features: Features) -> Iterator[tuple[tuple[str, str], list[int]]]:
    groups: dict[tuple[str, str], list[int]] = {}
    for number, feature in enumerate(features):
        groups.setdefault(feature, []).append(number)
    return iter(groups.items())


def _find_runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the half-open ranges of consecutive positions."""
    first = last = positions[0]
    for position in positions[1:]:
        if position != last + 1:
            yield first, last + 1
            first = position
        last = position
    yield first, last + 1


def _find_starts(batch: KeyedJaggedTensor) -> list[int]:
    if len(batch.keys()) == 1:
        return [0, len(batch.values())]
    return batch.offset_per_key()


def _ids(batch: KeyedJaggedTensor) -> Tensor:
    values = batch.values()
    if values.dtype is torch.int64:
        return values.detach().contiguous()
    # Convert per feature, so that an error names the feature.
    return torch.cat(
        [
            to_device_ids(part.values(), f"feature {name!r}")
            for name, part in batch.to_dict().items()
        ]
    )


def _concatenate(parts: Sequence[Tensor]) -> Tensor:
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(list(parts))
