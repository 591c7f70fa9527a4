"""An imitation of NCCL and the driver, compiled by the machine's C compiler."""

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

from sparring.collective.nccl_library import CudaDriver, NcclLibrary

__all__ = ["FakeGpus", "GpuArray", "open_fake"]


class GpuArray(np.ndarray[Any, Any]):
    """Host memory that says it is a GPU's."""

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> GpuArray:
        """A copy."""
        return array.copy().view(cls)

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
    """The imitation: ranks are threads, all GPUs one memory."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.fake_log.restype = ctypes.c_char_p
        self.library.fake_hold.restype = ctypes.c_void_p
        self.nccl = NcclLibrary(ctypes.CDLL(str(path)))
        self.cuda = CudaDriver(ctypes.CDLL(str(path)))

    def log(self, rank: int) -> list[str]:
        """What the rank's newest communicator was given: a line for each group."""
        return str(self.library.fake_log(rank).decode()).splitlines()

    def hold(self, stream: int, array: npt.NDArray[np.uint8], value: int) -> int:
        """Puts a write of `value` on the stream that waits to be released."""
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
def open_fake() -> FakeGpus:
    """Compiles the imitation and opens it; skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler was found, and the imitation of NCCL is written in C")
    source = Path(__file__).with_name("fake_nccl.c")
    options = ["-O1", "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-shared", "-fPIC", "-pthread"]
    # What was opened stays, without its file.
    with tempfile.TemporaryDirectory(prefix="sparring-nccl-") as folder:
        path = Path(folder) / "fake_nccl.so"
        subprocess.run([compiler, *options, str(source), "-o", str(path)], check=True, timeout=60)
        return FakeGpus(path)
