"""The operators of exported programs, and the functions that bind tables to them: compiled, loaded once.

One library serves all programs of a process, as an operator can be registered once only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparring.adapter import ProgramError, ProgramLibrary, c_reader
from sparring.errors import UnsupportedError

__all__ = ["LIBRARY", "Library", "ProgramError", "build_library", "load_library"]

LIBRARY = "libsparring_program.so"
_SOURCE = Path(__file__).with_name("native") / "lookup_ops.cc"
_NAMESPACE = "sparring_program"
_OLDEST_TORCH = (2, 10)
_ABI = "0x020a000000000000"
"""Torch 2.10, the first whose stable ABI has strings and lists."""


def build_library(folder: Path) -> None:
    """Compiles the library into `folder`, with the reader next to it.

    Raises:
        UnsupportedError: torch is older than 2.10, or there is no C++ compiler.
        PluginError: sparring-packed is not installed.
    """
    release = tuple(int(each) for each in torch.__version__.split("+")[0].split(".")[:2])
    if release < _OLDEST_TORCH:
        raise UnsupportedError(
            f"programs are exported by torch 2.10 and later, found {torch.__version__}; its stable ABI "
            "is what operators are written against. Upgrade torch"
        )
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise UnsupportedError(
            f"exporting a program needs a C++ compiler, found none called {compiler!r}; install g++, or "
            "name yours by the environment variable CXX"
        )
    reader, of_torch = c_reader(), Path(torch.__file__).parent
    shutil.copy2(reader.library, folder)
    command = [
        compiler, "-std=c++20", "-O2", "-fPIC", "-shared", f"-DTORCH_TARGET_VERSION={_ABI}",
        f"-I{of_torch / 'include'}", f"-I{reader.include}", str(_SOURCE), "-o", str(folder / LIBRARY),
        f"-L{of_torch / 'lib'}", "-ltorch_cpu", f"-L{folder}", f"-l:{Path(reader.library).name}",
        "-Wl,-rpath,$ORIGIN",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnsupportedError(
            f"the operators of exported programs were not compiled by {compiler}: "
            f"{done.stderr[-1000:]}; C++20 is needed, as of g++ 11"
        )


def load_library(folder: Path | None = None) -> Library:
    """The library of this process: of `folder`, or compiled now. Later calls give the first one.

    Raises:
        UnsupportedError, PluginError: as `build_library`.
    """
    if _loaded:
        return _loaded[0]
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="sparring-program-"))
        weakref.finalize(build_library, shutil.rmtree, folder, ignore_errors=True)
        build_library(folder)
    torch.ops.load_library(str(folder / LIBRARY))  # type: ignore[no-untyped-call]
    _register_shapes()
    _loaded.append(Library(folder))
    return _loaded[0]


class Library(ProgramLibrary):
    """The functions of ``sparring_program.h``, by the library of the operators.

    Args:
        folder: of the library.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / LIBRARY)
        self.folder = folder


_loaded: list[Library] = []


def _register_shapes() -> None:
    """Shapes of what the operators return, for exports."""

    def lookup(_handle: str, _table: str, dim: int, *arguments: Any) -> Tensor:
        ids = arguments[-1]
        made: Tensor = ids.new_empty((*ids.shape, dim), dtype=torch.float32)
        return made

    def pooled_lookup(*arguments: Any) -> Tensor:
        dims, ids, num_bags = arguments[2], arguments[7], arguments[-1]
        made: Tensor = ids.new_empty((num_bags, sum(dims)), dtype=torch.float32)
        return made

    def flat_lookup(*arguments: Any) -> Tensor:
        ids, num_elements = arguments[3], arguments[-1]
        made: Tensor = ids.new_empty((num_elements, 1), dtype=torch.float32)
        return made

    for each in (lookup, pooled_lookup, flat_lookup):
        torch.library.register_fake(f"{_NAMESPACE}::{each.__name__}")(each)
