"""A trainer that has published rows to a table in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparring.storage.memory import MemoryStorage

from .publishing import TABLE, Trainer


@pytest.fixture
def backend() -> MemoryStorage:
    return MemoryStorage(TABLE)


@pytest.fixture
def trainer(backend: MemoryStorage, tmp_path: Path) -> Trainer:
    """Has published version 1 of 100 rows."""
    made = Trainer(backend, tmp_path)
    made.write(np.arange(100), 1)
    assert made.publish() == -1
    return made
