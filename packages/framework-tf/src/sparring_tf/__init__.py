"""TensorFlow adapter of sparring: layers that look up ids in tables, trained by Keras 3's optimizers.

Names are imported on first access, because listing plugins imports `sparring_tf.plugin` and must
neither require TensorFlow nor wait for its import. When TensorFlow is imported, before or after this
package, the ops are registered, so that a SavedModel finds them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from sparring_tf.registration import register_with_tensorflow

if TYPE_CHECKING:
    from sparring_tf.keras_rs.distributed_embedding import DistributedEmbedding
    from sparring_tf.layers.embedding import Embedding
    from sparring_tf.layers.embedding_bag import EmbeddingBag
    from sparring_tf.layers.embedding_collection import EmbeddingCollection
    from sparring_tf.layers.models import DLRM, DeepFM, MatrixFactorization, TwoTower
    from sparring_tf.layers.table_configs import FeatureConfig, TableConfig
    from sparring_tf.lookup.exchanged_lookup import own_errors
    from sparring_tf.optim.dense_ranks import broadcast, gather_over_ranks
    from sparring_tf.optim.loss_scaling import LossScaleOptimizer
    from sparring_tf.optim.optimizer import Optimizer
    from sparring_tf.program.bundle import load_program
    from sparring_tf.program.export import export_program
    from sparring_tf.program.library import ProgramError
    from sparring_tf.saving.anchors import trained_table
    from sparring_tf.saving.early_stopping import EarlyStopping
    from sparring_tf.saving.model_files import save_model
    from sparring_tf.saving.saved_state import gather_state, restore_state
    from sparring_tf.transpiler.program import distribute, distribution_report, restore

__version__ = "0.1.0"

__all__ = [
    "DLRM",
    "DeepFM",
    "DistributedEmbedding",
    "EarlyStopping",
    "Embedding",
    "EmbeddingBag",
    "EmbeddingCollection",
    "FeatureConfig",
    "LossScaleOptimizer",
    "MatrixFactorization",
    "Optimizer",
    "ProgramError",
    "TableConfig",
    "TwoTower",
    "__version__",
    "broadcast",
    "distribute",
    "distribution_report",
    "export_program",
    "gather_over_ranks",
    "gather_state",
    "load_program",
    "own_errors",
    "restore",
    "restore_state",
    "save_model",
    "trained_table",
]

_HOMES = {
    "DLRM": "layers.models",
    "DeepFM": "layers.models",
    "DistributedEmbedding": "keras_rs.distributed_embedding",
    "EarlyStopping": "saving.early_stopping",
    "Embedding": "layers.embedding",
    "EmbeddingBag": "layers.embedding_bag",
    "EmbeddingCollection": "layers.embedding_collection",
    "FeatureConfig": "layers.table_configs",
    "LossScaleOptimizer": "optim.loss_scaling",
    "MatrixFactorization": "layers.models",
    "Optimizer": "optim.optimizer",
    "ProgramError": "program.library",
    "TableConfig": "layers.table_configs",
    "TwoTower": "layers.models",
    "broadcast": "optim.dense_ranks",
    "distribute": "transpiler.program",
    "distribution_report": "transpiler.program",
    "export_program": "program.export",
    "gather_over_ranks": "optim.dense_ranks",
    "gather_state": "saving.saved_state",
    "load_program": "program.bundle",
    "own_errors": "lookup.exchanged_lookup",
    "restore": "transpiler.program",
    "restore_state": "saving.saved_state",
    "save_model": "saving.model_files",
    "trained_table": "saving.anchors",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sparring_tf.versions import check_tensorflow

    check_tensorflow()
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


register_with_tensorflow()
