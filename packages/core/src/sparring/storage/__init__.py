"""Storages: the contract, the oracle in plain Python, and the way in and out of native code."""

from sparring.storage.background import Background
from sparring.storage.contract import (
    Capabilities,
    Columns,
    Evicted,
    FindResult,
    Keys,
    Rows,
    ScanChunk,
    Scores,
    Storage,
)
from sparring.storage.opening import open_storage

__all__ = [
    "Background",
    "Capabilities",
    "Columns",
    "Evicted",
    "FindResult",
    "Keys",
    "Rows",
    "ScanChunk",
    "Scores",
    "Storage",
    "open_storage",
]
