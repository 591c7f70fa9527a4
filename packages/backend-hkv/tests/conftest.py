"""Devices of tests: tests use NumPy arrays, and so are written once for all devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from sparring import make_plugin_manager
from sparring.contracts import ArraySource, KernelSet, Rounding
from sparring_testing.devices import get_test_device, why_unavailable


class OnHost:
    """A kernel set for NumPy arrays, which it copies to its device and back.

    When a call returns, its NumPy arrays contain everything that it wrote.
    """

    def __init__(self, kernels: KernelSet, device: str) -> None:
        self._kernels = kernels
        self._torch: Any = import_module("torch")
        self._device = device

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._kernels, name)
        if not callable(found):
            return found

        def call(*given: Any, **named: Any) -> Any:
            moved: list[tuple[Any, Any]] = []
            arguments = [self._put(each, moved) for each in given]
            keywords = {name: self._put(each, moved) for name, each in named.items()}
            result = self._get(found(*arguments, **keywords))
            for host, there in moved:
                host.copy_(there)
            return result

        return call

    def _put(self, given: Any, moved: list[tuple[Any, Any]]) -> Any:
        torch = self._torch
        if isinstance(given, Rounding):
            return dataclasses.replace(given, keys=self._put(given.keys, moved))
        if isinstance(given, np.ndarray):
            if given.dtype.name == "bfloat16":
                given = torch.from_numpy(given.view(np.int16)).view(torch.bfloat16)
            elif given.dtype.name == "uint16" or not given.flags.writeable:
                return torch.from_numpy(given.copy()).to(self._device)
            else:
                given = torch.from_numpy(given)
        if not isinstance(given, torch.Tensor):
            return given
        # In separate memory, even if the device is the CPU.
        there = given.to(self._device, copy=True)
        moved.append((given, there))
        return there

    def _get(self, result: Any) -> Any:
        if isinstance(result, self._torch.Tensor):
            return result.cpu().numpy()
        if dataclasses.is_dataclass(result) and not isinstance(result, type):
            fields = dataclasses.fields(result)
            return type(result)(*(self._get(getattr(result, each.name)) for each in fields))
        return result


def opened_kernels(device: str) -> Any:
    """The kernels of a device for NumPy arrays.

    ``emulated by torch`` passes tensors to the kernels, like a GPU.
    """
    kind, _, index = device.removesuffix(" by torch").partition(":")
    descriptor = make_plugin_manager().kernels(kind)
    if device == "emulated":
        return descriptor.factory(ArraySource(empty=np.empty, stream=lambda: 0))
    torch: Any = pytest.importorskip("torch", reason="arrays of a device are PyTorch's here")
    where = "cpu" if kind == "emulated" else device

    def empty(shape: tuple[int, ...], dtype: str) -> Any:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=where)

    def stream() -> int:
        return 0 if where == "cpu" else int(torch.cuda.current_stream(where).cuda_stream)

    arrays = ArraySource(empty=empty, stream=stream, index=int(index or 0))
    kernels = descriptor.factory(arrays)
    if kind == "emulated":
        kernels._native = _TakesNoHostArrays(kernels._native)
    return OnHost(kernels, where)


class _TakesNoHostArrays:
    """A native module that rejects NumPy arrays, like the module of a GPU, and accepts tensors."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._native, name)
        if isinstance(found, type):
            return found

        def call(*given: Any, **named: Any) -> Any:
            for each in (*given, *named.values()):
                assert not isinstance(each, np.ndarray), f"{name} got an array of the host"
            return found(*given, **named)

        return call


def set_schedule(device: str, seed: int, num_threads: int = 2) -> None:
    """Shuffles the emulator's lanes, warps and blocks; a GPU has a different order."""
    if device.startswith("emulated"):
        import_module("sparring_hkv._emulated").set_schedule(seed=seed, num_threads=num_threads)


DEVICES: list[Any] = [
    pytest.param(("emulated", 0), marks=pytest.mark.slow),  # lanes in their order
    ("emulated", 1),
    pytest.param(("emulated by torch", 7), marks=pytest.mark.slow),
]
if not get_test_device().startswith("emulated"):
    DEVICES.append((get_test_device(), 0))


@pytest.fixture(params=DEVICES, ids=lambda each: f"{each[0]} {each[1]}")
def device_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """All devices for tests except the CPU; the emulator's in several orders."""
    name, seed = request.param
    reason = why_unavailable(name.removesuffix(" by torch"))
    if reason is not None:
        pytest.skip(reason)
    set_schedule(name, seed)
    yield name
    set_schedule(name, 0)


@pytest.fixture
def device(device_name: str) -> Any:
    """Returns the kernels of the device."""
    return opened_kernels(device_name)


@pytest.fixture
def named_kernels() -> Any:
    """The kernels of the device that the environment names, on NumPy's arrays."""
    return opened_kernels(get_test_device())


@pytest.fixture
def shuffle(device_name: str) -> Callable[..., None]:
    """Chooses another order, if the device supports it: ``shuffle(seed, num_threads)``."""
    return partial(set_schedule, device_name)


@pytest.fixture
def table_place(device_name: str) -> str:
    """What tables call the device."""
    return device_name.removesuffix(" by torch")


@pytest.fixture
def emulated() -> Any:
    """The emulator's module, for tests that make it fail or count its waits."""
    return pytest.importorskip(
        "sparring_hkv._emulated",
        reason="sparring-hkv was built without the emulator (-DSPARRING_HKV_EMULATED=ON)",
    )
