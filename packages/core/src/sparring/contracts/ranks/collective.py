"""The collective contract: how ranks exchange buffers.

For authors of a backend
    Subclass `Collective`, and implement `_send_impl`, `_receive_impl` and `close`. The collective
    operations are built on send and receive; override `_all_to_all_impl` if the library has a faster
    one. If the library can only be polled for the completion of a message, derive its works from
    `PolledWork`.

Buffers
    A buffer is anything that NumPy can view without a copy: an array, or an object with
    ``__dlpack__``. If `Collective.devices` contains another device, `send` and `receive` also accept
    arrays in its memory. A buffer must not be used by the caller until its `Work` is done. Sizes may
    differ between ranks and may be zero. A receiver knows the size of a message, because sizes are
    exchanged before; if the two sides disagree, the receiver raises an error and never returns part of
    a message.

Order
    Messages with the same tag between the same two ranks arrive in the order of sending. All ranks
    call the collective operations in the same order. Tags are whole numbers from 0 to `NUM_TAGS` - 1.

Deadline
    Every wait ends within `deadline_seconds` after the first call of `done` or `wait`. It raises
    `PeerFailure`, which names the rank, the operation, the table and the step.

Failure
    After a wait has raised `PeerFailure`, or after a call of `give_up`, a rank no longer takes part.
    All ranks that wait for it are notified long before the deadline, with the rank that failed first.

Threads
    A collective is used by one thread at a time.

The file is long because most of it describes the contract.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.errors import ClosedError, InvalidArgumentError, PeerFailure, SparringError
from sparring.runtime.lifecycle import Closable

__all__ = [
    "Array",
    "Backoff",
    "BufferView",
    "Collective",
    "MAX_DIMENSIONS",
    "NUM_TAGS",
    "PolledWork",
    "Reduction",
    "Work",
    "WorkContext",
    "allocate_for",
    "make_header",
    "new_header",
]

Array = npt.NDArray[Any]

BufferView = Callable[[Any, int | None], tuple[Any, int | None]]
"""Function that converts a buffer, and the stream that writes it or None, to the form that a backend
for device memory accepts. See `CollectiveDescriptor.device_factory`."""

NUM_TAGS = 1 << 20
"""Number of tags. MPI guarantees only few bits, and gloo also encodes the size of a message in the
tag."""

# Tag of the collective operations in this module; it is not available to users.
OPERATION_TAG = NUM_TAGS

# From this size, splitting a reduction among ranks saves more time than its additional messages take.
_DIVIDED_BYTES = 1 << 16


class Reduction(Enum):
    """Element-wise reduction over ranks."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class WorkContext:
    """Context that a `PeerFailure` names in addition to the rank."""

    operation: str
    table: str | None = None
    step: int | None = None


class Work(ABC):
    """A send or receive in progress."""

    @abstractmethod
    def done(self) -> bool:
        """Whether `wait` would return or raise immediately. The call makes progress on the transfer."""

    @abstractmethod
    def wait(self) -> None:
        """Waits until the buffer may be used again.

        Raises:
            InvalidArgumentError: the message and the buffer have different sizes.
            PeerFailure: the peer failed, or the deadline passed. Later calls raise it again.
        """


# Messages of a step arrive within milliseconds, so yielding the processor is the fastest way to wait
# for them. A longer wait is for another rank that computes, and sleeping leaves it the processor.
_YIELD_SECONDS = 0.002
_SHORTEST_SLEEP_SECONDS, _LONGEST_SLEEP_SECONDS = 20e-6, 1e-3


class Backoff:
    """Pauses of a polling loop: yields for 2 ms, then sleeps for up to 1 ms at a time."""

    __slots__ = ("_sleep_seconds", "_yield_until")

    def __init__(self) -> None:
        self._yield_until = time.monotonic() + _YIELD_SECONDS
        self._sleep_seconds = _SHORTEST_SLEEP_SECONDS

    def pause(self) -> None:
        """Returns when it is time for the next poll."""
        if time.monotonic() < self._yield_until:
            os.sched_yield()
            return
        time.sleep(self._sleep_seconds)
        self._sleep_seconds = min(self._sleep_seconds * 1.2, _LONGEST_SLEEP_SECONDS)


class PolledWork(Work):
    """A `Work` that polls, for libraries whose waits have no deadline.

    A backend implements `_is_complete_impl` and `_failure_impl`.

    Args:
        deadline_seconds: maximum duration of a wait, counted from the first poll.
    """

    def __init__(self, deadline_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds
        self._limit: float | None = None
        self._is_done = False
        self._error: SparringError | None = None

    def done(self) -> bool:
        return self._is_done or self._error is not None or self._poll()

    def wait(self) -> None:
        if not self.done():
            backoff = Backoff()
            while not self._poll():
                backoff.pause()
        if self._error is not None:
            raise self._error

    @abstractmethod
    def _is_complete_impl(self) -> bool:
        """Returns whether the message is complete, and makes progress.

        Raises:
            SparringError: the message can no longer become complete.
        """

    @abstractmethod
    def _failure_impl(self, limit: float, now: float) -> SparringError | None:
        """Returns the error that ends the wait, or None to continue.

        Called after each poll of an incomplete message. It must return an error when `now` is at least
        `limit`.

        Args:
            limit: time of the deadline, by `time.monotonic`.
            now: time of this poll, by `time.monotonic`.
        """

    def _poll(self) -> bool:
        now = time.monotonic()
        if self._limit is None:
            self._limit = now + self._deadline_seconds
        try:
            self._is_done = self._is_complete_impl()
        except SparringError as error:
            self._error = error
            return True
        if not self._is_done:
            self._error = self._failure_impl(self._limit, now)
        return self._is_done or self._error is not None


class Collective(Closable):
    """Communication of one rank with the other ranks of a group.

    Args:
        rank: ``0 <= rank < world_size``.
        world_size: number of ranks in the group.
        deadline_seconds: maximum duration of each wait.
    """

    devices: Sequence[str] = ("cpu",)
    """Device types whose memory `send` and `receive` accept: ``cpu``, ``cuda``."""

    within_host: str | None = None
    """Name of the collective that sends messages within this host, if it is another one."""

    hosts: Sequence[Sequence[int]] | None = None
    """Ranks of each host in ascending order, the same on all ranks, if messages within a host are faster
    than between hosts; otherwise None."""

    def __init__(self, rank: int, world_size: int, *, deadline_seconds: float = 60.0) -> None:
        if not 0 <= rank < world_size:
            raise InvalidArgumentError(
                f"collective: rank must be at least 0 and below world_size, found rank {rank} of "
                f"{world_size}; pass both from one rendezvous"
            )
        if not deadline_seconds > 0:
            raise InvalidArgumentError(
                f"collective: deadline_seconds must be positive, found {deadline_seconds}; pass seconds"
            )
        self.rank = rank
        self.world_size = world_size
        self.deadline_seconds = deadline_seconds
        self.context = WorkContext("exchange")
        self._is_closed = False
        self._has_exchange = False

    def send(
        self, buffer: Any, destination: int, tag: int = 0, *, stream: int | None = None
    ) -> Work:
        """Starts sending `buffer`, which must not change until the `Work` is done.

        Args:
            buffer: a C-contiguous buffer.
            destination: the rank that receives it.
            tag: the tag of the message.
            stream: for a buffer in device memory, the stream that writes it; the message is sent after
                the present work of that stream. With None, it is sent after the work of the whole
                device, or of the framework's current stream.

        Raises:
            InvalidArgumentError: the group has no such rank, the tag is out of range, or the buffer is
                not C-contiguous.
            PeerFailure: the destination no longer takes part.
            ClosedError: the collective was closed.
        """
        self._check_message("send to", destination, tag)
        return self._send_impl(_as_array(buffer), destination, tag)

    def receive(self, buffer: Any, source: int, tag: int = 0, *, stream: int | None = None) -> Work:
        """Starts receiving a message into `buffer`.

        Args:
            buffer: a writable C-contiguous buffer with the size of the message.
            source: the rank that sends it.
            tag: the tag of the message.
            stream: for a buffer in device memory, the stream that used it before (see `send`). When
                the `Work` is done, any stream may read the buffer.

        Raises:
            InvalidArgumentError: as for `send`, or the buffer is read-only.
            ClosedError: the collective was closed.
        """
        self._check_message("receive from", source, tag)
        array = _as_array(buffer)
        if not array.flags.writeable:
            raise InvalidArgumentError(
                f"receive from rank {source}: the buffer is read-only; pass a writable one"
            )
        return self._receive_impl(array, source, tag)

    def all_to_all(self, parts: Sequence[Any]) -> list[Array]:
        """Sends part i to rank i, and returns the parts that this rank received, in rank order.

        Args:
            parts: `world_size` buffers of any shapes, with the same dtype on all ranks.
        """
        self._check_open()
        arrays = [_as_array(part) for part in parts]
        if len(arrays) != self.world_size:
            raise InvalidArgumentError(
                f"all_to_all: parts must contain one buffer for each of {self.world_size} ranks, found "
                f"{len(arrays)}"
            )
        dtypes = sorted({str(array.dtype) for array in arrays})
        if len(dtypes) > 1:
            raise InvalidArgumentError(
                f"all_to_all: all parts must have one dtype, found {', '.join(dtypes)}; convert them"
            )
        return self._all_to_all_impl(arrays)

    def all_gather(self, buffer: Any) -> list[Array]:
        """Returns the arrays of all ranks, in rank order. All ranks must call it.

        Args:
            buffer: a C-contiguous buffer of any shape, with the same dtype on all ranks.

        Raises:
            InvalidArgumentError: the ranks passed different dtypes.
            PeerFailure: another rank failed, or the deadline passed.
        """
        self._check_open()
        return self._all_to_all_impl([_as_array(buffer)] * self.world_size)

    def all_reduce(self, buffer: Any, reduction: Reduction = Reduction.SUM) -> Array:
        """Returns the element-wise reduction over all ranks.

        Values are added in rank order, so all ranks get bit-identical results. All ranks must call it.

        Args:
            buffer: a C-contiguous buffer, with the same shape and dtype on all ranks.
            reduction: the operation, the same on all ranks.

        Raises:
            InvalidArgumentError: the arrays of the ranks have different shapes or dtypes.
            PeerFailure: another rank failed, or the deadline passed.
        """
        array = _as_array(buffer)
        if array.nbytes < _DIVIDED_BYTES:
            gathered = self.all_gather(array)
            _check_shapes([part.shape for part in gathered])
            return self._reduced(gathered, reduction)
        # Each rank reduces one part and sends it to all others. With W ranks, this transfers 2/W of the
        # bytes of an all_gather.
        shapes = self.all_gather(np.array(array.shape, np.int64))
        _check_shapes([tuple(shape.tolist()) for shape in shapes])
        parts = np.array_split(array.reshape(-1), self.world_size)
        mine = self._reduced(self.all_to_all(parts), reduction)
        whole: Array = np.concatenate(self.all_gather(mine))
        return whole.reshape(array.shape)

    def _reduced(self, parts: Sequence[Array], reduction: Reduction) -> Array:
        result: Array = parts[0].copy()
        for part in parts[1:]:
            if reduction is Reduction.MAX:
                np.maximum(result, part, out=result)
            else:
                result += part
        if reduction is Reduction.MEAN:
            result = np.asarray(result / self.world_size)
        return result

    def barrier(self) -> None:
        """Waits until every rank has called this method."""
        self.all_gather(np.zeros(1, np.uint8))

    def begin_exchange(self) -> None:
        """Marks that a `RingExchange` uses this collective from now on.

        Raises:
            InvalidArgumentError: another exchange has used it, even if that was closed. The headers of
                two exchanges are not distinguishable, and the shutdown notice of the first would end
                the second.
        """
        if self._has_exchange and self.world_size > 1:
            raise InvalidArgumentError(
                f"rank {self.rank}: this collective was already used by an exchange, and supports only "
                "one, even after close; put all tables into one StepContainer, or join another group "
                "per container: collective=…"
            )
        self._has_exchange = True

    def progress(self, waiting_for: int) -> None:
        """Transfers what is possible without waiting, and answers questions of other ranks, while this
        rank waits in another way. Override it if messages advance only within calls.

        Args:
            waiting_for: the rank for which this rank waits.
        """
        return

    def give_up(self, culprit: int) -> None:
        """Notifies the other ranks that this rank no longer takes part, without waiting for them.

        Their waits for this rank raise a `PeerFailure` that names `culprit`. If a wait of this rank
        raised `PeerFailure`, they have already been notified.

        Args:
            culprit: the rank that failed; it may be this one.
        """
        if not self._is_closed:
            self._give_up_impl(culprit)

    @abstractmethod
    def close(self) -> None:
        """Leaves the group. Ranks that still wait for this rank are notified."""

    @abstractmethod
    def _send_impl(self, buffer: Array, destination: int, tag: int) -> Work:
        """Starts sending a C-contiguous array. `tag` may also be a tag of this module."""

    @abstractmethod
    def _receive_impl(self, buffer: Array, source: int, tag: int) -> Work:
        """Starts receiving into a writable C-contiguous array.

        If the message has a different size, the work must raise `InvalidArgumentError`.
        """

    def _give_up_impl(self, culprit: int) -> None:
        """Notifies the other ranks. By default nothing is sent, and their waits end at the deadline."""
        return

    def _all_to_all_impl(self, parts: list[Array]) -> list[Array]:
        peers = [(self.rank + hop) % self.world_size for hop in range(1, self.world_size)]
        theirs = {peer: new_header() for peer in peers}
        self._exchange({peer: make_header(parts[peer]) for peer in peers}, theirs)
        received = {peer: allocate_for(theirs[peer], parts[0].dtype, peer) for peer in peers}
        self._exchange({peer: parts[peer] for peer in peers}, received)
        received[self.rank] = parts[self.rank].copy()
        return [received[rank] for rank in range(self.world_size)]

    def _exchange(self, outgoing: dict[int, Array], incoming: dict[int, Array]) -> None:
        works = [
            self._receive_impl(buffer, peer, OPERATION_TAG) for peer, buffer in incoming.items()
        ]
        works += [self._send_impl(buffer, peer, OPERATION_TAG) for peer, buffer in outgoing.items()]
        for work in works:
            work.wait()

    def _check_message(self, what: str, peer: int, tag: int) -> None:
        self._check_open()
        if not 0 <= peer < self.world_size:
            raise InvalidArgumentError(
                f"{what} rank {peer}: the group has the ranks 0 to {self.world_size - 1}; "
                "pass one of them"
            )
        if not 0 <= tag < NUM_TAGS:
            raise InvalidArgumentError(
                f"{what} rank {peer}: a tag must be at least 0 and below {NUM_TAGS}, found {tag}"
            )

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(
                f"rank {self.rank} left its group of {self.world_size} ranks when it closed this "
                "collective; join the group again"
            )

    def peer_failure(
        self, peer: int, found: str, context: WorkContext, *, culprit: int | None = None
    ) -> PeerFailure:
        """Creates the error of a failed wait for `peer`. Backends call it.

        Args:
            peer: the rank that this rank waited for.
            found: the cause, such as ``its connection failed``.
            context: the operation, table and step.
            culprit: the rank that failed, if it is not `peer`.
        """
        failed = peer if culprit is None else culprit
        where = f" of table {context.table!r}" if context.table is not None else ""
        when = f" at step {context.step}" if context.step is not None else ""
        return PeerFailure(
            f"rank {self.rank} waited for rank {peer} in {context.operation}{where}{when}: {found}; "
            f"find out why rank {failed} failed, then restart all ranks from the last snapshot",
            rank=failed,
            operation=context.operation,
            table=context.table,
            step=context.step,
        )


def _as_array(buffer: Any) -> Array:
    array = buffer if isinstance(buffer, np.ndarray) else np.from_dlpack(buffer)
    if not array.flags.c_contiguous:
        raise InvalidArgumentError(
            f"collective: buffers must be C-contiguous, found strides {array.strides} for shape "
            f"{array.shape}; pass numpy.ascontiguousarray(buffer)"
        )
    return array


def _check_shapes(shapes: Sequence[tuple[int, ...]]) -> None:
    different = sorted(set(shapes))
    if len(different) > 1:
        raise InvalidArgumentError(
            f"all_reduce: the arrays of all ranks must have the same shape, found "
            f"{' and '.join(map(str, different))}; pad or reshape them"
        )


Header = npt.NDArray[np.int64]

MAX_DIMENSIONS = 6
"""Maximum number of dimensions of an array in a collective operation; a header has 72 bytes."""


def new_header() -> Header:
    """Allocates a header, ``(9,)`` int64: the dtype in two elements, the number of dimensions, and the
    dimensions."""
    return np.zeros(3 + MAX_DIMENSIONS, np.int64)


def make_header(array: Array) -> Header:
    """Returns the header of `array`, which the receiver needs before the array.

    Raises:
        InvalidArgumentError: the array has more than `MAX_DIMENSIONS` dimensions.
    """
    if array.ndim > MAX_DIMENSIONS:
        raise InvalidArgumentError(
            f"collective: arrays must have at most {MAX_DIMENSIONS} dimensions, found shape "
            f"{array.shape}; reshape it"
        )
    header = new_header()
    header[:2] = _dtype_code(array.dtype)
    header[2] = array.ndim
    header[3 : 3 + array.ndim] = array.shape
    return header


def allocate_for(header: Header, dtype: np.dtype[Any], peer: int) -> Array:
    """Allocates the array that `header`, received from rank `peer`, describes.

    Raises:
        InvalidArgumentError: its dtype is not the `dtype` of this rank.
    """
    theirs = (int(header[0]), int(header[1]))
    if theirs != _dtype_code(dtype):
        name = b"".join(half.to_bytes(7, "little") for half in theirs)
        found = name.rstrip(b"\0").decode("ascii", "replace")
        raise InvalidArgumentError(
            f"collective: the arrays of all ranks must have the same dtype, found {dtype} on this rank "
            f"and {found!r} on rank {peer}; convert the arrays first"
        )
    return np.empty(tuple(map(int, header[3 : 3 + int(header[2])])), dtype)


def _dtype_code(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Encodes the first fourteen letters of the name, such as ``float32``, as two numbers."""
    name = dtype.name.encode("ascii")
    return int.from_bytes(name[:7], "little"), int.from_bytes(name[7:14], "little")
