"""The collective contract: how ranks exchange buffers.

What a backend writes
    A subclass of `Collective` that fills in `_send_impl` and `_receive_impl`; the collective
    operations are built on those two, and a backend overrides `_all_gather_impl` and its like
    where its library does better.

Buffers
    Anything that NumPy can view without a copy: an array, or an object with ``__dlpack__``. A buffer
    belongs to the operation until its `Work` is done. Sizes may differ from rank to rank and may be
    zero; a receiver knows how many bytes are coming, because the sizes were exchanged before.

Order
    Two messages of one tag between the same two ranks arrive in the order of sending. All ranks call
    the collective operations in the same order.

Deadline
    Every wait ends within `deadline_seconds`, with `PeerFailure` naming the rank, the operation, the
    table and the step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError, PeerFailure

__all__ = ["Array", "Collective", "Reduction", "Work", "WorkContext"]

Array = npt.NDArray[Any]

# Tags below this are the users'; the operations built here use their own.
_OPERATION_TAG = 1 << 30


class Reduction(Enum):
    SUM = "sum"
    MEAN = "mean"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class WorkContext:
    """What a failure names beside the rank."""

    operation: str
    table: str | None = None
    step: int | None = None


class Work(ABC):
    """A send or receive under way."""

    @abstractmethod
    def done(self) -> bool:
        """Whether `wait` would return at once."""

    @abstractmethod
    def wait(self) -> None:
        """Returns when the buffer may be used again.

        Raises:
            PeerFailure: the peer is gone, or the deadline passed.
        """


class Collective(ABC):
    """One rank's membership in a group of ranks.

    Args:
        rank: ``0 <= rank < world_size``.
        world_size: ranks in the group.
        deadline_seconds: the longest that any wait may take.
    """

    def __init__(self, rank: int, world_size: int, *, deadline_seconds: float = 60.0) -> None:
        if not 0 <= rank < world_size:
            raise InvalidArgumentError(
                f"collective: rank must be at least 0 and below world_size, found rank {rank} of "
                f"{world_size}"
            )
        if not deadline_seconds > 0:
            raise InvalidArgumentError(
                f"collective: deadline_seconds must be positive, found {deadline_seconds}"
            )
        self.rank = rank
        self.world_size = world_size
        self.deadline_seconds = deadline_seconds
        self.context = WorkContext("exchange")

    def send(self, buffer: Any, destination: int, tag: int = 0) -> Work:
        """Starts sending `buffer`; it may be changed only when the `Work` is done."""
        self._check_peer("send to", destination)
        return self._send_impl(_as_array(buffer), destination, tag)

    def receive(self, buffer: Any, source: int, tag: int = 0) -> Work:
        """Starts filling `buffer`, whose size in bytes is the sender's."""
        self._check_peer("receive from", source)
        return self._receive_impl(_as_array(buffer), source, tag)

    def all_to_all(self, parts: Sequence[Any]) -> list[Array]:
        """Gives part i to rank i. Returns what each rank gave this one.

        Args:
            parts: `world_size` one-dimensional buffers of one dtype, of any sizes.
        """
        arrays = [_as_array(part) for part in parts]
        if len(arrays) != self.world_size:
            raise InvalidArgumentError(
                f"all_to_all: takes one part for each of {self.world_size} ranks, found "
                f"{len(arrays)}"
            )
        return self._all_to_all_impl(arrays)

    def all_gather(self, buffer: Any) -> list[Array]:
        """What each rank gave, in the order of ranks; sizes may differ."""
        return self._all_to_all_impl([_as_array(buffer)] * self.world_size)

    def all_reduce(self, buffer: Any, reduction: Reduction = Reduction.SUM) -> Array:
        """The element-wise reduction over ranks, added up in the order of ranks on each of them."""
        array = _as_array(buffer)
        gathered = self.all_gather(array.reshape(-1))
        sizes = {len(part) for part in gathered}
        if len(sizes) > 1:
            raise InvalidArgumentError(
                f"all_reduce: all ranks must give the same number of elements, found {sorted(sizes)}"
            )
        result: Array = gathered[0].copy()
        for part in gathered[1:]:
            if reduction is Reduction.MAX:
                np.maximum(result, part, out=result)
            else:
                result += part
        if reduction is Reduction.MEAN:
            result = result / self.world_size
        reshaped: Array = result.reshape(array.shape)
        return reshaped

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self.all_gather(np.zeros(1, np.uint8))

    @abstractmethod
    def close(self) -> None:
        """Leaves the group; survivors that still wait for this rank are told."""

    def __enter__(self) -> Collective:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def _send_impl(self, buffer: Array, destination: int, tag: int) -> Work: ...

    @abstractmethod
    def _receive_impl(self, buffer: Array, source: int, tag: int) -> Work: ...

    def _all_to_all_impl(self, parts: list[Array]) -> list[Array]:
        dtype = parts[0].dtype
        peers = [(self.rank + hop) % self.world_size for hop in range(1, self.world_size)]
        sizes = {peer: np.array([len(parts[peer])], np.int64) for peer in peers}
        theirs = {peer: np.empty(1, np.int64) for peer in peers}
        self._exchange(sizes, theirs)
        received = {peer: np.empty(int(theirs[peer][0]), dtype) for peer in peers}
        self._exchange({peer: parts[peer] for peer in peers}, received)
        received[self.rank] = parts[self.rank].copy()
        return [received[rank] for rank in range(self.world_size)]

    def _exchange(self, outgoing: dict[int, Array], incoming: dict[int, Array]) -> None:
        works = [
            self._receive_impl(buffer, peer, _OPERATION_TAG) for peer, buffer in incoming.items()
        ]
        works += [
            self._send_impl(buffer, peer, _OPERATION_TAG) for peer, buffer in outgoing.items()
        ]
        for work in works:
            work.wait()

    def _check_peer(self, what: str, peer: int) -> None:
        if not 0 <= peer < self.world_size:
            raise InvalidArgumentError(
                f"{what} rank {peer}: there are ranks 0 to {self.world_size - 1}"
            )

    def _peer_failure(self, peer: int, found: str, context: WorkContext) -> PeerFailure:
        where = f" of table {context.table!r}" if context.table is not None else ""
        when = f" at step {context.step}" if context.step is not None else ""
        return PeerFailure(
            f"rank {self.rank} waited for rank {peer} in {context.operation}{where}{when}: {found}; "
            "find out what became of that rank, then restart all ranks from the last snapshot",
            rank=peer,
            operation=context.operation,
            table=context.table,
            step=context.step,
        )


def _as_array(buffer: Any) -> Array:
    array = buffer if isinstance(buffer, np.ndarray) else np.from_dlpack(buffer)
    if not array.flags.c_contiguous:
        raise InvalidArgumentError(
            f"collective: buffers must be C-contiguous, found strides {array.strides} for shape "
            f"{array.shape}; copy it first"
        )
    return array
