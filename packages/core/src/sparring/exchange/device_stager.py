"""Streams of a device for an exchange, and staging of arrays in pinned memory if necessary.

If the collective supports the device's memory, arrays are sent directly. Otherwise an array is copied
to pinned host memory on the stream that wrote it, sent from there, and copied back:

    direct    device ─────────────────────── collective ─────────────────────── device
    staged    device ── copy ── pinned host ─ collective ─ pinned host ── copy ── device
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.device.kernels import DeviceArray
from sparring.errors import InvalidArgumentError
from sparring.exchange.messages import align_bytes
from sparring.exchange.messenger import Buffers, MessageKind, Messenger, Transfer
from sparring.runtime.lifecycle import Closable
from sparring.runtime.streams import Stream, StreamTask
from sparring.runtime.threads import InlineExecutor

__all__ = ["StagedArrays", "DeviceStager"]

Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True)
class StagedArrays:
    """Arrays that are sent or received together."""

    arrays: Sequence[DeviceArray]
    buffer: Bytes | None = None
    """Pinned memory for the arrays, one after the other; None if they are sent directly."""
    transfers: list[Transfer] = field(default_factory=list)


class DeviceStager(Closable):
    """Streams and messages of one device in an exchange.

    Args:
        kernels: kernels of the device.
        messenger: sends and receives messages.

    Raises:
        UnsupportedError: the kernels have no streams.
        InvalidArgumentError: their arrays cannot be used on another stream than the caller's.
    """

    def __init__(self, kernels: KernelSet, messenger: Messenger) -> None:
        self.kernels = kernels
        self.messenger = messenger
        self.streams = kernels.streams()
        kind = kernels.device.partition(":")[0]
        self.is_direct = kind in messenger.collective.devices
        """Whether the collective supports the device's memory."""
        self.finding = self._open_stream()
        """Stream that finds rows and gathers gradients for other ranks."""
        self.placing = self._open_stream()
        """Stream that copies received rows to the result, or sums received gradients."""
        self._owners: dict[int, tuple[npt.NDArray[np.int32], DeviceArray]] = {}
        """Owners by the id of the host array, which is stored so that its id stays unique."""
        self._buffers = Buffers(make=self.streams.pinned)
        if kind == "cuda":
            self._check_using()

    def owners(self, owners: npt.NDArray[np.int32]) -> DeviceArray:
        """Returns the rank ``(4096,)`` of each partition on the device; copied there once."""
        if id(owners) not in self._owners:
            # A copy, because some device arrays do not support read-only memory.
            device_owners = self.kernels.arrays.from_host(owners.copy())
            self._owners[id(owners)] = owners, device_owners
        return self._owners[id(owners)][1]

    def _open_stream(self) -> Stream:
        made = self.kernels.arrays.open_stream
        return self.streams.open() if made is None else self.streams.wrap(made())

    def _check_using(self) -> None:
        """Checks that the arrays support a change of streams. Otherwise results would be read before
        they are computed."""
        arrays = self.kernels.arrays
        with arrays.using(self.finding.handle):
            found = arrays.stream()
        if found != self.finding.handle:
            self.close()
            raise InvalidArgumentError(
                f"the ArraySource of {self.kernels.device} cannot change streams: in using(stream) "
                "its stream() returns another stream; set `using`, for PyTorch to lambda stream: "
                "torch.cuda.stream(torch.cuda.ExternalStream(stream, device))"
            )

    def reached(self, stream: Stream) -> StreamTask:
        """Returns a wait for the current work of a stream, with the collective's deadline."""
        return stream.reached(self.messenger.collective.deadline_seconds)

    def traced(self, name: str, stream: Stream, label: str, begin_ns: int) -> StreamTask:
        """Returns a wait for the work of a stream since `begin_ns`, which a trace records."""
        task = self.reached(stream)
        trace = self.messenger.trace
        if trace is not None:
            line = f"stream of {self.kernels.device}: {name}"
            task.when_done(
                lambda done: trace.add_to_line(line, name, begin_ns, done.end_ns, {"of": label})
            )
        return task

    def is_reached(self, task: StreamTask | None) -> bool:
        """Whether the work of a stream is done; None counts as done.

        Raises:
            DeviceError, DeadlineError: the stream failed.
        """
        if task is None:
            return True
        if task.done():
            task.result()
            return True
        return False

    def wait(self, task: StreamTask) -> None:
        """Waits for a stream, and polls messages in the meantime.

        Raises:
            DeviceError, DeadlineError: the stream failed.
            PeerFailure: a rank is gone or does not respond.
        """
        executor, has_ended = InlineExecutor(), False
        while not has_ended:
            has_ended = task.done()
            self.messenger.pause(executor, has_progressed=has_ended)
        task.result()

    def settle(self, tasks: Sequence[StreamTask]) -> BaseException | None:
        """Waits until both streams are idle, and returns the first error.

        Afterwards no work writes to the arrays, unless the device hangs.
        """
        error: BaseException | None = None
        for task in (*tasks, self.reached(self.finding), self.reached(self.placing)):
            try:
                task.result()
            except BaseException as found:
                error = error or found
        return error

    def begin(self) -> None:
        """Orders both streams after the current work of the caller's stream."""
        for stream in (self.finding, self.placing):
            stream.follow(self.kernels.arrays.stream())

    def end(self) -> None:
        """Orders later work of the caller's stream after the current work of both streams."""
        caller = self.streams.wrap(self.kernels.arrays.stream())
        for stream in (self.finding, self.placing):
            caller.follow(stream)

    def pack(self, arrays: Sequence[DeviceArray], stream: Stream) -> StagedArrays:
        """Stages arrays. They may be sent after the current work of the stream."""
        staged = StagedArrays(arrays)
        if not self.is_direct:
            staged.buffer = self._buffers.take(_staged_bytes(arrays))
            for place, array in _find_offsets(arrays):
                at = find_address(staged.buffer) + place
                stream.copy(at, self._address(array), array.nbytes)
        return staged

    def send(self, staged: StagedArrays, kind: MessageKind, peer: int, label: str) -> None:
        """Starts sending packed arrays. Empty arrays are not sent."""
        for buffer in self._list_messages(staged):
            sent = self.messenger.send(kind, buffer, peer, label, stream=self._stream(self.finding))
            staged.transfers.append(sent)

    def receive(
        self, arrays: Sequence[DeviceArray], kind: MessageKind, peer: int, label: str
    ) -> StagedArrays:
        """Starts receiving into arrays. They may be used after `unpack`."""
        staged = StagedArrays(arrays)
        if not self.is_direct:
            staged.buffer = self._buffers.take(_staged_bytes(arrays))
        for buffer in self._list_messages(staged):
            coming = self.messenger.receive(
                kind, buffer, peer, label, stream=self._stream(self.placing)
            )
            staged.transfers.append(coming)
        return staged

    def start(self, *staged: StagedArrays | None) -> None:
        """Starts all posted messages, as one group if the collective supports groups."""
        for each in staged:
            if each is not None:
                self.is_done(each)

    def is_done(self, staged: StagedArrays) -> bool:
        """Whether all messages were transferred.

        Raises:
            PeerFailure: a transfer failed.
        """
        while staged.transfers and self.messenger.is_done(staged.transfers[0]):
            del staged.transfers[0]
        return not staged.transfers

    def unpack(self, staged: StagedArrays, stream: Stream) -> None:
        """Copies received data into its arrays, on a stream. Wait for the stream, then call
        `give_back`."""
        if staged.buffer is not None:
            for place, array in _find_offsets(staged.arrays):
                at = find_address(staged.buffer) + place
                stream.copy(self._address(array), at, array.nbytes)

    def give_back(self, staged: StagedArrays) -> None:
        """Releases the pinned memory. No message and no stream may still use it."""
        if staged.buffer is not None:
            self._buffers.give_back(staged.buffer)
            staged.buffer = None

    def close(self) -> None:
        self.finding.close()
        self.placing.close()

    def _list_messages(self, staged: StagedArrays) -> list[Any]:
        if staged.buffer is not None:
            return [staged.buffer] if staged.buffer.nbytes else []
        # As bytes, because NumPy, and so some transports, do not support bfloat16.
        as_bytes = self.kernels.arrays.view
        return [as_bytes(each, "uint8") for each in staged.arrays if each.nbytes]

    def _address(self, array: DeviceArray) -> int:
        return find_address(self.kernels.arrays.view(array, "uint8"))

    def _stream(self, stream: Stream) -> int | None:
        return stream.handle if self.is_direct else None


def find_address(array: DeviceArray) -> int:
    """Returns the address of a contiguous array."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        interface = np.from_dlpack(array).__array_interface__
    return int(interface["data"][0])


def _find_offsets(arrays: Sequence[DeviceArray]) -> list[tuple[int, DeviceArray]]:
    """Returns the offset of each array in pinned memory, a multiple of 8 bytes."""
    at, positions = 0, []
    for array in arrays:
        positions.append((at, array))
        at += align_bytes(array.nbytes)
    return positions


def _staged_bytes(arrays: Sequence[DeviceArray]) -> int:
    return sum(align_bytes(array.nbytes) for array in arrays)
