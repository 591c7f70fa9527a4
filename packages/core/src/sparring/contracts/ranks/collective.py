"""The collective contract: how ranks exchange buffers.

What a backend writes
    A subclass of `Collective` that fills in `_send_impl` and `_receive_impl`; the collective
    operations are built on those two, and a backend overrides `_all_gather_impl` and its like
    where its library does better. If the library can only be asked whether a message is complete, its
    works are subclasses of `PolledWork`.

Buffers
    Anything that NumPy can view without a copy: an array, or an object with ``__dlpack__``. Where
    `Collective.devices` names a device, arrays in its memory too, for `send` and `receive`. A buffer
    belongs to the operation until its `Work` is done. Sizes may differ from rank to rank and may be
    zero; a receiver knows how many bytes are coming, because the sizes were exchanged before. Where
    the two sides disagree, the receiver gets an error, never a part of a message.

Order
    Two messages of one tag between the same two ranks arrive in the order of sending. All ranks call
    the collective operations in the same order. Tags are whole numbers from 0 to `NUM_TAGS` - 1.

Deadline
    Every wait ends within `deadline_seconds`, counted from the first time that `done` or `wait` is
    asked, with `PeerFailure` naming the rank, the operation, the table and the step.

Failure
    A rank whose wait ended with `PeerFailure` has given up, and so has one that calls `give_up`. All
    who wait for it hear of that long before the deadline, with the name of the rank that failed first.

Threads
    One thread at a time uses a collective, whichever it is.
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
"""Takes a buffer and the stream that writes it, or None; returns both in the form that a backend for
device memory takes. See `CollectiveDescriptor.device_factory`."""

NUM_TAGS = 1 << 20
"""Tags are below this. MPI promises few bits, and gloo shares them with the size of a message."""

# The operations built here use a tag of their own, which users cannot.
OPERATION_TAG = NUM_TAGS

# From here on the bytes that are saved cost more than one more round of messages.
_DIVIDED_BYTES = 1 << 16


class Reduction(Enum):
    SUM = "sum"
    MEAN = "mean"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class WorkContext:
    """Context that a failure names in addition to the rank."""

    operation: str
    table: str | None = None
    step: int | None = None


class Work(ABC):
    """A send or receive under way."""

    @abstractmethod
    def done(self) -> bool:
        """Whether `wait` would return or raise at once. Asking drives the transfer on."""

    @abstractmethod
    def wait(self) -> None:
        """Returns when the buffer may be used again.

        Raises:
            InvalidArgumentError: the message has another size than the buffer.
            PeerFailure: the peer is gone, or the deadline passed. Asking again raises it again.
        """


# Messages of a step arrive within milliseconds, so yielding the processor is the fastest way to wait for
# them. A longer wait is for another rank that computes, and leaves it the processor.
_YIELD_SECONDS = 0.002
_SHORTEST_SLEEP_SECONDS, _LONGEST_SLEEP_SECONDS = 20e-6, 1e-3


class Backoff:
    """The pauses of a loop that polls: it yields for 2 ms, then sleeps for up to 1 ms at a time."""

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
    """A work of a library that can be asked whether a message is complete, but whose waits have no
    deadline. A backend implements `_is_complete_impl` and `_failure_impl`.

    Args:
        deadline_seconds: the longest wait, counted from the first poll.
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
        """Returns the error that ends the wait, or None to continue. Called after each poll of an
        incomplete message. It must return an error once `now` is at least `limit`.

        Args:
            limit: the time of the deadline, by `time.monotonic`.
            now: the time of this poll, by `time.monotonic`.
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
    """One rank's membership in a group of ranks.

    Args:
        rank: ``0 <= rank < world_size``.
        world_size: ranks in the group.
        deadline_seconds: the longest that any wait may take.
    """

    devices: Sequence[str] = ("cpu",)
    """Kinds of devices whose memory `send` and `receive` take: ``cpu``, ``cuda``."""

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
        self._is_closed = False
        self._has_exchange = False

    def send(
        self, buffer: Any, destination: int, tag: int = 0, *, stream: int | None = None
    ) -> Work:
        """Starts sending `buffer`; it may be changed only when the `Work` is done.

        Args:
            stream: of a buffer in a device's memory, the stream that writes it: the message goes
                after what is on it now. None: after all that the device was given, or that the
                framework's current stream was.
        """
        self._check_message("send to", destination, tag)
        return self._send_impl(_as_array(buffer), destination, tag)

    def receive(self, buffer: Any, source: int, tag: int = 0, *, stream: int | None = None) -> Work:
        """Starts filling `buffer`, whose size in bytes is the sender's.

        Args:
            stream: of a buffer in a device's memory, the stream that used it before, as in `send`.
                When the `Work` is done, any stream may read it.
        """
        self._check_message("receive from", source, tag)
        array = _as_array(buffer)
        if not array.flags.writeable:
            raise InvalidArgumentError(
                f"receive from rank {source}: the buffer is read-only; give one that may be written"
            )
        return self._receive_impl(array, source, tag)

    def all_to_all(self, parts: Sequence[Any]) -> list[Array]:
        """Gives part i to rank i. Returns what each rank gave this one.

        Args:
            parts: `world_size` buffers of one dtype, the same on all ranks, of any shapes.
        """
        self._check_open()
        arrays = [_as_array(part) for part in parts]
        if len(arrays) != self.world_size:
            raise InvalidArgumentError(
                f"all_to_all: takes one part for each of {self.world_size} ranks, found "
                f"{len(arrays)}"
            )
        dtypes = sorted({str(array.dtype) for array in arrays})
        if len(dtypes) > 1:
            raise InvalidArgumentError(
                f"all_to_all: all parts must have one dtype, found {', '.join(dtypes)}"
            )
        return self._all_to_all_impl(arrays)

    def all_gather(self, buffer: Any) -> list[Array]:
        """Arrays of all ranks, in the order of ranks; of one dtype, in any shapes."""
        self._check_open()
        return self._all_to_all_impl([_as_array(buffer)] * self.world_size)

    def all_reduce(self, buffer: Any, reduction: Reduction = Reduction.SUM) -> Array:
        """The element-wise reduction over ranks, added up in the order of ranks.

        All ranks get the same bits, whatever the size.

        Raises:
            InvalidArgumentError: ranks gave arrays of several shapes.
        """
        array = _as_array(buffer)
        if array.nbytes < _DIVIDED_BYTES:
            gathered = self.all_gather(array)
            _check_shapes([part.shape for part in gathered])
            return self._reduced(gathered, reduction)
        # Each rank reduces one part and hands it round: two thirds of the bytes with 3 ranks, 2/W
        # of them with W.
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
        """Returns when every rank has called it."""
        self.all_gather(np.zeros(1, np.uint8))

    def begin_exchange(self) -> None:
        """Says that a `RingExchange` uses this collective from now on.

        Raises:
            InvalidArgumentError: another one did before, closed or not. Headers of two could not be
                told apart, and the first one's shutdown notice would end the second.
        """
        if self._has_exchange and self.world_size > 1:
            raise InvalidArgumentError(
                f"rank {self.rank}: this collective carries an exchange already, or did until that "
                "was closed, and carries no second one; put all tables into one StepContainer, or "
                "join another group for each: collective=…"
            )
        self._has_exchange = True

    def give_up(self, culprit: int) -> None:
        """Tells the others that this rank takes part in nothing more, and waits for no answer.

        Their waits for this rank end with a `PeerFailure` that names `culprit`. A wait of this rank
        that ends with one tells them by itself.

        Args:
            culprit: the rank that failed; it may be this one.
        """
        if not self._is_closed:
            self._give_up_impl(culprit)

    @abstractmethod
    def close(self) -> None:
        """Leaves the group; survivors that still wait for this rank are told."""

    @abstractmethod
    def _send_impl(self, buffer: Array, destination: int, tag: int) -> Work: ...

    @abstractmethod
    def _receive_impl(self, buffer: Array, source: int, tag: int) -> Work: ...

    def _give_up_impl(self, culprit: int) -> None:
        """A backend without words between ranks leaves the others to their deadlines."""
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
                f"{what} rank {peer}: there are ranks 0 to {self.world_size - 1}"
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
        """For backends: the error for a wait for `peer` in which `found` was found.

        `culprit` is the rank that failed, where it is another than `peer`.
        """
        failed = peer if culprit is None else culprit
        where = f" of table {context.table!r}" if context.table is not None else ""
        when = f" at step {context.step}" if context.step is not None else ""
        return PeerFailure(
            f"rank {self.rank} waited for rank {peer} in {context.operation}{where}{when}: {found}; "
            f"find out what became of rank {failed}, then restart all ranks from the last snapshot",
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
            f"{array.shape}; copy it first"
        )
    return array


def _check_shapes(shapes: Sequence[tuple[int, ...]]) -> None:
    different = sorted(set(shapes))
    if len(different) > 1:
        raise InvalidArgumentError(
            f"all_reduce: all ranks must give arrays of one shape, found "
            f"{' and '.join(map(str, different))}"
        )


Header = npt.NDArray[np.int64]

MAX_DIMENSIONS = 6
"""The most dimensions of an array in a collective operation; it keeps a header at 72 bytes."""


def new_header() -> Header:
    """Room for a header: ``(9,)`` int64, the dtype in two, the number of dimensions, the dimensions."""
    return np.zeros(3 + MAX_DIMENSIONS, np.int64)


def make_header(array: Array) -> Header:
    """Header that the receiver of `array` must have before it comes.

    Raises:
        InvalidArgumentError: more than `MAX_DIMENSIONS` dimensions.
    """
    if array.ndim > MAX_DIMENSIONS:
        raise InvalidArgumentError(
            f"collective: arrays have at most {MAX_DIMENSIONS} dimensions, found shape "
            f"{array.shape}; reshape it"
        )
    header = new_header()
    header[:2] = _dtype_code(array.dtype)
    header[2] = array.ndim
    header[3 : 3 + array.ndim] = array.shape
    return header


def allocate_for(header: Header, dtype: np.dtype[Any], peer: int) -> Array:
    """Room for the array that `header` of rank `peer` announces.

    Raises:
        InvalidArgumentError: it is of another dtype than this rank's.
    """
    theirs = (int(header[0]), int(header[1]))
    if theirs != _dtype_code(dtype):
        name = b"".join(half.to_bytes(7, "little") for half in theirs)
        found = name.rstrip(b"\0").decode("ascii", "replace")
        raise InvalidArgumentError(
            f"collective: all ranks must give one dtype; this rank gave {dtype} and rank {peer} "
            f"{found!r}; convert the arrays first"
        )
    return np.empty(tuple(map(int, header[3 : 3 + int(header[2])])), dtype)


def _dtype_code(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The first fourteen letters of the name, such as ``float32``, as two numbers."""
    name = dtype.name.encode("ascii")
    return int.from_bytes(name[:7], "little"), int.from_bytes(name[7:14], "little")
