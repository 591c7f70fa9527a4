"""Requirements of models for their tables, and settings of tables that every adapter applies."""

from __future__ import annotations

import pytest

from sparring.adapter.model_shapes import check_factors
from sparring.contracts.tables.admission import Frequency
from sparring.contracts.tables.expiry import Expiry
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring.engine.tables.group import shared_settings
from sparring.errors import InvalidArgumentError


@pytest.mark.parametrize(
    "items",
    [TableConfig("items", 4), TableConfig("items", 3, "float16"), TableConfig("items", 1)],
    ids=["other dim", "other dtype", "no vector"],
)
def test_factors_must_match(items: TableConfig) -> None:
    users = TableConfig("users", 1 if items.dim == 1 else 3)
    with pytest.raises(InvalidArgumentError, match=f"found {users.dim} float32 and {items.dim}"):
        check_factors(users, items)
    check_factors(TableConfig("users", 2), TableConfig("items", 2))


def test_every_adapter_applies_the_shared_settings_of_tables() -> None:
    settings = {
        "initializer": Uniform(-1.0, 1.0),
        "admission": Frequency(3),
        "seed": 7,
        "placement": "replicated",
        "expire": Expiry(after_steps=9),
    }
    assert shared_settings(TableConfig("one", 4, **settings)) == settings  # type: ignore[arg-type]
