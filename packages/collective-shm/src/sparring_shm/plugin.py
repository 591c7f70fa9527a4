"""The sparring plugin of this package. Importing it loads no native code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparring.contracts import CollectiveDescriptor, hookimpl
from sparring_shm.options import ShmOptions

if TYPE_CHECKING:
    from sparring.contracts import Collective, Membership


@hookimpl
def sparring_register_collective() -> Sequence[CollectiveDescriptor]:
    return [
        CollectiveDescriptor(
            name="shm",
            api_version=(1, 0),
            summary="Shared memory between the ranks of one host, another collective between hosts.",
            options=ShmOptions,
            factory=_join,
            local_factory=_extend,
            unavailable=_reason,
        )
    ]


def _join(membership: Membership, options: ShmOptions, deadline_seconds: float) -> Collective:
    from sparring_shm.meeting import join_shm

    return join_shm(membership, options, deadline_seconds)


def _extend(collective: Collective) -> Collective:
    from sparring_shm.meeting import connect_local_ranks

    return connect_local_ranks(collective)


def _reason() -> str | None:
    if sys.platform != "linux":
        return f"it requires Linux, found {sys.platform}; choose the collective 'torch' or 'mpi'"
    return None
