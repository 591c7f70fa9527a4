"""Descriptors of the parts that plugins register: one descriptor per part.

`api_version` is the version ``(major, minor)`` of the contract for which the plugin was written. It is
not a package version; see ``docs/reference/versions.md``. Core rejects a different major version, and
a larger minor version than its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparring.contracts.options import NoOptions, Options

if TYPE_CHECKING:
    from sparring.contracts.device.kernel_set import KernelSet
    from sparring.contracts.device.kernels import ArraySource
    from sparring.contracts.planner import PlanRequest, PlanResult
    from sparring.contracts.ranks.collective import BufferView, Collective
    from sparring.contracts.ranks.layout import Layout, LayoutRequest, ShardingPlan
    from sparring.contracts.ranks.rendezvous import Membership, Rendezvous
    from sparring.contracts.ranks.shard_map import Shard
    from sparring.contracts.storage.change_log import ChangeLog
    from sparring.contracts.storage.storage import Storage
    from sparring.contracts.storage.updates import UpdateMethod
    from sparring.contracts.tables.table import TableConfig

__all__ = [
    "API_VERSION",
    "CollectiveDescriptor",
    "CommandDescriptor",
    "Descriptor",
    "FrameworkDescriptor",
    "InnerStorage",
    "KernelsDescriptor",
    "OptionProblem",
    "PlannerDescriptor",
    "RendezvousDescriptor",
    "ShardingKindDescriptor",
    "StorageDescriptor",
    "UpdateMethodDescriptor",
]

API_VERSION: tuple[int, int] = (1, 0)
"""Version of the plugin contracts in this core."""


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """Base class of all descriptors.

    Args:
        name: name in configurations; letters, digits, ``_`` and ``-``.
        api_version: version of the contract for which the plugin was written.
        summary: one sentence for ``sparring plugins``.
        options: pydantic model of the options.
        unavailable: returns the reason why this part cannot run here, such as a missing driver or
            library, or None if it can. Called on demand; it may import the client library.
    """

    name: str
    api_version: tuple[int, int]
    summary: str = ""
    options: type[Options] = NoOptions
    unavailable: Callable[[], str | None] | None = None


@dataclass(frozen=True, slots=True)
class InnerStorage:
    """A storage that is configured in the options of another storage."""

    path: tuple[str | int, ...]
    """Path of the mapping with ``backend`` and ``options`` in the options of the outer storage."""
    backend: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OptionProblem:
    """A problem of options that their model does not detect."""

    path: tuple[str | int, ...]
    """Path of the option."""
    message: str
    """The value found, the value expected and the fix."""


@dataclass(frozen=True, kw_only=True)
class StorageDescriptor(Descriptor):
    """A storage backend. All functions except `factory` are optional.

    Args:
        factory: ``factory(table, options)`` opens one shard of one table.
        shard_factory: ``shard_factory(table, options, shard)``, for backends in which the storages of
            several ranks may share one location, such as a server or a folder. It is called instead of
            `factory` if there is more than one rank, and opens the partitions of this rank. Without it,
            ranks share nothing, and `factory` opens the storage of every rank.
        found: ``found(table, options)``, for backends whose rows outlive the process. It returns
            the table of the rows that exist at the location in the options, or None if there are no
            rows. `TableConfig.with_row_label` derives this table from the stored row label. The
            function creates no storage. It allows reading rows before an optimizer is known, for
            example in an evaluation; without it, rows are read from the first step on.
        inner: ``inner(options)``, for storages that consist of other storages: returns the inner
            storages. `factory` is then called as ``factory(table, options, plugin_manager,
            shard)``; the shard is None if there is one rank. Core also checks the backends and
            options of the inner storages.
        check: ``check(options, plugin_manager)``, for storages with `inner`: returns the problems that
            the options model does not detect.
        estimate_bytes: ``estimate_bytes(table, options, rows)`` returns the memory of a storage
            with this number of rows, without opening one. The result maps kinds of memory (``gpu``,
            ``host``, ``disk``, ``remote``) to bytes. The sum without ``disk`` matches
            `Storage.memory_bytes` within 10 %, including index and free space; for caches it is
            their limit. For storages with `inner`, it is called with the plugin manager as fourth
            argument, and raises `PluginError` if an inner storage has no estimate. Planners call
            it.
        quantized: ``quantized(snapshot_url, folder, dtypes)``, for read-only backends with quantized
            rows: converts a snapshot to data in a new folder that `factory` can open, and returns the
            options for it. `dtypes` maps tables to ``fp32``, ``fp16``, ``bf16``, ``int8`` or ``int4``.
        change_log: ``change_log(table_name, options)``, for backends that store the changelog of a
            table with its rows. Processes with caches in front of the backend read the changelog
            from there. Without it, a folder contains the changelog.
    """

    factory: Callable[..., Storage]
    shard_factory: Callable[[TableConfig, Any, Shard], Storage] | None = None
    found: Callable[[TableConfig, Any], TableConfig | None] | None = None
    inner: Callable[[Any], Sequence[InnerStorage]] | None = None
    check: Callable[[Any, Any], Sequence[OptionProblem]] | None = None
    estimate_bytes: Callable[..., Mapping[str, int]] | None = None
    quantized: Callable[[str, str, Mapping[str, str]], Mapping[str, Any]] | None = None
    change_log: Callable[[str, Any], ChangeLog] | None = None


@dataclass(frozen=True, kw_only=True)
class CollectiveDescriptor(Descriptor):
    """A collective backend.

    Args:
        factory: ``factory(membership, options, deadline_seconds)`` joins the group of all ranks.
        device_factory: ``device_factory(host, membership, view)``, for backends that only send device
            memory. It returns a collective that passes all other buffers to the collective `host`, and
            closes it. All ranks call it. `view` is a function of the caller for arrays of its
            framework: from a buffer and the argument `stream` of `send` or `receive`, it returns a
            buffer with ``__cuda_array_interface__`` or ``__dlpack__``, and the stream that writes it.
            If `view` is None, buffers are used unchanged. Framework adapters call the function through
            `PluginManager.collective`.
        local_factory: ``local_factory(collective)``, for backends that connect the ranks of one host.
            It returns a collective that passes messages between hosts to `collective`, and closes it.
            All ranks call it if the backend is ``auto`` and is available on all ranks.
    """

    factory: Callable[[Membership, Any, float], Collective]
    local_factory: Callable[[Collective], Collective] | None = None
    device_factory: Callable[[Collective, Membership, BufferView | None], Collective] | None = None


@dataclass(frozen=True, kw_only=True)
class RendezvousDescriptor(Descriptor):
    """A rendezvous backend.

    Args:
        factory: ``factory(options)`` connects to the environment.
    """

    factory: Callable[[Any], Rendezvous]


@dataclass(frozen=True, kw_only=True)
class KernelsDescriptor(Descriptor):
    """The kernel set of one device type.

    Args:
        device: the device type, ``cpu`` or ``cuda``.
        factory: ``factory(arrays)`` opens the kernel set of one device. `arrays` specifies the device,
            creates the result arrays and returns the current stream.
        num_devices: returns the number of devices of this type that are visible to this process; 0 if
            none can be used. None: unknown.
    """

    device: str
    factory: Callable[[ArraySource], KernelSet]
    num_devices: Callable[[], int] | None = None


@dataclass(frozen=True, kw_only=True)
class UpdateMethodDescriptor(Descriptor):
    """An update method. `options` is the model of its hyper-parameters.

    Args:
        factory: ``factory()`` creates the method.
    """

    factory: Callable[[], UpdateMethod]


@dataclass(frozen=True, kw_only=True)
class ShardingKindDescriptor(Descriptor):
    """A sharding kind.

    Args:
        factory: ``factory(request)`` returns the layout of one table. The result must only depend on
            the request, so that it is the same on all ranks.
        needs_nodes: whether the layout depends on which ranks share a node if a plan names no ranks.
            Core then rejects the kind if nodes have different numbers of ranks, or ranks that are not
            consecutive.
    """

    factory: Callable[[LayoutRequest], Layout]
    needs_nodes: bool = False


@dataclass(frozen=True, kw_only=True)
class PlannerDescriptor(Descriptor):
    """A planner. ``plan="auto"`` calls the planner named ``auto``.

    Args:
        factory: ``factory(request)`` creates a plan. Rank 0 calls it, and all ranks use the result.
        read: ``read(path, request)`` reads a plan file. If the plan does not match the tables and ranks
            of the request, it raises an error with file and line. None: the planner does not support
            files.
    """

    factory: Callable[[PlanRequest], PlanResult]
    read: Callable[[str, PlanRequest], ShardingPlan] | None = None


@dataclass(frozen=True, kw_only=True)
class FrameworkDescriptor(Descriptor):
    """A framework adapter.

    Args:
        module: package of the adapter, which imports the framework, such as ``sparring_torch``.
    """

    module: str


@dataclass(frozen=True, kw_only=True)
class CommandDescriptor(Descriptor):
    """A subcommand of ``sparring``.

    Args:
        register: ``register(app)`` adds the command `name`, or a group of commands with this name, to
            the `typer.Typer` application. ``typer.Context.obj`` of a command is the
            `sparring_cli.context.CommandContext` of the call.
        group: group of the command in ``sparring --help``, such as ``Train`` or ``Serve``; commands
            without a group are last.
    """

    register: Callable[[Any], None]
    group: str = ""
