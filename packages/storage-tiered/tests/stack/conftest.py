"""A last tier that a test can break."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..faulty_storage import FaultyStorage
from .stacks import memory


@pytest.fixture
def last() -> Iterator[FaultyStorage]:
    made = FaultyStorage(memory())
    yield made
    made.breakage = None
