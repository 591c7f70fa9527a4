"""The collective of core: ``local``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparring.contracts.descriptors import API_VERSION, CollectiveDescriptor
from sparring.contracts.hookspecs import hookimpl
from sparring.errors import InvalidArgumentError

if TYPE_CHECKING:
    from sparring.contracts.ranks.collective import Collective
    from sparring.contracts.ranks.rendezvous import Membership


@hookimpl
def sparring_register_collective() -> Sequence[CollectiveDescriptor]:
    return [
        CollectiveDescriptor(
            name="local",
            api_version=API_VERSION,
            summary="A single rank, or threads of one process that join a LocalGroup.",
            factory=_join_local,
        ),
    ]


def _join_local(membership: Membership, _options: Any, deadline_seconds: float) -> Collective:
    from sparring.collective.local import LocalGroup

    if membership.world_size != 1:
        raise InvalidArgumentError(
            f"collective 'local' does not connect processes, but the rendezvous found "
            f"{membership.world_size} ranks; choose a collective that connects processes, such as "
            "'torch' or 'mpi'",
            world_size=membership.world_size,
        )
    return LocalGroup(1, deadline_seconds=deadline_seconds).join(0)
