"""The collectives of core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparring.contracts.descriptors import API_VERSION, CollectiveDescriptor
from sparring.contracts.hookspecs import hookimpl
from sparring.errors import InvalidArgumentError

if TYPE_CHECKING:
    from sparring.contracts.collective import Collective
    from sparring.contracts.rendezvous import Membership


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


def _join_local(membership: Membership, _options: Any, deadline_seconds: float) -> Collective:
    from sparring.collective.local import LocalGroup

    if membership.world_size != 1:
        raise InvalidArgumentError(
            f"collective 'local' joins one process to no other, but the rendezvous found "
            f"{membership.world_size} ranks; choose a collective that connects processes",
            world_size=membership.world_size,
        )
    return LocalGroup(1, deadline_seconds=deadline_seconds).join(0)
