"""The sparring plugin of this package. Importing it opens no socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring.contracts import CollectiveDescriptor, hookimpl
from sparring_tcp import TcpOptions

if TYPE_CHECKING:
    # Not imported at run time, because that would load native code in every program that lists plugins.
    from sparring.contracts import Collective, Membership


def _join(membership: Membership, options: TcpOptions, deadline_seconds: float) -> Collective:
    from sparring_tcp.backend import TcpCollective
    from sparring_tcp.meeting import connect

    sockets = connect(membership.rank, membership.world_size, options)
    return TcpCollective(membership.rank, sockets, deadline_seconds=deadline_seconds)


@hookimpl
def sparring_register_collective() -> list[CollectiveDescriptor]:
    return [
        CollectiveDescriptor(
            name="tcp",
            api_version=(1, 0),  # version of the collective contract, not of a package
            summary="Plain TCP connections between all ranks, which find each other in a folder.",
            options=TcpOptions,
            factory=_join,
        )
    ]
