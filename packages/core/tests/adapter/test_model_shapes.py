"""What models ask of their tables, and what of a table every adapter takes over."""

from __future__ import annotations

import numpy as np
import pytest

from sparring.adapter.model_shapes import check_factors, dot_product_dim, dot_product_pairs
from sparring.contracts.admission import Frequency
from sparring.contracts.initializers import Uniform
from sparring.contracts.table import TableConfig
from sparring.engine.table_group import shared_settings
from sparring.errors import InvalidArgumentError


def test_pairs_are_the_places_below_the_diagonal() -> None:
    products = np.arange(9).reshape(3, 3)  # of vectors 0, 1 and 2
    pairs = dot_product_pairs(3)
    assert pairs.dtype == np.int64
    assert products.ravel()[pairs].tolist() == [products[1, 0], products[2, 0], products[2, 1]]
    assert len(dot_product_pairs(1)) == 0


@pytest.mark.parametrize("dims", [[], [4, 8]])
def test_dot_products_need_tables_of_one_dim(dims: list[int]) -> None:
    tables = [TableConfig(f"table_{place}", dim) for place, dim in enumerate(dims)]
    with pytest.raises(InvalidArgumentError, match="need one dim"):
        dot_product_dim(tables)


def test_dot_products_are_of_the_dim_of_all_tables() -> None:
    assert dot_product_dim([TableConfig("one", 4), TableConfig("two", 4)]) == 4


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


def test_every_adapter_takes_over_what_tables_share() -> None:
    settings = {
        "initializer": Uniform(-1.0, 1.0),
        "admission": Frequency(3),
        "seed": 7,
        "placement": "replicated",
    }
    assert shared_settings(TableConfig("one", 4, **settings)) == settings  # type: ignore[arg-type]
