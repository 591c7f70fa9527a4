"""Requirements of trainings with torch: few threads, and devices for tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparring_testing.devices import list_test_devices, why_unavailable

if TYPE_CHECKING:
    from .stream_runs import Events


@dataclass(frozen=True, slots=True)
class Place:
    """A device that tables can be on."""

    name: str


@pytest.fixture(params=[each for each in list_test_devices() if each != "cpu"])
def device_place(request: pytest.FixtureRequest) -> Place:
    """The emulator, and the GPU that the environment names."""
    reason = why_unavailable(request.param)
    if reason is not None:
        pytest.skip(reason)
    return Place(request.param)


@pytest.fixture
def events(tmp_path: Path) -> Events:
    from .stream_runs import Events

    return Events(tmp_path)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tests are small, so threads would only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
