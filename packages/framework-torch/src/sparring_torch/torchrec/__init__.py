"""TorchRec's names: what its programs import, from one place.

What has no meaning here raises with what to write in its place.
"""

import torch as _torch

from sparring import ExchangeOptions
from sparring.errors import UnsupportedError as _UnsupportedError
from sparring_torch.combined_optimizer import CombinedOptimizer
from sparring_torch.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.embedding_collection import EmbeddingCollection
from sparring_torch.inference import quantize_embeddings
from sparring_torch.jagged_tensor import JaggedTensor
from sparring_torch.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.keyed_tensor import KeyedTensor
from sparring_torch.models import DLRM, Batch, DLRMTrain, SparseArch
from sparring_torch.models import DeepFM as SimpleDeepFMNN
from sparring_torch.table_configs import (
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
)
from sparring_torch.torchrec.in_backward import (
    apply_optimizer_in_backward,
    in_backward_optimizer_filter,
)
from sparring_torch.torchrec.keyed_optimizer import KeyedOptimizerWrapper
from sparring_torch.torchrec.model_parallel import (
    DistributedModelParallel,
    TrainPipelineSparseDist,
)
from sparring_torch.torchrec.names import WORDS as _WORDS
from sparring_torch.torchrec.planner import (
    EmbeddingShardingPlanner,
    ParameterConstraints,
    Topology,
)
from sparring_torch.torchrec.position_weights import (
    PositionWeightedModule,
    PositionWeightedModuleCollection,
)
from sparring_torch.torchrec.sharding_plan import (
    EmbeddingBagCollectionSharder,
    EmbeddingCollectionSharder,
    ParameterSharding,
    ShardingPlan,
    ShardingType,
    get_default_sharders,
)

__all__ = [
    "DLRM",
    "SGD",
    "Adagrad",
    "Adam",
    "Batch",
    "CombinedOptimizer",
    "DLRMTrain",
    "DataType",
    "DistributedModelParallel",
    "EmbeddingBagCollection",
    "EmbeddingBagCollectionSharder",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingCollectionSharder",
    "EmbeddingConfig",
    "EmbeddingShardingPlanner",
    "ExchangeOptions",
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedOptimizerWrapper",
    "KeyedTensor",
    "ParameterConstraints",
    "ParameterSharding",
    "PoolingType",
    "PositionWeightedModule",
    "PositionWeightedModuleCollection",
    "RowWiseAdagrad",
    "ShardedEmbeddingBagCollection",
    "ShardedEmbeddingCollection",
    "ShardingPlan",
    "ShardingType",
    "SimpleDeepFMNN",
    "SparseArch",
    "Topology",
    "TrainPipelineSparseDist",
    "apply_optimizer_in_backward",
    "get_default_sharders",
    "quantize_embeddings",
    "in_backward_optimizer_filter",
]

ShardedEmbeddingBagCollection = EmbeddingBagCollection
"""The same class: `DistributedModelParallel` shards the tables of a collection and keeps the module."""
ShardedEmbeddingCollection = EmbeddingCollection
"""As `ShardedEmbeddingBagCollection`."""
SGD = _torch.optim.SGD
Adagrad = _torch.optim.Adagrad
Adam = _torch.optim.Adam
RowWiseAdagrad = "rowwise_adagrad"
"""The update method of this name."""


def __getattr__(name: str) -> object:
    if name in _WORDS:
        # No AttributeError, of which `from … import …` would show the name only.
        raise _UnsupportedError(f"{name} of TorchRec: {_WORDS[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
