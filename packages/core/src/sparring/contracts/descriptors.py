"""Descriptors that a plugin hands to core: one for each thing that it offers.

`api_version` is the version of the contract that the plugin was written against, a pair of
``(major, minor)``. It is not the version of any package: see ``docs/reference/versions.md``.
Core refuses another major version, and a larger minor version than its own.
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
"""The version of the plugin contracts that this core speaks."""


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """Base of all descriptors.

    Args:
        name: what users write in configs; letters, digits, ``_`` and ``-``.
        api_version: the contract version that the plugin was written against.
        summary: one sentence for ``sparring plugins``.
        options: the pydantic model of the options that users may give.
        unavailable: returns why this part cannot run here (no driver, no library), or None.
            Called on demand; it may import the client library.
    """

    name: str
    api_version: tuple[int, int]
    summary: str = ""
    options: type[Options] = NoOptions
    unavailable: Callable[[], str | None] | None = None


@dataclass(frozen=True, slots=True)
class InnerStorage:
    """A storage that the options of another one name."""

    path: tuple[str | int, ...]
    """Where in the options: below it are ``backend`` and ``options``."""
    backend: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OptionProblem:
    """A problem of options that their model does not detect."""

    path: tuple[str | int, ...]
    """Where in the options."""
    message: str
    """Value that was found, and what to do."""


@dataclass(frozen=True, kw_only=True)
class StorageDescriptor(Descriptor):
    """A storage backend. `factory(table, options)` opens one shard of one table.

    `shard_factory(table, options, shard)` is for backends whose storages of several ranks may lie
    in one place, as on a server or in a folder: it is called in a world of more than one rank, and
    opens the part that the rank keeps. Left out, ranks share nothing and `factory` opens any part.

    A storage that is made of others says which its options name, by `inner`; its factory is then
    `factory(table, options, plugin_manager, shard)`, to open them with; the shard is None in a
    world of one. Backends and options of inner storages are checked with those of the outer one;
    `check(options, plugin_manager)` finds what else is wrong.

    `found(table, options)` is for backends whose rows outlive the process: it tells of which table
    the rows are that lie where the options say, as `TableConfig.labelled` makes it of the row label
    that was recorded; None where there are none. It makes nothing. By it rows are read before
    an optimizer is known, as for an evaluation; left out, they are read from the first step on.

    `estimate_bytes(table, options, rows)` says what a storage of so many rows takes, before there is
    one: kind of memory (``gpu``, ``host``, ``disk``, ``remote``) → bytes. All kinds but ``disk``
    together are `Storage.memory_bytes` to a tenth, index and free space included; of caches it is
    their limit. It opens nothing. Of a storage that is made of others it takes the plugin manager as
    a fourth argument, and raises `PluginError` where one of them gives no estimate. Planners use it.

    `quantized(snapshot_url, folder, dtypes)` is for backends that keep rows in fewer bits, read only: it
    makes what the factory opens of a snapshot, in a new folder, and returns the options for it.
    `dtypes`: table → ``fp32``, ``fp16``, ``bf16``, ``int8`` or ``int4``.

    `change_log(table name, options)` is for backends that keep the change notes of a table with its rows,
    where processes with caches before them find them; left out, a folder keeps them.
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

    `factory(membership, options, deadline_seconds)` joins the group of all ranks.

    `device_factory(host, membership, view)` is for backends that send only what is in the memory of a
    device. It returns a collective that does so and leaves everything else to `host`, which it closes.
    All ranks call it. `view` is the caller's function for the arrays of its framework: it takes a buffer
    and the argument `stream` of `send` or `receive`, and returns what they should be for the backend: a
    buffer with ``__cuda_array_interface__`` or ``__dlpack__``, and the stream that writes it. None:
    buffers are used as they are. Framework adapters call it by `PluginManager.collective`.
    """

    factory: Callable[[Membership, Any, float], Collective]
    device_factory: Callable[[Collective, Membership, BufferView | None], Collective] | None = None


@dataclass(frozen=True, kw_only=True)
class RendezvousDescriptor(Descriptor):
    """A rendezvous backend. `factory(options)` reads the environment it stands for."""

    factory: Callable[[Any], Rendezvous]


@dataclass(frozen=True, kw_only=True)
class KernelsDescriptor(Descriptor):
    """The key operations of one device type.

    `factory(arrays)` opens the set for one device of it: `arrays` says which, how results are made
    and which stream work goes to. `num_devices()` says how many of them this process sees, 0 where
    none can be used; None: unknown.
    """

    device: str
    factory: Callable[[ArraySource], KernelSet]
    num_devices: Callable[[], int] | None = None


@dataclass(frozen=True, kw_only=True)
class UpdateMethodDescriptor(Descriptor):
    """An update method. `options` are its hyper-parameters; `factory()` makes it."""

    factory: Callable[[], UpdateMethod]


@dataclass(frozen=True, kw_only=True)
class ShardingKindDescriptor(Descriptor):
    """A sharding kind.

    `factory(request)` returns the layout of one table: the same on all ranks, from the request alone.

    `needs_nodes`: where a plan names no ranks, the layout follows from which ranks share a node. It is
    then refused where nodes differ in their number of ranks, or have ranks that do not follow each other.
    """

    factory: Callable[[LayoutRequest], Layout]
    needs_nodes: bool = False


@dataclass(frozen=True, kw_only=True)
class PlannerDescriptor(Descriptor):
    """A planner. ``plan="auto"`` asks the one of the name ``auto``.

    `factory(request)` makes a plan; rank 0 calls it, and all ranks get what it returns.

    `read(path, request)` reads the file of a plan, and refuses with file and line what does not fit the
    tables and ranks of the request. None: this planner has no files.
    """

    factory: Callable[[PlanRequest], PlanResult]
    read: Callable[[str, PlanRequest], ShardingPlan] | None = None


@dataclass(frozen=True, kw_only=True)
class FrameworkDescriptor(Descriptor):
    """A framework adapter.

    Args:
        module: the adapter's package, which imports the framework: ``sparring_torch``.
    """

    module: str


@dataclass(frozen=True, kw_only=True)
class CommandDescriptor(Descriptor):
    """A subcommand of ``sparring``.

    `register(app)` adds the command `name`, or a group of commands of that name, to the `typer.Typer`
    application. A command finds the `sparring_cli.context.CommandContext` of this call in
    ``typer.Context.obj``.
    """

    register: Callable[[Any], None]
