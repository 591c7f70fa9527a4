"""Updates rows with an optax optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optax

from sparring.adapter import TableState, TableUpdate, collect_open_storages, set_states
from sparring.errors import InvalidArgumentError
from sparring_jax.optax_rows import OptaxRows
from sparring_jax.tables import Tables

__all__ = ["NativeUpdater"]


class NativeUpdater:
    """Implements `Optimizer` for optax.

    Args:
        tables: the tables to update.
        native: the optax optimizer.
        name: see `Optimizer`.
    """

    def __init__(
        self, tables: Tables, native: optax.GradientTransformation, name: str | None
    ) -> None:
        self._container = container = tables.container
        layouts: dict[tuple[int, str], OptaxRows] = {}
        self._rows: dict[str, OptaxRows] = {}
        for table in tables.table_names:
            config = container.tables[table]
            # If the columns of the table are sharded, the optimizer updates one block of them.
            width = config.dim // container.layout(table).num_blocks
            layout = width, config.computing_dtype.name
            if layout not in layouts:
                layouts[layout] = OptaxRows(native, *layout, name)
            self._rows[table] = layouts[layout]
        states = {
            table: TableState(
                rows.state_method, rows.initial_row(container.tables[table].dim), rows.why_coupled
            )
            for table, rows in self._rows.items()
        }
        set_states(container.state, states, collect_open_storages([tables]), "this optax optimizer")
        self._scalars = {table: rows.fresh_scalars for table, rows in self._rows.items()}

    def step(self) -> None:
        """Applies the gradients that were accumulated since the last step."""
        self._container.apply(self._update)

    def _update(self, updates: Sequence[TableUpdate]) -> None:
        for update in updates:
            table = update.table.name
            if table not in self._rows:
                raise InvalidArgumentError(
                    f"table {table!r} has gradients, but this Optimizer updates {', '.join(self._rows)}; "
                    "create one Tables with all trained tables",
                    table=table,
                )
            rows, self._scalars[table] = self._rows[table].step(
                update.rows, update.gradients, self._container.counters.steps, self._scalars[table]
            )
            update.rows[...] = rows

    def state_tree(self) -> Any:
        """Returns table → state that belongs to the table as a whole."""
        return dict(self._scalars)

    def set_state_tree(self, tree: Any) -> None:
        """Restores the result of `state_tree`."""
        self._scalars = dict(tree)
