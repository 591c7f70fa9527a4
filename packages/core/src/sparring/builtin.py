"""Core's own parts, registered through the same hooks as those of plugins.

Everything is imported when it is asked for, not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparring.descriptors import (
    API_VERSION,
    CollectiveDescriptor,
    CommandDescriptor,
    KernelsDescriptor,
    RendezvousDescriptor,
    StorageDescriptor,
    UpdateMethodDescriptor,
)
from sparring.errors import InvalidArgumentError
from sparring.hookspecs import hookimpl

if TYPE_CHECKING:
    import typer

    from sparring.collective import Collective
    from sparring.kernel_set import ArraySource, KernelSet
    from sparring.plugins import PluginManager
    from sparring.rendezvous import Membership, Rendezvous, Shard
    from sparring.storage import Storage
    from sparring.table import TableConfig


@hookimpl
def sparring_register_storage() -> Sequence[StorageDescriptor]:
    from sparring.storage.memory import MemoryOptions
    from sparring.storage.tiered.options import TieredOptions, inner_storages, tier_problems

    return [
        StorageDescriptor(
            name="memory",
            api_version=API_VERSION,
            summary="Rows in plain Python and NumPy: slow, and obviously correct.",
            options=MemoryOptions,
            factory=_open_memory,
        ),
        StorageDescriptor(
            name="tiered",
            api_version=API_VERSION,
            summary="A stack of storages: hot rows in the first, all others further down.",
            options=TieredOptions,
            factory=_open_tiered,
            inner=inner_storages,
            check=tier_problems,
        ),
    ]


@hookimpl
def sparring_register_collective() -> Sequence[CollectiveDescriptor]:
    from sparring.collective.mpi import MpiOptions, join_mpi, why_mpi_is_unavailable
    from sparring.collective.nccl import NcclOptions, join_nccl
    from sparring.collective.nccl_library import why_nccl_is_unavailable

    return [
        CollectiveDescriptor(
            name="local",
            api_version=API_VERSION,
            summary="A world of one rank; more are threads of one process, joined by hand.",
            factory=_join_local,
        ),
        CollectiveDescriptor(
            name="mpi",
            api_version=API_VERSION,
            summary="Processes that mpiexec started, by mpi4py.",
            options=MpiOptions,
            unavailable=why_mpi_is_unavailable,
            factory=join_mpi,
        ),
        CollectiveDescriptor(
            name="nccl",
            api_version=API_VERSION,
            summary="GPU memory by NCCL, host memory by another collective. Not run on a GPU yet.",
            options=NcclOptions,
            unavailable=why_nccl_is_unavailable,
            factory=join_nccl,
        ),
    ]


@hookimpl
def sparring_register_rendezvous() -> Sequence[RendezvousDescriptor]:
    from sparring.rendezvous.environment import EnvironmentOptions, EnvironmentRendezvous

    return [
        RendezvousDescriptor(
            name="single",
            api_version=API_VERSION,
            summary="A world of one rank.",
            factory=_open_single,
        ),
        RendezvousDescriptor(
            name="environment",
            api_version=API_VERSION,
            summary="The variables that torchrun and mpiexec give to each rank.",
            options=EnvironmentOptions,
            factory=EnvironmentRendezvous,
        ),
    ]


@hookimpl
def sparring_register_kernels() -> Sequence[KernelsDescriptor]:
    return [
        KernelsDescriptor(
            name="cpu",
            api_version=API_VERSION,
            summary="Key operations in C++ with AVX-512, AVX2 or portable code.",
            device="cpu",
            factory=_open_cpu_kernels,
        )
    ]


@hookimpl
def sparring_register_update_methods() -> Sequence[UpdateMethodDescriptor]:
    from sparring.updates import BUILTIN_METHODS

    return [
        UpdateMethodDescriptor(
            name=name,
            api_version=API_VERSION,
            summary=method.summary,
            options=method.hyperparameters,
            factory=method,
        )
        for name, method in BUILTIN_METHODS.items()
    ]


@hookimpl
def sparring_register_commands() -> Sequence[CommandDescriptor]:
    return [
        CommandDescriptor(
            name="train",
            api_version=API_VERSION,
            summary="Train and evaluate what a configuration describes.",
            register=_add_train,
        ),
        CommandDescriptor(
            name="config",
            api_version=API_VERSION,
            summary="Show or check a configuration.",
            register=_add_config,
        ),
        CommandDescriptor(
            name="plugins",
            api_version=API_VERSION,
            summary="List what plugins offer and which were refused.",
            register=_add_plugins,
        ),
        CommandDescriptor(
            name="convert",
            api_version=API_VERSION,
            summary="Give a table's rows the state of another update method.",
            register=_add_convert,
        ),
        CommandDescriptor(
            name="simulate",
            api_version=API_VERSION,
            summary="Simulate the exchange of a step on many ranks.",
            register=_add_simulate,
        ),
        CommandDescriptor(
            name="snapshots",
            api_version=API_VERSION,
            summary="List the snapshots in a folder.",
            register=_add_snapshots,
        ),
        CommandDescriptor(
            name="inspect",
            api_version=API_VERSION,
            summary="Show and verify a snapshot.",
            register=_add_inspect,
        ),
        CommandDescriptor(
            name="export",
            api_version=API_VERSION,
            summary="Write the tables of a snapshot as Parquet files.",
            register=_add_export,
        ),
        CommandDescriptor(
            name="compact",
            api_version=API_VERSION,
            summary="Make one full snapshot of a chain of deltas.",
            register=_add_compact,
        ),
        CommandDescriptor(
            name="doctor",
            api_version=API_VERSION,
            summary="Report on this installation and this machine.",
            register=_add_doctor,
        ),
    ]


def _open_memory(table: TableConfig, options: Any) -> Storage:
    from sparring.storage.memory import MemoryStorage

    return MemoryStorage(table, options)


def _open_tiered(
    table: TableConfig, options: Any, manager: PluginManager, shard: Shard | None
) -> Storage:
    from sparring.storage.tiered.opening import open_tiers

    return open_tiers(table, options, manager, shard)


def _join_local(membership: Membership, _options: Any, deadline_seconds: float) -> Collective:
    from sparring.collective import LocalGroup

    if membership.world_size != 1:
        raise InvalidArgumentError(
            f"collective 'local' joins one process to nobody, but the rendezvous found "
            f"{membership.world_size} ranks; choose a collective that connects processes",
            world_size=membership.world_size,
        )
    return LocalGroup(1, deadline_seconds=deadline_seconds).join(0)


def _open_single(_options: Any) -> Rendezvous:
    from sparring.rendezvous import SingleRendezvous

    return SingleRendezvous()


def _open_cpu_kernels(arrays: ArraySource) -> KernelSet:
    from sparring.cpu_kernels import CpuKernels

    return CpuKernels(arrays)


def _add_train(app: typer.Typer) -> None:
    from sparring.cli.train import add_train

    add_train(app)


def _add_config(app: typer.Typer) -> None:
    from sparring.cli.config import add_config

    add_config(app)


def _add_plugins(app: typer.Typer) -> None:
    from sparring.cli.plugins import add_plugins

    add_plugins(app)


def _add_convert(app: typer.Typer) -> None:
    from sparring.cli.convert import add_convert

    add_convert(app)


def _add_simulate(app: typer.Typer) -> None:
    from sparring.cli.simulate import add_simulate

    add_simulate(app)


def _add_doctor(app: typer.Typer) -> None:
    from sparring.cli.doctor import add_doctor

    add_doctor(app)


def _add_snapshots(app: typer.Typer) -> None:
    from sparring.cli.snapshots import add_snapshots

    add_snapshots(app)


def _add_inspect(app: typer.Typer) -> None:
    from sparring.cli.snapshots import add_inspect

    add_inspect(app)


def _add_export(app: typer.Typer) -> None:
    from sparring.cli.snapshots import add_export

    add_export(app)


def _add_compact(app: typer.Typer) -> None:
    from sparring.cli.snapshots import add_compact

    add_compact(app)
