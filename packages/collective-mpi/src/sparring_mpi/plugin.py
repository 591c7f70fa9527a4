"""The sparring plugin of this package. Importing it does not start MPI."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparring.contracts import CollectiveDescriptor, hookimpl

if TYPE_CHECKING:
    from sparring.contracts import Collective, Membership


@hookimpl
def sparring_register_collective() -> Sequence[CollectiveDescriptor]:
    return [
        CollectiveDescriptor(
            name="mpi",
            api_version=(1, 0),
            summary="MPI over mpi4py, for processes that mpiexec started.",
            factory=_join,
            unavailable=_reason,
        )
    ]


def _join(membership: Membership, _options: Any, deadline_seconds: float) -> Collective:
    from sparring_mpi.collective import join_mpi

    return join_mpi(membership, deadline_seconds)


def _reason() -> str | None:
    # Only searches for the module, because importing mpi4py starts MPI.
    if importlib.util.find_spec("mpi4py") is None:
        return 'mpi4py is not installed; run: pip install "sparring[mpi]"'
    return None
