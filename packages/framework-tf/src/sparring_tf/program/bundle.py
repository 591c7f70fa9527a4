"""Bundles: folders of exported programs, loaded in Python."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from sparring_tf.program.library import import_packed, load_reader

if TYPE_CHECKING:
    from sparring_packed import Program

__all__ = ["PROGRAM", "SIGNATURE", "load_program"]

PROGRAM = "saved_model"
SIGNATURE = "signature.txt"


def load_program(bundle: str | os.PathLike[str], served: str | os.PathLike[str]) -> Program:
    """Loads an exported program and binds it to its tables.

    Args:
        bundle: the folder that `export_program` wrote.
        served: a serving snapshot, or a folder of serving snapshots, of which the newest is used.

    Raises:
        InvalidArgumentError: the folder is not a bundle of TensorFlow, or one of its files is damaged.
        ProgramError: the program was exported for other tables, or for another version of them.
        PluginError: sparring-packed is not installed.
    """

    def load(folder: Path, _functions: Any) -> Any:
        loaded = tf.saved_model.load(str(folder / PROGRAM))

        def call(*inputs: Any) -> Any:
            return loaded.call(*inputs)  # keeps the saved model alive, unlike its functions

        return call

    made: Program = import_packed().Program(
        bundle, served, "tensorflow", lambda _: load_reader(), load
    )
    return made
