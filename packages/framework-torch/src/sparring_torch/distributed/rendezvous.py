"""Rendezvous of ranks that torchrun started, through its store; or of an initialized process group."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from itertools import count

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from sparring.contracts import EnvironmentOptions, Membership, Rendezvous, read_membership
from sparring.errors import DeadlineError, InvalidArgumentError
from sparring_torch.distributed.attempts import open_attempt
from sparring_torch.distributed.options import TorchRendezvousOptions

__all__ = ["TorchRendezvous"]

_numbers = count()


def _find_membership(store: Store, options: TorchRendezvousOptions) -> Membership:
    """Returns the membership of this rank in the default group. All ranks must call it."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    # A collective of the group would be mixed with those of the program, and might need a GPU.
    store.set(f"host.{rank}", socket.gethostname())
    deadline = timedelta(seconds=options.start_seconds)
    hosts = []
    for other in range(world_size):
        try:
            store.wait([f"host.{other}"], deadline)
        except dist.DistError as error:
            raise DeadlineError(
                f"rendezvous 'torch': rank {other} of the initialized process group did not join "
                f"within {options.start_seconds:g} s ({error}); make the same calls on all ranks"
            ) from error
        hosts.append(bytes(store.get(f"host.{other}")))
    local_rank = hosts[:rank].count(hosts[rank])
    return Membership(
        rank,
        world_size,
        local_rank,
        hosts.count(hosts[rank]),
        options.device if options.device == "cpu" else f"cuda:{local_rank}",
    )


class TorchRendezvous(Rendezvous):
    """Reads torchrun's variables, and uses the TCPStore at MASTER_ADDR:MASTER_PORT.

    If they are missing, but `torch.distributed` is initialized, for example in processes of
    `torch.multiprocessing.spawn`, its default group has the ranks, and its store is used.

    If torchrun's agent serves a store there, that one is used; otherwise rank 0 serves one.
    The collective uses the same store with other keys.

    Raises:
        DeadlineError: the store did not reply, or a rank did not join, within `start_seconds`.
        InvalidArgumentError: torchrun's variables are missing or invalid.
    """

    def __init__(self, options: TorchRendezvousOptions) -> None:
        if "RANK" not in os.environ and dist.is_available() and dist.is_initialized():
            self._store: Store = PrefixStore(
                f"sparring.rendezvous.{next(_numbers)}", _get_default_store()
            )
            self._membership = _find_membership(self._store, options)
            return
        self._membership = read_membership(
            os.environ, EnvironmentOptions(launcher="torchrun", device=options.device)
        )
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if missing:
            raise InvalidArgumentError(
                f"rendezvous 'torch': the variable {' and '.join(missing)} is missing; start the "
                "ranks with torchrun, or choose rendezvous 'environment'"
            )
        self._store = self._open_store(options)

    def _open_store(self, options: TorchRendezvousOptions) -> Store:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        try:
            # A restarted job must not read values of the previous start.
            return open_attempt("rendezvous", self._membership, options.start_seconds)
        except dist.DistError as error:
            raise DeadlineError(
                f"rendezvous 'torch': no store replied at {place} within "
                f"{options.start_seconds:g} s ({error}); check that rank 0 runs there"
            ) from error
        except ValueError as error:
            raise InvalidArgumentError(
                f"rendezvous 'torch': cannot use a store at {place}: {error}; start the ranks with "
                "torchrun"
            ) from error

    def membership(self) -> Membership:
        return self._membership

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, bytes(value))  # type: ignore[arg-type] # annotated as str

    def get(self, key: str, timeout_seconds: float) -> bytes:
        try:
            # If the key exists, this returns at once; zero would mean the default of minutes.
            self._store.wait([key], timedelta(seconds=max(timeout_seconds, 0.001)))
        except dist.DistError as error:
            raise DeadlineError(
                f"rendezvous 'torch': no rank set {key!r} within {timeout_seconds:g} s, or the "
                f"store is gone ({error}); check that all ranks run",
                key=key,
            ) from error
        return bytes(self._store.get(key))

    def close(self) -> None:
        """Does nothing, because the other ranks may still need the store."""
