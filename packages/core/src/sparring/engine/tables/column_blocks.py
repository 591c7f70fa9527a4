"""Tables that are sharded by columns: each block of columns is a separate entry, joined for the user.

    lookup      the same keys from the owners of each block ──► columns side by side ──► rows (u, dim)
    step        gradients by key (u, dim) ──► their columns to the owners of each block
                rows of this rank's blocks, concatenated ──► one update of the table

Exchanges, storages, saves and votes treat blocks like tables. Initial values and rounding are
functions of the key, the column and the table. Therefore they are computed for all columns of a row
and then cut. An update method must support separate updates of columns; `check_method` rejects
other methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.device.kernels import DeviceArray, Rounding
from sparring.contracts.storage.results import Keys, Rows
from sparring.contracts.storage.updates import MethodChoice
from sparring.engine.device_gradients import SummedByKey
from sparring.engine.resource_manager import ResourceManager, spread_non_finite
from sparring.engine.tables.entry import TableEntry
from sparring.engine.tables.tables import Tables
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring.exchange.messages import PullResult
from sparring.kernels import functions
from sparring.kernels.mixed_precision import to_stored_rows

__all__ = [
    "check_method",
    "expand_choices",
    "split_gradients",
    "fill_new_rows",
    "join_rows",
    "round_rows",
    "table_names",
]


def join_rows(entry: TableEntry, pulled: Sequence[PullResult]) -> PullResult:
    """Joins the rows of a table's blocks, which were pulled for the same keys.

    Args:
        entry: entry of the table.
        pulled: rows of each of its parts.

    Raises:
        InvalidArgumentError: only some blocks have a row for a key.
    """
    if len(pulled) == 1:
        return pulled[0]
    found = pulled[0].found
    for part, each in zip(entry.parts, pulled, strict=True):
        if not np.array_equal(each.found, found):
            raise _differing(entry, part)
    return PullResult(np.concatenate([each.rows for each in pulled], axis=1), found)


def _differing(entry: TableEntry, part: TableEntry) -> InvalidArgumentError:
    name = entry.config.name
    return InvalidArgumentError(
        f"table {name!r}: block {part.config.name!r} of its columns has rows of other keys than block "
        f"{entry.parts[0].config.name!r}, probably after a step that only some ranks wrote; restart all "
        "ranks from the last snapshot",
        table=name,
    )


def split_gradients(tables: Tables, summed: Mapping[str, SummedByKey]) -> dict[str, SummedByKey]:
    """Splits the gradients of tables that are sharded by columns, and returns gradients by entry.

    Args:
        tables: tables of this rank.
        summed: gradients by table, or by block if they were already exchanged.
    """
    divided = {name: each for name, each in summed.items() if name in tables.entries}
    for name in summed.keys() - divided.keys():
        keys, gradients = summed[name].keys, spread_non_finite(summed[name].gradients)
        for part in tables.parts_of(name):
            assert part.block is not None
            columns = part.block.columns
            own = np.ascontiguousarray(gradients[:, columns.begin : columns.end])
            before = divided.get(part.config.name)
            if before is None:
                divided[part.config.name] = SummedByKey(keys, own)
                continue
            both = ResourceManager.make_accumulator(part.config)
            both.add(before.keys, before.gradients)
            both.add(keys, own)
            divided[part.config.name] = SummedByKey(*both.take())
    return divided


def fill_new_rows(
    entry: TableEntry, rows: DeviceArray, keys: DeviceArray, found: DeviceArray, kernels: KernelSet
) -> None:
    """Fills rows of keys that were not found with their initial values.

    Args:
        entry: entry of the rows.
        rows: ``(n, width)`` of the table's dtype, or only embeddings; changed in place.
        keys: ``(n,)``
        found: ``(n,)``: rows with False are filled, including the entry's initial state if the rows
            contain state.
        kernels: kernels of the arrays.
    """
    config, initial = entry.config, entry.initial_state
    has_state = rows.shape[1] > config.embedding_width
    if initial is not None and has_state:
        initial = kernels.arrays.from_host(initial) if len(initial) else None
    else:
        initial = None
    if entry.block is None:
        kernels.initialize(rows, keys, found, config, initial)
        return
    new = np.flatnonzero(~np.asarray(found))
    if not len(new):
        return
    block = entry.block
    made = functions.initial_rows(keys[new], block.whole.config)
    fresh = np.zeros((len(new), rows.shape[1]), rows.dtype)
    fresh[:, : config.dim] = made[:, block.columns.begin : block.columns.end]
    if initial is not None:
        config.state(fresh)[...] = initial
    rows[new] = fresh


def round_rows(entry: TableEntry, keys: Keys, rows: Rows, step: int, kernels: KernelSet) -> Rows:
    """Converts computed rows to stored rows; narrow rows are rounded stochastically.

    Args:
        entry: entry of the rows.
        keys: ``(n,)``
        rows: ``(n, dim + state_width)`` of the computing dtype.
        step: step of the table, which seeds the rounding.
        kernels: kernels of the arrays.
    """
    config, rounding = entry.config, Rounding(keys, entry.initializer.rounding_seed, step)
    if entry.block is None or not config.is_narrow:
        whole_rows: Rows = to_stored_rows(kernels, config, rows, rounding)
        return whole_rows
    whole, columns = entry.block.whole.config, entry.block.columns
    values = np.zeros((len(rows), whole.dim), whole.computing_dtype)
    values[:, columns.begin : columns.end] = rows[:, : config.dim]
    rounded = np.empty((len(rows), whole.dim), whole.numpy_dtype)
    functions.encode(values, rounded, rounding)
    stored = np.zeros((len(rows), config.width), config.numpy_dtype)
    config.embeddings(stored)[...] = rounded[:, columns.begin : columns.end]
    config.state(stored)[...] = rows[:, config.dim :]
    return stored


def table_names(tables: Tables, names: Iterable[str]) -> list[str]:
    """Returns the names of the tables of entries, without repeats."""
    return list(dict.fromkeys(tables.entry(name).table_name for name in names))


def expand_choices(tables: Tables, choices: Mapping[str, MethodChoice]) -> dict[str, MethodChoice]:
    """Returns the update method of each table and of its blocks.

    Raises:
        UnsupportedError: a method couples the columns of a table that is sharded by columns.
    """
    found = dict(choices)
    for name in choices.keys() & tables.declared.keys():
        entry = tables.declared[name]
        if not entry.has_column_blocks:
            continue
        check_method(entry, choices[name].method.name, choices[name].why_coupled)
        found |= {part.config.name: choices[name] for part in entry.parts}
    return found


def check_method(entry: TableEntry, name: str, why_coupled: str) -> None:
    """Rejects an update that needs whole rows if the table is sharded by columns.

    Args:
        entry: entry of the table.
        name: name of the method or optimizer.
        why_coupled: reason why it needs whole rows; empty if it does not.

    Raises:
        UnsupportedError: the update needs whole rows. The message contains the alternatives.
    """
    if why_coupled and entry.has_column_blocks:
        table = entry.config.name
        raise UnsupportedError(
            f"table {table!r} is sharded {entry.layout.kind}, and {name} cannot update blocks of columns "
            f"separately: {why_coupled}. Choose an element-wise method such as adagrad or adam, or a "
            "sharding kind that does not split rows: row_wise, table_wise or table_row_wise",
            table=table,
            method=name,
        )
