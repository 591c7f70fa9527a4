"""Names of TorchRec without a counterpart, and what to use instead.

They can be imported, subclassed and used in annotations. Any other use raises `UnsupportedError`.
"""

from __future__ import annotations

from typing import Any

from sparring.errors import UnsupportedError

__all__ = ["ENV", "PLAN", "SHARDERS", "WORDS", "unsupported"]

ENV = "leave it out: torch.distributed or the launcher determines the job"

PLAN = (
    "create it with EmbeddingShardingPlanner of sparring_torch.torchrec; or use "
    "DistributedModelParallel(plan='auto'), or a plan such as {'user': 'table_wise'} or from "
    "`sparring plan`"
)
SHARDERS = (
    "leave sharders out, or use get_default_sharders(); tables in other modules are not supported"
)
_DATA = (
    "use any iterator of Batch(dense_features, sparse_features, labels); `sparring train` also reads "
    "logs in Criteo format and MovieLens ratings"
)
_QUANTIZED = (
    "use quantize_embeddings(module, torch.qint8), which returns a module of the same classes with "
    "quantized tables"
)
_METRICS = (
    "use metrics of torchmetrics or torcheval with the logits and labels that a pipeline returns; "
    "`sparring train` also reports log loss and AUC"
)
_ANY_ID = (
    "leave it out and use the plain collection: ids may be any int64, and each has a separate row; "
    "capacity and eviction are options of the storage, admission is EmbeddingBagConfig(admission=…)"
)
_ARCH = (
    "use DLRM, DeepFM or TwoTower of sparring_torch.models, or write an nn.Module with an "
    "EmbeddingBagCollection"
)
_PIPELINE = "use TrainPipelineSparseDist(model, optimizer, device)"
_SERVING = (
    "use export_program(model, inputs, bundle, served=…) for C++ without Python, or "
    "inference_module(model, storage); both are in sparring_torch"
)
_STATE = (
    "save snapshots with container.save, and export rows for an index with `sparring export`; use "
    "model.state_dict() for ordinary parameters"
)
_FUSED = "use apply_optimizer_in_backward(optimizer_class, model.parameters(), {'lr': …})"
_SCHEDULER = "use a scheduler of torch.optim.lr_scheduler, such as LinearLR, on the optimizer"
_METHOD = (
    "give the name of an update method: 'lamb', 'partial_rowwise_adam', 'rowwise_adagrad' or another "
    "one of sparring.updates"
)

WORDS = {
    "HeteroEmbeddingShardingPlanner": "use EmbeddingShardingPlanner",
    **dict.fromkeys(
        (
            "BinaryCriteoUtils",
            "InMemoryBinaryCriteoIterDataPipe",
            "criteo_kaggle",
            "criteo_terabyte",
            "movielens_20m",
            "movielens_25m",
        ),
        _DATA,
    ),
    **dict.fromkeys(
        (
            "QuantEmbeddingBagCollection",
            "QuantEmbeddingBagCollectionSharder",
            "QuantEmbeddingCollection",
            "QuantEmbeddingCollectionSharder",
        ),
        _QUANTIZED,
    ),
    **dict.fromkeys(
        (
            "PredictFactory",
            "PredictFactoryPackager",
            "PredictModule",
            "load_pickle_config",
        ),
        _SERVING,
    ),
    **dict.fromkeys(("state_dict_gather", "state_dict_to_device"), _STATE),
    **dict.fromkeys(
        (
            "FusedEmbeddingBagCollection",
            "FusedEmbeddingBagCollectionSharder",
            "FusedEmbeddingCollection",
            "FusedEmbeddingCollectionSharder",
            "FusedOptimizer",
            "fuse_embedding_optimizer",
        ),
        _FUSED,
    ),
    **dict.fromkeys(
        (
            "MetricsConfig",
            "RecMetricModule",
            "RecTaskInfo",
            "ThroughputMetric",
            "generate_metric_module",
        ),
        _METRICS,
    ),
    **dict.fromkeys(
        (
            "DistanceLFU_EvictionPolicy",
            "HashZchEvictionConfig",
            "HashZchEvictionPolicyName",
            "HashZchManagedCollisionModule",
            "ManagedCollisionCollection",
            "ManagedCollisionEmbeddingBagCollection",
            "ManagedCollisionEmbeddingCollection",
            "MCHManagedCollisionModule",
        ),
        _ANY_ID,
    ),
    **dict.fromkeys(
        (
            "PrefetchTrainPipelineSparseDist",
            "StagedTrainPipeline",
            "TrainPipelineBase",
            "TrainPipelineSemiSync",
        ),
        _PIPELINE,
    ),
    **dict.fromkeys(("LarsSGD", "PartialRowWiseLAMB"), _METHOD),
    **dict.fromkeys(
        (
            "EmbeddingTower",
            "EmbeddingTowerCollection",
            "FactorizationMachine",
        ),
        _ARCH,
    ),
    "FeatureProcessedEmbeddingBagCollection": (
        "call an EmbeddingBagCollection(is_weighted=True) with the result of "
        "PositionWeightedModuleCollection"
    ),
    "ShardingEnv": ENV,
    **dict.fromkeys(("WarmupOptimizer", "WarmupPolicy", "WarmupStage"), _SCHEDULER),
    "shard": "use DistributedModelParallel(model)",
    "shard_modules": "use DistributedModelParallel(model)",
}


class _Unsupported(type):
    """Metaclass of names that raise when they are used."""

    words: str

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise _refusal(cls)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refusal(cls)

    def __getitem__(cls, _: Any) -> Any:
        return cls  # in annotations such as `Name[T]`


def unsupported(name: str) -> Any:
    """Returns a class for a name of `WORDS` that raises when it is called or its attributes are read.

    Subclasses can be defined; they raise when they are called.
    """
    return _Unsupported(name, (), {"words": WORDS[name]})


def _refusal(kind: type) -> UnsupportedError:
    base = next(each for each in kind.__mro__ if "words" in vars(each))
    return UnsupportedError(f"{base.__name__} of TorchRec: {vars(base)['words']}")
