"""Names of TorchRec without a counterpart, and what to use instead.

They can be imported, subclassed and used in annotations. Any other use raises `UnsupportedError`.
``names.txt`` contains the public names of TorchRec 1.8.0 and 1.9.2, one module per line, as
``tools/torchrec_names.py`` reads them from the source.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

from sparring.errors import UnsupportedError

__all__ = ["ENV", "PLAN", "SHARDERS", "find_advice", "list_names", "unsupported"]

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
_PIPELINE = (
    "use TrainPipelineSparseDist(model, optimizer, device), which also evaluates in model.eval()"
)
_SERVING = (
    "use export_program(model, inputs, bundle, served=…) for C++ without Python, or "
    "inference_module(model, storage); both are in sparring_torch"
)
_STATE = (
    "save snapshots with container.save, and export rows for an index with `sparring export`; use "
    "model.state_dict() for ordinary parameters"
)
_FUSED = "use apply_optimizer_in_backward(optimizer_class, model.parameters(), {'lr': …})"
_OPTIMIZER = (
    "use an optimizer of torch.optim in sparring_torch.Optimizer(model, optimizer_class, lr=…)"
)
_SCHEDULER = "use a scheduler of torch.optim.lr_scheduler, such as LinearLR, on the optimizer"
_PLANNER = (
    "use EmbeddingShardingPlanner of sparring_torch.torchrec, or `sparring "
    "plan`, whose search has no parts to replace"
)
_DELTAS = (
    "save changed rows with container.save(url, base=…), or publish them with `sparring publish`"
)
_EXCHANGE = (
    "leave it out: DistributedModelParallel(model) distributes the tables and exchanges rows; "
    "ExchangeOptions contains its settings"
)
_COMM = (
    "use torch.distributed and the launcher's variables, such as LOCAL_RANK; get_local_size is in "
    "sparring_torch.torchrec"
)
_BATCHES = "use the methods of KeyedJaggedTensor, JaggedTensor and KeyedTensor"
_NONE = "it is internal to TorchRec and has no counterpart; leave it out"
_METHOD = (
    "give the name of an update method: 'lamb', 'partial_rowwise_adam', 'rowwise_adagrad' or another "
    "one of sparring.updates"
)

_BY_MODULE = {
    "torchrec": _NONE,
    "torchrec.datasets": _DATA,
    "torchrec.distributed": _EXCHANGE,
    "torchrec.distributed.comm": _COMM,
    "torchrec.distributed.fused_embedding": _FUSED,
    "torchrec.distributed.infer_utils": _SERVING,
    "torchrec.distributed.itep": _ANY_ID,
    "torchrec.distributed.mc_": _ANY_ID,
    "torchrec.distributed.model_tracker": _DELTAS,
    "torchrec.distributed.planner": _PLANNER,
    "torchrec.distributed.quant": _QUANTIZED,
    "torchrec.distributed.train_pipeline": _PIPELINE,
    "torchrec.inference": _SERVING,
    "torchrec.inference.state_dict_transform": _STATE,
    "torchrec.metrics": _METRICS,
    "torchrec.models": _ARCH,
    "torchrec.modules": _ARCH,
    "torchrec.modules.fused": _FUSED,
    "torchrec.modules.hash_mc": _ANY_ID,
    "torchrec.modules.itep": _ANY_ID,
    "torchrec.modules.mc_": _ANY_ID,
    "torchrec.optim": _OPTIMIZER,
    "torchrec.optim.fused": _FUSED,
    "torchrec.optim.warmup": _SCHEDULER,
    "torchrec.quant": _QUANTIZED,
    "torchrec.sparse": _BATCHES,
}
"""Beginning of a module's name → advice; the longest one applies."""

_BY_NAME = {
    "HeteroEmbeddingShardingPlanner": "use EmbeddingShardingPlanner",
    "FeatureProcessedEmbeddingBagCollection": (
        "call an EmbeddingBagCollection(is_weighted=True) with the result of "
        "PositionWeightedModuleCollection"
    ),
    "ShardingEnv": ENV,
    **dict.fromkeys(("QuantEmbeddingBagCollection", "QuantEmbeddingCollection"), _QUANTIZED),
    **dict.fromkeys(("LarsSGD", "PartialRowWiseLAMB"), _METHOD),
    **dict.fromkeys(("WarmupOptimizer", "WarmupPolicy", "WarmupStage"), _SCHEDULER),
    **dict.fromkeys(("shard", "shard_modules"), "use DistributedModelParallel(model)"),
    **dict.fromkeys(
        ("EvalPipelineSparseDist", "TrainPipelineBase", "PrefetchTrainPipelineSparseDist"),
        _PIPELINE,
    ),
}


@functools.cache
def list_names() -> dict[str, str]:
    """Returns name → module of the public names of TorchRec."""
    text = resources.files(__package__).joinpath("names.txt").read_text("utf-8")
    lines = [line.split(": ") for line in text.splitlines()]
    return {name: module for module, names in lines for name in names.split()}


def find_advice(name: str) -> str | None:
    """Returns what to use instead of a public name of TorchRec; None if TorchRec has no such name."""
    module = list_names().get(name)
    if module is None or name in _BY_NAME:
        return _BY_NAME.get(name)
    return _BY_MODULE[max(filter(module.startswith, _BY_MODULE), key=len)]


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


def unsupported(name: str, advice: str) -> Any:
    """Returns a class for a name that raises `advice` when it is called or its attributes are read.

    Subclasses can be defined; they raise when they are called.
    """
    return _Unsupported(name, (), {"words": advice})


def _refusal(kind: type) -> UnsupportedError:
    base = next(each for each in kind.__mro__ if "words" in vars(each))
    return UnsupportedError(f"{base.__name__} of TorchRec: {vars(base)['words']}")
