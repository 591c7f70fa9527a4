"""The nccl collective over an imitation of NCCL and the driver, and the reasons why it is unavailable."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import LocalGroup, make_plugin_manager
from sparring.collective.local import LocalCollective
from sparring.contracts import Collective, CollectiveDescriptor, Membership, WorkContext
from sparring.errors import (
    DeviceError,
    InternalError,
    InvalidArgumentError,
    PeerFailure,
    PluginError,
)
from sparring_nccl import collective as collective_module
from sparring_nccl import libraries
from sparring_nccl.collective import NcclCollective
from sparring_nccl.options import NcclOptions
from sparring_nccl.testing import FakeGpus, GpuArray
from sparring_testing.processes import rank_threads
from sparring_testing.processes.deadlines import check_with_deadlines


def run_ranks(
    fake_gpus: FakeGpus, world_size: int, body: Any, deadline_seconds: float = 10.0
) -> list[Any]:
    def join(group: LocalGroup, rank: int) -> NcclCollective:
        return NcclCollective(group.join(rank), fake_gpus.nccl, fake_gpus.cuda, device=rank)

    results = rank_threads.run_ranks(world_size, body, deadline_seconds, join)
    assert all(fake_gpus.library.fake_is_aborted(rank) for rank in range(world_size))
    return results


def test_device_buffers_of_one_exchange_go_as_one_group(fake_gpus: FakeGpus) -> None:
    def body(collective: NcclCollective) -> Any:
        peers = [peer for peer in range(3) if peer != collective.rank]
        got = {peer: GpuArray.of(np.zeros(4 + peer)) for peer in peers}
        # All ranks send first and wait last: if they waited in turn, none would make progress.
        mine = np.full(4 + collective.rank, collective.rank + 1.5)
        works = [collective.send(GpuArray.of(mine), peer) for peer in peers]
        works += [collective.receive(got[peer], peer) for peer in peers]
        for work in works:
            work.wait()
            assert work.done()
        return {peer: array.tolist() for peer, array in got.items()}

    results = run_ranks(fake_gpus, 3, body)
    for rank, got in enumerate(results):
        assert got == {peer: [peer + 1.5] * (4 + peer) for peer in range(3) if peer != rank}
    assert fake_gpus.log(0) == ["32 to 1, 32 to 2, 40 from 1, 48 from 2"]
    assert fake_gpus.log(2) == ["48 to 0, 48 to 1, 32 from 0, 40 from 1"]
    assert fake_gpus.library.fake_num_events() == 0, "an event was not freed"


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "int32", "float64", "complex128"])
def test_every_dtype_and_size_arrives_byte_for_byte(fake_gpus: FakeGpus, dtype: str) -> None:
    sent = [np.arange(n).astype(dtype).reshape(-1, 1) for n in (0, 1, 7, 1000)]

    def body(collective: NcclCollective) -> bool:
        other = 1 - collective.rank
        got = [GpuArray.of(np.zeros_like(each)) for each in sent]
        works = [collective.receive(each, other) for each in got]
        works += [collective.send(GpuArray.of(each), other) for each in sent]
        for work in works:
            work.wait()
        return all(np.array_equal(a, b) for a, b in zip(got, sent, strict=True))

    assert run_ranks(fake_gpus, 2, body) == [True, True]


def test_groups_pass_in_the_order_of_posting(fake_gpus: FakeGpus) -> None:
    def body(collective: NcclCollective) -> list[int]:
        other, got = 1 - collective.rank, []
        for number in range(20):
            theirs = GpuArray.of(np.zeros(1, np.int64))
            works = [
                collective.send(GpuArray.of(np.array([number])), other),
                collective.receive(theirs, other),
            ]
            got.append((works, theirs))
            assert works[0].done() in (True, False)  # gives the group to NCCL
        for works, _ in got:
            works[1].wait()
        return [int(theirs[0]) for _, theirs in got]

    assert run_ranks(fake_gpus, 2, body) == [list(range(20))] * 2
    assert len(fake_gpus.log(0)) == 20


def test_a_message_waits_for_the_stream_that_writes_it(fake_gpus: FakeGpus) -> None:
    with fake_gpus.cuda.in_context(5):
        stream = fake_gpus.cuda.make_stream()
    buffer = GpuArray.of(np.zeros(8, np.uint8))
    held = fake_gpus.hold(stream, buffer, 7)
    is_posted = threading.Event()

    def body(collective: NcclCollective) -> Any:
        if collective.rank == 0:
            sending = collective.send(buffer, 1, stream=stream)
            assert not sending.done()
            # Comes later on the stream, and so the message does not wait for it.
            fake_gpus.hold(stream, GpuArray.of(np.zeros(1, np.uint8)), 0)
            is_posted.set()
            sending.wait()
            return None
        got = GpuArray.of(np.zeros(8, np.uint8))
        assert is_posted.wait(5.0)
        with fake_gpus.cuda.in_context(6):
            receiving = collective.receive(got, 0, stream=fake_gpus.cuda.make_stream())
        assert not receiving.done()
        time.sleep(0.02)
        assert not receiving.done(), "the message went before it was written"
        fake_gpus.release(held)
        receiving.wait()
        return got.tolist()

    assert run_ranks(fake_gpus, 2, body)[1] == [7] * 8
    assert fake_gpus.library.fake_num_synchronizes() == 0, "somebody waited for the device"


def test_without_a_stream_a_message_waits_for_all_work_of_the_device(fake_gpus: FakeGpus) -> None:
    with fake_gpus.cuda.in_context(5):
        stream = fake_gpus.cuda.make_stream()
    buffer = GpuArray.of(np.zeros(4, np.uint8))
    held = fake_gpus.hold(stream, buffer, 9)

    def body(collective: NcclCollective) -> Any:
        if collective.rank == 0:
            sending = collective.send(buffer, 1)
            assert not sending.done()
            time.sleep(0.02)
            fake_gpus.release(held)
            sending.wait()
            return None
        got = GpuArray.of(np.zeros(4, np.uint8))
        collective.receive(got, 0).wait()
        return got.tolist()

    assert run_ranks(fake_gpus, 2, body)[1] == [9] * 4


def test_host_buffers_and_operations_use_the_host_collective(
    fake_gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited: list[int] = []
    monkeypatch.setattr(LocalCollective, "progress", lambda _, peer: awaited.append(peer))

    def body(collective: NcclCollective) -> Any:
        other, got = 1 - collective.rank, np.zeros(2)
        sending = collective.send(np.full(2, collective.rank + 5.0), other, tag=3)
        collective.receive(got, other, tag=3).wait()
        sending.wait()
        collective.progress(other)
        total = collective.all_reduce(np.array([[collective.rank + 1]]))
        return got.tolist(), total.tolist(), fake_gpus.log(collective.rank)

    assert run_ranks(fake_gpus, 2, body) == [([6.0, 6.0], [[3]], []), ([5.0, 5.0], [[3]], [])]
    assert sorted(awaited) == [0, 1]


def test_a_silent_peer_times_out_and_the_communicator_is_aborted(
    fake_gpus: FakeGpus,
) -> None:
    def check(deadline: float) -> None:
        fake_gpus.library.fake_reset()
        has_ended = threading.Event()
        within = re.escape(f"within {deadline:g} s")

        def body(collective: NcclCollective) -> Any:
            if collective.rank == 1:
                assert has_ended.wait(10 * deadline)
                return None
            try:
                return fail(collective)
            finally:
                has_ended.set()

        def fail(collective: NcclCollective) -> float:
            collective.context = WorkContext("pull", "user", 7)
            start = time.monotonic()
            receiving = collective.receive(GpuArray.of(np.zeros(3)), 1)
            words = f"rank 1 in pull of table 'user' at step 7.*{within}"
            with pytest.raises(PeerFailure, match=words):
                receiving.wait()
            seconds = time.monotonic() - start
            assert fake_gpus.library.fake_is_aborted(0)
            with pytest.raises(PeerFailure, match=within):
                receiving.wait()
            with pytest.raises(PeerFailure, match="aborted after an earlier failure"):
                collective.send(GpuArray.of(np.zeros(3)), 1).wait()
            return seconds

        seconds = run_ranks(fake_gpus, 2, body, deadline_seconds=deadline)[0]
        assert 0.97 * deadline <= seconds <= 2 * deadline

    check_with_deadlines(check, (0.3, 3.0))


def test_a_blocking_call_of_nccl_is_ended_at_the_deadline(fake_gpus: FakeGpus) -> None:
    def check(deadline: float) -> None:
        fake_gpus.library.fake_reset()
        fake_gpus.library.fake_block_groups(1)

        def body(collective: NcclCollective) -> float:
            start = time.monotonic()
            words = re.escape(f"no message arrived within {deadline:g} s")
            with pytest.raises(PeerFailure, match=words):
                collective.receive(GpuArray.of(np.zeros(3)), 0).wait()
            return time.monotonic() - start

        assert run_ranks(fake_gpus, 1, body, deadline_seconds=deadline)[0] < deadline + 1.7

    try:
        check_with_deadlines(check, (0.3, 3.0))
    finally:
        fake_gpus.library.fake_block_groups(0)


def test_an_error_that_nccl_detects_is_raised_before_the_deadline(fake_gpus: FakeGpus) -> None:
    def body(collective: NcclCollective) -> None:
        if collective.rank == 1:
            return
        fake_gpus.library.fake_fail(0, 6)
        with pytest.raises(PeerFailure, match=r"remote process exited.*\(the fake says why\)"):
            collective.receive(GpuArray.of(np.zeros(3)), 1).wait()

    run_ranks(fake_gpus, 2, body)


def test_a_message_of_another_size_is_an_error_on_both_ranks(fake_gpus: FakeGpus) -> None:
    def body(collective: NcclCollective) -> None:
        if collective.rank == 0:
            work = collective.send(GpuArray.of(np.zeros(3)), 1)
        else:
            work = collective.receive(GpuArray.of(np.zeros(4)), 0)
        with pytest.raises(PeerFailure, match="invalid usage"):
            work.wait()

    run_ranks(fake_gpus, 2, body)


@pytest.mark.parametrize("name", ["ncclGroupStart", "ncclSend", "ncclGroupEnd", "cuEventRecord"])
def test_errors_of_a_call_are_raised_by_its_waiter(fake_gpus: FakeGpus, name: str) -> None:
    def body(collective: NcclCollective) -> None:
        fake_gpus.library.fake_refuse(name.encode(), 5)
        try:
            with pytest.raises(PeerFailure, match=f"{name} failed: (invalid usage|some error)"):
                collective.send(GpuArray.of(np.zeros(3)), 0).wait()
        finally:
            fake_gpus.library.fake_refuse(b"", 0)

    run_ranks(fake_gpus, 1, body)


def test_a_lost_gpu_is_an_error_of_the_device(fake_gpus: FakeGpus) -> None:
    def body(collective: NcclCollective) -> None:
        work = collective.receive(GpuArray.of(np.zeros(3)), 0)
        assert not work.done()
        fake_gpus.library.fake_refuse(b"cuEventQuery", 999)
        try:
            with pytest.raises(DeviceError, match="cuEventQuery failed: some error of the driver"):
                work.wait()
        finally:
            fake_gpus.library.fake_refuse(b"", 0)

    run_ranks(fake_gpus, 1, body)


def test_a_graph_capture_of_another_thread_is_not_disturbed(fake_gpus: FakeGpus) -> None:
    def body(collective: NcclCollective) -> Any:
        got = GpuArray.of(np.zeros(3))
        works = [collective.send(GpuArray.of(np.ones(3)), 0), collective.receive(got, 0)]
        fake_gpus.library.fake_capture(1)
        try:
            for work in works:
                work.wait()
        finally:
            fake_gpus.library.fake_capture(0)
        return got.tolist()

    assert run_ranks(fake_gpus, 1, body) == [[1.0, 1.0, 1.0]]


def test_a_rejected_communicator_is_an_error_at_start(fake_gpus: FakeGpus) -> None:
    fake_gpus.library.fake_refuse(b"ncclCommInitRank", 2)
    try:
        host = LocalGroup(1).join(0)
        with pytest.raises(InternalError, match="ncclCommInitRank failed: unhandled system error"):
            NcclCollective(host, fake_gpus.nccl, fake_gpus.cuda, device=0)
    finally:
        fake_gpus.library.fake_refuse(b"", 0)


def test_a_rank_that_sees_only_its_own_gpu_uses_it(fake_gpus: FakeGpus) -> None:
    """With its number on the machine, the rank would use a GPU that it does not see."""
    fake_gpus.library.fake_show_devices(1)
    try:
        assert fake_gpus.cuda.retain_context(3) == fake_gpus.cuda.retain_context(0)
        fake_gpus.library.fake_show_devices(2)
        with pytest.raises(DeviceError, match="cuDeviceGet"):
            fake_gpus.cuda.retain_context(3)
    finally:
        fake_gpus.library.fake_show_devices(8)


def test_wrong_device_buffers_are_rejected(fake_gpus: FakeGpus) -> None:
    def body(collective: NcclCollective) -> None:
        with pytest.raises(InvalidArgumentError, match="C-contiguous"):
            collective.send(GpuArray.of(np.zeros((4, 4)))[:, 1], 0)
        with pytest.raises(InvalidArgumentError, match="ranks 0 to 0"):
            collective.receive(GpuArray.of(np.zeros(4)), 1)

    run_ranks(fake_gpus, 1, body)


def test_it_reports_its_memory_kinds(fake_gpus: FakeGpus) -> None:
    assert tuple(NcclCollective.devices) == ("cpu", "cuda")


@pytest.fixture
def installed(fake_gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> CollectiveDescriptor:
    """The plugin on a machine whose NCCL and driver are the imitation."""
    monkeypatch.setattr(collective_module, "open_nccl", lambda: fake_gpus.nccl)
    monkeypatch.setattr(collective_module, "open_cuda", lambda: fake_gpus.cuda)
    return make_plugin_manager().collective("nccl")


def test_a_world_of_one_joins_without_another_collective(installed: CollectiveDescriptor) -> None:
    options = installed.options()
    with installed.factory(Membership(rank=0, world_size=1), options, 5.0) as collective:
        got = GpuArray.of(np.zeros(2))
        works = [collective.send(GpuArray.of(np.ones(2)), 0), collective.receive(got, 0)]
        for work in works:
            work.wait()
    assert got.tolist() == [1.0, 1.0]


def test_a_host_collective_is_extended_by_name(installed: CollectiveDescriptor) -> None:
    """As a framework adapter does: it knows neither the class nor the libraries."""
    group, viewed = LocalGroup(2, deadline_seconds=10.0), []

    def view(buffer: Any, stream: int | None) -> tuple[Any, int | None]:
        viewed.append(type(buffer))
        return (np.asarray(buffer).view(GpuArray) if isinstance(buffer, list) else buffer), stream

    def run(rank: int) -> list[float]:
        extend = installed.device_factory
        assert extend is not None
        collective: Collective
        with extend(group.join(rank), Membership(rank, 2, rank), view) as collective:
            got = GpuArray.of(np.zeros(2))
            works = [collective.send([rank + 1.0] * 2, 1 - rank), collective.receive(got, 1 - rank)]
            for work in works:
                work.wait()
            assert collective.all_reduce(np.ones(1)).tolist() == [2.0]
            return list(got.tolist())

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(run, range(2))) == [[2.0, 2.0], [1.0, 1.0]]
    assert sorted(each.__name__ for each in viewed) == ["GpuArray", "GpuArray", "list", "list"]


def why() -> str | None:
    descriptor = make_plugin_manager().collective("nccl")
    assert descriptor.unavailable is not None
    return descriptor.unavailable()


def only(monkeypatch: pytest.MonkeyPatch, present: dict[str, Any]) -> None:
    def load(path: str) -> Any:
        if Path(path).name not in present:
            raise OSError("no such file")
        return present[Path(path).name]

    monkeypatch.setattr(libraries.ctypes, "CDLL", load)


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


def test_without_the_library_the_install_command_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, {})
    assert "libnccl.so.2 was found neither in the wheels" in str(why())
    assert 'pip install "sparring[nccl]"' in str(why())
    factory = make_plugin_manager().collective("nccl").factory
    with pytest.raises(PluginError, match=r"libnccl\.so\.2"):
        factory(Membership(rank=0, world_size=1), None, 1.0)


def test_with_the_library_and_no_driver_the_driver_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, {"libnccl.so.2": AnyLibrary()})
    assert "there is no NVIDIA driver on this machine" in str(why())


def test_with_a_driver_and_no_gpu_the_gpu_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, {"libnccl.so.2": AnyLibrary(), "libcuda.so.1": NoGpu()})
    reason = str(why())
    assert "there is no usable GPU" in reason
    assert "no CUDA-capable device" in reason


def test_it_is_available_if_all_requirements_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver(NoGpu):
        def cuInit(self, flags: int) -> int:
            return 0

        def cuDeviceGetCount(self, count: Any) -> int:
            return 0

        def cuDeviceGet(self, number: Any, device: int) -> int:
            return 0

        def cuDevicePrimaryCtxRetain(self, context: Any, number: Any) -> int:
            return 0

    only(monkeypatch, {"libnccl.so.2": AnyLibrary(), "libcuda.so.1": Driver()})
    assert why() is None


def test_reference_has_every_option_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/collectives.md").read_text()
    for name, field in NcclOptions.model_fields.items():
        assert f"| `{name}` | `{field.default}` | {field.description} |" in page
