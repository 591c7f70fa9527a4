"""Storages with one bug each, and the standard test that must catch it."""

from . import (
    bordering,
    bounding,
    closing,
    finding,
    ownership,
    refusing,
    removing,
    scanning,
    threading,
    updating,
    writing,
)
from .registry import BREAKS

__all__ = [
    "BREAKS",
    "bordering",
    "bounding",
    "closing",
    "finding",
    "ownership",
    "refusing",
    "removing",
    "scanning",
    "threading",
    "updating",
    "writing",
]
