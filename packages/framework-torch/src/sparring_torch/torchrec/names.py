"""Names of TorchRec without a counterpart of that name, and the code to write instead.

They can be imported and subclassed, and annotations may name them. To use one raises `UnsupportedError`.
"""

from __future__ import annotations

from typing import Any

from sparring.errors import UnsupportedError

__all__ = ["ENV", "PLAN", "SHARDERS", "WORDS", "unsupported"]

ENV = "leave it out: the job is found by torch.distributed or the launcher"

PLAN = (
    "make it by EmbeddingShardingPlanner of sparring_torch.torchrec; or write "
    "DistributedModelParallel(plan='auto'), or {'user': 'table_wise'} by hand or from `sparring plan`"
)
SHARDERS = (
    "leave sharders out, or give those of get_default_sharders; a module of your own is no table that "
    "can be sharded"
)
_DATA = (
    "make batches of your own: any iterator of Batch(dense_features, sparse_features, labels) will do; "
    "`sparring train` reads logs in Criteo format and MovieLens ratings by itself"
)
_QUANTIZED = (
    "write quantize_embeddings(module, torch.qint8): it returns a module of the same classes whose "
    "tables are quantized"
)
_METRICS = (
    "take metrics of torchmetrics or torcheval on the logits and labels that a pipeline returns; "
    "`sparring train` reports log loss and AUC by itself"
)
_ANY_ID = (
    "leave it out and use the plain collection: ids may be any int64, and each has a row of its own; "
    "capacity and eviction are options of the storage, admission is EmbeddingBagConfig(admission=…)"
)
_ARCH = (
    "sparring_torch.models has DLRM, DeepFM and TwoTower as wholes; write a part of your own as an "
    "nn.Module around an EmbeddingBagCollection"
)
_PIPELINE = "write TrainPipelineSparseDist(model, optimizer, device)"
_SERVING = (
    "write export_program(model, inputs, bundle, served=…) for C++ without Python, or "
    "inference_module(model, storage); both are in sparring_torch"
)
_STATE = (
    "save snapshots by container.save, and write rows for an index by `sparring export`; ordinary "
    "parameters are in model.state_dict()"
)
_FUSED = "write apply_optimizer_in_backward(optimizer_class, model.parameters(), {'lr': …})"
_SCHEDULER = "use a scheduler of torch.optim.lr_scheduler, such as LinearLR, on the optimizer"
_METHOD = (
    "give the name of an update method: 'lamb', 'partial_rowwise_adam', 'rowwise_adagrad' and others "
    "of sparring.updates"
)

WORDS = {
    "HeteroEmbeddingShardingPlanner": "write EmbeddingShardingPlanner",
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
        "call an EmbeddingBagCollection(is_weighted=True) with what PositionWeightedModuleCollection "
        "returns"
    ),
    "ShardingEnv": ENV,
    **dict.fromkeys(("WarmupOptimizer", "WarmupPolicy", "WarmupStage"), _SCHEDULER),
    "shard": "write DistributedModelParallel(model)",
    "shard_modules": "write DistributedModelParallel(model)",
}


class _Unsupported(type):
    """Class of names that raise when they are used."""

    words: str

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise _refusal(cls)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refusal(cls)

    def __getitem__(cls, _: Any) -> Any:
        return cls  # an annotation


def unsupported(name: str) -> Any:
    """Returns a class for a name of `WORDS`, which raises when it is called or read.

    A subclass of it can be defined; it raises when it is called.
    """
    return _Unsupported(name, (), {"words": WORDS[name]})


def _refusal(kind: type) -> UnsupportedError:
    base = next(each for each in kind.__mro__ if "words" in vars(each))
    return UnsupportedError(f"{base.__name__} of TorchRec: {vars(base)['words']}")
