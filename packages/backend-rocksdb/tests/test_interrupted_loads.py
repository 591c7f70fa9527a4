"""A process that is killed while it loads a snapshot leaves a table that cannot be trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparring_testing.faults.interrupted_load import check_interrupted_load


def options_of(stack: str, folder: Path) -> tuple[str, dict[str, Any]]:
    rocksdb = {"path": str(folder), "write_buffer_bytes": 1 << 16}
    if stack == "rocksdb":
        return stack, rocksdb
    tiers = [{"backend": "memory"}, {"backend": "rocksdb", "options": rocksdb}]
    return "tiered", {"tiers": tiers}


@pytest.mark.parametrize("stack", ["rocksdb", pytest.param("tiered", marks=pytest.mark.slow)])
def test_a_killed_load_is_reported(stack: str, tmp_path: Path) -> None:
    backend, options = options_of(stack, tmp_path / "rows")
    check_interrupted_load(backend, options, str(tmp_path / "one" / "snapshot"))
