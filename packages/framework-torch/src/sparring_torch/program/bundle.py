"""Loads bundles, the folders of exported programs, in Python."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sparring_torch.program.library import load_library, packed

if TYPE_CHECKING:
    from sparring_packed import Program

__all__ = ["PROGRAM", "load_program"]

PROGRAM = "program.pt2"


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

    def load(folder: Path) -> Any:
        return torch._inductor.aoti_load_package(str(folder / PROGRAM))

    made: Program = packed().Program(
        bundle, served, "torch", lambda folder: load_library(folder / "lib").functions, load
    )
    return made
