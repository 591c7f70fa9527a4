"""Numbers by which lookup ops identify their tables, in this process and in a SavedModel.

In a graph, the number is read from a resource, so that the same graph works in the process that loads
it::

    process that traced it           process that loads it
    resource ◄── the number of       resource ◄── SparringOpen(manifest of the rows)
                 the publication
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sparring.adapter import Publication, TableGroup
from sparring_tf.lookup.saved_model_rows import export_rows
from sparring_tf.op_library import ops

__all__ = ["LookupNumber"]


class LookupNumber(tf.saved_model.experimental.TrackableResource):  # type: ignore[misc,unused-ignore]
    """A resource of TensorFlow that contains the number of a publication.

    Args:
        agent: agent of the tables.
        features: table and pooling of each feature that is looked up in the same call.
    """

    def __init__(self, agent: TableGroup, features: Sequence[tuple[str, str]]) -> None:
        super().__init__(device="CPU")
        self._agent = agent
        self.features = tuple(features)
        self.publication = Publication()
        with tf.init_scope():
            self._number = tf.constant(self.publication.number, tf.int64)
            tf.raw_ops.AssignVariableOp(resource=self.resource_handle, value=self._number)

    def tensor(self) -> Any:
        """Returns the number as a scalar tensor for an op in the current context."""
        if tf.executing_eagerly():
            return self._number
        return tf.raw_ops.ReadVariableOp(resource=self.resource_handle, dtype=tf.int64)

    # TensorFlow's protocol for resources that are created again when a SavedModel is loaded.

    def _create_resource(self) -> Any:
        # The name is unique in this process. TensorFlow makes it unique for each load.
        name = f"sparring_lookup_{self.publication.number}"
        return tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=name)

    def _destroy_resource(self) -> None:
        tf.raw_ops.DestroyResourceOp(resource=self.resource_handle, ignore_lookup_error=True)

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> dict[str, Any]:
        if save_type != "savedmodel":
            return {}
        rows = export_rows(self._agent, options["cache"])
        features = json.dumps(self.features)
        handle = self.resource_handle

        @tf.function(input_signature=[], autograph=False)
        def create() -> Any:
            return self._create_resource()

        @tf.function(input_signature=[], autograph=False)
        def initialize() -> int:
            number = ops().sparring_open(
                manifest=tf.io.decode_raw(rows.manifest.asset_path, tf.uint8),
                features=tf.io.decode_raw(features, tf.uint8),
            )
            tf.raw_ops.AssignVariableOp(resource=handle, value=number)
            return 1

        @tf.function(input_signature=[], autograph=False)
        def destroy() -> int:
            number = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)
            # The resource remains, so that a later lookup reports that the tables are closed.
            ops().sparring_close(number=number)
            return 1

        return {
            "_create_resource": create,
            "_initialize": initialize,
            "_destroy_resource": destroy,
            "manifest": rows.manifest,
            **{f"rows_{place}": each for place, each in enumerate(rows.files)},
        }
