from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from sparring_testing.devices import get_test_device, list_test_devices, why_unavailable


@dataclass(frozen=True, slots=True)
class Place:
    """Device of the tables of a test, and of its tensors."""

    name: str

    @property
    def table(self) -> dict[str, Any]:
        """Options of modules."""
        return {"storage": "memory"} if self.name == "cpu" else {"device": self.name}

    @property
    def device(self) -> torch.device:
        """Device of tensors; CPU tensors represent tensors of an emulated GPU."""
        return torch.device("cpu" if self.name == "emulated" else self.name)

    def agree(self, ours: torch.Tensor, theirs: torch.Tensor) -> bool:
        """Returns whether results equal the CPU's: bit by bit on the emulator. On a GPU, the sine
        in a test's loss and torch optimizers round differently.
        """
        if self.name in ("cpu", "emulated"):
            return torch.equal(ours, theirs)
        tolerance = 1e-4 if ours.element_size() > 2 else 3e-2
        return torch.allclose(ours.cpu(), theirs, rtol=tolerance, atol=tolerance)


@pytest.fixture
def place(table_device: str) -> Iterator[Place]:
    """Each device that tables support in this environment; torch creates tensors there in the test."""
    where = Place(table_device)
    if where.device.type == "cpu":
        yield where
        return
    with where.device:
        yield where


@pytest.fixture(params=[each for each in list_test_devices() if each != "cpu"])
def device_place(request: pytest.FixtureRequest) -> Place:
    """The emulator, and the GPU that the environment names. Tests create tensors on the device in
    ``with device_place.device:``, and CPU tensors to compare with in ``with CPU:``.
    """
    reason = why_unavailable(request.param)
    if reason is not None:
        pytest.skip(reason)
    return Place(request.param)


@pytest.fixture
def gpu() -> torch.device:
    """The GPU that the environment names."""
    name = get_test_device()
    if not name.startswith("cuda"):
        pytest.skip("SPARRING_TEST_DEVICE names no GPU")
    reason = why_unavailable(name)
    if reason is not None:
        pytest.skip(reason)
    return torch.device(name)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Limits tests to one thread, because they are too small for several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def generator() -> np.random.Generator:
    seed = random.randrange(2**32)
    print(f"numpy.random.default_rng({seed})")
    return np.random.default_rng(seed)
