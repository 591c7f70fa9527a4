"""Ranks of a ``torch.distributed`` group.

Messages are sent over a separate gloo group, so that tags and timeouts do not conflict with the
program's. Tensors on GPUs are sent over NCCL (`sparring_torch.distributed.device_collective`). This
module initializes ``torch.distributed`` if the program has not done so.

gloo ends the process if a message is larger than the receiver's buffer, and does not report a smaller
one. Therefore the size is part of the tag, so that messages of different sizes do not match.

    tag on the wire, 31 bits:   tag of the message (21 bits) | size mod 1,021 (10 bits)
"""

from __future__ import annotations

import atexit
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from sparring.contracts import Array, Collective, Failure, Membership, Work
from sparring.errors import DeadlineError, InvalidArgumentError, UnsupportedError
from sparring_torch.distributed.attempts import open_attempt
from sparring_torch.distributed.device_collective import with_devices
from sparring_torch.distributed.group_watch import GroupWatch
from sparring_torch.distributed.group_works import Channel, GroupWork
from sparring_torch.distributed.options import TorchCollectiveOptions

__all__ = ["TorchCollective", "join_torch"]

# A prime, so that sizes which differ by a multiple of the row size have different remainders.
_SIZE_MODULUS = 1021
_SIZE_BITS = 10


def join_torch(
    membership: Membership, options: TorchCollectiveOptions, deadline_seconds: float
) -> Collective:
    """Joins all ranks of the default group; initializes it if necessary. All ranks must call it.

    Raises:
        DeadlineError: not all ranks joined in time.
        InvalidArgumentError: the group has other ranks than the rendezvous.
        UnsupportedError: this build of torch has no gloo.
        PluginError, DeviceError: the option `process_group` contains NCCL, but it cannot be used.
    """
    if not dist.is_available() or not dist.is_gloo_available():
        raise UnsupportedError(
            "collective 'torch': this build of torch has no torch.distributed with gloo; install "
            "a build with gloo"
        )
    if membership.world_size == 1 and not dist.is_initialized():
        return TorchCollective(None, deadline_seconds=deadline_seconds)
    owns_default = not dist.is_initialized()
    timeout = timedelta(seconds=options.start_seconds)
    if owns_default:
        _initialize(membership, options, timeout)
    elif (dist.get_rank(), dist.get_world_size()) != (membership.rank, membership.world_size):
        raise InvalidArgumentError(
            f"collective 'torch': found rank {membership.rank} of {membership.world_size} from the "
            f"rendezvous, but rank {dist.get_rank()} of {dist.get_world_size()} from "
            "torch.distributed; give both the same ranks"
        )
    group = dist.new_group(backend="gloo", timeout=timeout, group_desc="sparring")
    host = TorchCollective(group, deadline_seconds=deadline_seconds, owns_default=owns_default)
    return with_devices(host, membership, options.process_group)


_LAUNCHER = "env://"
"""The `init_method` of ranks that a launcher has started."""


def _initialize(
    membership: Membership, options: TorchCollectiveOptions, timeout: timedelta
) -> None:
    try:
        store = None
        if options.init_method == _LAUNCHER:
            # Gloo must not connect to addresses of the previous start.
            store = open_attempt("group", membership, options.start_seconds)
        dist.init_process_group(
            options.process_group,
            store=store,
            init_method=options.init_method if store is None else None,
            rank=membership.rank,
            world_size=membership.world_size,
            timeout=timeout,
        )
    except ValueError as error:
        raise InvalidArgumentError(
            "collective 'torch': torch.distributed cannot be initialized with init_method "
            f"{options.init_method!r}: {error}; start the ranks with torchrun, or set the option "
            "init_method",
            init_method=options.init_method,
        ) from error
    except dist.DistError as error:
        raise DeadlineError(
            f"collective 'torch': {membership.world_size} ranks did not meet at "
            f"{options.init_method!r} within {options.start_seconds:g} s: {error}; check the logs of "
            "ranks that did not start",
            init_method=options.init_method,
        ) from error


class TorchCollective(Collective):
    """One rank of a gloo group.

    Args:
        group: a group for this collective only; None means that there is only this rank.
        deadline_seconds: maximum duration of any wait.
        owns_default: whether `close` destroys all groups of ``torch.distributed`` or only `group`.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        *,
        deadline_seconds: float = 60.0,
        owns_default: bool = False,
    ) -> None:
        rank, world_size = (0, 1) if group is None else (group.rank(), group.size())
        super().__init__(rank, world_size, deadline_seconds=deadline_seconds)
        self._group = group
        self._owns_default = owns_default
        self._channels: dict[tuple[bool, int, int], Channel] = {}
        self._watch = GroupWatch(
            rank,
            world_size,
            deadline_seconds,
            send=lambda tensor, peer, tag: self._post(True, tensor, peer, tag),
            receive=lambda tensor, peer, tag: self._post(False, tensor, peer, tag),
        )
        # The threads must end before the interpreter does.
        atexit.register(self.close)

    def close(self) -> None:
        """Notifies the other ranks; does not wait for messages in flight."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        self._watch.close()
        for channel in self._channels.values():
            channel.close()
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(None if self._owns_default else self._group)
        self._group = None

    def progress(self, waiting_for: int) -> None:
        """As in the contract. Threads transfer messages and answer questions."""
        self._watch.note_wait(waiting_for)

    def _give_up_impl(self, culprit: int) -> None:
        self._watch.fail(Failure.own(culprit))

    def _send_impl(self, buffer: Array, destination: int, tag: int) -> Work:
        return self._start(True, buffer, destination, tag)

    def _receive_impl(self, buffer: Array, source: int, tag: int) -> Work:
        return self._start(False, buffer, source, tag)

    def _start(self, is_sending: bool, buffer: Array, peer: int, tag: int) -> Work:
        # torch does not support read-only memory, and warns about it.
        flat = (buffer if buffer.flags.writeable else buffer.copy()).reshape(-1).view(np.uint8)
        tensor = torch.from_numpy(flat)
        key = (is_sending, peer, tag)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = Channel()
        try:
            in_flight = self._post(is_sending, tensor, peer, tag)
        except RuntimeError as error:
            failure = self._watch.explain(peer, error)
            raise self.peer_failure(
                peer, failure.found, self.context, culprit=failure.culprit
            ) from error
        return GroupWork(self, self._watch, channel, in_flight, tensor=tensor, peer=peer)

    def _post(self, is_sending: bool, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        group = self._group
        if group is None:
            raise RuntimeError("collective 'torch': the group is closed, so no message can be sent")
        start = group.send if is_sending else group.recv
        return start([tensor], peer, tag << _SIZE_BITS | tensor.nbytes % _SIZE_MODULUS)
