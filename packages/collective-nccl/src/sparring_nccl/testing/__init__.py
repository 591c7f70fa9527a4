"""A fake NCCL and CUDA driver for tests, compiled by the machine's C compiler.

``fake_nccl.c`` describes which rules of the real libraries it follows. Ranks are threads of one process,
and the memory of all GPUs is host memory.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sparring_nccl.collective import NcclCollective
from sparring_nccl.libraries import CudaDriver, NcclLibrary

__all__ = ["FakeGpus", "GpuArray", "NcclCollective", "open_fake_nccl"]


class GpuArray(np.ndarray[Any, Any]):
    """Host memory with the interface of GPU memory."""

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> GpuArray:
        """Returns a copy of an array."""
        copy: GpuArray = array.copy().view(cls)
        return copy

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self.ctypes.data, False),
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
            "version": 3,
        }


class FakeGpus:
    """Fake libraries. The collective calls `nccl` and `cuda`; `library` controls their behavior."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.fake_log.restype = ctypes.c_char_p
        self.library.fake_hold.restype = ctypes.c_void_p
        self.nccl = NcclLibrary(ctypes.CDLL(str(path)))
        self.cuda = CudaDriver(ctypes.CDLL(str(path)))

    def log(self, rank: int) -> list[str]:
        """Returns the messages of the rank's newest communicator, one line per group."""
        return str(self.library.fake_log(rank).decode()).splitlines()

    def hold(self, stream: int, array: npt.NDArray[np.uint8], value: int) -> int:
        """Appends a write of `value` to the stream; the stream waits until `release` is called."""
        return int(
            self.library.fake_hold(
                ctypes.c_void_p(stream),
                ctypes.c_void_p(array.ctypes.data),
                value,
                ctypes.c_size_t(array.nbytes),
            )
        )

    def release(self, held: int) -> None:
        self.library.fake_release(ctypes.c_void_p(held))


@functools.cache
def open_fake_nccl() -> FakeGpus:
    """Compiles and opens the fake libraries; skips the test if there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler was found; the fake NCCL is written in C")
    source = Path(__file__).with_name("fake_nccl.c")
    options = ["-O1", "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-shared", "-fPIC", "-pthread"]
    # The library stays open when its file is deleted.
    with tempfile.TemporaryDirectory(prefix="sparring-nccl-") as folder:
        path = Path(folder) / "fake_nccl.so"
        subprocess.run([compiler, *options, str(source), "-o", str(path)], check=True, timeout=60)
        return FakeGpus(path)
