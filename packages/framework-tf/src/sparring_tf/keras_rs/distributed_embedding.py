"""`DistributedEmbedding`: an `EmbeddingCollection` with the arguments of keras-rs."""

from __future__ import annotations

from typing import Any

import keras

from sparring.errors import UnsupportedError
from sparring_tf.keras_rs.feature_structures import FeatureStructure, list_features
from sparring_tf.layers.embedding_collection import EmbeddingCollection, features_from_dict
from sparring_tf.layers.keras_names import reject_options

__all__ = ["DistributedEmbedding"]


@keras.saving.register_keras_serializable("sparring_tf")
class DistributedEmbedding(EmbeddingCollection):
    """`EmbeddingCollection` as keras-rs' programs create it.

    ::

        layer = DistributedEmbedding({"user": user, "seen": [viewed, bought]})
        found = layer({"user": ids, "seen": [ids, ids]})["seen"][0]

    Args:
        feature_configs: a `FeatureConfig`, or a dict, list or tuple of these, nested to any depth.
            Inputs, weights and outputs of the layer have the same structure. `feature_configs` of the
            layer has them by path, such as ``seen.0``.
        table_stacking: rejected unless it is ``"auto"``: features of one table are looked up together.
        **options: options of `EmbeddingCollection`.

    Raises:
        InvalidArgumentError: see `EmbeddingCollection`; or two features have the same path.
        UnsupportedError: an argument of keras-rs that has no effect here differs from its default.
    """

    def __init__(
        self,
        feature_configs: Any,
        *,
        table_stacking: Any = "auto",
        **options: Any,
    ) -> None:
        if table_stacking != "auto":
            raise UnsupportedError(
                f"sparring_tf.DistributedEmbedding: table_stacking={table_stacking!r} has no effect, "
                "because a lookup reads all features of one dtype in one call; leave it out"
            )
        reject_options(options, "DistributedEmbedding")
        super().__init__(list_features(feature_configs), **options)
        self._structure = FeatureStructure(feature_configs)

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        """Returns embeddings in the structure of the feature configurations.

        Args:
            inputs: ids of each feature, in that structure.
            weights: weights of the ids in that structure, with None for features without weights; or
                None.
            training: whether a backward pass follows.

        Raises:
            InvalidArgumentError: see `EmbeddingCollection`; or the structure differs.
        """
        with self._errors_on_all_ranks(self.agent.table_names, training):
            what = f"layer {self.name!r}"
            ids = self._structure.values_by_path(inputs, f"{what}, ids")
            given: dict[str, Any] = {}
            if weights is not None:
                given = self._structure.values_by_path(weights, f"{what}, weights")
        found = super().call(
            ids, {path: each for path, each in given.items() if each is not None}, training
        )
        return self._structure.pack(found)

    def compute_output_shape(self, inputs_shape: Any, weights_shape: Any = None) -> Any:
        """Returns the shape of the output of `call`, as Keras's layers do.

        Args:
            inputs_shape: shapes of the ids, in the structure of the feature configurations.
            weights_shape: ignored.
        """
        shapes = self._structure.values_by_path(inputs_shape, f"layer {self.name!r}, shapes")
        return self._structure.pack(super().compute_output_shape(shapes))

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration of the layer, without its rows.

        Raises:
            UnsupportedError: a storage is an open `Storage`, not the name of a backend.
        """
        return {**super().get_config(), "structure": self._structure.as_dict()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DistributedEmbedding:
        """Creates a layer from the result of `get_config`.

        Args:
            config: result of `get_config`.
        """
        features, config = features_from_dict(config)
        structure = FeatureStructure.from_dict(config.pop("structure"), features)
        return cls(structure.nested, **config)
