"""Keys of one start of a job in the store of torchrun's agent.

The store of the agent continues to exist when torchrun starts the ranks again, and still contains the
addresses of ranks that have ended. TORCHELASTIC_RESTART_COUNT does not separate the starts, because each
agent counts its own (https://github.com/pytorch/pytorch/issues/135712). Therefore the ranks agree on a
prefix that no earlier start used.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from datetime import timedelta
from functools import cache

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from sparring.contracts import Membership

__all__ = ["agree_on_prefix", "open_attempt"]

_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.01, 0.5


def open_attempt(name: str, membership: Membership, start_seconds: float) -> Store:
    """Returns the store at MASTER_ADDR:MASTER_PORT, with keys that belong to this start of the job.

    All ranks must call it if torchrun's agent serves the store. Later calls of the same process return
    the same keys.

    Args:
        name: name of the keys.
        membership: this rank.
        start_seconds: maximum time to wait for the store, and for all ranks.

    Raises:
        torch.distributed.DistError: the store or a rank did not reply in time.
        ValueError: torchrun's variables are missing or invalid.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return _open_agreed(name, membership, start_seconds)
    return _open(name, membership, start_seconds)  # Rank 0 serves the store, and ends with it.


@cache
def _open_agreed(name: str, membership: Membership, start_seconds: float) -> Store:
    store = _open(name, membership, start_seconds)
    return agree_on_prefix(store, membership.rank, membership.world_size, start_seconds)


def _open(name: str, membership: Membership, start_seconds: float) -> Store:
    rank, world_size = membership.rank, membership.world_size
    timeout = timedelta(seconds=start_seconds)
    store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timeout))
    return PrefixStore(f"sparring/{name}", store)


def agree_on_prefix(store: Store, rank: int, world_size: int, timeout_seconds: float) -> Store:
    """Returns the store with a prefix that only ranks that run now have.

    Each rank writes a random number. Rank 0 proposes the list of all numbers, and again if one changes,
    because the number of a rank that has ended may still be there. When each rank has confirmed that the
    list contains its number, rank 0 ends the agreement.

    Raises:
        torch.distributed.DistError: not all ranks called it in time.
    """
    own, keys = uuid.uuid4().hex, [f"rank/{each}" for each in range(world_size)]
    store.set(keys[rank], own)
    end, pause = time.monotonic() + timeout_seconds, _FIRST_PAUSE_SECONDS
    proposed = ""
    # Waits with the timeout of the store for ranks that have never started.
    store.wait(["list"] if rank else keys, timedelta(seconds=timeout_seconds))
    while time.monotonic() < end:
        if rank == 0:
            numbers = ",".join(each.decode() for each in store.multi_get(keys))
            if numbers != proposed:
                proposed = numbers
                store.set("list", proposed)
        else:
            proposed = store.get("list").decode()
        agreed = PrefixStore(hashlib.blake2b(proposed.encode(), digest_size=16).hexdigest(), store)
        numbers_now = proposed.split(",")
        if len(numbers_now) == world_size and numbers_now[rank] == own:
            agreed.set(f"confirmed/{rank}", "")
            confirmed = [f"confirmed/{each}" for each in range(world_size)]
            if rank == 0 and agreed.check(confirmed):
                agreed.set("agreed", "")
            if agreed.check(["agreed"]):
                return agreed
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)
    raise dist.DistStoreError(f"not all of {world_size} ranks started within {timeout_seconds:g} s")
