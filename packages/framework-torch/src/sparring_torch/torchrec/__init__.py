"""TorchRec's names, so that programs import them from one place.

Names without a counterpart can be imported; using one raises an error with the alternative.
"""

import torch as _torch

from sparring import ExchangeOptions
from sparring_torch.inference import quantize_embeddings
from sparring_torch.jagged.jagged_tensor import JaggedTensor
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.jagged.keyed_tensor import KeyedTensor
from sparring_torch.models import (
    DLRM,
    DLRM_DCN,
    MLP,
    Batch,
    CrossNet,
    DenseArch,
    DLRM_Projection,
    DLRMTrain,
    InteractionArch,
    InteractionDCNArch,
    InteractionProjectionArch,
    LowRankCrossNet,
    LowRankMixtureCrossNet,
    OverArch,
    SparseArch,
    TwoTower,
    TwoTowerTrainTask,
    VectorCrossNet,
)
from sparring_torch.models import DeepFM as SimpleDeepFMNN
from sparring_torch.modules.table_configs import (
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
)
from sparring_torch.optim.combined_optimizer import CombinedOptimizer
from sparring_torch.torchrec.clipping import GradientClipping, GradientClippingOptimizer
from sparring_torch.torchrec.collections import EmbeddingBagCollection, EmbeddingCollection
from sparring_torch.torchrec.datasets import (
    CAT_FEATURE_COUNT,
    DAYS,
    DEFAULT_CAT_NAMES,
    DEFAULT_COLUMN_NAMES,
    DEFAULT_INT_NAMES,
    DEFAULT_LABEL_NAME,
    DEFAULT_MOVIES_COLUMN_NAMES,
    DEFAULT_RATINGS_COLUMN_NAMES,
    INT_FEATURE_COUNT,
    TOTAL_TRAINING_SAMPLES,
    RandomRecDataset,
)
from sparring_torch.torchrec.fused_params import EmbOptimType
from sparring_torch.torchrec.in_backward import (
    apply_optimizer_in_backward,
    in_backward_optimizer_filter,
)
from sparring_torch.torchrec.keyed_optimizer import KeyedOptimizer, KeyedOptimizerWrapper
from sparring_torch.torchrec.model_parallel import (
    DistributedModelParallel,
    TrainPipelineSparseDist,
)
from sparring_torch.torchrec.names import find_advice as _find_advice
from sparring_torch.torchrec.names import unsupported as _unsupported
from sparring_torch.torchrec.planner import (
    EmbeddingShardingPlanner,
    ParameterConstraints,
    Topology,
    get_local_size,
)
from sparring_torch.torchrec.position_weights import (
    PositionWeightedModule,
    PositionWeightedModuleCollection,
)
from sparring_torch.torchrec.regroup import KTRegroupAsDict
from sparring_torch.torchrec.reservations import (
    FixedPercentageStorageReservation,
    HeuristicalStorageReservation,
)
from sparring_torch.torchrec.row_optimizers import LAMB, PartialRowWiseAdam, RowWiseAdagrad
from sparring_torch.torchrec.sharding_plan import (
    EmbeddingBagCollectionSharder,
    EmbeddingCollectionSharder,
    EmbeddingComputeKernel,
    ModuleSharder,
    ParameterSharding,
    ShardingPlan,
    ShardingType,
    get_default_sharders,
)
from sparring_torch.torchrec.wire import CommType, QCommsConfig, get_qcomm_codecs_registry

__all__ = [
    "CAT_FEATURE_COUNT",
    "DAYS",
    "DEFAULT_CAT_NAMES",
    "DEFAULT_COLUMN_NAMES",
    "DEFAULT_INT_NAMES",
    "DEFAULT_LABEL_NAME",
    "DEFAULT_MOVIES_COLUMN_NAMES",
    "DEFAULT_RATINGS_COLUMN_NAMES",
    "DLRM",
    "DLRM_DCN",
    "INT_FEATURE_COUNT",
    "LAMB",
    "MLP",
    "SGD",
    "TOTAL_TRAINING_SAMPLES",
    "Adagrad",
    "Adam",
    "Batch",
    "CombinedOptimizer",
    "CommType",
    "CrossNet",
    "DLRMTrain",
    "DLRM_Projection",
    "DataType",
    "DenseArch",
    "DistributedModelParallel",
    "EmbOptimType",
    "EmbeddingBagCollection",
    "EmbeddingBagCollectionSharder",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingCollectionSharder",
    "EmbeddingComputeKernel",
    "EmbeddingConfig",
    "EmbeddingShardingPlanner",
    "ExchangeOptions",
    "FixedPercentageStorageReservation",
    "GradientClipping",
    "GradientClippingOptimizer",
    "HeuristicalStorageReservation",
    "InteractionArch",
    "InteractionDCNArch",
    "InteractionProjectionArch",
    "JaggedTensor",
    "KTRegroupAsDict",
    "KeyedJaggedTensor",
    "KeyedOptimizer",
    "KeyedOptimizerWrapper",
    "KeyedTensor",
    "LowRankCrossNet",
    "LowRankMixtureCrossNet",
    "ModuleSharder",
    "OverArch",
    "ParameterConstraints",
    "ParameterSharding",
    "PartialRowWiseAdam",
    "PoolingType",
    "PositionWeightedModule",
    "PositionWeightedModuleCollection",
    "QCommsConfig",
    "RandomRecDataset",
    "RowWiseAdagrad",
    "ShardedEmbeddingBagCollection",
    "ShardedEmbeddingCollection",
    "ShardingPlan",
    "ShardingType",
    "SimpleDeepFMNN",
    "SparseArch",
    "Topology",
    "TrainPipelineSparseDist",
    "TwoTower",
    "TwoTowerTrainTask",
    "VectorCrossNet",
    "apply_optimizer_in_backward",
    "apply_overlapped_optimizer",
    "get_default_sharders",
    "get_local_size",
    "get_qcomm_codecs_registry",
    "in_backward_optimizer_filter",
    "quantize_embeddings",
]

ShardedEmbeddingBagCollection = EmbeddingBagCollection
"""The same class: `DistributedModelParallel` shards the tables of a collection and keeps the module."""
ShardedEmbeddingCollection = EmbeddingCollection
"""The same class, for the same reason as `ShardedEmbeddingBagCollection`."""
SGD = _torch.optim.SGD
Adagrad = _torch.optim.Adagrad
Adam = _torch.optim.Adam
apply_overlapped_optimizer = apply_optimizer_in_backward
"""The former name in TorchRec."""


def __getattr__(name: str) -> object:
    advice = _find_advice(name)
    if advice is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = _unsupported(name, advice)
    return globals()[name]
