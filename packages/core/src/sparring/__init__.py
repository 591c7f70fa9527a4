"""sparring: distributed, dynamic embedding tables for recommender systems.

Each name is imported from its home when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring._lazy import names_from
from sparring._loader import load_native

if TYPE_CHECKING:
    from sparring._loader import native_failure
    from sparring._version import __version__
    from sparring.collective.coordinator import Coordinator
    from sparring.collective.local import LocalGroup
    from sparring.contracts.checkpoint import (
        EMBEDDING_PARTS,
        Loaded,
        Retention,
        Saved,
        SaveOptions,
        State,
    )
    from sparring.contracts.ranks.exchange_options import ExchangeOptions, WireDtype
    from sparring.contracts.storage.capabilities import Capabilities
    from sparring.contracts.storage.results import Columns, Evicted, FindResult, ScanChunk
    from sparring.contracts.storage.storage import Storage, interrupted_load, read_note, write_note
    from sparring.contracts.storage.tiers import TierCounters
    from sparring.contracts.tables.initializers import (
        Constant,
        Initializer,
        Normal,
        TruncatedNormal,
        Uniform,
        Xavier,
        Zeros,
    )
    from sparring.contracts.tables.table import TableConfig
    from sparring.engine.checkpoint.container_state import state_without_keys
    from sparring.engine.container import StepContainer
    from sparring.engine.job.automatic_plan import automatic_plan, workload_of
    from sparring.engine.job.bootstrap import AUTO, join_job, resolved_backends
    from sparring.engine.resource_manager import ResourceManager
    from sparring.engine.step import Step
    from sparring.engine.tables.entry import TableEntry
    from sparring.engine.tables.storage_choice import StorageChoice
    from sparring.errors import SparringError
    from sparring.kernels.bloom import BloomFilter
    from sparring.kernels.functions import (
        dedup,
        initial_rows,
        initializer_spec,
        partition,
        rounding_seed,
        simd_level,
    )
    from sparring.kernels.strings import hash_strings
    from sparring.plugins.option_checks import checked_options
    from sparring.plugins.registry import PluginManager, make_plugin_manager
    from sparring.rendezvous.environment import (
        ApartRendezvous,
        EnvironmentOptions,
        EnvironmentRendezvous,
        SingleRendezvous,
        membership_from,
    )
    from sparring.runtime.events import EventLoop
    from sparring.runtime.lifecycle import Closable
    from sparring.runtime.pool import Task, configure_pool, num_threads
    from sparring.runtime.streams import Streams
    from sparring.runtime.suggestions import closest_name, suggestion
    from sparring.runtime.trace import Trace
    from sparring.sharding.layouts import Layouts
    from sparring.snapshot.chain import count_rows, merged_chunks, own_chunks
    from sparring.snapshot.erase import erase_from_snapshots
    from sparring.snapshot.format.manifest import TableDescription
    from sparring.snapshot.place.place import reading
    from sparring.snapshot.reader import Snapshot, locate, open_place, open_snapshot
    from sparring.snapshot.retention import (
        compact,
        latest_snapshot,
        list_snapshots,
        retain,
        unreadable_snapshots,
    )
    from sparring.snapshot.writer import SnapshotWriter
    from sparring.storage.convert import conversion_command, copy_embeddings
    from sparring.storage.load import begin_load, end_load, restore
    from sparring.storage.memory import MemoryStorage
    from sparring.storage.native import NativeStorage, capsule_of
    from sparring.storage.open import found_table, open_storage
    from sparring.storage.update import update_rows
    from sparring.updates.builtin import BUILTIN_METHODS, NativeMethod
    from sparring.updates.resolve import hyper_from, resolve_method

_name = names_from(
    globals(),
    {
        "sparring._loader": "native_failure",
        "sparring._version": "__version__",
        "sparring.collective.coordinator": "Coordinator",
        "sparring.collective.local": "LocalGroup",
        "sparring.contracts.storage.capabilities": "Capabilities",
        "sparring.contracts.checkpoint": "EMBEDDING_PARTS Loaded Retention SaveOptions Saved State",
        "sparring.contracts.tables.initializers": (
            "Constant Initializer Normal TruncatedNormal Uniform Xavier Zeros"
        ),
        "sparring.contracts.storage.results": "Columns Evicted FindResult ScanChunk",
        "sparring.contracts.storage.storage": "Storage interrupted_load read_note write_note",
        "sparring.contracts.tables.table": "TableConfig",
        "sparring.engine.job.automatic_plan": "automatic_plan workload_of",
        "sparring.engine.checkpoint.container_state": "state_without_keys",
        "sparring.engine.container": "StepContainer",
        "sparring.engine.job.bootstrap": "AUTO join_job resolved_backends",
        "sparring.engine.resource_manager": "ResourceManager",
        "sparring.engine.step": "Step",
        "sparring.engine.tables.storage_choice": "StorageChoice",
        "sparring.engine.tables.entry": "TableEntry",
        "sparring.errors": "SparringError",
        "sparring.contracts.ranks.exchange_options": "ExchangeOptions WireDtype",
        "sparring.kernels.bloom": "BloomFilter",
        "sparring.kernels.functions": (
            "dedup initial_rows initializer_spec partition rounding_seed simd_level"
        ),
        "sparring.kernels.strings": "hash_strings",
        "sparring.plugins.option_checks": "checked_options",
        "sparring.plugins.registry": "PluginManager make_plugin_manager",
        "sparring.rendezvous.environment": (
            "ApartRendezvous EnvironmentOptions EnvironmentRendezvous membership_from "
            "SingleRendezvous"
        ),
        "sparring.runtime.events": "EventLoop",
        "sparring.runtime.lifecycle": "Closable",
        "sparring.runtime.pool": "Task configure_pool num_threads",
        "sparring.runtime.streams": "Streams",
        "sparring.runtime.suggestions": "closest_name suggestion",
        "sparring.runtime.trace": "Trace",
        "sparring.sharding.layouts": "Layouts",
        "sparring.snapshot.chain": "count_rows merged_chunks own_chunks",
        "sparring.snapshot.erase": "erase_from_snapshots",
        "sparring.snapshot.format.manifest": "TableDescription",
        "sparring.snapshot.place.place": "reading",
        "sparring.snapshot.reader": "Snapshot locate open_place open_snapshot",
        "sparring.snapshot.retention": (
            "compact latest_snapshot list_snapshots retain unreadable_snapshots"
        ),
        "sparring.snapshot.writer": "SnapshotWriter",
        "sparring.storage.convert": "conversion_command copy_embeddings",
        "sparring.storage.load": "begin_load end_load restore",
        "sparring.storage.memory": "MemoryStorage",
        "sparring.storage.native": "NativeStorage capsule_of",
        "sparring.storage.open": "found_table open_storage",
        "sparring.contracts.storage.tiers": "TierCounters",
        "sparring.storage.update": "update_rows",
        "sparring.updates.builtin": "BUILTIN_METHODS NativeMethod",
        "sparring.updates.resolve": "hyper_from resolve_method",
    },
)


def __getattr__(name: str) -> object:
    # The only way to the native library: what is wrong with it is said here.
    return load_native() if name == "_native" else _name(name)


# Packed: one name a line would hide the rest of this file.
# fmt: off
__all__ = [
    "AUTO", "ApartRendezvous", "BUILTIN_METHODS", "BloomFilter", "Capabilities", "Closable",
    "Columns", "Constant", "Coordinator", "EMBEDDING_PARTS", "EnvironmentOptions",
    "EnvironmentRendezvous", "EventLoop", "Evicted", "ExchangeOptions", "FindResult",
    "Initializer", "Layouts", "Loaded", "LocalGroup", "MemoryStorage", "NativeMethod",
    "NativeStorage", "Normal", "PluginManager", "ResourceManager", "Retention", "SaveOptions",
    "Saved", "ScanChunk", "SingleRendezvous", "Snapshot", "SnapshotWriter", "SparringError",
    "State", "Step", "StepContainer", "Storage", "StorageChoice", "Streams", "TableConfig",
    "TableDescription", "TableEntry", "Task", "TierCounters", "Trace", "TruncatedNormal",
    "Uniform", "WireDtype", "Xavier", "Zeros", "__version__", "automatic_plan", "begin_load",
    "capsule_of", "checked_options", "closest_name", "compact", "configure_pool",
    "conversion_command", "copy_embeddings", "count_rows", "dedup", "end_load",
    "erase_from_snapshots", "found_table", "hash_strings", "hyper_from", "initial_rows",
    "initializer_spec", "interrupted_load", "join_job", "latest_snapshot", "list_snapshots",
    "locate", "make_plugin_manager", "membership_from", "merged_chunks", "native_failure",
    "num_threads", "open_place", "open_snapshot", "open_storage", "own_chunks", "partition",
    "read_note", "reading", "resolve_method", "resolved_backends", "restore", "retain",
    "rounding_seed", "simd_level", "state_without_keys", "suggestion", "unreadable_snapshots",
    "update_rows", "workload_of", "write_note"
]
# fmt: on
