"""TorchRec's names of kinds, plans and sharders."""

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
    """Kernels by TorchRec's names; where rows are kept is the storage of a collection."""

    DENSE = "dense"
    FUSED = "fused"
    FUSED_UVM = "fused_uvm"
    FUSED_UVM_CACHING = "fused_uvm_caching"
    QUANT = "quant"
    QUANT_UVM = "quant_uvm"
    QUANT_UVM_CACHING = "quant_uvm_caching"
    KEY_VALUE = "key_value"


class ShardingType(Enum):
    """Sharding kinds by TorchRec's names."""

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
    """The sharding kind behind a name of TorchRec's; that of a plugin is its own.

    Raises:
        InvalidArgumentError: it is no text.
    """
    name = sharding_type.value if isinstance(sharding_type, ShardingType) else sharding_type
    if not isinstance(name, str):
        raise InvalidArgumentError(
            f"sharding type: found {sharding_type!r}; give a value of ShardingType, as "
            "ShardingType.TABLE_WISE.value"
        )
    return _KINDS.get(name, name)


@dataclass
class ParameterSharding:
    """How a table is sharded.

    Args:
        sharding_type: a value of `ShardingType`.
        compute_kernel: ``fused``, or ``dense`` of ``data_parallel``; others are rejected.
        ranks: that own rows, all of them; None: the kind chooses. TorchRec names the first rank of a
            node for ``table_row_wise``, and here each is named.
        transfer: ``rows``, or ``pooled``: owners pool bags, as TorchRec's always do.
        columns: blocks of columns, of which `ranks` are in order; None: the kind chooses.
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
                f"ParameterSharding: found compute_kernel {self.compute_kernel!r} of sharding type "
                f"{self.sharding_type!r}; give 'fused', or 'dense' of 'data_parallel'"
            )

    def sharding(self) -> TableSharding:
        """As the engine takes it."""
        return TableSharding(
            find_sharding_kind(self.sharding_type),
            tuple(self.ranks or ()),
            self.transfer,
            self.columns,
        )

    @staticmethod
    def of(sharding: TableSharding, world_size: int) -> ParameterSharding:
        """Of what a planner has made."""
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
    """A sharding plan, module by module.

    Args:
        plan: path of a module, as `nn.Module.named_modules` has it → table → `ParameterSharding`.

    Raises:
        InvalidArgumentError: one table is sharded in two ways; or what a `TableSharding` refuses.
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
                        f"{sharding}; its rows are shared, so give it one sharding",
                        table=table,
                    )
        super().__init__(tables)
        # The base is frozen.
        object.__setattr__(self, "plan", {path: dict(each) for path, each in plan.items()})

    def get_plan_for_module(self, module_path: str) -> dict[str, ParameterSharding] | None:
        """Table → its sharding; None: the plan does not have the module."""
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
    """Base of sharders: tables of a type of module are sharded, as all are without it.

    Args:
        fused_params: the optimizer of the rows, such as ``{"optimizer":
            EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.02}``: `DistributedModelParallel` gives
            it to `apply_optimizer_in_backward`.
        qcomm_codecs_registry: of `get_qcomm_codecs_registry`: the precision of the wire.

    Raises:
        InvalidArgumentError, UnsupportedError: if `fused_params` has no counterpart, or
            `qcomm_codecs_registry` is something else.
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
                f"{name}: qcomm_codecs_registry: found {type(qcomm_codecs_registry).__name__}; import "
                "get_qcomm_codecs_registry from sparring_torch.torchrec, and give what it returns"
            )
        self.qcomm_codecs_registry = qcomm_codecs_registry

    def sharding_types(self, compute_device_type: str = "cpu") -> list[str]:
        """Values of `ShardingType`, which are the same for tables in host memory and on a GPU.

        Raises:
            InvalidArgumentError: if `compute_device_type` is neither ``cpu`` nor ``cuda``.
        """
        if compute_device_type not in ("cpu", "cuda"):
            raise InvalidArgumentError(
                f"sharding_types: found compute_device_type {compute_device_type!r}; give 'cpu' or 'cuda'"
            )
        return [each.value for each in ShardingType]


class EmbeddingBagCollectionSharder(ModuleSharder[EmbeddingBagCollection]):
    """`ModuleSharder` of `EmbeddingBagCollection`."""

    module_type = EmbeddingBagCollection


class EmbeddingCollectionSharder(ModuleSharder[EmbeddingCollection]):
    """`ModuleSharder` of `EmbeddingCollection`.

    Args:
        fused_params, qcomm_codecs_registry: as of `ModuleSharder`.
        use_index_dedup: accepted: ids that repeat in a batch always travel once.
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
    """A sharder of each type of module that has one."""
    return [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]


def check_sharders(module: nn.Module, sharders: Sequence[Any] | None) -> None:
    """Refuses sharders that would leave a collection of `module` on one rank, as TorchRec would.

    Raises:
        InvalidArgumentError: a sharder of another package, or none for a collection of the module.
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
                f"sharders: {type(found).__name__} {path!r} has none, and its tables are sharded in any "
                f"case; add a {type(found).__name__}Sharder, or leave sharders out"
            )
