"""torch and tables share the memory of a GPU: an error reports missing memory, and unused is released."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sparring import Frequency
from sparring.errors import DeviceMemoryError
from sparring_hkv.devices import open_device
from sparring_testing.devices import why_unavailable
from sparring_torch.device.kernels import get_kernel_set
from sparring_torch.device.memory import memory_errors, release_unused_memory
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

needs_emulator = pytest.mark.skipif(
    why_unavailable("emulated") is not None, reason=str(why_unavailable("emulated"))
)

MESSAGE = "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 80.00 GiB"


class Failing:
    """Makes the n-th allocation from now on, and all after it, fail."""

    def __init__(self, patches: pytest.MonkeyPatch) -> None:
        self.left = -1
        for owner, name in (
            (torch, "empty"),
            (torch, "cat"),
            (torch, "arange"),
            (torch.Tensor, "index_select"),
            (torch.Tensor, "to"),
        ):
            patches.setattr(owner, name, self._instead(getattr(owner, name)))

    def _instead(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **named: Any) -> Any:
            if self.left == 0:
                raise torch.OutOfMemoryError(MESSAGE)
            self.left -= self.left > 0
            return function(*arguments, **named)

        return made


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(monkeypatch)


@needs_emulator
@pytest.mark.parametrize(
    ("make", "asked_bytes"),
    [
        (lambda arrays: arrays.empty((3, 5), "float16"), 30),
        (lambda arrays: arrays.from_host(np.zeros((7, 2))), 112),
        (lambda arrays: arrays.concatenate([torch.zeros(2), torch.zeros(9)]), 44),
        (lambda arrays: arrays.take(torch.zeros(4, 6), torch.tensor([1, 1, 3])), 72),
    ],
    ids=["empty", "from_host", "concatenate", "take"],
)
def test_an_array_without_memory_reports_requested_and_free_bytes(
    make: Callable[[Any], Tensor], asked_bytes: int, failing: Failing
) -> None:
    arrays = get_kernel_set("emulated").arrays
    assert make(arrays).nbytes == asked_bytes
    failing.left = 0
    with pytest.raises(DeviceMemoryError, match=re.escape(MESSAGE)) as caught:
        make(arrays)
    assert (caught.value.asked_bytes, caught.value.free_bytes) == (asked_bytes, 0)
    assert f"{asked_bytes} bytes of device memory, but only 0 bytes are free" in str(caught.value)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


@needs_emulator
def test_a_lookup_without_memory_in_torch_raises_a_memory_error(failing: Failing) -> None:
    module = EmbeddingBag(8, name="items", mode="sum", device="emulated")
    ids = torch.arange(12).reshape(4, 3)
    before = module(ids)
    failing.left = 0
    with pytest.raises(DeviceMemoryError) as caught:
        module(ids)
    # The first allocation of a lookup is torch's own, and only torch's message has its size.
    assert caught.value.asked_bytes == 3 << 29
    failing.left = -1
    assert torch.equal(module(ids), before)


@needs_emulator
@pytest.mark.parametrize("admission", [None, Frequency(2)], ids=["all", "admitted"])
@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", torch.optim.Adagrad])
@pytest.mark.parametrize("is_stacked", [False, True], ids=["table", "tiers"])
def test_a_step_without_memory_in_torch_changes_no_row(
    optimizer: Any, admission: Any, is_stacked: bool, failing: Failing
) -> None:
    hot = {"device": "emulated", "capacity": 64, "policy": "lru"}
    tiers = {"backend": "tiered", "tiers": [{"backend": "hkv", "options": hot}, {"backend": "hkv"}]}
    place: dict[str, Any] = {"storage": tiers} if is_stacked else {"device": "emulated"}
    module = EmbeddingBag(8, name="items", mode="sum", admission=admission, **place)
    steps = Optimizer(module, optimizer, lr=0.1)
    ids = torch.arange(90).reshape(30, 3)

    def read() -> Tensor:
        with torch.no_grad():
            return module.eval()(torch.arange(120)[:, None])

    def backward(first: int) -> None:
        module.train()(ids + first).sin().sum().backward()

    for _ in range(2):
        backward(0)
        steps.step()
        steps.zero_grad()
    num_refused = 0
    for made in range(100):
        before = read()
        backward(made % 7)
        failing.left = made
        try:
            steps.step()
            steps.zero_grad()
        except DeviceMemoryError:
            num_refused += 1
        else:
            break
        finally:
            failing.left = -1
        assert torch.equal(read(), before), f"tensor {made} of the step was not made"
    assert num_refused > 1
    assert not torch.equal(read(), before), "it goes on once there is memory"


@pytest.mark.parametrize("kept", [0, 4096])
def test_torch_frees_unused_memory(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied = []
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1000 + kept)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    assert release_unused_memory(torch.device("cuda:0")) == bool(kept)
    assert len(emptied) == bool(kept)


def test_memory_in_the_cache_of_torch_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (500, 10**6))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 300)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
    with (
        pytest.raises(DeviceMemoryError) as caught,
        memory_errors(torch.device("cuda:0")),
    ):
        raise torch.OutOfMemoryError(MESSAGE)
    assert (caught.value.asked_bytes, caught.value.free_bytes) == (3 << 29, 700)


def test_a_table_allocates_memory_that_torch_cached_on_cuda(gpu: torch.device) -> None:
    module = EmbeddingBag(64, name="items", mode="sum", device=gpu)
    optimizer = Optimizer(module, "sgd", lr=0.1)
    ids = torch.arange(2**20, device=gpu).reshape(-1, 4)
    module(ids).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize(gpu)
    torch.cuda.empty_cache()
    free_bytes = torch.cuda.mem_get_info(gpu)[0]
    # The batch below uses a separate segment, because torch releases no segment that is partly used.
    small = torch.empty(1 << 30, dtype=torch.uint8, device=gpu)
    held = torch.empty(free_bytes - (1 << 30) - (64 << 20), dtype=torch.uint8, device=gpu)
    del small, held  # torch caches them
    assert torch.cuda.memory_reserved(gpu) > free_bytes // 2
    handle = open_device("cuda", gpu.index or 0).handle
    before = handle.memory_use["lasting_bytes"]
    with torch.no_grad():
        assert module.num_rows() == {"items": 2**20}
    # New rows need memory of the table, more than torch has left on the device.
    module(ids + 2**20).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert handle.memory_use["lasting_bytes"] > before + (64 << 20)
    assert module.num_rows() == {"items": 2**21}


@needs_emulator
def test_an_optimizer_of_torch_without_memory_raises_and_the_next_step_may_succeed() -> None:
    failing = False

    class Adagrad(torch.optim.Adagrad):
        def step(self, closure: Any = None) -> Any:
            if failing:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
            return super().step(closure)

    module = EmbeddingBag(4, name="items", device="emulated")
    optimizer = Optimizer(module, Adagrad, lr=0.1)
    ids = torch.arange(20).reshape(5, 4)
    for failing in (False, True, False):
        before = module(ids).detach()
        module(ids).sum().backward()
        if failing:
            with pytest.raises(DeviceMemoryError, match="no row has changed") as caught:
                optimizer.step()
            assert caught.value.details["asked_bytes"] == 20 << 20
        else:
            optimizer.step()
            optimizer.zero_grad()
        assert torch.equal(module(ids), before) == failing
