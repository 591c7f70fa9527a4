"""Ranks that torchrun started, and the store through which they meet."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from sparring.contracts import EnvironmentOptions, Membership, Rendezvous, read_membership
from sparring.errors import DeadlineError, InvalidArgumentError
from sparring_torch.distributed.options import TorchRendezvousOptions

__all__ = ["TorchRendezvous"]


class TorchRendezvous(Rendezvous):
    """The ranks of torchrun's variables, and the TCPStore at MASTER_ADDR:MASTER_PORT.

    Where torchrun's agent keeps a store there, that one is used; otherwise rank 0 serves one. The
    same place serves ``torch.distributed.init_process_group``; names do not collide.

    Raises:
        DeadlineError: the store did not answer within `start_seconds`.
        InvalidArgumentError: torchrun's variables are missing or make no sense.
    """

    def __init__(self, options: TorchRendezvousOptions) -> None:
        self._membership = read_membership(
            os.environ, EnvironmentOptions(launcher="torchrun", device=options.device)
        )
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if missing:
            raise InvalidArgumentError(
                f"rendezvous 'torch': the variable {' and '.join(missing)} is missing; start the "
                "ranks with torchrun, or choose rendezvous 'environment'"
            )
        # A restarted job must not read what the last one set.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = PrefixStore(f"sparring/{attempt}", self._open_store(options))

    def _open_store(self, options: TorchRendezvousOptions) -> Store:
        timeout = timedelta(seconds=options.start_seconds)
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        try:
            store, _, _ = next(rendezvous("env://", timeout=timeout))
        except dist.DistError as error:
            raise DeadlineError(
                f"rendezvous 'torch': no store answered at {place} within "
                f"{options.start_seconds:g} s ({error}); see whether rank 0 runs there"
            ) from error
        except ValueError as error:
            raise InvalidArgumentError(
                f"rendezvous 'torch': {place} is no place to meet: {error}; start the ranks with "
                "torchrun"
            ) from error
        assert isinstance(store, Store)
        return store

    def membership(self) -> Membership:
        return self._membership

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, bytes(value))  # type: ignore[arg-type] # its stub says str

    def get(self, key: str, timeout_seconds: float) -> bytes:
        try:
            # A store that has it answers at once; zero would mean its default, which is minutes.
            self._store.wait([key], timedelta(seconds=max(timeout_seconds, 0.001)))
        except dist.DistError as error:
            raise DeadlineError(
                f"rendezvous 'torch': no rank set {key!r} within {timeout_seconds:g} s, or the "
                f"store is gone ({error}); see whether all ranks run",
                key=key,
            ) from error
        return bytes(self._store.get(key))

    def close(self) -> None:
        """Nothing is held beyond the store, which the other ranks may still need."""
