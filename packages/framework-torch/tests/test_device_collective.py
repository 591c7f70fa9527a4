"""Tensors on GPUs between ranks, over core's imitation of NCCL and the driver."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from sparring import LocalGroup
from sparring.contracts import Collective, Membership
from sparring.errors import InvalidArgumentError, PluginError
from sparring_torch import device_collective
from sparring_torch.collective import TorchCollective
from sparring_torch.device_collective import TorchDeviceCollective, with_devices


def _fake_nccl() -> ModuleType:
    path = Path(__file__).parents[2] / "core" / "tests" / "collective" / "fake_nccl" / "__init__.py"
    spec = importlib.util.spec_from_file_location("fake_nccl", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["fake_nccl"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class GpuTensor(torch.Tensor):
    """A tensor of the CPU that says it is on a GPU."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        assert not self.requires_grad
        assert self.dtype is torch.uint8, "torch has names for few dtypes only"
        return {
            "data": (self.data_ptr(), False),
            "shape": tuple(self.shape),
            "strides": None,
            "typestr": "|u1",
            "version": 2,
        }


def gpu(tensor: torch.Tensor) -> GpuTensor:
    return tensor.as_subclass(GpuTensor)


@pytest.fixture
def gpus() -> Any:
    fake = _fake_nccl().open_fake()
    fake.library.fake_reset()
    return fake


@pytest.fixture
def streams(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Torch's current stream, the same for both ranks."""
    made: dict[int, int] = {}
    with gpus.cuda.in_context(5):
        made[0] = gpus.cuda.make_stream()
    monkeypatch.setattr(device_collective, "current_stream", lambda tensor: made[0])
    return made


def run_ranks(gpus: Any, body: Callable[[Collective], Any]) -> list[Any]:
    group = LocalGroup(2, deadline_seconds=10.0)

    def run(rank: int) -> Any:
        with TorchDeviceCollective(
            group.join(rank), gpus.nccl, gpus.cuda, device=rank
        ) as collective:
            return body(collective)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(run, range(2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_travel_from_gpu_memory_whatever_their_dtype(
    gpus: Any, streams: dict[int, int], dtype: torch.dtype
) -> None:
    sent = [torch.arange(12).reshape(3, 4).to(dtype), torch.ones((), dtype=dtype), torch.empty(0)]

    def body(collective: Collective) -> bool:
        other = 1 - collective.rank
        got = [torch.zeros_like(each) for each in sent]
        works = [collective.receive(gpu(each), other) for each in got]
        works += [collective.send(gpu(each), other) for each in sent]
        for work in works:
            work.wait()
        return all(torch.equal(one, two) for one, two in zip(got, sent, strict=True))

    assert run_ranks(gpus, body) == [True, True]
    assert gpus.library.fake_num_synchronizes() == 0, "somebody waited for the GPU"
    assert len(gpus.log(0)) == 1, "one group"


def test_a_message_goes_after_the_current_stream(gpus: Any, streams: dict[int, int]) -> None:
    tensor = torch.zeros(8, dtype=torch.uint8)
    held = gpus.hold(streams[0], tensor.numpy(), 7)

    def body(collective: Collective) -> Any:
        if collective.rank == 0:
            sending = collective.send(gpu(tensor), 1)
            assert not sending.done()
            gpus.release(held)
            sending.wait()
            return None
        got = torch.zeros(8, dtype=torch.uint8)
        collective.receive(gpu(got), 0, stream=streams[0]).wait()
        return got.tolist()

    assert run_ranks(gpus, body)[1] == [7] * 8


def test_a_gradient_is_no_hindrance_and_strides_are(gpus: Any, streams: dict[int, int]) -> None:
    def body(collective: Collective) -> Any:
        other = 1 - collective.rank
        parameter = gpu(torch.ones(4)).requires_grad_()
        got = torch.zeros(4)
        works = [collective.send(parameter, other), collective.receive(gpu(got), other)]
        for work in works:
            work.wait()
        with pytest.raises(InvalidArgumentError, match=r"C-contiguous, found strides \(1, 4\)"):
            collective.send(gpu(torch.ones(4, 4).T), other)
        return got.tolist()

    assert run_ranks(gpus, body) == [[1.0] * 4] * 2


def test_host_tensors_go_the_host_collectives_way(gpus: Any, streams: dict[int, int]) -> None:
    def body(collective: Collective) -> Any:
        other, got = 1 - collective.rank, torch.zeros(2)
        sending = collective.send(torch.full((2,), collective.rank + 1.0), other)
        collective.receive(got, other).wait()
        sending.wait()
        assert tuple(collective.devices) == ("cpu", "cuda")
        return got.tolist(), gpus.log(collective.rank)

    assert run_ranks(gpus, body) == [([2.0, 2.0], []), ([1.0, 1.0], [])]


def test_nccl_is_used_where_the_job_uses_it_and_only_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    membership = Membership(rank=0, world_size=1)
    host = TorchCollective(None)
    assert with_devices(host, membership, "cpu:gloo") is host
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        assert with_devices(host, membership, "cpu:gloo") is host
        # The default group that there is has it, and it cannot be used here.
        monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
        monkeypatch.setattr(device_collective, "why_nccl_is_unavailable", lambda: "no GPU")
        assert with_devices(host, membership, "cpu:gloo") is host
    finally:
        dist.destroy_process_group()
    asked = []

    def refuse() -> Any:
        asked.append("nccl")
        raise PluginError("libnccl.so.2 was not found")

    monkeypatch.setattr(device_collective, "open_nccl", refuse)
    with pytest.raises(PluginError, match="libnccl"):
        with_devices(host, membership, "cpu:gloo,cuda:nccl")
    assert asked == ["nccl"]
    with pytest.raises(Exception, match="closed"):
        host.send(np.zeros(1), 0)
