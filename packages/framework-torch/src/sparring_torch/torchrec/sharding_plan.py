"""Sharding kinds, plans and sharders with TorchRec's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import NoneType
from typing import Any, ClassVar, Generic, Literal, TypeVar

from torch import nn

from sparring import ExchangeOptions, contracts
from sparring.contracts import TableSharding
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.embedding_collection import EmbeddingCollection
from sparring_torch.torchrec.fused_params import check_fused_params
from sparring_torch.torchrec.names import SHARDERS

__all__ = [
    "EmbeddingBagCollectionSharder",
    "EmbeddingCollectionSharder",
    "EmbeddingComputeKernel",
    "ModuleSharder",
    "ParameterSharding",
    "ShardingPlan",
    "ShardingType",
    "check_sharders",
    "get_default_sharders",
    "find_sharding_kind",
]


Sharded = TypeVar("Sharded", bound=nn.Module)


class EmbeddingComputeKernel(Enum):
    """Kernels with TorchRec's names; the storage of a collection determines where rows are stored."""

    DENSE = "dense"
    FUSED = "fused"
    FUSED_UVM = "fused_uvm"
    FUSED_UVM_CACHING = "fused_uvm_caching"
    QUANT = "quant"
    QUANT_UVM = "quant_uvm"
    QUANT_UVM_CACHING = "quant_uvm_caching"
    KEY_VALUE = "key_value"


class ShardingType(Enum):
    """Sharding kinds with TorchRec's names."""

    DATA_PARALLEL = "data_parallel"
    TABLE_WISE = "table_wise"
    COLUMN_WISE = "column_wise"
    ROW_WISE = "row_wise"
    TABLE_ROW_WISE = "table_row_wise"
    TABLE_COLUMN_WISE = "table_column_wise"
    GRID_SHARD = "grid_shard"


_KINDS = {each.value: each.value for each in ShardingType} | {"grid_shard": "grid"}
_TYPES = {kind: name for name, kind in _KINDS.items()}


def find_sharding_kind(sharding_type: str | ShardingType) -> str:
    """Converts a sharding type of TorchRec to a sharding kind; names of plugins stay unchanged.

    Raises:
        InvalidArgumentError: the type is not a string.
    """
    name = sharding_type.value if isinstance(sharding_type, ShardingType) else sharding_type
    if not isinstance(name, str):
        raise InvalidArgumentError(
            f"sharding type: found {sharding_type!r}, expected a value of ShardingType, for example "
            "ShardingType.TABLE_WISE.value"
        )
    return _KINDS.get(name, name)


@dataclass
class ParameterSharding:
    """Sharding of a table.

    Args:
        sharding_type: a value of `ShardingType`.
        compute_kernel: ``fused``, or ``dense`` for ``data_parallel``; others are rejected.
        ranks: all ranks that own rows; None leaves the choice to the kind. For ``table_row_wise``,
            TorchRec lists only the first rank of a node; here all are required.
        transfer: ``rows``, or ``pooled`` if owners pool bags, as TorchRec always does.
        columns: number of column blocks, owned by `ranks` in order; None leaves it to the kind.
    """

    sharding_type: str
    compute_kernel: str = "fused"
    ranks: Sequence[int] | None = None
    transfer: Literal["rows", "pooled"] = "rows"
    columns: int | None = None

    def __post_init__(self) -> None:
        is_dense = self.compute_kernel == "dense" and self.sharding_type == "data_parallel"
        if self.compute_kernel != "fused" and not is_dense:
            raise UnsupportedError(
                f"ParameterSharding: found compute_kernel {self.compute_kernel!r} with sharding type "
                f"{self.sharding_type!r}; use 'fused', or 'dense' with 'data_parallel'"
            )

    def sharding(self) -> TableSharding:
        """Returns the sharding as the engine's type."""
        return TableSharding(
            find_sharding_kind(self.sharding_type),
            tuple(self.ranks or ()),
            self.transfer,
            self.columns,
        )

    @staticmethod
    def of(sharding: TableSharding, world_size: int) -> ParameterSharding:
        """Converts a sharding of the engine's type."""
        kernel = "dense" if sharding.kind == "data_parallel" else "fused"
        is_everywhere = sharding.kind in ("row_wise", "data_parallel")
        ranks = list(range(world_size)) if is_everywhere else list(sharding.ranks) or None
        return ParameterSharding(
            _TYPES.get(sharding.kind, sharding.kind),
            kernel,
            ranks,
            sharding.transfer,
            sharding.columns,
        )


class ShardingPlan(contracts.ShardingPlan):
    """A sharding plan by module.

    Args:
        plan: path of a module, as in `nn.Module.named_modules` → table → `ParameterSharding`.

    Raises:
        InvalidArgumentError: a table has two different shardings, or `TableSharding` rejects one.
    """

    plan: dict[str, dict[str, ParameterSharding]]

    def __init__(self, plan: Mapping[str, Mapping[str, ParameterSharding]]) -> None:
        tables: dict[str, TableSharding] = {}
        for of_module in plan.values():
            for table, each in of_module.items():
                sharding = each.sharding()
                if tables.setdefault(table, sharding) != sharding:
                    raise InvalidArgumentError(
                        f"sharding plan: table {table!r} is in two modules, as {tables[table]} and as "
                        f"{sharding}; give it one sharding, because the modules share its rows",
                        table=table,
                    )
        super().__init__(tables)
        # The base class is frozen.
        object.__setattr__(self, "plan", {path: dict(each) for path, each in plan.items()})

    def get_plan_for_module(self, module_path: str) -> dict[str, ParameterSharding] | None:
        """Returns the shardings of a module's tables; None if the plan has no such module."""
        return self.plan.get(module_path)

    def __str__(self) -> str:
        rows = [("module", "table", "sharding type", "transfer", "ranks")]
        rows += [
            (
                path or "(the model)",
                table,
                each.sharding_type,
                each.transfer,
                _ranks_text(each.ranks),
            )
            for path, of_module in self.plan.items()
            for table, each in of_module.items()
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        return "\n".join(
            "  ".join(f"{part:{width}}" for part, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )


def _ranks_text(ranks: Sequence[int] | None) -> str:
    return "chosen by the kind" if ranks is None else ", ".join(map(str, ranks))


class ModuleSharder(Generic[Sharded]):
    """Base of sharders for modules of one type; all tables are sharded even without a sharder.

    Args:
        fused_params: the optimizer of the rows, for example ``{"optimizer":
            EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.02}``; `DistributedModelParallel`
            passes it to `apply_optimizer_in_backward`.
        qcomm_codecs_registry: precision of messages, from `get_qcomm_codecs_registry`.

    Raises:
        InvalidArgumentError, UnsupportedError: `fused_params` has no counterpart, or
            `qcomm_codecs_registry` has the wrong type.
    """

    module_type: ClassVar[type[nn.Module]]

    def __init__(
        self,
        fused_params: Mapping[str, Any] | None = None,
        qcomm_codecs_registry: ExchangeOptions | None = None,
    ) -> None:
        name = type(self).__name__
        self.fused_params = dict(fused_params or {})
        if self.fused_params:
            check_fused_params(name, self.fused_params)
        if not isinstance(qcomm_codecs_registry, (ExchangeOptions, NoneType)):
            raise UnsupportedError(
                f"{name}: found qcomm_codecs_registry of type "
                f"{type(qcomm_codecs_registry).__name__}; use the result of "
                "get_qcomm_codecs_registry of sparring_torch.torchrec"
            )
        self.qcomm_codecs_registry = qcomm_codecs_registry

    def sharding_types(self, compute_device_type: str = "cpu") -> list[str]:
        """Returns the values of `ShardingType`, which are the same for host memory and GPUs.

        Raises:
            InvalidArgumentError: `compute_device_type` is neither ``cpu`` nor ``cuda``.
        """
        if compute_device_type not in ("cpu", "cuda"):
            raise InvalidArgumentError(
                f"sharding_types: found compute_device_type {compute_device_type!r}, expected 'cpu' or "
                "'cuda'"
            )
        return [each.value for each in ShardingType]


class EmbeddingBagCollectionSharder(ModuleSharder[EmbeddingBagCollection]):
    """`ModuleSharder` for `EmbeddingBagCollection`."""

    module_type = EmbeddingBagCollection


class EmbeddingCollectionSharder(ModuleSharder[EmbeddingCollection]):
    """`ModuleSharder` for `EmbeddingCollection`.

    Args:
        fused_params, qcomm_codecs_registry: see `ModuleSharder`.
        use_index_dedup: has no effect: repeated ids in a batch are always sent once.
    """

    module_type = EmbeddingCollection

    def __init__(
        self,
        fused_params: Mapping[str, Any] | None = None,
        qcomm_codecs_registry: ExchangeOptions | None = None,
        use_index_dedup: bool = False,
    ) -> None:
        super().__init__(fused_params, qcomm_codecs_registry)


def get_default_sharders() -> list[Any]:
    """Returns a sharder for each supported type of module."""
    return [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]


def check_sharders(module: nn.Module, sharders: Sequence[Any] | None) -> None:
    """Rejects sharders that would leave a collection of `module` unsharded in TorchRec.

    Raises:
        InvalidArgumentError: a sharder is from another package, or a collection has no sharder.
    """
    if not sharders:
        return
    for each in sharders:
        if not isinstance(each, ModuleSharder):
            raise InvalidArgumentError(
                f"sharders: found {type(each).__name__}; {SHARDERS}. Or import "
                "get_default_sharders from sparring_torch.torchrec"
            )
    types = tuple(each.module_type for each in sharders)
    for path, found in module.named_modules():
        is_collection = isinstance(found, (EmbeddingBagCollection, EmbeddingCollection))
        if is_collection and not isinstance(found, types):
            raise InvalidArgumentError(
                f"sharders: found none for {type(found).__name__} {path!r}, whose tables are always "
                f"sharded; add an {type(found).__name__}Sharder, or leave sharders out"
            )
