"""How tables are declared, with TorchRec's names: `EmbeddingBagConfig`, `EmbeddingConfig`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from sparring import Uniform
from sparring.adapter import StorageLike, TableDeclaration, make_declaration, shared_settings
from sparring.contracts import AdmissionLike, ExpiryLike, Initializer, TableConfig
from sparring.errors import InvalidArgumentError
from sparring_torch.device.kernels import find_storage_device
from sparring_torch.misuse import warn_about_bound
from sparring_torch.modules.init_functions import to_initializer

__all__ = [
    "DataType",
    "EmbeddingBagConfig",
    "EmbeddingConfig",
    "PoolingType",
    "StorageLike",
    "TableDeclaration",
    "declare_table",
    "feature_outputs",
    "choose_storage",
]


class PoolingType(Enum):
    """How the embeddings of a bag become one."""

    SUM = "SUM"
    MEAN = "MEAN"
    NONE = "NONE"
    """No pooling: tables of an `EmbeddingCollection`; an `EmbeddingBagCollection` rejects it."""


class DataType(Enum):
    """Type of the elements of an embedding, as they are stored.

    What a module returns is float64 for FP64, and float32 for all others. Tables that are trained may be
    FP32, FP64, FP16 or BF16; the others are TorchRec's names, and a table rejects them.
    """

    FP32 = "FP32"
    FP64 = "FP64"
    FP16 = "FP16"
    BF16 = "BF16"
    INT64 = "INT64"
    INT32 = "INT32"
    INT8 = "INT8"
    UINT8 = "UINT8"
    INT4 = "INT4"
    INT2 = "INT2"
    NFP8 = "NFP8"


_BY_TYPE = {
    DataType.FP32: "float32",
    DataType.FP64: "float64",
    DataType.FP16: "float16",
    DataType.BF16: "bfloat16",
}
_DTYPE_NAMES: dict[object, str] = {
    said: name
    for data_type, name in _BY_TYPE.items()
    for said in (data_type, data_type.value, name, getattr(torch, name))
}


@dataclass(kw_only=True)
class EmbeddingConfig:
    """One table whose embeddings are handed out one by one.

    Args:
        name: of the table.
        embedding_dim: elements of an embedding.
        feature_names: features that look up here; none means one feature of the table's name.
        num_embeddings: the most rows that the storage may hold; None sets no bound. It is no
            range: ids may be any int64.
        data_type: of embeddings, as they are stored: a `DataType`, a torch dtype, or its name;
            float32, float64, float16 or bfloat16. Outputs are float32 for 16-bit tables, and so
            are gradients and optimizer state; updates round stochastically.
        initializer: what an id reads as before it was trained: a `sparring.Initializer`, its
            name, or ``{"kind": name, parameter: value}``. None means `init_fn`, or uniform within
            (`weight_init_min`, `weight_init_max`).
        init_fn: a function of `torch.nn.init`, or `functools.partial` of one: ``zeros_``,
            ``ones_``, ``constant_``, ``uniform_``, ``normal_``, or ``trunc_normal_`` within two
            standard deviations.
        weight_init_min: lower bound of the default initializer.
        weight_init_max: upper bound of the default initializer.
        admission: which unseen ids earn a row, a `sparring.contracts.tables.admission.Admission` or
            ``{"kind": name, parameter: value}``; None: all.
        seed: with the name and the id it determines an initial embedding.
        storage: in place of the collection's.
        placement: ``sharded``: each row is on one rank; ``replicated``: every rank keeps all of
            them, and lookups touch no wire. For small tables.
        expire: after how long without training rows are removed, a `sparring.Expiry`
            or ``{"after_steps": …, "after_days": …}``; None: never.
    """

    name: str
    embedding_dim: int
    feature_names: Sequence[str] = field(default_factory=list)
    num_embeddings: int | None = None
    data_type: DataType | torch.dtype | str = DataType.FP32
    initializer: Initializer | str | dict[str, Any] | None = None
    init_fn: Callable[..., Any] | None = None
    weight_init_min: float = -0.05
    weight_init_max: float = 0.05
    admission: AdmissionLike = None
    seed: int = 0
    storage: StorageLike | None = None
    placement: str = "sharded"
    expire: ExpiryLike = None


@dataclass(kw_only=True)
class EmbeddingBagConfig(EmbeddingConfig):
    """One table whose embeddings are pooled to one for each bag.

    Args:
        pooling: sum or mean over the ids of a bag. With weights, the mean divides the weighted
            sum by the number of ids. An empty bag is zeros.
    """

    pooling: PoolingType = PoolingType.SUM

    @staticmethod
    def of(table: TableConfig) -> EmbeddingBagConfig:
        """A table as the engine declares it, for one feature of its name."""
        return EmbeddingBagConfig(
            name=table.name,
            embedding_dim=table.dim,
            data_type=table.dtype,
            **shared_settings(table),
        )


def declare_table(config: EmbeddingConfig, storage: StorageLike) -> TableDeclaration:
    """Table declaration of a configuration.

    Args:
        config: of one table.
        storage: for tables that name none of their own.

    Raises:
        InvalidArgumentError: an unknown dtype, or a number out of range.
    """
    if config.num_embeddings is not None:
        warn_about_bound(config.name, config.num_embeddings)
    dtype = _DTYPE_NAMES.get(config.data_type)
    if dtype is None:
        raise InvalidArgumentError(
            f"data_type of table {config.name!r}: must be one of {', '.join(_BY_TYPE.values())}, "
            f"found {config.data_type!r}; quantize a table after training: quantize_embeddings(module, "
            "torch.qint8)",
            table=config.name,
        )
    initializer = config.initializer
    if config.init_fn is not None:
        if initializer is not None:
            raise InvalidArgumentError(
                f"table {config.name!r} has an initializer and an init_fn; give one of the two",
                table=config.name,
            )
        initializer = to_initializer(config.init_fn, config.name)
    if initializer is None:
        initializer = Uniform(config.weight_init_min, config.weight_init_max)
    table = TableConfig(
        config.name,
        config.embedding_dim,
        dtype,
        initializer,
        seed=config.seed,
        admission=config.admission,
        placement=config.placement,
        expire=config.expire,
    )
    return make_declaration(
        table,
        storage if config.storage is None else config.storage,
        capacity=config.num_embeddings,
        setting="num_embeddings",
    )


def choose_storage(device: torch.device | str | None, storage: StorageLike) -> StorageLike:
    """The storage of a module's tables, on the device that the module was given.

    Args:
        device: None leaves it to the storage, and so does ``meta``: no row exists before it is
            trained, so there is nothing that has to be allocated later.
        storage: of tables that name none of their own.

    Raises:
        InvalidArgumentError: no such device, or a storage with options of its own.
    """
    where = find_storage_device(None if str(device) == "meta" else device)
    if where == "cpu":
        return storage
    if storage != "hkv":
        raise InvalidArgumentError(
            f"device {where!r} goes with storage 'hkv', found {storage!r}; say the device in the "
            "storage's own options",
            device=where,
        )
    return {"backend": "hkv", "device": where}


def feature_outputs(tables: Sequence[EmbeddingConfig]) -> list[list[str]]:
    """The name of each output, table by table.

    It is the feature's name, or ``feature@table`` where a feature looks up in several tables.

    Raises:
        InvalidArgumentError: no tables, two of one name, a table that names a feature twice.
    """
    if not tables:
        raise InvalidArgumentError("a collection needs at least one table, found none")
    names = [config.name for config in tables]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgumentError(
            f"table {twice!r} is declared twice in one collection; join its features into one",
            table=twice,
        )
    features = [table_features(config) for config in tables]
    counts: dict[str, int] = {}
    for config, each in zip(tables, features, strict=True):
        if len(set(each)) != len(each):
            raise InvalidArgumentError(
                f"table {config.name!r} names a feature twice in {each}", table=config.name
            )
        for feature in each:
            counts[feature] = counts.get(feature, 0) + 1
    return [
        [feature if counts[feature] == 1 else f"{feature}@{config.name}" for feature in each]
        for config, each in zip(tables, features, strict=True)
    ]


def table_features(config: EmbeddingConfig) -> list[str]:
    """The features of a table; none named means one of the table's own name."""
    return list(config.feature_names) or [config.name]
