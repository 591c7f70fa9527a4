"""The sparring plugin of this package. Importing it opens neither NCCL nor the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparring.contracts import CollectiveDescriptor, hookimpl
from sparring_nccl.options import NcclOptions

if TYPE_CHECKING:
    from sparring.contracts import BufferView, Collective, Membership


@hookimpl
def sparring_register_collective() -> Sequence[CollectiveDescriptor]:
    return [
        CollectiveDescriptor(
            name="nccl",
            api_version=(1, 0),
            summary="GPU memory over NCCL, host memory over another collective. Not run on a GPU yet.",
            options=NcclOptions,
            factory=_join,
            device_factory=_extend,
            unavailable=_reason,
        )
    ]


def _join(membership: Membership, options: NcclOptions, deadline_seconds: float) -> Collective:
    from sparring_nccl.collective import join_nccl

    return join_nccl(membership, options, deadline_seconds)


def _extend(host: Collective, membership: Membership, view: BufferView | None) -> Collective:
    from sparring_nccl.collective import extend_to_gpus

    return extend_to_gpus(host, membership, view)


def _reason() -> str | None:
    from sparring_nccl.libraries import why_nccl_is_unavailable

    return why_nccl_is_unavailable()
