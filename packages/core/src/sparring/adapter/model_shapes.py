"""Table requirements of the models of `sparring train`, the same under every framework."""

from __future__ import annotations

from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError

__all__ = ["check_factors"]


def check_factors(users: TableConfig, items: TableConfig) -> None:
    """Refuses tables that a biased matrix factorisation cannot multiply.

    Raises:
        InvalidArgumentError: they differ in dim or dtype, or have no room for a bias and a vector.
    """
    if users.dim != items.dim or users.dtype != items.dtype or users.dim < 2:
        raise InvalidArgumentError(
            "matrix factorisation needs two tables of one dtype and one dim of at least 2 "
            f"(bias and vector), found {users.dim} {users.dtype} and {items.dim} {items.dtype}"
        )
