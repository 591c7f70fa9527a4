"""Plugin of sparring-torch; imports no torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparring.contracts import (
    API_VERSION,
    CollectiveDescriptor,
    FrameworkDescriptor,
    RendezvousDescriptor,
    hookimpl,
)

if TYPE_CHECKING:
    from sparring.contracts import Collective, Membership, Rendezvous


@hookimpl
def sparring_register_framework() -> Sequence[FrameworkDescriptor]:
    return [
        FrameworkDescriptor(
            name="torch",
            api_version=API_VERSION,
            summary="PyTorch: modules with TorchRec's names, torch optimizers.",
            unavailable=_why_unavailable,
            module="sparring_torch",
        )
    ]


@hookimpl
def sparring_register_collective() -> Sequence[CollectiveDescriptor]:
    from sparring_torch.distributed.options import TorchCollectiveOptions

    return [
        CollectiveDescriptor(
            name="torch",
            api_version=API_VERSION,
            summary="A torch.distributed group over gloo.",
            options=TorchCollectiveOptions,
            unavailable=_why_unavailable,
            factory=_join,
        )
    ]


@hookimpl
def sparring_register_rendezvous() -> Sequence[RendezvousDescriptor]:
    from sparring_torch.distributed.options import TorchRendezvousOptions

    return [
        RendezvousDescriptor(
            name="torch",
            api_version=API_VERSION,
            summary="torchrun's variables and its TCPStore.",
            options=TorchRendezvousOptions,
            unavailable=_why_unavailable,
            factory=_meet,
        )
    ]


def _why_unavailable() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed; run: pip install torch"
    return None


def _join(membership: Membership, options: Any, deadline_seconds: float) -> Collective:
    from sparring_torch.distributed.collective import join_torch

    return join_torch(membership, options, deadline_seconds)


def _meet(options: Any) -> Rendezvous:
    from sparring_torch.distributed.rendezvous import TorchRendezvous

    return TorchRendezvous(options)
