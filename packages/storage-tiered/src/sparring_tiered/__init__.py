"""Stacks of storages, caches in front of a backend, and change notes for sparring.

``sparring.open_storage("tiered", table, tiers=[{"backend": "hkv", "budget_bytes": "1 GiB"}, "rocksdb"])``
opens a stack. With the option ``refresh`` it opens caches in front of a backend that a trainer in another
process writes to.

    options.py   options of a stack
    stack/       a stack of storages with the interface of a storage
    cache/       caches that follow a trainer's change notes
    changelog/   change notes, and the publisher in the trainer
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_tiered.cache.cached_storage import (
        AvailableRows,
        CacheCounters,
        CachedStorage,
        NotesProgress,
    )
    from sparring_tiered.changelog.change_note import ChangeNote, NotesBase
    from sparring_tiered.changelog.change_publisher import ChangePublisher
    from sparring_tiered.changelog.folder_log import FolderLog
    from sparring_tiered.changelog.open_log import open_change_log
    from sparring_tiered.options import RefreshOptions, TieredOptions, TierOptions
    from sparring_tiered.stack.tiered_storage import TieredStorage

__all__ = [
    "AvailableRows",
    "CacheCounters",
    "CachedStorage",
    "ChangeNote",
    "ChangePublisher",
    "FolderLog",
    "NotesBase",
    "NotesProgress",
    "RefreshOptions",
    "TierOptions",
    "TieredOptions",
    "TieredStorage",
    "open_change_log",
]

__version__ = "0.1.0"

_MODULES = {
    "AvailableRows": "cache.cached_storage",
    "CacheCounters": "cache.cached_storage",
    "CachedStorage": "cache.cached_storage",
    "ChangeNote": "changelog.change_note",
    "ChangePublisher": "changelog.change_publisher",
    "FolderLog": "changelog.folder_log",
    "NotesBase": "changelog.change_note",
    "NotesProgress": "cache.cached_storage",
    "RefreshOptions": "options",
    "TierOptions": "options",
    "TieredOptions": "options",
    "TieredStorage": "stack.tiered_storage",
    "open_change_log": "changelog.open_log",
}


def __getattr__(name: str) -> object:
    # On demand, so that importing the plugin module loads no native library.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"sparring_tiered.{_MODULES[name]}"), name)
