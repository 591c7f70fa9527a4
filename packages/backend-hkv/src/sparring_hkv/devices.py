"""GPUs, and the emulator that replaces one in tests."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from sparring.errors import DeviceError

__all__ = ["ModuleInContext", "OpenDevice", "num_gpus", "open_device", "why_cuda_is_unavailable"]

_DRIVER = "libcuda.so.1"
_MODULES = {"cuda": "sparring_hkv._cuda", "emulated": "sparring_hkv._emulated"}


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """A device that this process uses."""

    name: str
    """Name, for example ``cuda:0`` or ``emulated``."""
    native: ModuleType
    """The native module that runs kernels on it."""
    handle: Any
    """The device within that module."""


_opened: dict[tuple[str, int], OpenDevice] = {}
_lock = threading.Lock()


def open_device(kind: str, index: int = 0) -> OpenDevice:
    """Opens a device. Each device is opened once per process.

    Raises:
        DeviceError: the device cannot be used, with the reason.
    """
    with _lock:
        found = _opened.get((kind, index))
        if found is None:
            native = _module(kind)
            reason = native.unavailable()
            if reason is not None:
                raise DeviceError(
                    f"device {kind}:{index} cannot be used: {reason}; `sparring doctor` shows the GPUs "
                    "and the driver"
                )
            handle = native.Device(index)
            found = _opened[kind, index] = OpenDevice(handle.name, native, handle)
        return found


class ModuleInContext:
    """A native module whose functions run within a context of the caller's framework."""

    def __init__(self, native: Any, context: Callable[[], AbstractContextManager[Any]]) -> None:
        self._native = native
        self._context = context

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._native, name)
        if isinstance(found, type) or self._context is nullcontext:
            made = found
        else:

            @functools.wraps(found)
            def made(*arguments: Any, **named: Any) -> Any:
                with self._context():
                    return found(*arguments, **named)

        setattr(self, name, made)
        return made


def why_cuda_is_unavailable() -> str | None:
    """Returns why no GPU can be used, or None."""
    try:
        reason: str | None = _module("cuda").unavailable()
    except DeviceError as error:
        return str(error)
    return reason


def num_gpus() -> int:
    """Returns the number of GPUs that this process can use. Creates no context."""
    try:
        return int(_module("cuda").num_devices())
    except DeviceError:
        return 0


def _module(kind: str) -> ModuleType:
    try:
        return import_module(_MODULES[kind])
    except ImportError as error:
        how = (
            _gpu_build_advice()
            if kind == "cuda"
            else "build sparring-hkv with -DSPARRING_HKV_EMULATED=ON"
        )
        raise DeviceError(f"cannot load the module for device {kind} ({error}): {how}") from error


def _gpu_build_advice() -> str:
    """Returns advice on how to get GPU code, which depends on whether there is a GPU."""
    reason = _why_no_gpu()
    if reason is not None:
        return (
            "this sparring-hkv was built without nvcc, and there is no usable GPU: "
            f"{reason}; choose device: cpu"
        )
    return (
        "there is a GPU, but this sparring-hkv was built without nvcc; "
        "with nvcc of CUDA 12.4 to 13.x in PATH or CUDACXX, run: "
        "pip install --force-reinstall --no-deps --no-binary sparring-hkv sparring-hkv "
        "(from a checkout: pip install --force-reinstall --no-deps packages/backend-hkv); "
        "or choose device: cpu"
    )


def _why_no_gpu() -> str | None:
    """Returns why NVIDIA's driver reports no GPU, or None if there is one. Creates no context."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError as error:
        return f"no NVIDIA driver was found ({error})"
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "the driver reports no GPU to this process (see CUDA_VISIBLE_DEVICES)"
    return None
