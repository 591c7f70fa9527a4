"""The GPUs of this machine as reported by NVIDIA's driver, for ``sparring doctor`` and error
messages.

Calls the driver's library, without a toolkit or framework. It only calls `cuInit` and queries
properties, so that no GPU gets a context, which would use memory.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Gpu", "Gpus", "inspect_gpus"]

_LIBRARY = "libcuda.so.1"
_SUCCESS = 0
_NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that this process can use, and their driver."""

    driver: str | None
    """Release of the driver, for example ``580.65.06``."""
    cuda_release: str | None
    """Newest CUDA release that the driver supports, for example ``13.0``."""
    devices: tuple[Gpu, ...]
    """The GPUs in the order of their numbers."""
    reason: str | None
    """Reason why `devices` is empty; None if it is not."""


def inspect_gpus(root: Path = Path("/"), library: Any = None) -> Gpus:
    """Queries the driver.

    Args:
        root: Folder that contains ``/proc``.
        library: Library of the driver; None opens it.
    """
    driver = _driver_release(root)
    if library is None:
        try:
            library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            return Gpus(driver, None, (), f"there is no NVIDIA driver ({error})")
    number = ctypes.c_int()
    release = None
    # This call works before cuInit, so the release is known even if cuInit fails.
    if library.cuDriverGetVersion(ctypes.byref(number)) == _SUCCESS:
        release = f"{number.value // 1000}.{number.value % 1000 // 10}"
    for name, given in (("cuInit", 0), ("cuDeviceGetCount", ctypes.byref(number))):
        code = getattr(library, name)(given)
        if code != _SUCCESS:
            return Gpus(driver, release, (), f"{name} failed: {_text(library, code)}")
    devices = tuple(_inspect(library, each) for each in range(number.value))
    reason = None if devices else "the driver shows this process no GPU (CUDA_VISIBLE_DEVICES?)"
    return Gpus(driver, release, devices, reason)


def _inspect(library: Any, number: int) -> Gpu:
    device, size = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    asked = (
        library.cuDeviceGet(ctypes.byref(device), number),
        library.cuDeviceGetName(name, _NAME_BYTES, device),
        library.cuDeviceTotalMem_v2(ctypes.byref(size), device),
    )
    bad = [_text(library, code) for code in asked if code != _SUCCESS]
    return Gpu(f"unknown ({bad[0]})" if bad else name.value.decode(errors="replace"), size.value)


def _text(library: Any, code: int) -> str:
    text = ctypes.c_char_p()
    library.cuGetErrorString(code, ctypes.byref(text))
    return text.value.decode(errors="replace") if text.value else f"error {code}"


def _driver_release(root: Path) -> str | None:
    try:
        text = (root / "proc/driver/nvidia/version").read_text("utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"\d+\.\d+(?:\.\d+)?", text)
    return None if found is None else found[0]
