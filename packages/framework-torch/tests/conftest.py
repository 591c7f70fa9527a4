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
    """Where the tables of a test lie, and its tensors."""

    name: str

    @property
    def table(self) -> dict[str, Any]:
        """What modules are given."""
        return {"storage": "memory"} if self.name == "cpu" else {"device": self.name}

    @property
    def device(self) -> torch.device:
        """Of tensors; those of the CPU stand for an emulated GPU's."""
        return torch.device("cpu" if self.name == "emulated" else self.name)

    def agree(self, ours: torch.Tensor, theirs: torch.Tensor) -> bool:
        """Whether this place gives what the CPU gives: its bits on the emulator. The sine of a test's
        loss, and optimizers of torch, round otherwise on a GPU."""
        if self.name in ("cpu", "emulated"):
            return torch.equal(ours, theirs)
        tolerance = 1e-4 if ours.element_size() > 2 else 3e-2
        return torch.allclose(ours.cpu(), theirs, rtol=tolerance, atol=tolerance)


@pytest.fixture
def place(table_device: str) -> Iterator[Place]:
    """Each of the devices that tables can lie on here; torch makes tensors there meanwhile."""
    where = Place(table_device)
    if where.device.type == "cpu":
        yield where
        return
    with where.device:
        yield where


@pytest.fixture(params=[each for each in list_test_devices() if each != "cpu"])
def device_place(request: pytest.FixtureRequest) -> Place:
    """The emulator, and the GPU that the environment names. Tests make their tensors in
    ``with device_place.device:``, and those of the CPU that they compare with in ``with CPU:``."""
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
    """Tests are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def generator() -> np.random.Generator:
    seed = random.randrange(2**32)
    print(f"numpy.random.default_rng({seed})")
    return np.random.default_rng(seed)
