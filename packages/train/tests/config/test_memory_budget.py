"""The memory that all tables may use together, as set by configurations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparring.errors import ConfigError
from sparring_train.config.reading.loader import parse_config

CONFIG = """
data: {kind: table, path: ratings.csv, label: rating, categorical: [user, item], required: [user, item]}
model: {kind: matrix_factorization}
"""


Read = Callable[[str], int | None]


@pytest.fixture
def read() -> Read:
    return lambda value: parse_config(CONFIG, [f"tables.memory_bytes={value}"]).tables.memory_bytes


def test_a_configuration_accepts_numbers_and_text(read: Read) -> None:
    assert read("4 GiB") == 4 << 30
    assert read("1000") == 1000
    assert read("null") is None


@pytest.mark.parametrize("value", ["0", "4 Gigs", "true", "9999999 TiB", "0 GiB"])
def test_a_configuration_rejects_invalid_budgets(value: str, read: Read) -> None:
    with pytest.raises(ConfigError, match="memory_bytes"):
        read(value)
