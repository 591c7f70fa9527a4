"""Membership from the environment variables that a launcher sets for each process.

launcher             rank                  world size            local rank
torchrun             RANK                  WORLD_SIZE            LOCAL_RANK
mpiexec of mpich     PMI_RANK              PMI_SIZE              MPI_LOCALRANKID
mpiexec of Open MPI  OMPI_COMM_WORLD_RANK  OMPI_COMM_WORLD_SIZE  OMPI_COMM_WORLD_LOCAL_RANK

The number of ranks on the machine is in LOCAL_WORLD_SIZE, MPI_LOCALNRANKS and
OMPI_COMM_WORLD_LOCAL_SIZE, respectively.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from sparring.contracts.options import Options
from sparring.contracts.ranks.rendezvous import Membership, Rendezvous
from sparring.errors import DeadlineError, InvalidArgumentError, UnsupportedError

__all__ = [
    "IndependentRendezvous",
    "EnvironmentOptions",
    "EnvironmentRendezvous",
    "SingleRendezvous",
    "find_launcher",
    "read_membership",
]


@dataclass(frozen=True, slots=True)
class _Launcher:
    """The variables of one launcher."""

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _Launcher("mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _Launcher(
        "openmpi",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
)


class EnvironmentOptions(Options):
    """Options of the rendezvous ``environment``."""

    launcher: Literal["any", "torchrun", "mpich", "openmpi"] = Field(
        "any",
        description="The launcher whose variables are read; `any` reads the variables that are set.",
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="The device of this rank; `cuda` is the GPU of its local rank."
    )


class EnvironmentRendezvous(Rendezvous):
    """Rendezvous that reads the variables of a launcher.

    Its key-value store only works with a single rank.

    Raises:
        InvalidArgumentError: the variables are missing or invalid, or the variables of two launchers
            disagree.
    """

    def __init__(self, options: EnvironmentOptions) -> None:
        self._membership = read_membership(os.environ, options)
        self._store = SingleRendezvous()

    def membership(self) -> Membership:
        return self._membership

    def set(self, key: str, value: bytes) -> None:
        self._check_store(f"set {key!r}")
        self._store.set(key, value)

    def get(self, key: str, timeout_seconds: float) -> bytes:
        self._check_store(f"get {key!r}")
        return self._store.get(key, timeout_seconds)

    def close(self) -> None:
        """Does nothing."""

    def _check_store(self, what: str) -> None:
        world_size = self._membership.world_size
        if world_size > 1:
            raise UnsupportedError(
                f"rendezvous 'environment' cannot {what}: it has no store for {world_size} ranks; choose "
                "the rendezvous 'torch', which has one, or exchange the value with the collective",
                world_size=world_size,
            )


def find_launcher(variables: Mapping[str, str]) -> str | None:
    """Returns the launcher whose variables for rank and world size are set, or None."""
    for launcher in _LAUNCHERS:
        if launcher.rank in variables and launcher.world_size in variables:
            return launcher.name
    return None


def read_membership(variables: Mapping[str, str], options: EnvironmentOptions) -> Membership:
    """Returns the membership that environment variables describe.

    Args:
        variables: the environment variables.
        options: the launcher and the device.

    Raises:
        InvalidArgumentError: see `EnvironmentRendezvous`.
    """
    found = [
        (launcher, _make_membership(variables, launcher, options.device))
        for launcher in _LAUNCHERS
        if options.launcher in ("any", launcher.name) and launcher.rank in variables
    ]
    if not found:
        wanted = [each for each in _LAUNCHERS if options.launcher in ("any", each.name)]
        raise InvalidArgumentError(
            "rendezvous 'environment': found none of the variables "
            f"{', '.join(each.rank for each in wanted)}; start the ranks with torchrun or mpiexec, "
            "or choose the rendezvous 'single' for one rank"
        )
    launcher, membership = found[0]
    for other, theirs in found[1:]:
        if (theirs.rank, theirs.world_size) != (membership.rank, membership.world_size):
            raise InvalidArgumentError(
                f"rendezvous 'environment': the variables of {launcher.name} specify rank "
                f"{membership.rank} of {membership.world_size}, but the variables of {other.name} rank "
                f"{theirs.rank} of {theirs.world_size}; choose one with the option launcher"
            )
    return membership


def _make_membership(variables: Mapping[str, str], launcher: _Launcher, device: str) -> Membership:
    local_rank = _number(variables, launcher.local_rank, launcher, default="0")
    return Membership(
        rank=_number(variables, launcher.rank, launcher),
        world_size=_number(variables, launcher.world_size, launcher),
        local_rank=local_rank,
        local_world_size=_number(variables, launcher.local_world_size, launcher, default="1"),
        device="cpu" if device == "cpu" else f"cuda:{local_rank}",
    )


def _number(
    variables: Mapping[str, str], name: str, launcher: _Launcher, default: str | None = None
) -> int:
    text = variables.get(name, default)
    if text is None or not text.strip().isdecimal():
        raise InvalidArgumentError(
            f"rendezvous 'environment': the variable {name} of {launcher.name} must be a whole "
            f"number, found {'nothing' if text is None else repr(text)}; start the ranks with that "
            "launcher"
        )
    return int(text)


class SingleRendezvous(Rendezvous):
    """Rendezvous of a single rank, with a store in this process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def membership(self) -> Membership:
        return Membership(rank=0, world_size=1)

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = bytes(value)
            self._changed.notify_all()

    def get(self, key: str, timeout_seconds: float) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_seconds):
                raise DeadlineError(
                    f"rendezvous: no rank set {key!r} within {timeout_seconds:g} s; with a single rank, "
                    "this process must set it",
                    key=key,
                )
            return self._values[key]

    def close(self) -> None:
        """Does nothing."""


class IndependentRendezvous(SingleRendezvous):
    """Rendezvous of a rank that does not communicate with the other ranks, such as a server of a service.

    A container with this rendezvous takes independent steps on the keys of its shard. It writes its
    part of a snapshot like a rank of a job with `world_size` ranks; `SaveOptions.token` identifies
    the parts that belong together.

    Args:
        rank: the rank.
        world_size: number of ranks.
    """

    is_independent = True

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self._membership = Membership(rank, world_size)

    def membership(self) -> Membership:
        return self._membership
