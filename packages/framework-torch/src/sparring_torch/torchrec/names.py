"""Names of TorchRec that have no counterpart of their name, and what to write in their place."""

from __future__ import annotations

__all__ = ["WORDS"]

_PLAN = (
    "make it by EmbeddingShardingPlanner of sparring_torch.torchrec; or write "
    "DistributedModelParallel(plan='auto'), or {'user': 'table_wise'} by hand or from `sparring plan`"
)
_SHARDER = (
    "leave sharders out: the optimizer of fused_params is given to apply_optimizer_in_backward, and "
    "the precision of the wire to DistributedModelParallel(exchange=ExchangeOptions(…))"
)
_WIRE = (
    "write DistributedModelParallel(model, exchange=ExchangeOptions(row_wire_dtype='bfloat16', "
    "gradient_wire_dtype='bfloat16')); ExchangeOptions is in sparring and in sparring_torch.torchrec"
)
_DATA = (
    "make batches of your own: any iterator of Batch(dense_features, sparse_features, labels) will do; "
    "`sparring train` reads logs in Criteo format and MovieLens ratings by itself"
)
_QUANTISED = (
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
_METHOD = (
    "give the name of an update method: 'lamb', 'partial_rowwise_adam', 'rowwise_adagrad' and others "
    "of sparring.updates"
)

WORDS = {
    "env": "leave it out: the job is found by torch.distributed or the launcher",
    "plan": _PLAN,
    "sharders": _SHARDER,
    "HeteroEmbeddingShardingPlanner": "write EmbeddingShardingPlanner",
    "ModuleSharder": _SHARDER,
    **dict.fromkeys(("CommType", "QCommsConfig", "get_qcomm_codecs_registry"), _WIRE),
    **dict.fromkeys(
        (
            "DEFAULT_CAT_NAMES",
            "DEFAULT_INT_NAMES",
            "DEFAULT_RATINGS_COLUMN_NAMES",
            "InMemoryBinaryCriteoIterDataPipe",
            "RandomRecDataset",
            "criteo_kaggle",
            "criteo_terabyte",
            "movielens_20m",
            "movielens_25m",
        ),
        _DATA,
    ),
    **dict.fromkeys(("QuantEmbeddingBagCollection", "QuantEmbeddingCollection"), _QUANTISED),
    **dict.fromkeys(
        ("MetricsConfig", "RecMetricModule", "RecTaskInfo", "generate_metric_module"), _METRICS
    ),
    **dict.fromkeys(
        (
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
    **dict.fromkeys(
        ("EmbOptimType", "LAMB", "LarsSGD", "PartialRowWiseAdam", "PartialRowWiseLAMB"), _METHOD
    ),
    **dict.fromkeys(
        (
            "CrossNet",
            "DenseArch",
            "EmbeddingTower",
            "EmbeddingTowerCollection",
            "InteractionArch",
            "InteractionDCNArch",
            "OverArch",
        ),
        _ARCH,
    ),
    "FusedOptimizer": "write apply_optimizer_in_backward",
    "KeyedOptimizer": (
        "write KeyedOptimizerWrapper for ordinary parameters; rows are updated by "
        "apply_optimizer_in_backward, or by sparring_torch.Optimizer"
    ),
    "FeatureProcessedEmbeddingBagCollection": (
        "call an EmbeddingBagCollection(is_weighted=True) with what PositionWeightedModuleCollection "
        "returns"
    ),
    "GradientClippingOptimizer": (
        "call torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm) before the step of a "
        "sparring_torch.Optimizer: it clips rows and ordinary parameters by one norm"
    ),
    "ShardingEnv": "leave it out: the job is found by torch.distributed or the launcher",
    "WarmupOptimizer": "take a scheduler of torch.optim.lr_scheduler, as LinearLR, on the optimizer",
    "apply_overlapped_optimizer": "write apply_optimizer_in_backward, with the same arguments",
    "shard": "write DistributedModelParallel(model)",
    "shard_modules": "write DistributedModelParallel(model)",
}
