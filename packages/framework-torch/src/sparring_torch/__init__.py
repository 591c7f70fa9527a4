"""The PyTorch adapter of sparring: ids in, embeddings out, torch's own optimizers.

Names are imported when they are asked for: listing plugins imports `sparring_torch.plugin`, and
should not have to wait for torch, nor need it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_torch.collate import collate_jagged
    from sparring_torch.combined_optimizer import CombinedOptimizer
    from sparring_torch.distributed_model_parallel import DistributedModelParallel
    from sparring_torch.embedding import Embedding
    from sparring_torch.embedding_bag import EmbeddingBag
    from sparring_torch.embedding_bag_collection import EmbeddingBagCollection
    from sparring_torch.embedding_collection import EmbeddingCollection
    from sparring_torch.inference import inference_module, quantize_embeddings
    from sparring_torch.jagged_tensor import JaggedTensor
    from sparring_torch.keyed_jagged_tensor import KeyedJaggedTensor
    from sparring_torch.keyed_tensor import KeyedTensor
    from sparring_torch.models import DLRM, DeepFM, MatrixFactorization, TwoTower
    from sparring_torch.optimizer import Optimizer
    from sparring_torch.program.bundle import load_program
    from sparring_torch.program.export import export_program
    from sparring_torch.program.library import ProgramError
    from sparring_torch.row_copies import shared_rows
    from sparring_torch.row_gradients import dense_parameters
    from sparring_torch.rows_in_state import without_rows
    from sparring_torch.saved_state import (
        gather_random_state,
        gather_state,
        restore_random_state,
        restore_state,
    )
    from sparring_torch.table_configs import (
        DataType,
        EmbeddingBagConfig,
        EmbeddingConfig,
        PoolingType,
    )
    from sparring_torch.table_module import tables_device
    from sparring_torch.train_agent import TrainAgent
    from sparring_torch.train_pipeline import TrainPipeline
    from sparring_torch.transpiler.program import distribute, distribution_report, restore

__version__ = "0.1.0"

__all__ = [
    "CombinedOptimizer",
    "DLRM",
    "DataType",
    "DeepFM",
    "DistributedModelParallel",
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "MatrixFactorization",
    "Optimizer",
    "PoolingType",
    "ProgramError",
    "TrainAgent",
    "TrainPipeline",
    "TwoTower",
    "__version__",
    "collate_jagged",
    "dense_parameters",
    "distribute",
    "distribution_report",
    "export_program",
    "gather_random_state",
    "gather_state",
    "inference_module",
    "load_program",
    "quantize_embeddings",
    "restore",
    "restore_random_state",
    "restore_state",
    "shared_rows",
    "tables_device",
    "without_rows",
]

_HOMES = {
    "CombinedOptimizer": "combined_optimizer",
    "DLRM": "models",
    "DataType": "table_configs",
    "DeepFM": "models",
    "DistributedModelParallel": "distributed_model_parallel",
    "Embedding": "embedding",
    "EmbeddingBag": "embedding_bag",
    "EmbeddingBagCollection": "embedding_bag_collection",
    "EmbeddingBagConfig": "table_configs",
    "EmbeddingCollection": "embedding_collection",
    "EmbeddingConfig": "table_configs",
    "JaggedTensor": "jagged_tensor",
    "KeyedJaggedTensor": "keyed_jagged_tensor",
    "KeyedTensor": "keyed_tensor",
    "MatrixFactorization": "models",
    "Optimizer": "optimizer",
    "PoolingType": "table_configs",
    "ProgramError": "program.library",
    "TrainAgent": "train_agent",
    "TrainPipeline": "train_pipeline",
    "TwoTower": "models",
    "collate_jagged": "collate",
    "dense_parameters": "row_gradients",
    "distribute": "transpiler.program",
    "distribution_report": "transpiler.program",
    "export_program": "program.export",
    "gather_random_state": "saved_state",
    "gather_state": "saved_state",
    "inference_module": "inference",
    "load_program": "program.bundle",
    "quantize_embeddings": "inference",
    "restore": "transpiler.program",
    "restore_random_state": "saved_state",
    "restore_state": "saved_state",
    "shared_rows": "row_copies",
    "tables_device": "table_module",
    "without_rows": "rows_in_state",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
