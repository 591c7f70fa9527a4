"""The PyTorch adapter of sparring: ids in, embeddings out, torch's own optimizers."""

from __future__ import annotations

from sparring_torch.distributed_model_parallel import DistributedModelParallel
from sparring_torch.embedding import Embedding
from sparring_torch.embedding_bag import EmbeddingBag
from sparring_torch.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.embedding_collection import EmbeddingCollection
from sparring_torch.jagged_tensor import JaggedTensor
from sparring_torch.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.keyed_tensor import KeyedTensor
from sparring_torch.optimizer import Optimizer
from sparring_torch.table_configs import (
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
)
from sparring_torch.train_agent import TrainAgent
from sparring_torch.train_pipeline import TrainPipeline

__version__ = "0.1.0"

__all__ = [
    "DataType",
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
    "Optimizer",
    "PoolingType",
    "TrainAgent",
    "TrainPipeline",
    "__version__",
]
