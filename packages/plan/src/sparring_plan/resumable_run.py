"""Checks a configuration for jobs that a scheduler starts again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparring_cli import read_document

__all__ = ["check_saves"]


def check_saves(run: Path, overrides: Sequence[str]) -> None:
    """Checks that a run saves snapshots.

    Args:
        run: configuration of `sparring train`.
        overrides: ``dotted.key=value`` items.

    Raises:
        ConfigError: it saves none, so that a job that is started again would lose its rows.
    """
    document = read_document(run)
    for each in overrides:
        document.override(each)
    snapshots = document.value.get("snapshots")
    if not isinstance(snapshots, dict) or snapshots.get("url") is None:
        document.raise_problem(
            ("snapshots", "url"),
            "jobs that are started again load their rows from snapshots, but the run saves none; add "
            "snapshots.url=runs/NAME, on a volume or in an object store",
        )
