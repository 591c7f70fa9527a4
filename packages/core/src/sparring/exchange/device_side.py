"""What an exchange uses of a device: two streams, pinned memory, and a way to carry arrays.

Where the collective takes the device's memory, an array travels as it is. Where it does not, it is
copied into pinned host memory on the stream that made it, travels from there, and is copied back:

    direct    device ─────────────────────── collective ─────────────────────── device
    staged    device ── copy ── pinned host ─ collective ─ pinned host ── copy ── device
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.closable import Closable
from sparring.errors import InvalidArgumentError
from sparring.exchange.beside import InlineLane
from sparring.exchange.buffers import Buffers
from sparring.exchange.counters import MessageKind
from sparring.exchange.link import Link, Transfer
from sparring.exchange.wire import padded
from sparring.kernel_set import DeviceArray, KernelSet
from sparring.streams import Stream, StreamTask

__all__ = ["Carried", "DeviceSide"]

Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True)
class Carried:
    """Arrays that travel together."""

    arrays: Sequence[DeviceArray]
    buffer: Bytes | None = None
    """Where they lie one after the other in pinned memory; None: they travel as they are."""
    transfers: list[Transfer] = field(default_factory=list)


class DeviceSide(Closable):
    """A device, as one exchange uses it.

    Args:
        kernels: of the device.
        link: sends and receives.

    Raises:
        UnsupportedError: the kernels have no streams.
        InvalidArgumentError: their arrays cannot be put on another stream than the caller's.
    """

    def __init__(self, kernels: KernelSet, link: Link) -> None:
        self.kernels = kernels
        self.link = link
        self.streams = kernels.streams()
        kind = kernels.device.partition(":")[0]
        self.is_direct = kind in link.collective.devices
        """Whether the collective takes the device's memory."""
        self.finding = self.streams.open()
        """Where rows are found, and gradients gathered, for other ranks."""
        self.placing = self.streams.open()
        """Where what came from other ranks is put in its place, or added up."""
        self._buffers = Buffers(make=self.streams.pinned)
        if kind == "cuda":
            self._check_using()

    def _check_using(self) -> None:
        """What is put on another stream than ordered would be read before it is there."""
        arrays = self.kernels.arrays
        with arrays.using(self.finding.handle):
            found = arrays.stream()
        if found != self.finding.handle:
            self.close()
            raise InvalidArgumentError(
                f"the ArraySource of {self.kernels.device} cannot change streams: under using(stream) "
                "its stream() is another one; give it `using`, with PyTorch lambda stream: "
                "torch.cuda.stream(torch.cuda.ExternalStream(stream, device))"
            )

    def reached(self, stream: Stream) -> StreamTask:
        """A wait for the stream, no longer than the collective's deadline."""
        return stream.reached(self.link.collective.deadline_seconds)

    def traced(self, name: str, stream: Stream, what: str, begin_ns: int) -> StreamTask:
        """A wait for what was put on a stream since `begin_ns`, which a trace shows."""
        task = self.reached(stream)
        trace = self.link.trace
        if trace is not None:
            line = f"stream of {self.kernels.device}: {name}"
            task.when_done(
                lambda done: trace.add_to_line(line, name, begin_ns, done.end_ns, {"of": what})
            )
        return task

    def is_reached(self, task: StreamTask | None) -> bool:
        """Whether a stream has come there; None: nothing was put on it.

        Raises:
            DeviceError, DeadlineError: it never will.
        """
        if task is None:
            return True
        if task.done():
            task.result()
            return True
        return False

    def wait(self, task: StreamTask) -> None:
        """Waits for a stream, and looks after the wire meanwhile.

        Raises:
            DeviceError, DeadlineError: it never comes there.
            PeerFailure: a rank is gone or silent.
        """
        lane, has_ended = InlineLane(), False
        while not has_ended:
            has_ended = task.done()
            self.link.pause(lane, has_progressed=has_ended)
        task.result()

    def settle(self, tasks: Sequence[StreamTask]) -> BaseException | None:
        """Waits until nothing is on either stream, and returns the first error.

        Nothing writes to arrays of ours then, unless the device hangs.
        """
        error: BaseException | None = None
        for task in (*tasks, self.reached(self.finding), self.reached(self.placing)):
            try:
                task.result()
            except BaseException as found:
                error = error or found
        return error

    def begin(self) -> None:
        """Both streams go on after what the caller's has now."""
        for stream in (self.finding, self.placing):
            stream.follow(self.kernels.arrays.stream())

    def end(self) -> None:
        """What the caller's stream gets from now on runs after what both streams have now."""
        caller = self.streams.wrap(self.kernels.arrays.stream())
        for stream in (self.finding, self.placing):
            caller.follow(stream)

    def pack(self, arrays: Sequence[DeviceArray], stream: Stream) -> Carried:
        """Arrays that will be sent once the stream has come there."""
        carried = Carried(arrays)
        if not self.is_direct:
            carried.buffer = self._buffers.take(_staged_bytes(arrays))
            for place, array in _places(arrays):
                at = address_of(carried.buffer) + place
                stream.copy(at, self._address(array), array.nbytes)
        return carried

    def send(self, carried: Carried, kind: MessageKind, peer: int, what: str) -> None:
        """Starts sending what was packed. Arrays of no bytes do not travel."""
        for buffer in self._travelling(carried):
            sent = self.link.send(kind, buffer, peer, what, stream=self._stream(self.finding))
            carried.transfers.append(sent)

    def receive(
        self, arrays: Sequence[DeviceArray], kind: MessageKind, peer: int, what: str
    ) -> Carried:
        """Starts filling arrays, which nobody uses before `unpack`."""
        carried = Carried(arrays)
        if not self.is_direct:
            carried.buffer = self._buffers.take(_staged_bytes(arrays))
        for buffer in self._travelling(carried):
            coming = self.link.receive(kind, buffer, peer, what, stream=self._stream(self.placing))
            carried.transfers.append(coming)
        return carried

    def start(self, *carried: Carried | None) -> None:
        """Lets go of what was posted: as one group, where the collective makes groups."""
        for each in carried:
            if each is not None:
                self.is_done(each)

    def is_done(self, carried: Carried) -> bool:
        """Whether all of it has travelled.

        Raises:
            PeerFailure: it never will.
        """
        while carried.transfers and self.link.is_done(carried.transfers[0]):
            del carried.transfers[0]
        return not carried.transfers

    def unpack(self, carried: Carried, stream: Stream) -> None:
        """Puts what has come into its arrays, on the stream. Then wait for it, and `give_back`."""
        if carried.buffer is not None:
            for place, array in _places(carried.arrays):
                at = address_of(carried.buffer) + place
                stream.copy(self._address(array), at, array.nbytes)

    def give_back(self, carried: Carried) -> None:
        """Neither the wire nor a stream uses it any more."""
        if carried.buffer is not None:
            self._buffers.give_back(carried.buffer)
            carried.buffer = None

    def close(self) -> None:
        self.finding.close()
        self.placing.close()

    def _travelling(self, carried: Carried) -> list[Any]:
        if carried.buffer is not None:
            return [carried.buffer] if carried.buffer.nbytes else []
        # As bytes: NumPy, and with it some transports, knows no bfloat16.
        as_bytes = self.kernels.arrays.view
        return [as_bytes(each, "uint8") for each in carried.arrays if each.nbytes]

    def _address(self, array: DeviceArray) -> int:
        return address_of(self.kernels.arrays.view(array, "uint8"))

    def _stream(self, stream: Stream) -> int | None:
        return stream.handle if self.is_direct else None


def address_of(array: DeviceArray) -> int:
    """Where the memory of a contiguous array begins."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        interface = np.from_dlpack(array).__array_interface__
    return int(interface["data"][0])


def _places(arrays: Sequence[DeviceArray]) -> list[tuple[int, DeviceArray]]:
    """Where each array begins in pinned memory: at a multiple of 8 bytes."""
    at, places = 0, []
    for array in arrays:
        places.append((at, array))
        at += padded(array.nbytes)
    return places


def _staged_bytes(arrays: Sequence[DeviceArray]) -> int:
    return sum(padded(array.nbytes) for array in arrays)
