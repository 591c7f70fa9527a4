"""Registers the ops when TensorFlow is imported, so that a SavedModel can be loaded.

`import sparring_tf` may come before or after `import tensorflow`, and must not import TensorFlow itself,
because listing plugins also imports this package.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from sparring.errors import SparringError
from sparring_tf.versions import check_tensorflow

__all__ = ["register_with_tensorflow"]

_TENSORFLOW = "tensorflow"


def register_with_tensorflow() -> None:
    """Registers the ops now, or when TensorFlow is imported."""
    if _TENSORFLOW in sys.modules:
        _register()
    elif not any(isinstance(each, _Watch) for each in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


def _register() -> None:
    try:
        check_tensorflow()
        from sparring_tf.op_library import ops

        ops()
    except SparringError as error:
        # Raised again when a name of the package is used. TensorFlow itself still works.
        warnings.warn(f"{error}; models with tables of sparring cannot be loaded", stacklevel=3)


class _Watch(MetaPathFinder):
    """Delegates the import of TensorFlow to the other finders, and registers the ops after it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _TENSORFLOW:
            return None
        others = (each for each in list(sys.meta_path) if each is not self)
        specs = (each.find_spec(name, path, target) for each in others)
        spec = next((each for each in specs if each is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                _register()

            loader.exec_module = exec_module
        return spec
