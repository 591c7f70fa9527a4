"""A collective for buffers in GPU memory, over NCCL. Not run on a GPU yet: see the reference page.

NCCL has no tags, no deadlines and does not report sizes, and its ranks must exchange an id by other means
before they can join. Therefore a host collective (`mpi`, `torch`) transfers everything in host memory,
including the collective operations, and NCCL only the device buffers of `send` and `receive`.

    host buffers    → the host collective
    device buffers  → a queue → at the first `done` or `wait`, all as one NCCL group:

        ncclGroupStart · ncclSend · ncclRecv · … · ncclGroupEnd · event    on a separate thread

    stream of the caller       … writes the buffer ─ event ┐
    stream of the collective                               └─► group ─ event ─► polled by `done`

Within a group, the order of sends and receives does not matter. With separate calls on one stream, two
ranks that both send first would wait for each other forever. However, a group ends only when all of its
messages have ended, and the next group starts after it. Therefore a message must not depend on a message
of a later group. For example, if a rank posts a request and the receive of its reply together, both ranks
wait forever. NCCL may block while it connects two ranks, so a separate thread calls it, and
`ncclCommAbort` ends its calls at a deadline.

Device messages between two ranks must be posted in the same order on both sides; tags do not
reorder them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparring import make_plugin_manager
from sparring.contracts import (
    Array,
    BufferView,
    Collective,
    Membership,
    PolledWork,
    Work,
    validate_options,
)
from sparring.errors import DeadlineError, InvalidArgumentError, PeerFailure, SparringError
from sparring_nccl.libraries import (
    UNIQUE_ID_BYTES,
    CudaDriver,
    NcclLibrary,
    open_cuda,
    open_nccl,
)
from sparring_nccl.options import NcclOptions

__all__ = ["NcclCollective", "extend_to_gpus", "join_nccl"]

_ISSUE_SECONDS = 0.2
"""Maximum time for a call of NCCL to return before its communicator is aborted."""


def join_nccl(membership: Membership, options: NcclOptions, deadline_seconds: float) -> Collective:
    """Connects all ranks, with the host collective of the options. All ranks must call it.

    Raises:
        DeadlineError: not all ranks joined in time.
        InternalError: NCCL reports an error.
        DeviceError: CUDA reports an error.
        PluginError: NCCL, the driver, or the host collective is missing.
    """
    nccl, cuda = open_nccl(), open_cuda()
    name = "local" if membership.world_size == 1 else options.host
    descriptor = make_plugin_manager().collective(name)
    checked = validate_options("collective", descriptor, {})
    host = descriptor.factory(membership, checked, deadline_seconds)
    return NcclCollective(host, nccl, cuda, device=membership.local_rank)


def extend_to_gpus(
    host: Collective, membership: Membership, view: BufferView | None = None
) -> Collective:
    """Returns a collective that also supports buffers in GPU memory. All ranks must call it.

    Args:
        host: the collective for host memory.
        membership: membership of this rank; its local rank is the number of the GPU.
        view: see `CollectiveDescriptor.device_factory`.

    Raises:
        DeadlineError, InternalError, DeviceError, PluginError: see `join_nccl`.
    """
    return NcclCollective(host, open_nccl(), open_cuda(), device=membership.local_rank, view=view)


@dataclass(frozen=True, slots=True)
class _DeviceBuffer:
    """A C-contiguous buffer in GPU memory."""

    pointer: int
    num_bytes: int
    owner: Any
    """Keeps the memory alive until the message is done."""


class _Batch:
    """Device messages that are passed to NCCL as one group."""

    def __init__(self) -> None:
        # (communicator, stream) -> starts one message
        self.starts: list[Callable[[int, int], None]] = []
        # Events of streams after which the group is ordered.
        self.after: list[int] = []
        self.is_after_all = False
        self.is_flushed = False
        self.is_complete = False
        # Set by the thread that calls NCCL.
        self.event: int | None = None
        self.error: str | None = None


class NcclCollective(Collective):
    """One rank of an NCCL communicator and of a host collective.

    Device buffers are objects with ``__cuda_array_interface__``. They may have any dtype, because they
    are sent as bytes.

    Args:
        host: the collective for host buffers; it is closed with this one.
        nccl: the NCCL library.
        cuda: the CUDA driver.
        device: number of the GPU.
        view: see `CollectiveDescriptor.device_factory`.
    """

    devices = ("cpu", "cuda")

    def __init__(
        self,
        host: Collective,
        nccl: NcclLibrary,
        cuda: CudaDriver,
        *,
        device: int,
        view: BufferView | None = None,
    ) -> None:
        super().__init__(host.rank, host.world_size, deadline_seconds=host.deadline_seconds)
        self._host = host
        self.within_host, self.hosts = host.within_host, host.hosts
        self._view = view
        self._nccl, self._cuda = nccl, cuda
        self._context = cuda.retain_context(device)
        unique = nccl.make_unique_id() if self.rank == 0 else bytes(UNIQUE_ID_BYTES)
        self._unique_id = host.all_gather(np.frombuffer(unique, np.uint8))[0].tobytes()
        self._communicator: int | None = None
        self._stream = 0
        self._batch = _Batch()
        self._batches: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._issuing = threading.Lock()
        self._joined = threading.Event()
        self._join_error: SparringError | None = None
        threading.Thread(target=self._serve, name="sparring-nccl", daemon=True).start()
        if not self._joined.wait(self.deadline_seconds):
            host.close()
            raise DeadlineError(
                f"collective 'nccl': {self.world_size} ranks did not connect within "
                f"{self.deadline_seconds:g} s; see whether all ranks have started"
            )
        if self._join_error is not None:
            host.close()
            raise self._join_error

    def send(
        self, buffer: Any, destination: int, tag: int = 0, *, stream: int | None = None
    ) -> Work:
        """As in the contract; `buffer` may also be in GPU memory."""
        if self._view is not None:
            buffer, stream = self._view(buffer, stream)
        device_buffer = _device_buffer(buffer)
        self._host.context = self.context
        if device_buffer is None:
            return self._host.send(buffer, destination, tag)
        self._check_message("send to", destination, tag)
        return self._post(self._nccl.send, device_buffer, destination, stream)

    def receive(self, buffer: Any, source: int, tag: int = 0, *, stream: int | None = None) -> Work:
        """As in the contract; `buffer` may also be in GPU memory."""
        if self._view is not None:
            buffer, stream = self._view(buffer, stream)
        device_buffer = _device_buffer(buffer)
        self._host.context = self.context
        if device_buffer is None:
            return self._host.receive(buffer, source, tag)
        self._check_message("receive from", source, tag)
        return self._post(self._nccl.receive, device_buffer, source, stream)

    def close(self) -> None:
        """Leaves the group and aborts device messages in progress."""
        if self._is_closed:
            return
        self._is_closed = True
        self._batches.put(None)
        self.abort()
        self._host.close()

    # -- for works --------------------------------------------------------------------

    def flush(self, batch: _Batch) -> None:
        """Passes all messages of the batch to NCCL."""
        if not batch.is_flushed:
            batch.is_flushed = True
            self._batch = _Batch()
            self._batches.put(batch)

    def is_complete(self, batch: _Batch) -> bool:
        if not batch.is_complete and batch.event is not None:
            with self._cuda.in_context(self._context):
                batch.is_complete = self._cuda.is_reached(batch.event)
                if batch.is_complete:
                    self._cuda.free_event(batch.event)
        return batch.is_complete

    def background_error(self) -> str | None:
        with self._lock:
            if self._communicator is None:
                return "the communicator was aborted after an earlier failure"
            return self._nccl.background_error(self._communicator)

    def abort(self) -> None:
        """Aborts messages in progress, including a blocked call of NCCL."""
        with self._lock:
            communicator, self._communicator = self._communicator, None
        if communicator is None:
            return
        # A call that is returning still uses its communicator.
        has_ended = self._issuing.acquire(timeout=_ISSUE_SECONDS)
        try:
            self._nccl.abort(communicator)
        finally:
            if has_ended:
                self._issuing.release()

    # -- delegated to the host collective ------------------------------------------------

    def _send_impl(self, buffer: Array, destination: int, tag: int) -> Work:
        return self._host.send(buffer, destination, tag)

    def _receive_impl(self, buffer: Array, source: int, tag: int) -> Work:
        return self._host.receive(buffer, source, tag)

    def progress(self, waiting_for: int) -> None:
        """As in the contract, for the host collective."""
        self._host.progress(waiting_for)

    def _give_up_impl(self, culprit: int) -> None:
        self._host.give_up(culprit)

    def _all_to_all_impl(self, parts: list[Array]) -> list[Array]:
        self._host.context = self.context
        return self._host.all_to_all(parts)

    # -- device messages --------------------------------------------------------------

    def _post(
        self,
        start: Callable[[int, int, int, int, int], None],
        buffer: _DeviceBuffer,
        peer: int,
        stream: int | None,
    ) -> Work:
        batch = self._batch
        if stream is None:
            batch.is_after_all = True
        else:
            # Recorded here, not on the other thread: later work of the stream may wait for this message.
            with self._cuda.in_context(self._context):
                batch.after.append(self._cuda.record(stream))
        batch.starts.append(
            lambda communicator, own: start(
                buffer.pointer, buffer.num_bytes, peer, communicator, own
            )
        )
        return _NcclWork(self, batch, buffer, peer)

    def _serve(self) -> None:
        """Runs on the thread that calls NCCL."""
        try:
            with self._cuda.in_context(self._context):
                self._stream = self._cuda.make_stream()
                self._communicator = self._nccl.join(self._unique_id, self.rank, self.world_size)
        except SparringError as error:
            self._join_error = error
        self._joined.set()
        while (batch := self._batches.get()) is not None:
            with self._issuing:
                communicator = self._communicator
                if communicator is None:
                    batch.error = "the communicator was aborted after an earlier failure"
                    continue
                try:
                    with self._cuda.in_context(self._context):
                        self._issue(batch, communicator)
                except SparringError as error:
                    batch.error = str(error)

    def _issue(self, batch: _Batch, communicator: int) -> None:
        if batch.is_after_all:
            # The stream that wrote the buffers is unknown.
            self._cuda.synchronize()
        for event in batch.after:
            self._cuda.order_after(event, self._stream)
            self._cuda.free_event(event)
        self._nccl.start_group()
        try:
            for start in batch.starts:
                start(communicator, self._stream)
        finally:
            self._nccl.end_group()
        batch.event = self._cuda.record(self._stream)


class _NcclWork(PolledWork):
    def __init__(
        self, owner: NcclCollective, batch: _Batch, buffer: _DeviceBuffer, peer: int
    ) -> None:
        super().__init__(owner.deadline_seconds)
        self._owner = owner
        self._batch = batch
        self._buffer = buffer
        self._peer = peer
        self._context = owner.context

    def _is_complete_impl(self) -> bool:
        self._owner.flush(self._batch)
        if self._batch.error is not None:
            raise self._failure(self._batch.error)
        return self._owner.is_complete(self._batch)

    def _failure_impl(self, limit: float, now: float) -> SparringError | None:
        found = self._owner.background_error()
        if found is None and now >= limit:
            found = f"no message arrived within {self._owner.deadline_seconds:g} s"
        return None if found is None else self._failure(found)

    def _failure(self, found: str) -> PeerFailure:
        self._owner.abort()
        self._owner.give_up(self._peer)
        return self._owner.peer_failure(self._peer, found, self._context)


def _device_buffer(buffer: Any) -> _DeviceBuffer | None:
    """Returns the GPU memory of an array of any framework, or None if it is in host memory.

    Raises:
        InvalidArgumentError: the array is in GPU memory and not C-contiguous.
    """
    interface = _cuda_array_interface(buffer)
    if interface is None:
        return None
    dtype = np.dtype(interface["typestr"])
    shape = tuple(map(int, interface["shape"]))
    expected = [dtype.itemsize * int(np.prod(shape[place + 1 :])) for place in range(len(shape))]
    strides = interface.get("strides")
    if strides is not None and list(strides) != expected and 0 not in shape:
        raise InvalidArgumentError(
            f"collective: buffers must be C-contiguous, found strides {tuple(strides)} for shape "
            f"{shape}; copy it first"
        )
    num_bytes = dtype.itemsize * int(np.prod(shape))
    return _DeviceBuffer(int(interface["data"][0]), num_bytes, buffer)


def _cuda_array_interface(buffer: Any) -> dict[str, Any] | None:
    # For CPU tensors torch raises AttributeError, which getattr handles.
    interface: dict[str, Any] | None = getattr(buffer, "__cuda_array_interface__", None)
    return interface
