"""The operators of exported programs, and the functions that bind tables to them: compiled, loaded once.

One library serves all programs of a process, as an operator can be registered once only.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparring.adapter import make_plugin_manager
from sparring.contracts import CReader
from sparring.errors import SparringError, UnsupportedError

__all__ = [
    "HEADER",
    "LIBRARY",
    "Library",
    "ProgramError",
    "build_library",
    "c_reader",
    "load_library",
]

LIBRARY = "libsparring_program.so"
HEADER = "sparring_program.h"
NATIVE = Path(__file__).with_name("native")
_SOURCES = ("lookup_ops.cc", "tables.cc")
_NAMESPACE = "sparring_program"
_OLDEST_TORCH = (2, 10)
_ABI = "0x020a000000000000"
"""Torch 2.10, the first whose stable ABI has strings and lists."""


class ProgramError(SparringError, RuntimeError):
    """A program and its tables do not fit, or are not there: bind those that it was exported for."""


def c_reader() -> CReader:
    """The C reader of serving snapshots, from the plugin that has one.

    Raises:
        PluginError: sparring-packed is not installed.
    """
    made = make_plugin_manager().storage("packed").c_reader
    assert made is not None
    return made()


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
        f"-I{of_torch / 'include'}", f"-I{reader.include}", f"-I{NATIVE}",
        *(str(NATIVE / each) for each in _SOURCES), "-o", str(folder / LIBRARY),
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


class Library:
    """The functions of ``sparring_program.h``.

    Args:
        folder: of the library.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._c = ctypes.CDLL(str(folder / LIBRARY))
        self._c.sparring_program_error.restype = ctypes.c_char_p

    def bind(self, bundle: Path, served: str) -> None:
        self._call("bind", os.fsencode(bundle), os.fsencode(served))

    def refresh(self, bundle: Path) -> bool:
        is_changed = ctypes.c_int32()
        self._call("refresh", os.fsencode(bundle), ctypes.byref(is_changed))
        return bool(is_changed.value)

    def version(self, bundle: Path) -> tuple[str, int]:
        """Hash of the manifest, and step."""
        digest, step = ctypes.create_string_buffer(33), ctypes.c_int64()
        self._call("version", os.fsencode(bundle), digest, ctypes.byref(step))
        return digest.value.decode(), step.value

    def release(self, bundle: Path) -> None:
        self._call("release", os.fsencode(bundle))

    def describe(self, served: str) -> tuple[str, dict[str, int]]:
        """Hash of the newest version, and table → dim."""
        text = ctypes.create_string_buffer(1 << 20)
        self._call("describe", os.fsencode(served), text, ctypes.c_uint64(len(text)))
        digest, *lines = text.value.decode().splitlines()
        tables = (line.partition(" ") for line in lines)
        return digest, {name: int(dim) for dim, _, name in tables}

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._c, f"sparring_program_{name}")(*arguments):
            raise ProgramError(self._c.sparring_program_error().decode(errors="replace"))


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
