"""A storage backend of sparring: a hash table with the HierarchicalKV design, on CPU and GPU.

``sparring.open_storage("hkv", table)`` opens a table that grows,
``sparring.open_storage("hkv", table, capacity=1_000_000, policy="lru")`` opens one that evicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_hkv.backend import HkvStorage
    from sparring_hkv.options import HkvOptions

__all__ = ["HkvOptions", "HkvStorage"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Imported on demand, so that importing the plugin module does not load the native library.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sparring_hkv import backend

    return getattr(backend, name)
