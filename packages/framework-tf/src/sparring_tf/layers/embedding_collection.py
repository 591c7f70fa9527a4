"""`EmbeddingCollection`: looks up the features of a model in their tables."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from sparring import StepContainer
from sparring.adapter import StorageLike, format_suggestion
from sparring.errors import InvalidArgumentError
from sparring_tf.layers.layer_configs import (
    feature_to_dict,
    storage_to_dict,
    table_from_dict,
    table_to_dict,
)
from sparring_tf.layers.pooled_lookup import PooledFeature, pool_features
from sparring_tf.layers.table_configs import FeatureConfig, TableConfig, check_combiner, declaration
from sparring_tf.layers.table_layer import TableLayer, share_if_old
from sparring_tf.lookup.bags import parse_bags
from sparring_tf.lookup.ids import validate_ids
from sparring_tf.lookup.table_agent import TableAgent

__all__ = ["EmbeddingCollection", "features_from_dict"]


@keras.saving.register_keras_serializable("sparring_tf")
class EmbeddingCollection(TableLayer):
    """Maps a dict of features to a dict of embeddings.

    ::

        users = TableConfig(name="users", embedding_dim=4)
        items = TableConfig(name="items", embedding_dim=8, combiner="sum")
        layer = EmbeddingCollection({
            "user": FeatureConfig(name="user", table=users),
            "viewed": FeatureConfig(name="viewed", table=items),
            "bought": FeatureConfig(name="bought", table=items),   # shares the rows of items
        })

    For b examples, ``layer(batch)["viewed"]`` has the shape ``(b, 8)``. A feature of a table without a
    combiner gets one embedding per id, as from `Embedding`. Pooled features of one dtype are looked up
    in one native call.

    Args:
        features: name in the batch → `FeatureConfig`.
        storage: storage backend of the tables that do not specify one.
        container: container of the tables. By default, the `Optimizer` creates it.
        shared: see `Embedding`.
        **options: options of `keras.layers.Layer`.

    Raises:
        InvalidArgumentError: there are no features, two different tables have the same name, or a
            combiner, dtype or initializer is unknown.
    """

    def __init__(
        self,
        features: Mapping[str, FeatureConfig],
        *,
        storage: StorageLike = "hkv",
        container: StepContainer | None = None,
        shared: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        # A tuple, because Keras tracks lists and dicts and wraps them.
        self._features = tuple(_checked(features).items())
        self._storage = storage
        tables = {feature.table.name: feature.table for _, feature in self._features}
        for table in tables.values():
            if self.variable_dtype == "float64" and table.dtype == "float32":
                warnings.warn(
                    f"layer {self.name!r} has dtype float64, but table {table.name!r} stores rows in "
                    "float32; pass TableConfig(…, dtype='float64')",
                    stacklevel=2,
                )
        declared = [declaration(table, storage) for table in tables.values()]
        dtypes = {each.table.name: each.table.computing_dtype.name for each in declared}
        groups: dict[str, list[str]] = {}
        for name, feature in self._features:
            if feature.table.combiner is not None:
                groups.setdefault(dtypes[feature.table.name], []).append(name)
        self._groups = tuple(map(tuple, groups.values()))
        table_of = {name: feature.table.name for name, feature in self._features}
        pooled_features = [[(table_of[name], "sum") for name in group] for group in self._groups]
        self._set_agent(TableAgent(declared, pooled_features, container, shared=shared))

    @property
    def feature_configs(self) -> dict[str, FeatureConfig]:
        """Name in the batch → its configuration."""
        return dict(self._features)

    def call(
        self,
        inputs: Mapping[str, Any],
        weights: Mapping[str, Any] | None = None,
        training: bool | None = None,
    ) -> dict[str, Any]:
        """Returns feature → ``(b, dim)``, or ``(…, dim)`` without a combiner.

        Args:
            inputs: feature → ids, as accepted by `EmbeddingBag`, or by `Embedding` without a combiner.
            weights: pooled feature → weights of its ids. Features may be left out.
            training: whether a backward pass follows.

        Raises:
            InvalidArgumentError: features are missing or unknown, contain no ids, or have different
                numbers of examples.
        """
        weights = {} if weights is None else weights
        configs = dict(self._features)
        with self._errors_on_all_ranks(self.agent.table_names, training):
            self._check_names(inputs, weights)
        found: dict[str, Any] = {}
        for number, group in enumerate(self._groups):
            with self._errors_on_all_ranks([configs[name].table.name for name in group], training):
                bags = [
                    PooledFeature(
                        configs[name].table.name,
                        configs[name].table.combiner or "",
                        parse_bags(inputs[name], weights.get(name), f"feature {name!r}"),
                    )
                    for name in group
                ]
                self._check_sizes(group, bags)
            found.update(zip(group, pool_features(self, number, bags, training), strict=True))
        single = [name for name, feature in self._features if feature.table.combiner is None]
        if single:
            tables = [configs[name].table.name for name in single]
            with self._errors_on_all_ranks(tables, training):
                ids = [
                    validate_ids(inputs[name], f"feature {name!r}", is_sparse_ok=False)
                    for name in single
                ]
            flat = [each.flat_values if _is_ragged(each) else each for each in ids]
            rows = self._gather(list(zip(tables, flat, strict=True)), training)
            for name, own, each in zip(single, ids, rows, strict=True):
                found[name] = own.with_flat_values(each) if _is_ragged(own) else each
        return {name: self._to_compute_dtype(found[name]) for name, _ in self._features}

    def _check_names(self, inputs: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
        for what, given in (("ids", inputs), ("weights", weights)):
            if not isinstance(given, Mapping):
                raise InvalidArgumentError(
                    f"layer {self.name!r} takes a dict of features and their {what}, found "
                    f"{type(given).__name__}; give {{'feature': {what}}}"
                )
        known = [name for name, _ in self._features]
        for name in known:
            if name not in inputs:
                raise InvalidArgumentError(
                    f"layer {self.name!r} requires feature {name!r}, which is not in the batch; "
                    + format_suggestion(name, inputs),
                    feature=name,
                )
        for name in (*inputs, *weights):
            if name not in known:
                raise InvalidArgumentError(
                    f"feature {name!r} of the batch has no table in layer {self.name!r}; "
                    + format_suggestion(name, known),
                    feature=name,
                )

    def _check_sizes(self, names: Sequence[str], features: Sequence[PooledFeature]) -> None:
        sizes = [each.bags.lengths.shape[0] for each in features]
        if len({each for each in sizes if each is not None}) > 1:
            found = ", ".join(f"{name}: {size}" for name, size in zip(names, sizes, strict=True))
            raise InvalidArgumentError(
                f"features of layer {self.name!r} must have one bag per example, but their numbers of "
                f"bags differ; found {found}"
            )

    def compute_output_shape(
        self, inputs_shape: Mapping[str, Any], weights_shape: Any = None
    ) -> dict[str, Any]:
        """Returns the shape of the output of `call`, as Keras's layers do.

        Args:
            inputs_shape: feature → shape of its ids.
            weights_shape: ignored.
        """
        shapes = {}
        for name, feature in self._features:
            kept = inputs_shape[name][:1] if feature.table.combiner else inputs_shape[name]
            shapes[name] = (*kept, feature.table.embedding_dim)
        return shapes

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration of the layer, without its rows.

        Raises:
            UnsupportedError: a storage is an open `Storage`, not the name of a backend.
        """
        tables = {feature.table.name: feature.table for _, feature in self._features}
        return {
            **super().get_config(),
            "tables": [table_to_dict(table) for table in tables.values()],
            "features": {key: feature_to_dict(feature) for key, feature in self._features},
            "storage": storage_to_dict(self._storage, self.name),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> EmbeddingCollection:
        """Creates a layer from the result of `get_config`.

        Args:
            config: result of `get_config`.
        """
        features, rest = features_from_dict(config)
        return cls(features, **rest)


def features_from_dict(
    config: Mapping[str, Any],
) -> tuple[dict[str, FeatureConfig], dict[str, Any]]:
    """Returns the features that a layer's configuration describes, and the rest of the configuration."""
    rest = share_if_old(config)
    tables = {plain["name"]: table_from_dict(plain) for plain in rest.pop("tables")}
    features = {
        key: FeatureConfig(**{**plain, "table": tables[plain["table"]]})
        for key, plain in rest.pop("features").items()
    }
    return features, rest


def _is_ragged(values: Any) -> bool:
    return isinstance(values, tf.RaggedTensor)


def _checked(features: Mapping[str, FeatureConfig]) -> dict[str, FeatureConfig]:
    if not features or not isinstance(features, Mapping):
        found = "none" if not features else type(features).__name__
        raise InvalidArgumentError(
            "EmbeddingCollection requires a dict with at least one feature, {'name': FeatureConfig(…)}; "
            "found " + found
        )
    tables: dict[str, TableConfig] = {}
    for name, feature in features.items():
        if not isinstance(feature, FeatureConfig):
            raise InvalidArgumentError(
                f"feature {name!r}: must be a sparring_tf.FeatureConfig, found "
                f"{type(feature).__name__}",
                feature=name,
            )
        if not isinstance(feature.table, TableConfig):
            raise InvalidArgumentError(
                f"table of feature {name!r}: must be a sparring_tf.TableConfig, found "
                f"{type(feature.table).__name__}",
                feature=name,
            )
        known = tables.setdefault(feature.table.name, feature.table)
        if known != feature.table:
            raise InvalidArgumentError(
                f"EmbeddingCollection: features refer to different configurations of table "
                f"{feature.table.name!r}; give them the same TableConfig",
                table=feature.table.name,
            )
        if feature.table.combiner is not None:
            check_combiner(feature.table.combiner, feature.table.name)
    return dict(features)
