"""sparring: distributed, dynamic embedding tables for recommender systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring._loading import native_failure

__version__ = "0.1.0"

# Before anything else imports the native library: see _loading.
_failure = native_failure()

if TYPE_CHECKING or _failure is None:
    from sparring.errors import SparringError
    from sparring.initializers import (
        Constant,
        Initializer,
        Normal,
        TruncatedNormal,
        Uniform,
        Xavier,
        Zeros,
    )
    from sparring.plugins import make_plugin_manager
    from sparring.resources import ResourceManager
    from sparring.step import Step, StepContainer
    from sparring.storage import (
        Capabilities,
        Columns,
        Evicted,
        FindResult,
        ScanChunk,
        Storage,
        open_storage,
    )
    from sparring.table import TableConfig
else:
    # `sparring doctor` says what is wrong, and pytest goes on where sparring is merely installed:
    # both import this package. Whoever asks for a part of it learns why there is none.
    def __getattr__(name: str) -> object:
        if name in __all__ or name == "_native":
            raise ImportError(f"{_failure}. `sparring doctor` says more")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Capabilities",
    "Columns",
    "Constant",
    "Evicted",
    "FindResult",
    "Initializer",
    "Normal",
    "ResourceManager",
    "ScanChunk",
    "SparringError",
    "Step",
    "StepContainer",
    "Storage",
    "TableConfig",
    "TruncatedNormal",
    "Uniform",
    "Xavier",
    "Zeros",
    "__version__",
    "make_plugin_manager",
    "open_storage",
]
