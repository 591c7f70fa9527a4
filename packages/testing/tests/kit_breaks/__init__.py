"""Storages with one bug each, and the standard test that must catch it."""

from . import (
    border,
    bounded,
    lifecycle,
    ownership,
    reads,
    refusal,
    removal,
    row_handles,
    scans,
    threads,
    updates,
    writes,
)
from .registry import BREAKS

__all__ = [
    "BREAKS",
    "border",
    "bounded",
    "lifecycle",
    "ownership",
    "reads",
    "refusal",
    "removal",
    "row_handles",
    "scans",
    "threads",
    "updates",
    "writes",
]
