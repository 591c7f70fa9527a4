"""Table requirements of the models of `sparring train`, the same under every framework."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparring.contracts.table import TableConfig
from sparring.errors import InvalidArgumentError

__all__ = ["check_factors", "dot_product_dim", "dot_product_pairs"]


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


def dot_product_dim(tables: Sequence[TableConfig]) -> int:
    """The one dim of the tables of a DLRM.

    Raises:
        InvalidArgumentError: they differ in dim, or there are none.
    """
    dims = sorted({table.dim for table in tables})
    if len(dims) != 1:
        raise InvalidArgumentError(
            f"DLRM takes dot products, so all tables need one dim, found {dims}"
        )
    return dims[0]


def dot_product_pairs(num_vectors: int) -> npt.NDArray[np.int64]:
    """Where each pair of different vectors stands in the flattened matrix of all dot products.

    Returns:
        ``(num_vectors * (num_vectors - 1) / 2,)``: the places below the diagonal, row by row.
    """
    rows, columns = np.tril_indices(num_vectors, -1)
    return (rows * num_vectors + columns).astype(np.int64)
