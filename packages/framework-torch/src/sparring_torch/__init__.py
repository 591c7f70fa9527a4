"""PyTorch adapter of sparring: TorchRec's modules and torch's optimizers for dynamic tables.

Names are imported on first use, so that listing plugins, which imports `sparring_torch.plugin`, does
not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_torch.distributed.distributed_model_parallel import DistributedModelParallel
    from sparring_torch.inference import inference_module, quantize_embeddings
    from sparring_torch.jagged.collate import collate_jagged
    from sparring_torch.jagged.jagged_tensor import JaggedTensor
    from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
    from sparring_torch.jagged.keyed_tensor import KeyedTensor
    from sparring_torch.lookup.row_gradients import dense_parameters
    from sparring_torch.lookup.train_agent import TrainAgent
    from sparring_torch.models import DLRM, DeepFM, MatrixFactorization, TwoTower
    from sparring_torch.modules.embedding import Embedding
    from sparring_torch.modules.embedding_bag import EmbeddingBag
    from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
    from sparring_torch.modules.embedding_collection import EmbeddingCollection
    from sparring_torch.modules.table_configs import (
        DataType,
        EmbeddingBagConfig,
        EmbeddingConfig,
        PoolingType,
    )
    from sparring_torch.modules.table_module import tables_device
    from sparring_torch.optim.combined_optimizer import CombinedOptimizer
    from sparring_torch.optim.optimizer import Optimizer
    from sparring_torch.pipeline.train_pipeline import TrainPipeline
    from sparring_torch.program.bundle import load_program
    from sparring_torch.program.export import export_program
    from sparring_torch.program.library import ProgramError
    from sparring_torch.state.row_copies import shared_rows
    from sparring_torch.state.rows_in_state import without_rows
    from sparring_torch.state.saved_state import (
        gather_random_state,
        gather_state,
        restore_random_state,
        restore_state,
    )
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
    "CombinedOptimizer": "optim.combined_optimizer",
    "DLRM": "models",
    "DataType": "modules.table_configs",
    "DeepFM": "models",
    "DistributedModelParallel": "distributed.distributed_model_parallel",
    "Embedding": "modules.embedding",
    "EmbeddingBag": "modules.embedding_bag",
    "EmbeddingBagCollection": "modules.embedding_bag_collection",
    "EmbeddingBagConfig": "modules.table_configs",
    "EmbeddingCollection": "modules.embedding_collection",
    "EmbeddingConfig": "modules.table_configs",
    "JaggedTensor": "jagged.jagged_tensor",
    "KeyedJaggedTensor": "jagged.keyed_jagged_tensor",
    "KeyedTensor": "jagged.keyed_tensor",
    "MatrixFactorization": "models",
    "Optimizer": "optim.optimizer",
    "PoolingType": "modules.table_configs",
    "ProgramError": "program.library",
    "TrainAgent": "lookup.train_agent",
    "TrainPipeline": "pipeline.train_pipeline",
    "TwoTower": "models",
    "collate_jagged": "jagged.collate",
    "dense_parameters": "lookup.row_gradients",
    "distribute": "transpiler.program",
    "distribution_report": "transpiler.program",
    "export_program": "program.export",
    "gather_random_state": "state.saved_state",
    "gather_state": "state.saved_state",
    "inference_module": "inference",
    "load_program": "program.bundle",
    "quantize_embeddings": "inference",
    "restore": "transpiler.program",
    "restore_random_state": "state.saved_state",
    "restore_state": "state.saved_state",
    "shared_rows": "state.row_copies",
    "tables_device": "modules.table_module",
    "without_rows": "state.rows_in_state",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
