"""Configuration of tables with TorchRec's names: `EmbeddingBagConfig`, `EmbeddingConfig`."""

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
    """How the embeddings of a bag are combined."""

    SUM = "SUM"
    MEAN = "MEAN"
    NONE = "NONE"
    """No pooling, for an `EmbeddingCollection`; an `EmbeddingBagCollection` rejects it."""


class DataType(Enum):
    """Dtype of stored embeddings.

    Modules return float64 for FP64 and float32 for all others. Tables can be FP32, FP64, FP16 or BF16;
    the other names exist in TorchRec, and tables reject them.
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
    DataType.INT8: "int8",
}
_DTYPE_NAMES: dict[object, str] = {
    said: name
    for data_type, name in _BY_TYPE.items()
    for said in (data_type, data_type.value, name, getattr(torch, name))
}


@dataclass(kw_only=True)
class EmbeddingConfig:
    """Configuration of a table without pooling.

    Args:
        name: name of the table.
        embedding_dim: number of elements of an embedding.
        feature_names: features that are looked up in the table; none means one feature with the
            table's name.
        num_embeddings: maximum number of rows in the storage; None sets no limit. It does not limit
            the values of ids, which may be any int64.
        data_type: dtype of stored embeddings: float32, float64, float16, bfloat16 or int8, as a
            `DataType`, a torch dtype, or a name. For 16-bit and int8 tables, outputs and gradients are
            float32, and updates round stochastically. Optimizer state is float32; int8 tables store
            it in 8 bits, too.
        initializer: initial value of embeddings: a `sparring.Initializer`, its name, or
            ``{"kind": name, parameter: value}``. None means `init_fn`, or a uniform distribution
            between `weight_init_min` and `weight_init_max`.
        init_fn: a function of `torch.nn.init`, or a `functools.partial` of one: ``zeros_``,
            ``ones_``, ``constant_``, ``uniform_``, ``normal_``, or ``trunc_normal_`` within two
            standard deviations.
        weight_init_min: lower bound of the default initializer.
        weight_init_max: upper bound of the default initializer.
        admission: decides which new ids get a row: a `sparring.contracts.tables.admission.Admission`
            or ``{"kind": name, parameter: value}``; None admits all ids.
        seed: determines, together with the name and the id, the initial value of an embedding.
        storage: storage of this table; None means the storage of the collection.
        placement: ``sharded`` stores each row on one rank; ``replicated`` stores all rows on every
            rank, so that lookups need no communication, for small tables.
        expire: TTL of rows that are not trained: a `sparring.Expiry` or
            ``{"after_steps": …, "after_days": …}``; None keeps rows forever.

    Examples:
        >>> from sparring_torch import EmbeddingCollection, EmbeddingConfig
        >>> items = EmbeddingConfig(
        ...     name="items", embedding_dim=8, feature_names=["viewed", "bought"], data_type="float16"
        ... )
        >>> EmbeddingCollection([items]).embedding_names_by_table()
        [['viewed', 'bought']]
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
    """Configuration of a table whose embeddings are pooled per bag.

    Args:
        pooling: sum or mean over the ids of a bag. With weights, the mean divides the weighted
            sum by the number of ids. An empty bag gives zeros.

    Examples:
        >>> from sparring_torch import EmbeddingBagConfig, PoolingType
        >>> EmbeddingBagConfig(name="items", embedding_dim=8).pooling
        <PoolingType.SUM: 'SUM'>
        >>> EmbeddingBagConfig(name="items", embedding_dim=8, pooling=PoolingType.MEAN).pooling
        <PoolingType.MEAN: 'MEAN'>
    """

    pooling: PoolingType = PoolingType.SUM

    @staticmethod
    def of(table: TableConfig) -> EmbeddingBagConfig:
        """Converts the engine's configuration of a table; the feature has the table's name.

        Args:
            table: configuration of the table.
        """
        return EmbeddingBagConfig(
            name=table.name,
            embedding_dim=table.dim,
            data_type=table.dtype,
            **shared_settings(table),
        )


def declare_table(config: EmbeddingConfig, storage: StorageLike) -> TableDeclaration:
    """Converts a configuration to the engine's declaration of a table.

    Args:
        config: configuration of one table.
        storage: storage of tables whose configuration names none.

    Raises:
        InvalidArgumentError: the dtype is unknown, or a number is out of range.
    """
    if config.num_embeddings is not None:
        warn_about_bound(config.name, config.num_embeddings)
    dtype = _DTYPE_NAMES.get(config.data_type)
    if dtype is None:
        raise InvalidArgumentError(
            f"data_type of table {config.name!r} must be one of {', '.join(_BY_TYPE.values())}, "
            f"found {config.data_type!r}; to quantize a table after training, use "
            "quantize_embeddings(module, torch.quint4x2)",
            table=config.name,
        )
    initializer = config.initializer
    if config.init_fn is not None:
        if initializer is not None:
            raise InvalidArgumentError(
                f"table {config.name!r}: found both initializer and init_fn; give only one of them",
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
    """Returns the storage of a module's tables for the device of the module.

    Args:
        device: device of the module; None and ``meta`` leave the device to the storage. ``meta`` is
            accepted because nothing is allocated before a row is trained.
        storage: storage of tables whose configuration names none.

    Raises:
        InvalidArgumentError: the device is unknown, or the storage has options.
    """
    where = find_storage_device(None if str(device) == "meta" else device)
    if where == "cpu":
        return storage
    if storage != "hkv":
        raise InvalidArgumentError(
            f"device {where!r} requires storage 'hkv', found {storage!r}; set the device in the "
            "options of the storage instead",
            device=where,
        )
    return {"backend": "hkv", "device": where}


def feature_outputs(tables: Sequence[EmbeddingConfig]) -> list[list[str]]:
    """Returns the names of the outputs, table by table.

    A name is the feature's name, or ``feature@table`` if several tables look up the feature.

    Raises:
        InvalidArgumentError: there are no tables, two tables have one name, or a table names a
            feature twice.
    """
    if not tables:
        raise InvalidArgumentError("tables: found none; give a collection at least one table")
    names = [config.name for config in tables]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgumentError(
            f"table {twice!r} is declared twice in one collection; put its features into one table",
            table=twice,
        )
    features = [table_features(config) for config in tables]
    counts: dict[str, int] = {}
    for config, each in zip(tables, features, strict=True):
        if len(set(each)) != len(each):
            raise InvalidArgumentError(
                f"table {config.name!r}: found a repeated feature in {each}; name each once",
                table=config.name,
            )
        for feature in each:
            counts[feature] = counts.get(feature, 0) + 1
    return [
        [feature if counts[feature] == 1 else f"{feature}@{config.name}" for feature in each]
        for config, each in zip(tables, features, strict=True)
    ]


def table_features(config: EmbeddingConfig) -> list[str]:
    """Returns the features of a table; by default one feature with the table's name."""
    return list(config.feature_names) or [config.name]
