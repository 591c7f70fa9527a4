"""Compiles and loads the operators of exported programs, and the functions that bind tables to them.

One library serves all programs of a process, because an operator can be registered only once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparring.errors import PluginError, ProgramError, UnsupportedError

if TYPE_CHECKING:
    from sparring_packed import ProgramLibrary

__all__ = [
    "CPP_HEADER",
    "LIBRARY",
    "Library",
    "ProgramError",
    "build_library",
    "load_library",
    "packed",
]

LIBRARY = "libsparring_program.so"
_SOURCE = Path(__file__).with_name("native") / "lookup_ops.cc"
CPP_HEADER = _SOURCE.with_name("sparring_torch_program.h")
"""Header for programs in C++ that run a bundle."""
_NAMESPACE = "sparring_program"
_OLDEST_TORCH = (2, 10)
_ABI = "0x020a000000000000"
"""torch 2.10, the first release whose stable ABI has strings and lists."""


def packed() -> Any:
    """Returns the package `sparring_packed`, which writes and loads bundles of programs.

    Raises:
        PluginError: it is not installed.
    """
    try:
        import sparring_packed
    except ImportError as error:
        raise PluginError(
            "exported programs read serving snapshots with sparring-packed, which is not installed; "
            "run: pip install sparring-packed"
        ) from error
    return sparring_packed


def build_library(folder: Path) -> None:
    """Compiles the library into `folder`, next to a copy of the reader.

    Raises:
        UnsupportedError: torch is older than 2.10, or there is no C++ compiler.
        PluginError: sparring-packed is not installed.
    """
    release = tuple(int(each) for each in torch.__version__.split("+")[0].split(".")[:2])
    if release < _OLDEST_TORCH:
        raise UnsupportedError(
            f"exported programs require torch 2.10 or later, found {torch.__version__}, because "
            "operators use its stable ABI. Upgrade torch"
        )
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise UnsupportedError(
            f"exporting a program requires a C++ compiler, found none named {compiler!r}; install "
            "g++, or set the environment variable CXX to the name of a compiler"
        )
    reader: Path = packed().library_path()
    of_torch = Path(torch.__file__).parent
    shutil.copy2(reader, folder)
    command = [
        compiler, "-std=c++20", "-O2", "-fPIC", "-shared", f"-DTORCH_TARGET_VERSION={_ABI}",
        f"-I{of_torch / 'include'}", f"-I{packed().include_path()}",
        str(_SOURCE), "-o", str(folder / LIBRARY),
        f"-L{of_torch / 'lib'}", "-ltorch_cpu", f"-L{folder}", f"-l:{reader.name}",
        "-Wl,-rpath,$ORIGIN",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnsupportedError(
            f"{compiler} failed to compile the operators of exported programs: "
            f"{done.stderr[-1000:]}; use a compiler for C++20, for example g++ 11"
        )


def load_library(folder: Path | None = None) -> Library:
    """Returns the library of this process, loaded from `folder` or compiled; later calls reuse it.

    Raises:
        UnsupportedError, PluginError: see `build_library`.
    """
    if _loaded:
        return _loaded[0]
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="sparring-program-"))
        weakref.finalize(build_library, shutil.rmtree, folder, ignore_errors=True)
        build_library(folder)
    torch.ops.load_library(str(folder / LIBRARY))  # type: ignore[no-untyped-call]
    _register_shapes()
    _loaded.append(Library(folder, packed().ProgramLibrary(folder / LIBRARY)))
    return _loaded[0]


@dataclass(frozen=True, slots=True)
class Library:
    """The library of the operators."""

    folder: Path
    """Folder that contains the library."""
    functions: ProgramLibrary
    """Functions of ``sparring_program.h`` in the library."""


_loaded: list[Library] = []


def _register_shapes() -> None:
    """Registers shapes of the operators' results, for exports."""

    def lookup(_source: Any, _table: str, dim: int, *arguments: Any) -> Tensor:
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
        for name in (each.__name__, f"{each.__name__}_in"):
            torch.library.register_fake(f"{_NAMESPACE}::{name}")(each)
