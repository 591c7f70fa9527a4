"""The nccl collective: why it is unavailable here, and its logic over imitations of NCCL and CUDA.

The imitations move host memory between threads. They keep NCCL's rules that matter: operations of one
group start together when the group ends, pair up in the order of posting, and have no tags.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import make_plugin_manager
from sparring.collective import LocalGroup, WorkContext, nccl_library
from sparring.collective.nccl import NcclCollective
from sparring.errors import InternalError, InvalidArgumentError, PeerFailure, PluginError
from sparring.rendezvous import Membership


class DeviceArray:
    """Says that its memory is a GPU's."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self.array.ctypes.data, False),
            "shape": self.array.shape,
            "strides": self.array.strides,
            "typestr": self.array.dtype.str,
            "version": 3,
        }


class Wire:
    """What all imitations of one group share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sends: dict[tuple[int, int], deque[list[Any]]] = defaultdict(deque)
        self.receives: dict[tuple[int, int], deque[list[Any]]] = defaultdict(deque)
        self.ids: set[bytes] = set()


class ImitatedNccl:
    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.rank = -1
        self.group: list[Any] | None = None
        self.group_sizes: list[int] = []
        self.pending: list[list[Any]] = []
        self.is_aborted = False
        self.failure: str | None = None

    def make_unique_id(self) -> bytes:
        return bytes(range(128))

    def join(self, unique_id: bytes, rank: int, world_size: int) -> int:
        self.wire.ids.add(unique_id)
        self.rank = rank
        return rank + 1

    def start_group(self) -> None:
        assert self.group is None
        self.group = []

    def send(self, pointer: int, num_bytes: int, peer: int, communicator: int, stream: int) -> None:
        assert (communicator, stream) == (self.rank + 1, 77)
        assert self.group is not None
        self.group.append((self.wire.sends, (self.rank, peer), [pointer, num_bytes, False]))

    def receive(
        self, pointer: int, num_bytes: int, peer: int, communicator: int, stream: int
    ) -> None:
        assert self.group is not None
        self.group.append((self.wire.receives, (peer, self.rank), [pointer, num_bytes, False]))

    def end_group(self) -> None:
        assert self.group is not None
        self.group_sizes.append(len(self.group))
        with self.wire.lock:
            for queues, pair, message in self.group:
                queues[pair].append(message)
                self.pending.append(message)
                sends, receives = self.wire.sends[pair], self.wire.receives[pair]
                while sends and receives:
                    sent, received = sends.popleft(), receives.popleft()
                    ctypes.memmove(received[0], sent[0], received[1])
                    sent[2] = received[2] = True
        self.group = None

    def background_error(self, communicator: int) -> str | None:
        return self.failure

    def abort(self, communicator: int) -> None:
        self.is_aborted = True


class ImitatedCuda:
    def __init__(self, nccl: ImitatedNccl) -> None:
        self.nccl = nccl
        self.events: list[list[list[Any]]] = []

    def retain_context(self, device: int) -> int:
        return 5

    def use_context(self, context: int) -> None:
        assert context == 5

    def synchronize(self) -> None:
        return

    def make_stream(self) -> int:
        return 77

    def record(self, stream: int) -> int:
        self.events.append(list(self.nccl.pending))
        return len(self.events) - 1

    def is_reached(self, event: int) -> bool:
        return all(message[2] for message in self.events[event])


def run_ranks(world_size: int, body: Any, deadline_seconds: float = 10.0) -> list[Any]:
    group, wire = LocalGroup(world_size, deadline_seconds=deadline_seconds), Wire()

    def run(rank: int) -> Any:
        nccl: Any = ImitatedNccl(wire)
        cuda: Any = ImitatedCuda(nccl)
        with NcclCollective(group.join(rank), nccl, cuda, device=0) as collective:
            result = body(collective, nccl)
        assert nccl.is_aborted
        return result

    with ThreadPoolExecutor(world_size) as threads:
        results = list(threads.map(run, range(world_size)))
    assert wire.ids == {bytes(range(128))}, "all ranks join with rank 0's unique id"
    return results


def test_device_buffers_of_one_exchange_go_as_one_group() -> None:
    def body(collective: NcclCollective, nccl: ImitatedNccl) -> Any:
        peers = [peer for peer in range(3) if peer != collective.rank]
        got = {peer: np.zeros(4) for peer in peers}
        # All ranks send first and wait last: one after the other, nobody would ever get on.
        works = [collective.send(DeviceArray(np.full(4, collective.rank)), peer) for peer in peers]
        works += [collective.receive(DeviceArray(got[peer]), peer) for peer in peers]
        for work in works:
            work.wait()
            assert work.done()
        return {peer: int(array[0]) for peer, array in got.items()}, nccl.group_sizes

    for rank, (got, sizes) in enumerate(run_ranks(3, body)):
        # An int64 of 1 is no float64 of 1: bytes are what travels.
        expected = {peer: int(np.array([peer]).view(np.float64)[0]) for peer in got}
        assert got == expected
        assert rank not in got
        assert sizes == [4]


def test_host_buffers_and_operations_go_the_host_collectives_way() -> None:
    def body(collective: NcclCollective, nccl: ImitatedNccl) -> Any:
        other, got = 1 - collective.rank, np.zeros(2)
        sending = collective.send(np.full(2, collective.rank + 5.0), other, tag=3)
        collective.receive(got, other, tag=3).wait()
        sending.wait()
        total = collective.all_reduce(np.array([[collective.rank + 1]]))
        return got.tolist(), total.tolist(), nccl.group_sizes

    assert run_ranks(2, body) == [([6.0, 6.0], [[3]], []), ([5.0, 5.0], [[3]], [])]


def test_a_silent_peer_ends_at_the_deadline_and_the_communicator_is_aborted() -> None:
    def body(collective: NcclCollective, nccl: ImitatedNccl) -> Any:
        if collective.rank == 1:
            time.sleep(0.5)
            return None
        collective.context = WorkContext("pull", "user", 7)
        start = time.monotonic()
        with pytest.raises(PeerFailure, match=r"rank 1 in pull of table 'user' at step 7.*0\.3 s"):
            collective.receive(DeviceArray(np.zeros(3)), 1).wait()
        seconds = time.monotonic() - start
        assert nccl.is_aborted
        with pytest.raises(PeerFailure, match="aborted after an earlier failure"):
            collective.send(DeviceArray(np.zeros(3)), 1).wait()
        return seconds

    assert 0.29 <= run_ranks(2, body, deadline_seconds=0.3)[0] <= 0.4


def test_what_nccl_notices_by_itself_is_told_before_the_deadline() -> None:
    def body(collective: NcclCollective, nccl: ImitatedNccl) -> Any:
        if collective.rank == 1:
            return
        nccl.failure = "remote process exited"
        with pytest.raises(PeerFailure, match="remote process exited"):
            collective.receive(DeviceArray(np.zeros(3)), 1).wait()

    run_ranks(2, body)


def test_errors_of_a_call_reach_who_waits() -> None:
    def body(collective: NcclCollective, nccl: ImitatedNccl) -> Any:
        def refuse() -> None:
            raise InternalError("NCCL: ncclGroupStart failed: invalid usage")

        nccl.start_group = refuse  # type: ignore[method-assign]
        with pytest.raises(PeerFailure, match="ncclGroupStart failed"):
            collective.send(DeviceArray(np.zeros(3)), 0).wait()

    run_ranks(1, body)


def test_wrong_device_buffers_are_refused() -> None:
    def body(collective: NcclCollective, nccl: ImitatedNccl) -> Any:
        with pytest.raises(InvalidArgumentError, match="C-contiguous"):
            collective.send(DeviceArray(np.zeros((4, 4))[:, 1]), 0)
        with pytest.raises(InvalidArgumentError, match="ranks 0 to 0"):
            collective.receive(DeviceArray(np.zeros(4)), 1)

    run_ranks(1, body)


def why() -> str | None:
    descriptor = make_plugin_manager(entry_points=False).collective("nccl")
    assert descriptor.unavailable is not None
    return descriptor.unavailable()


def only(monkeypatch: pytest.MonkeyPatch, libraries: dict[str, Any]) -> None:
    def load(path: str) -> Any:
        if Path(path).name not in libraries:
            raise OSError("no such file")
        return libraries[Path(path).name]

    monkeypatch.setattr(nccl_library.ctypes, "CDLL", load)


class NoGpu:
    """A driver that finds no device."""

    def cuInit(self, flags: int) -> int:
        return 100

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = b"no CUDA-capable device is detected"
        return 0


class AnyLibrary:
    """Has every function; none is called."""

    def __getattr__(self, name: str) -> Any:
        self.__dict__[name] = type("Function", (), {})()
        return self.__dict__[name]


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, {})
    assert "libnccl.so.2 was found neither in the wheels" in str(why())
    assert 'pip install "sparring[nccl]"' in str(why())
    factory = make_plugin_manager(entry_points=False).collective("nccl").factory
    with pytest.raises(PluginError, match=r"libnccl\.so\.2"):
        factory(Membership(rank=0, world_size=1), None, 1.0)


def test_with_the_library_and_no_driver_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, {"libnccl.so.2": AnyLibrary()})
    assert "there is no NVIDIA driver on this machine" in str(why())


def test_with_a_driver_and_no_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, {"libnccl.so.2": AnyLibrary(), "libcuda.so.1": NoGpu()})
    reason = str(why())
    assert "there is no usable GPU" in reason
    assert "no CUDA-capable device" in reason


def test_where_all_is_there_it_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver(NoGpu):
        def cuInit(self, flags: int) -> int:
            return 0

        def cuDeviceGet(self, number: Any, device: int) -> int:
            return 0

        def cuDevicePrimaryCtxRetain(self, context: Any, number: Any) -> int:
            return 0

    only(monkeypatch, {"libnccl.so.2": AnyLibrary(), "libcuda.so.1": Driver()})
    assert why() is None
