"""Checks of the tables of `sparring train` models that are common to all frameworks."""

from __future__ import annotations

from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError

__all__ = ["check_factors"]


def check_factors(users: TableConfig, items: TableConfig) -> None:
    """Checks that two tables are suitable for a biased matrix factorization.

    Args:
        users: table of the users.
        items: table of the items.

    Raises:
        InvalidArgumentError: the tables differ in dim or dtype, or their dim is less than 2.
    """
    if users.dim != items.dim or users.dtype != items.dtype or users.dim < 2:
        raise InvalidArgumentError(
            "matrix factorization needs two tables with the same dtype and the same dim of at least 2 "
            f"(bias and vector), found {users.dim} {users.dtype} and {items.dim} {items.dtype}; set the "
            "same dim and dtype for both"
        )
