"""Tensors on GPUs between ranks, with the imitations of NCCL and of the driver from sparring-nccl."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from sparring import LocalGroup
from sparring.contracts import Collective, CollectiveDescriptor, Membership
from sparring.errors import InvalidArgumentError, PluginError
from sparring_testing.processes.rank_threads import run_ranks
from sparring_torch.distributed import device_collective
from sparring_torch.distributed.collective import TorchCollective
from sparring_torch.distributed.device_collective import view_on_gpu, with_devices

fake_nccl = pytest.importorskip("sparring_nccl.testing", reason="sparring-nccl is not installed")


class GpuTensor(torch.Tensor):
    """A CPU tensor that claims to be on a GPU."""

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
def streams(fake_gpus: Any, monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """torch's current stream, the same for both ranks."""
    made: dict[int, int] = {}
    with fake_gpus.cuda.in_context(5):
        made[0] = fake_gpus.cuda.make_stream()
    monkeypatch.setattr(device_collective, "current_stream", lambda tensor: made[0])
    return made


def joining(fake_gpus: Any) -> Callable[[LocalGroup, int], Collective]:
    return lambda group, rank: fake_nccl.NcclCollective(
        group.join(rank), fake_gpus.nccl, fake_gpus.cuda, device=rank, view=view_on_gpu
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_of_every_dtype_are_sent_from_gpu_memory(
    fake_gpus: Any, streams: dict[int, int], dtype: torch.dtype
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

    assert run_ranks(2, body, 10.0, joining(fake_gpus)) == [True, True]
    assert fake_gpus.library.fake_num_synchronizes() == 0, "somebody waited for the GPU"
    assert len(fake_gpus.log(0)) == 1, "one group"


def test_a_message_waits_for_the_current_stream(fake_gpus: Any, streams: dict[int, int]) -> None:
    tensor = torch.zeros(8, dtype=torch.uint8)
    held = fake_gpus.hold(streams[0], tensor.numpy(), 7)

    def body(collective: Collective) -> Any:
        if collective.rank == 0:
            sending = collective.send(gpu(tensor), 1)
            assert not sending.done()
            fake_gpus.release(held)
            sending.wait()
            return None
        got = torch.zeros(8, dtype=torch.uint8)
        collective.receive(gpu(got), 0, stream=streams[0]).wait()
        return got.tolist()

    assert run_ranks(2, body, 10.0, joining(fake_gpus))[1] == [7] * 8


def test_a_tensor_that_requires_gradients_is_sent_and_a_strided_one_is_rejected(
    fake_gpus: Any, streams: dict[int, int]
) -> None:
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

    assert run_ranks(2, body, 10.0, joining(fake_gpus)) == [[1.0] * 4] * 2


def test_host_tensors_use_the_host_collective(fake_gpus: Any, streams: dict[int, int]) -> None:
    def body(collective: Collective) -> Any:
        other, got = 1 - collective.rank, torch.zeros(2)
        sending = collective.send(torch.full((2,), collective.rank + 1.0), other)
        collective.receive(got, other).wait()
        sending.wait()
        assert tuple(collective.devices) == ("cpu", "cuda")
        return got.tolist(), fake_gpus.log(collective.rank)

    assert run_ranks(2, body, 10.0, joining(fake_gpus)) == [([2.0, 2.0], []), ([1.0, 1.0], [])]


class Manager:
    """Returns a plugin manager with one collective, or with the reason why there is none."""

    def __init__(self, found: CollectiveDescriptor | str) -> None:
        self._found = found

    def collective(self, name: str) -> CollectiveDescriptor:
        assert name == "nccl"
        if isinstance(self._found, str):
            raise PluginError(self._found)
        return self._found


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[[CollectiveDescriptor | str], None]:
    """Replaces the collective that the plugin manager finds."""
    return lambda found: monkeypatch.setattr(
        device_collective, "make_plugin_manager", lambda: Manager(found)
    )


def nccl(reason: str | None = None, error: Exception | None = None) -> CollectiveDescriptor:
    """A collective for GPU memory that is unavailable for a reason, or fails to open."""

    def extend(host: Collective, membership: Membership, view: Any) -> Collective:
        assert view is view_on_gpu
        if error is not None:
            raise error
        return LocalGroup(1).join(0)

    return CollectiveDescriptor(
        name="nccl",
        api_version=(1, 0),
        factory=lambda *_: LocalGroup(1).join(0),
        device_factory=extend,
        unavailable=lambda: reason,
    )


@pytest.fixture
def group_with_nccl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A default group whose configuration contains NCCL."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    yield
    dist.destroy_process_group()


MEMBERSHIP = Membership(rank=0, world_size=1)


def test_a_job_without_nccl_does_not_look_for_it(
    choose: Callable[[Any], None], tmp_path: Path
) -> None:
    choose(nccl(error=AssertionError("it was opened")))
    host = TorchCollective(None)
    assert with_devices(host, MEMBERSHIP, "cpu:gloo") is host
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        assert with_devices(host, MEMBERSHIP, "cpu:gloo") is host
    finally:
        dist.destroy_process_group()


def test_nccl_of_the_default_group_is_used_if_possible(
    choose: Callable[[Any], None], group_with_nccl: None
) -> None:
    host = TorchCollective(None)
    choose(nccl(reason="there is no GPU"))
    assert with_devices(host, MEMBERSHIP, "cpu:gloo") is host
    choose(nccl())
    assert with_devices(host, MEMBERSHIP, "cpu:gloo") is not host


def test_a_gpu_job_without_the_package_logs_the_install_command(
    choose: Callable[[Any], None],
    group_with_nccl: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = TorchCollective(None)
    choose('not installed; install it with: pip install "sparring[nccl]"')
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert with_devices(host, MEMBERSHIP, "cpu:gloo") is host
    assert not caplog.messages
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert with_devices(host, MEMBERSHIP, "cpu:gloo") is host
    [message] = caplog.messages
    assert message.startswith("tensors on GPUs are sent through host memory, because")
    assert 'pip install "sparring[nccl]"' in message


@pytest.mark.parametrize(
    "found",
    ["not installed", nccl(error=PluginError("not installed"))],
    ids=["no package", "no NCCL"],
)
def test_missing_nccl_that_was_requested_by_name_fails_the_start(
    choose: Callable[[Any], None], found: CollectiveDescriptor | str
) -> None:
    choose(found)
    host = TorchCollective(None)
    with pytest.raises(PluginError, match="not installed"):
        with_devices(host, MEMBERSHIP, "cpu:gloo,cuda:nccl")
    with pytest.raises(Exception, match="closed"):
        host.send(np.zeros(1), 0)
