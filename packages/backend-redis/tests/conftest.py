"""Servers that the tests of a session share; each test has a separate prefix."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

_NUMBERS = count()


@pytest.fixture
def new_prefix() -> Callable[[], str]:
    """Returns a new prefix."""
    return lambda: f"test{next(_NUMBERS)}"
