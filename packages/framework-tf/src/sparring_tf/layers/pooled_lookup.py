"""Looks up bags of several features, in one native call if their rows are on this rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from sparring_tf.layers.table_layer import TableLayer
from sparring_tf.lookup import lookup_ops
from sparring_tf.lookup.bags import Bags
from sparring_tf.program import lookups as program_lookups

__all__ = ["PooledFeature", "pool_features"]


@dataclass(frozen=True, slots=True)
class PooledFeature:
    """The bags of one feature."""

    table: str
    combiner: str
    bags: Bags


def pool_features(
    layer: TableLayer, group: int, features: Sequence[PooledFeature], training: bool | None
) -> list[Any]:
    """Returns one embedding per bag: ``(b, dim)`` for each feature.

    Args:
        layer: the layer of the tables.
        group: index of the features in the agent's groups. The features of a group have the same number
            b of bags, and their tables compute in the same dtype.
        features: all features of the group, in its order.
        training: whether a backward pass follows.
    """
    anchors = layer.anchors
    own = [anchors[feature.table].value for feature in features]
    scales = [feature.bags.scales(feature.combiner, own[0].dtype) for feature in features]
    is_traced = program_lookups.is_traced()
    if not is_traced and not layer.agent.is_direct([feature.table for feature in features]):
        return _summed(layer, features, scales, training)
    if any(each is not None for each in scales):
        parts = [
            tf.ones_like(feature.bags.ids, own[0].dtype) if each is None else each
            for feature, each in zip(features, scales, strict=True)
        ]
        weights = _concatenate(parts)
    else:
        weights = tf.zeros([0], own[0].dtype)
    ids = _concatenate([feature.bags.ids for feature in features])
    lengths = tf.stack([feature.bags.lengths for feature in features])
    if is_traced:
        tables = [feature.table for feature in features]
        found = program_lookups.pool(ids, lengths, weights, tables, own)
    else:
        number = layer.agent.pooled_number(group)
        found = lookup_ops.pool(ids, lengths, weights, own, own[0].handle, number)
    if len(features) == 1:
        return [found]
    parts = tf.split(found, [anchor.shape[1] for anchor in own], axis=1)
    return list(parts)


def _summed(
    layer: TableLayer,
    features: Sequence[PooledFeature],
    scales: Sequence[Any],
    training: bool | None,
) -> list[Any]:
    """Implements `pool_features` by looking up one embedding per id, and adding them per bag."""
    requests = [(feature.table, feature.bags.ids) for feature in features]
    result = []
    for feature, scale, rows in zip(
        features, scales, layer._gather(requests, training), strict=True
    ):
        scaled = rows if scale is None else rows * scale[:, tf.newaxis]
        num_bags = tf.size(feature.bags.lengths)
        result.append(tf.math.unsorted_segment_sum(scaled, feature.bags.positions(), num_bags))
    return result


def _concatenate(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)
