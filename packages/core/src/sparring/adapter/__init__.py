"""Names of core for framework packages and sparring-tiered, besides `sparring.contracts` and
`sparring.errors`.

Each name is imported from its home when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring._lazy import names_from

if TYPE_CHECKING:
    from sparring._native import (
        KeySet,
        Publication,
        borrow_threads,
        check_offsets,
        gather,
        give_back_threads,
        key_gradients,
        lookups,
        place_rows,
        pool,
        pool_backward,
        pool_weight_gradient,
        segment_sum,
    )
    from sparring.adapter.distribution_report import (
        DistributionReport,
        ModuleReport,
        Outcome,
        check_choices,
        own_methods,
        why_no_weight,
    )
    from sparring.adapter.model_shapes import check_factors
    from sparring.adapter.service_tables import fill_service, service_storage, write_rows
    from sparring.adapter.stand_in import rounds_alike
    from sparring.collective.coordinator import Coordinator
    from sparring.contracts.checkpoint import SaveOptions, State
    from sparring.contracts.ranks.exchange_options import ExchangeOptions
    from sparring.engine.apply.gather import TableUpdate
    from sparring.engine.apply.gradients import sum_gradients
    from sparring.engine.container import StepContainer
    from sparring.engine.device_gradients import BagGradients, DeviceGradients
    from sparring.engine.job.automatic_plan import PlanLike, made_plan, plan_of_job, workload_of
    from sparring.engine.job.bootstrap import AUTO, join_job
    from sparring.engine.lookup.lookup import Lookup, look_up, pulls_on_device, reporting
    from sparring.engine.lookup.pooled import (
        BagLookup,
        PooledLookup,
        bag_weight_gradients,
        look_up_bags,
    )
    from sparring.engine.lookup.prefetch import Prefetch
    from sparring.engine.optimizer_state import (
        TableState,
        give_method_states,
        give_states,
        method_state,
    )
    from sparring.engine.resource_manager import ResourceManager
    from sparring.engine.tables.group import (
        StorageLike,
        TableDeclaration,
        TableGroup,
        declared,
        given_storages,
        joined_container,
        non_finite_policy,
        shared_settings,
    )
    from sparring.engine.tables.storage_choice import StorageChoice, storage_device
    from sparring.exchange.link import pass_messages
    from sparring.exchange.messages import MessageSizes
    from sparring.kernels.bloom import BloomFilter, GrowingBloomFilter, growing_filter_bytes
    from sparring.kernels.functions import dedup
    from sparring.plugins.registry import PluginManager, make_plugin_manager
    from sparring.rendezvous.environment import EnvironmentOptions, membership_from
    from sparring.runtime.file_system import open_file_system
    from sparring.runtime.suggestions import suggestion
    from sparring.snapshot.format.manifest import TableDescription
    from sparring.snapshot.reader import Snapshot, open_place, open_snapshot
    from sparring.snapshot.writer import SnapshotWriter
    from sparring.updates.builtin import keras_method
    from sparring.updates.resolve import hyper_from, hypers_by_table, resolve_method, set_rate

__getattr__ = names_from(
    globals(),
    {
        "sparring._native": (
            "KeySet Publication borrow_threads check_offsets gather give_back_threads key_gradients "
            "lookups place_rows pool pool_backward pool_weight_gradient segment_sum"
        ),
        "sparring.adapter.distribution_report": (
            "DistributionReport ModuleReport Outcome check_choices own_methods why_no_weight"
        ),
        "sparring.adapter.model_shapes": "check_factors",
        "sparring.adapter.service_tables": "fill_service service_storage write_rows",
        "sparring.adapter.stand_in": "rounds_alike",
        "sparring.collective.coordinator": "Coordinator",
        "sparring.engine.apply.gather": "TableUpdate",
        "sparring.engine.apply.gradients": "sum_gradients",
        "sparring.contracts.checkpoint": "SaveOptions State",
        "sparring.engine.job.automatic_plan": "PlanLike made_plan plan_of_job workload_of",
        "sparring.engine.container": "StepContainer",
        "sparring.engine.device_gradients": "BagGradients DeviceGradients",
        "sparring.engine.job.bootstrap": "AUTO join_job",
        "sparring.engine.lookup.lookup": "Lookup look_up pulls_on_device reporting",
        "sparring.engine.optimizer_state": "TableState give_method_states give_states method_state",
        "sparring.engine.lookup.pooled": "BagLookup PooledLookup bag_weight_gradients look_up_bags",
        "sparring.engine.lookup.prefetch": "Prefetch",
        "sparring.engine.resource_manager": "ResourceManager",
        "sparring.engine.tables.storage_choice": "StorageChoice storage_device",
        "sparring.engine.tables.group": (
            "StorageLike TableDeclaration TableGroup declared given_storages joined_container "
            "non_finite_policy shared_settings"
        ),
        "sparring.contracts.ranks.exchange_options": "ExchangeOptions",
        "sparring.exchange.link": "pass_messages",
        "sparring.exchange.messages": "MessageSizes",
        "sparring.kernels.bloom": "BloomFilter GrowingBloomFilter growing_filter_bytes",
        "sparring.kernels.functions": "dedup",
        "sparring.plugins.registry": "PluginManager make_plugin_manager",
        "sparring.rendezvous.environment": "EnvironmentOptions membership_from",
        "sparring.runtime.file_system": "open_file_system",
        "sparring.runtime.suggestions": "suggestion",
        "sparring.snapshot.format.manifest": "TableDescription",
        "sparring.snapshot.reader": "Snapshot open_place open_snapshot",
        "sparring.snapshot.writer": "SnapshotWriter",
        "sparring.updates.builtin": "keras_method",
        "sparring.updates.resolve": "hyper_from hypers_by_table resolve_method set_rate",
    },
)

# Packed: one name a line would hide the rest of this file.
# fmt: off
__all__ = [
    "AUTO", "BagGradients", "BagLookup", "BloomFilter", "Coordinator", "DeviceGradients",
    "DistributionReport", "EnvironmentOptions", "ExchangeOptions", "GrowingBloomFilter", "KeySet",
    "Lookup", "MessageSizes", "ModuleReport", "Outcome", "PlanLike", "PluginManager",
    "PooledLookup", "Prefetch", "Publication", "ResourceManager", "SaveOptions", "Snapshot",
    "SnapshotWriter", "State", "StepContainer", "StorageChoice", "StorageLike", "TableDeclaration",
    "TableDescription", "TableGroup", "TableState", "TableUpdate", "bag_weight_gradients",
    "borrow_threads", "check_choices", "check_factors", "check_offsets", "declared", "dedup",
    "fill_service", "gather", "give_back_threads", "give_method_states", "give_states",
    "given_storages", "growing_filter_bytes", "hyper_from", "hypers_by_table", "join_job",
    "joined_container", "keras_method", "key_gradients", "look_up", "look_up_bags", "lookups",
    "made_plan", "make_plugin_manager", "membership_from", "method_state", "non_finite_policy",
    "open_file_system", "open_place", "open_snapshot", "own_methods", "pass_messages",
    "place_rows", "plan_of_job", "pool", "pool_backward", "pool_weight_gradient",
    "pulls_on_device", "reporting", "resolve_method", "rounds_alike", "segment_sum",
    "service_storage", "set_rate", "shared_settings", "storage_device", "suggestion",
    "sum_gradients", "why_no_weight", "workload_of", "write_rows"
]
# fmt: on
