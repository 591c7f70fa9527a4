"""Bundles: the folder of an exported program, as Python reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import tensorflow as tf

from sparring.adapter import read_bundle
from sparring_tf.program.library import reading_library

__all__ = ["PROGRAM", "SIGNATURE", "Program", "load_program"]

PROGRAM = "saved_model"
SIGNATURE = "signature.txt"


class Program:
    """An exported program, and the tables that it reads. `load_program` makes it.

    Called with the inputs of the model, it returns what the model returns.
    """

    def __init__(self, bundle: Path, served: str, description: Mapping[str, Any]) -> None:
        self.description = description
        self._bundle = bundle
        self._library = reading_library()
        self._library.bind(bundle, served)
        try:
            self._loaded = tf.saved_model.load(str(bundle / PROGRAM))
        except BaseException:
            self._library.release(bundle)
            raise

    def __call__(self, *inputs: Any) -> Any:
        return self._loaded.call(*inputs)

    @property
    def version(self) -> tuple[str, int]:
        """Hash of the manifest of the tables that are read, and their step of training."""
        return self._library.version(self._bundle)

    def refresh(self) -> bool:
        """Takes the newest version of the tables; returns whether there was one.

        Raises:
            ProgramError: the program is bound to one version, or the new one is refused. The one
                before is read on.
        """
        return self._library.refresh(self._bundle)

    def close(self) -> None:
        """Closes the tables; the program cannot be called any more."""
        self._library.release(self._bundle)

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def load_program(bundle: str | os.PathLike[str], served: str | os.PathLike[str]) -> Program:
    """Loads an exported program and binds it to its tables.

    Args:
        bundle: the folder that `export_program` wrote.
        served: a serving snapshot, or a folder of them, of which the newest is taken.

    Raises:
        InvalidArgumentError: there is no bundle of TensorFlow, or a file of it is damaged.
        ProgramError: the program was exported for other tables, or for another version of them.
        PluginError: sparring-packed is not installed.
    """
    folder = Path(bundle).absolute()
    description = read_bundle(folder, "tensorflow")
    return Program(folder, os.fspath(served), description)
