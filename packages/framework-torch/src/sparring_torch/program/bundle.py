"""Loads bundles, the folders of exported programs, in Python."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparring_torch.program.library import load_library, packed

if TYPE_CHECKING:
    from sparring_packed import Program, ProgramLibrary

__all__ = ["PROGRAM", "load_program"]

PROGRAM = "program.pt2"
_PARAMETERS = "parameters.txt"
_BINDING = "binding.txt"
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""Names of dtypes in safetensors files."""


def load_program(bundle: str | os.PathLike[str], served: str | os.PathLike[str]) -> Program:
    """Loads an exported program and binds it to its tables.

    Args:
        bundle: the folder that `export_program` wrote.
        served: a serving snapshot, or a folder of them, of which the newest is used.

    Raises:
        InvalidArgumentError: the folder is not a bundle of torch, or a file in it is damaged.
        ProgramError: the program was exported for other tables, or for another version of them.
        PluginError: sparring-packed is not installed.
    """

    def load(folder: Path, functions: ProgramLibrary) -> Any:
        call = torch._inductor.aoti_load_package(str(folder / PROGRAM))
        if not (folder / _PARAMETERS).exists():
            return call
        return _VersionedCalls(folder, functions, call)

    made: Program = packed().Program(
        bundle, served, "torch", lambda folder: load_library(folder / "lib").functions, load
    )
    return made


class _VersionedCalls:
    """Calls a program with the number of the current version, its parameters, and the inputs."""

    def __init__(self, folder: Path, functions: ProgramLibrary, call: Any) -> None:
        self._functions, self._program = functions, call
        self._handle = (folder / _BINDING).read_text().splitlines()[0]
        self._newest: tuple[int, list[Tensor]] = (0, [])

    def __call__(self, *inputs: Any) -> Any:
        with self._functions.hold_version(self._handle) as version:
            known, parameters = self._newest
            if known != version:
                parameters = [_tensor(each) for each in self._functions.parameters(version)]
                self._newest = (version, parameters)
            return self._program(torch.tensor(version), parameters, *inputs)


def _tensor(parameter: Any) -> Tensor:
    dtype = _DTYPES[parameter.dtype]
    if not parameter.data.size:
        return torch.empty(parameter.shape, dtype=dtype)
    return torch.from_numpy(parameter.data).view(dtype).view(parameter.shape)
