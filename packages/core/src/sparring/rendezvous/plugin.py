"""The rendezvous of core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparring.contracts.descriptors import API_VERSION, RendezvousDescriptor
from sparring.contracts.hookspecs import hookimpl

if TYPE_CHECKING:
    from sparring.contracts.ranks.rendezvous import Rendezvous


@hookimpl
def sparring_register_rendezvous() -> Sequence[RendezvousDescriptor]:
    from sparring.rendezvous.environment import EnvironmentOptions, EnvironmentRendezvous

    return [
        RendezvousDescriptor(
            name="single",
            api_version=API_VERSION,
            summary="A single rank.",
            factory=_open_single,
        ),
        RendezvousDescriptor(
            name="environment",
            api_version=API_VERSION,
            summary="Reads the variables that torchrun or mpiexec sets for each rank.",
            options=EnvironmentOptions,
            factory=EnvironmentRendezvous,
        ),
    ]


def _open_single(_options: Any) -> Rendezvous:
    from sparring.rendezvous.environment import SingleRendezvous

    return SingleRendezvous()
