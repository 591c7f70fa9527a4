"""A block of a table's columns, which is stored as a narrower table.

    row of the table    embedding 0 … dim      state 0: dim columns   state 1: dim columns
    row of the block    columns begin … end    the same columns       the same columns

The state can be split if it consists of arrays of `dim` elements, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sparring.contracts.storage.results import Rows
from sparring.contracts.tables.table import TableConfig

__all__ = ["ColumnBlock"]


@dataclass(frozen=True, slots=True)
class ColumnBlock:
    """A half-open range of embedding columns.

    Args:
        begin: the first column.
        end: the column after the last.
    """

    begin: int
    end: int

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.end - self.begin

    def contains(self, other: ColumnBlock) -> bool:
        """Whether this block contains all columns of `other`."""
        return self.begin <= other.begin and other.end <= self.end

    @staticmethod
    def divides_state(table: TableConfig) -> bool:
        """Whether the rows of a table, with their optimizer state, can be split by columns."""
        # The elements of an int8 row share a scale.
        return table.dtype != "int8" and table.state_width % table.dim == 0

    def table_of(self, table: TableConfig) -> TableConfig:
        """Returns the table of this block, with the same name.

        It has no state if the table's state cannot be split by columns.
        """
        parts = table.state_width // table.dim if self.divides_state(table) else 0
        method = table.state_method if parts or not table.state_width else ""
        return replace(table, dim=self.width, state_width=parts * self.width, state_method=method)

    def cut_state(self, table: TableConfig, state: Rows) -> Rows:
        """Copies the part of the optimizer state that belongs to these columns.

        Args:
            table: a table whose state can be split by columns.
            state: ``(n, state_width)``.

        Returns:
            ``(n, state_width of the block)``.
        """
        parts = table.state_width // table.dim
        divided = state.reshape(len(state), parts, table.dim)[:, :, self.begin : self.end]
        return np.ascontiguousarray(divided).reshape(len(state), parts * self.width)

    def cut(self, table: TableConfig, rows: Rows) -> Rows:
        """Copies the rows of this block from rows of the table.

        Args:
            table: the layout of `rows`.
            rows: ``(n, width)`` of the table's dtype, C-contiguous.

        Returns:
            ``(n, width)`` rows of `table_of`.
        """
        own = self.table_of(table)
        cut = np.zeros((len(rows), own.width), own.numpy_dtype)
        own.embeddings(cut)[...] = table.embeddings(rows)[:, self.begin : self.end]
        if own.state_width:
            own.state(cut)[...] = self.cut_state(table, np.asarray(table.state(rows)))
        return cut

    def put(self, table: TableConfig, rows: Rows, block_rows: Rows) -> None:
        """Writes rows of this block into rows of the table.

        Args:
            table: the layout of `rows`.
            rows: ``(n, width)`` of the table's dtype, C-contiguous; changed in place.
            block_rows: ``(n, width)`` rows of `table_of`, C-contiguous.
        """
        own = self.table_of(table)
        table.embeddings(rows)[:, self.begin : self.end] = own.embeddings(block_rows)
        state, part = table.state(rows), own.state(block_rows)
        for number in range(own.state_width // self.width):
            at = number * table.dim
            state[:, at + self.begin : at + self.end] = part[
                :, number * self.width : (number + 1) * self.width
            ]
