"""`EmbeddingShardingPlanner` with TorchRec's interface, which uses the planner of ``plan="auto"``."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch.distributed as dist
from torch import nn

from sparring import make_plugin_manager
from sparring.adapter import format_suggestion, request_plan
from sparring.contracts import (
    EnvironmentOptions,
    FeatureWorkload,
    Membership,
    PlanRequest,
    PlanResult,
    TableSharding,
    TableWorkload,
    read_membership,
)
from sparring.errors import InvalidArgumentError, SparringError, UnsupportedError
from sparring_torch.modules.table_module import (
    TableModule,
    list_table_modules,
    name_tables_by_path,
)
from sparring_torch.modules.table_workloads import list_workloads
from sparring_torch.torchrec.reservations import (
    FixedPercentageStorageReservation,
    host_memory_bytes,
)
from sparring_torch.torchrec.sharding_plan import (
    ParameterSharding,
    ShardingPlan,
    ShardingType,
    check_sharders,
    find_sharding_kind,
)

__all__ = ["EmbeddingShardingPlanner", "ParameterConstraints", "Topology", "get_local_size"]

_GIB = 1 << 30
_GBIT_PER_BYTES_A_MS = 8 * 1000 / 1e9

_TOPOLOGY = "costs of memory and kernels are in calibration.yaml of sparring-plan"
_TOPOLOGY_ADVICE = dict.fromkeys(
    (
        "bwd_compute_multiplier",
        "custom_topology_data",
        "ddr_mem_bw",
        "generalized_comms_bandwidths",
        "hbm_mem_bw",
        "hbm_to_ddr_mem_bw",
        "pod_size",
        "ssd_cap",
        "ssd_mem_bw",
        "uneven_sharding_perf_multiplier",
        "weighted_feature_bwd_compute_multiplier",
    ),
    _TOPOLOGY,
)
_SEARCH = "the planner of sparring-plan has one search, which reports the gap to the optimum"
_PLANNER_ADVICE = {
    "enumerator": _SEARCH,
    "proposer": _SEARCH,
    "partitioner": _SEARCH,
    "performance_model": _TOPOLOGY,
    "stats": "the logger of this module writes the plan's table; print(plan) shows it, too",
    "callbacks": _SEARCH,
    "timeout_seconds": "the search is limited by steps instead of time, so that it is reproducible",
    "plan_loader": "pass a stored plan to DistributedModelParallel(plan=…)",
}
_STORAGE = "the storage of the collection determines it: EmbeddingBagCollection(storage=…)"
_CONSTRAINTS_ADVICE = {
    "min_partition": "widths of column blocks always divide the dim evenly",
    "cache_params": _STORAGE,
    "enforce_hbm": _STORAGE,
    "key_value_params": _STORAGE,
    "device_group": "the collection determines it: EmbeddingBagCollection(device=…)",
    "output_dtype": "outputs are float32, or the dtype set by module.to(dtype)",
    "stochastic_rounding": "rows of 16 bits always round stochastically, and others never do",
    "bounds_check_mode": "ids may be any int64, so there are no bounds to check",
    "use_virtual_table": "every table grows with its ids",
    "batch_sizes": "the planner has one batch_size",
    "feature_names": "the table's configuration contains them",
}

_log = logging.getLogger(__name__)


def _reject(owner: str, words: Mapping[str, str], given: Mapping[str, Any]) -> None:
    """Rejects unknown arguments, and arguments of TorchRec that are not supported."""
    for name, value in given.items():
        if name not in words:
            raise TypeError(f"{owner}: unknown argument {name!r}; {format_suggestion(name, words)}")
        if value not in (None, False):
            raise UnsupportedError(f"{owner}: leave out {name}: {words[name]}")


class Topology:
    """The ranks for a plan.

    Args:
        world_size: number of ranks.
        compute_device: ``cuda`` limits tables to `hbm_cap` per rank; ``cpu`` to `ddr_cap`.
        hbm_cap: bytes of GPU memory per rank; by default 32 GiB, as in TorchRec.
        ddr_cap: bytes of host memory per rank; None means the rank's share of this machine.
        local_world_size: ranks per node; None means that all ranks are on one node.
        intra_host_bw: bytes per millisecond between ranks of a node; None uses the planner's default.
        inter_host_bw: bytes per millisecond between a rank and other nodes; None uses the default.
        **others: arguments of TorchRec that are not supported.

    Raises:
        InvalidArgumentError: `world_size` is not a multiple of `local_world_size`, or a number is not
            positive.
        UnsupportedError: one of `others` is given.
    """

    def __init__(
        self,
        world_size: int,
        compute_device: str = "cpu",
        hbm_cap: int | None = None,
        ddr_cap: int | None = None,
        *,
        local_world_size: int | None = None,
        intra_host_bw: float | None = None,
        inter_host_bw: float | None = None,
        **others: Any,
    ) -> None:
        _reject("Topology", _TOPOLOGY_ADVICE, others)
        if compute_device not in ("cpu", "cuda"):
            raise InvalidArgumentError(
                f"Topology: compute_device must be 'cpu' or 'cuda', found {compute_device!r}"
            )
        per_node = world_size if local_world_size is None else local_world_size
        numbers = [world_size, per_node, hbm_cap, ddr_cap, intra_host_bw, inter_host_bw]
        if any(each is not None and not each > 0 for each in numbers) or world_size % per_node:
            raise InvalidArgumentError(
                f"Topology: world_size {world_size} must be a multiple of local_world_size {per_node}, "
                "and all numbers must be positive; use nodes with equal numbers of ranks"
            )
        self.world_size, self.local_world_size = world_size, per_node
        self.compute_device = compute_device
        self.memory_bytes = ddr_cap
        if compute_device == "cuda":
            self.memory_bytes = 32 * _GIB if hbm_cap is None else hbm_cap
        self.near_gbit = self.far_gbit = None
        if intra_host_bw is not None:
            self.near_gbit = intra_host_bw * _GBIT_PER_BYTES_A_MS
        if inter_host_bw is not None:
            self.far_gbit = inter_host_bw * per_node * _GBIT_PER_BYTES_A_MS


@dataclass
class ParameterConstraints:
    """Constraints of one table.

    Args:
        sharding_types: values of `ShardingType` that the table may have; None allows all.
        compute_kernels: ``["dense"]`` requires ``data_parallel``, and ``["fused"]`` forbids it; None or
            both leave the choice to `sharding_types`.
        pooling_factors: average number of ids per bag, one number per feature or one for all.
        num_poolings: number of bags per sample for each feature; None means one.
        is_weighted: whether ids have weights.
    The other arguments exist for compatibility with TorchRec and are not supported.

    Raises:
        UnsupportedError: an unsupported argument or compute kernel is given.
    """

    sharding_types: Sequence[str] | None = None
    compute_kernels: Sequence[str] | None = None
    min_partition: int | None = None
    pooling_factors: Sequence[float] = (1.0,)
    num_poolings: Sequence[float] | None = None
    batch_sizes: Sequence[int] | None = None
    is_weighted: bool = False
    cache_params: Any = None
    enforce_hbm: bool | None = None
    stochastic_rounding: bool | None = None
    bounds_check_mode: Any = None
    feature_names: Sequence[str] | None = None
    output_dtype: Any = None
    device_group: str | None = None
    key_value_params: Any = None
    use_virtual_table: bool = False

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in _CONSTRAINTS_ADVICE}
        _reject("ParameterConstraints", _CONSTRAINTS_ADVICE, given)
        others = set(self.compute_kernels or ()) - {"fused", "dense"}
        if others:
            raise UnsupportedError(
                f"ParameterConstraints: leave out compute kernels {sorted(others)}: {_STORAGE}"
            )

    def kinds(self) -> tuple[str, ...]:
        """Returns the sharding kinds that the table may have; empty if all are allowed.

        Raises:
            InvalidArgumentError: the kernels allow none of them.
        """
        found = tuple(map(find_sharding_kind, self.sharding_types or ()))
        kernels = set(self.compute_kernels or ())
        if len(kernels) != 1:
            return found
        is_dense = kernels == {"dense"}
        given = found or tuple(find_sharding_kind(each) for each in ShardingType)
        kept = tuple(kind for kind in given if (kind == "data_parallel") == is_dense)
        if not kept:
            raise InvalidArgumentError(
                f"ParameterConstraints: compute_kernels {sorted(kernels)} allow none of sharding_types "
                f"{list(self.sharding_types or ())}; use 'dense' for data_parallel, and 'fused' for "
                "all others"
            )
        # Without sharding types, 'fused' is the default and no constraint.
        return kept if found or is_dense else ()


class EmbeddingShardingPlanner:
    """Plans the sharding of a module's tables.

    ::

        planner = EmbeddingShardingPlanner(topology=Topology(world_size=8, local_world_size=4))
        plan = planner.collective_plan(model, get_default_sharders(), dist.GroupMember.WORLD)
        model = DistributedModelParallel(model, plan=plan)

    Without sparring-plan, tables without a given kind are ``row_wise``.

    Args:
        topology: the ranks; None means the ranks that torchrun or mpiexec started.
        batch_size: number of samples per batch of a rank; 512 by default, as in TorchRec.
        storage_reservation: memory to keep free.
        constraints: table → constraints.
        debug: whether the logger of this module writes the plan at level INFO.
        **others: arguments of TorchRec that are not supported.

    Raises:
        UnsupportedError: one of `others` is given.
    """

    def __init__(
        self,
        topology: Topology | None = None,
        batch_size: int | None = None,
        *,
        storage_reservation: FixedPercentageStorageReservation | None = None,
        constraints: Mapping[str, ParameterConstraints] | None = None,
        debug: bool = True,
        **others: Any,
    ) -> None:
        _reject("EmbeddingShardingPlanner", _PLANNER_ADVICE, others)
        self._topology = topology
        self._samples = 512 if batch_size is None else batch_size
        self._reservation = storage_reservation
        self._constraints = dict(constraints or {})
        self._is_logged = debug

    def plan(self, module: nn.Module, sharders: Sequence[Any] | None = None) -> ShardingPlan:
        """Computes a plan in this process.

        Args:
            module: module with tables, which may contain rows.
            sharders: sharders of `get_default_sharders`, or None.

        Raises:
            CapacityError: the tables do not fit in memory; the message reports the missing memory.
            InvalidArgumentError: constraints name an unknown table, or allow no kind.
        """
        check_sharders(module, sharders)
        name_tables_by_path(module)
        topology = self._topology or _find_topology()
        holders = list_table_modules(module)
        former = {new: old for each in holders for new, old in each.agent.former_names.items()}
        workloads = self._apply_constraints(list_workloads(holders), former)
        made = PlanResult(ShardingPlan({}))
        if topology.world_size > 1:
            request = PlanRequest(
                tuple(workloads),
                topology.world_size,
                topology.local_world_size,
                self._samples,
                self._memory_bytes(topology, module),
                topology.near_gbit,
                topology.far_gbit,
            )
            made = request_plan(request, make_plugin_manager())
        if self._is_logged:
            for sentence in made.assumptions:
                _log.warning("%s", sentence)
            if made.summary:
                _log.info("%s", made.summary)
        row_wise = TableSharding("row_wise")
        return ShardingPlan(
            {
                path: {
                    table: ParameterSharding.of(
                        made.sharding.sharding_of(table) or row_wise, topology.world_size
                    )
                    for table in found.agent.table_names
                }
                for path, found in module.named_modules()
                if isinstance(found, TableModule)
            }
        )

    def collective_plan(
        self,
        module: nn.Module,
        sharders: Sequence[Any] | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> ShardingPlan:
        """Computes a plan on the first rank of `pg` and returns it on all ranks, which must call it.

        Args:
            module, sharders: see `plan`.
            pg: the process group; None means the default group, or no group if there is none.

        Raises:
            CapacityError, InvalidArgumentError: see `plan`; raised on all ranks.
        """
        if not (dist.is_available() and dist.is_initialized()):
            if self._topology is None and _membership().world_size > 1:
                raise InvalidArgumentError(
                    "collective_plan: torch.distributed is not initialized, so ranks cannot share a "
                    "plan; call torch.distributed.init_process_group first, or omit the planner and "
                    "use DistributedModelParallel(model, plan='auto')"
                )
            return self.plan(module, sharders)
        sent: list[str] = [""]
        failure: Exception | None = None
        group: Any = dist.group.WORLD if pg is None else pg
        if dist.get_rank(group) == 0:
            try:
                sent = [_as_text(self.plan(module, sharders))]
            except Exception as error:  # the other ranks wait for the broadcast
                failure = error
                sent = [json.dumps({"error": str(error)})]
        dist.broadcast_object_list(sent, src=dist.get_global_rank(group, 0), group=group)
        if failure is not None:
            raise failure
        answer = json.loads(sent[0])
        if "error" in answer:
            raise SparringError(f"collective_plan: the planner of rank 0 failed: {answer['error']}")
        return ShardingPlan(
            {
                path: {table: ParameterSharding(*each) for table, each in tables.items()}
                for path, tables in answer["plan"].items()
            }
        )

    def _memory_bytes(self, topology: Topology, module: nn.Module) -> int | None:
        """Returns the memory per rank for tables; None means the planner's default."""
        if self._reservation is None:
            return topology.memory_bytes
        found = topology.memory_bytes
        if found is None:
            found = host_memory_bytes() // topology.local_world_size
        return self._reservation.available_bytes(found, module)

    def _apply_constraints(
        self, workloads: Sequence[TableWorkload], former: Mapping[str, str]
    ) -> list[TableWorkload]:
        """Applies the constraints of tables, also under the names before `name_tables_by_path`."""
        names = [each.table.name for each in workloads]
        for name in self._constraints:
            if name not in names and name not in former.values():
                raise InvalidArgumentError(
                    f"constraints: found no table {name!r}; {format_suggestion(name, names)}",
                    table=name,
                )
        given = self._constraints
        return [
            _with_constraints(each, given.get(name, given.get(former.get(name, name))))
            for each, name in zip(workloads, names, strict=True)
        ]


def _with_constraints(
    workload: TableWorkload, constraints: ParameterConstraints | None
) -> TableWorkload:
    if constraints is None:
        return workload
    name, count = workload.table.name, len(workload.features)
    bags = _collect_per_feature(constraints.num_poolings or (1.0,), count, name, "num_poolings")
    ids = _collect_per_feature(constraints.pooling_factors, count, name, "pooling_factors")
    features = tuple(
        FeatureWorkload(each.pooling, factor * number, constraints.is_weighted)
        for each, factor, number in zip(workload.features, ids, bags, strict=True)
    )
    kinds = constraints.kinds()
    if workload.kinds and kinds:
        kinds = tuple(kind for kind in kinds if kind in workload.kinds)
        if not kinds:
            raise InvalidArgumentError(
                f"constraints: table {name!r} has placement 'replicated', which is data_parallel, but "
                f"sharding_types allow only {list(constraints.sharding_types or ())}; change one of "
                "them",
                table=name,
            )
    return replace(workload, features=features, kinds=kinds or workload.kinds)


def _collect_per_feature(
    given: Sequence[float], count: int, table: str, name: str
) -> Sequence[float]:
    """Returns one number per feature."""
    if len(given) not in (1, count):
        raise InvalidArgumentError(
            f"constraints: {name} of table {table!r} must have one number, or one for each of its "
            f"{count} features, found {list(given)}",
            table=table,
        )
    return given if len(given) == count else list(given) * count


def get_local_size(world_size: int | None = None) -> int:
    """Returns the number of ranks on this node, according to the launcher.

    Args:
        world_size: number of ranks; None reads `torch.distributed` or the launcher. If it
            is not a multiple of the number of ranks that the launcher reports for this node, all
            ranks count as being on this node.
    """
    ranks = _world_size() if world_size is None else world_size
    per_node = _membership().local_world_size
    return per_node if ranks % per_node == 0 else ranks


def _find_topology() -> Topology:
    """Returns the topology of this process's job."""
    world_size = _world_size()
    return Topology(world_size, local_world_size=get_local_size(world_size))


def _world_size() -> int:
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return _membership().world_size


def _membership() -> Membership:
    try:
        return read_membership(os.environ, EnvironmentOptions())
    except InvalidArgumentError:
        return Membership(0, 1)


def _as_text(plan: ShardingPlan) -> str:
    plain = {
        path: {table: list(astuple(each)) for table, each in tables.items()}
        for path, tables in plan.plan.items()
    }
    return json.dumps({"plan": plain})
