"""Storages with one bug each, and the standard test that must catch it."""

from . import (
    bounding,
    finding,
    ownership,
    refusing,
    removing,
    scanning,
    threading,
    writing,
)
from .registry import BREAKS

__all__ = [
    "BREAKS",
    "bounding",
    "finding",
    "ownership",
    "refusing",
    "removing",
    "scanning",
    "threading",
    "writing",
]
