"""sparring: distributed, dynamic embedding tables for recommender systems."""

from sparring._loading import ensure_native

# Before anything else imports it: see _loading.
ensure_native()

from sparring.errors import SparringError  # noqa: E402
from sparring.initializers import (  # noqa: E402
    Constant,
    Initializer,
    Normal,
    TruncatedNormal,
    Uniform,
    Xavier,
    Zeros,
)
from sparring.plugins import make_plugin_manager  # noqa: E402
from sparring.resources import ResourceManager  # noqa: E402
from sparring.step import Step, StepContainer  # noqa: E402
from sparring.storage import (  # noqa: E402
    Capabilities,
    Columns,
    Evicted,
    FindResult,
    ScanChunk,
    Storage,
    open_storage,
)
from sparring.table import TableConfig  # noqa: E402

__version__ = "0.1.0"

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
