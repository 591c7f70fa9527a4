"""Rows of tables in one tensor of bytes, as they travel in a `state_dict`, in a copy or in a pickle.

::

    ┌────────────────┬────────────────┬──────────────────────┬────────┬────────┬─────
    │ length, uint64 │ digest, uint64 │ header, JSON, spaces │ array  │ array  │ …
    └────────────────┴────────────────┴──────────────────────┴────────┴────────┴─────
    0                8                16                     16 + length         each at a multiple of 8

The length is that of the header; the digest is the xxh3-64 of all bytes from 16 on.

A tensor of uint8, because safetensors takes nothing but tensors, and ``torch.load(weights_only=True)``
no classes. Arrays of a table: `keys` ``(n)`` int64, `rows` ``(n, row bytes)`` uint8, `scores` ``(n)``
uint64, `state` of a new row, `admission`: what its filter has counted, `visit_keys` and `visit_steps` of
rows that expire.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

from sparring import StepContainer, TableDescription
from sparring.adapter import begin_load, end_load, restore
from sparring.contracts import TableConfig
from sparring.errors import CapacityError, DataError, InvalidArgumentError

__all__ = [
    "PackedTable",
    "RowsTensor",
    "gather_table",
    "set_state",
    "has_same_rows",
    "pack",
    "restore_table",
    "unpack",
]

_BEGIN = 16
"""Of the header."""
_DTYPES = {
    "keys": "<i8",
    "rows": "<u1",
    "scores": "<u8",
    "admission": "<u1",
    "visit_keys": "<i8",
    "visit_steps": "<i8",
}
"""Of arrays; that of `state` is the table's computing dtype."""


class RowsTensor(Tensor):
    """Rows of a module in a `state_dict`: a plain tensor of uint8 for all but two callers.

    - Another module of the same `state_dict` finds here which tables travel already.
    - `torch.distributed.checkpoint` loads into tensors of the saved size, and the one of a fresh model is
      smaller. So it saves this one as a value, which is replaced as a whole.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    number: int = 0
    """Place among the entries of its `state_dict`."""
    holds: Mapping[tuple[int, str], int] = {}
    """Identity of the container and name of each table whose rows are here → how many."""

    def __create_write_items__(self, name: str, _: object) -> Any:
        from torch.distributed.checkpoint.planner_helpers import _create_write_items

        return _create_write_items(name, _Whole())

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain: Any = self.as_subclass(Tensor)
        return plain.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> RowsTensor:
        return self.clone().as_subclass(RowsTensor)


class _Whole:
    """A value of no tensor type."""


@dataclass(frozen=True, slots=True)
class PackedTable:
    """One table: the description of its rows and, unless they are elsewhere, its arrays."""

    described: dict[str, Any]
    arrays: Mapping[str, Sequence[npt.NDArray[Any]]]
    """Each in parts, one after the other."""

    @property
    def num_rows(self) -> int:
        return sum(map(len, self.arrays.get("keys", ())))

    def array(self, name: str) -> npt.NDArray[Any]:
        """One array as a whole."""
        return self.arrays[name][0]


def pack(header: Mapping[str, Any], tables: Mapping[str, PackedTable]) -> RowsTensor:
    """A tensor of `header` and `tables`; `unpack` gives them back."""
    begin, parts = 0, []
    described = {}
    for name, table in tables.items():
        places = {}
        for array, chunks in table.arrays.items():
            num_bytes = sum(each.nbytes for each in chunks)
            places[array] = [begin, num_bytes]
            parts.append((begin, chunks))
            begin += -(-num_bytes // 8) * 8
        described[name] = {**table.described, "arrays": places}
    text = json.dumps({**header, "tables": described}).encode()
    text += b" " * (-len(text) % 8)
    tensor = torch.zeros(_BEGIN + len(text) + begin, dtype=torch.uint8, device="cpu")
    data = tensor.numpy()
    data[_BEGIN : _BEGIN + len(text)] = np.frombuffer(text, np.uint8)
    for place, chunks in parts:
        end = _BEGIN + len(text) + place
        for each in chunks:
            data[end : end + each.nbytes] = np.ascontiguousarray(each).reshape(-1).view(np.uint8)
            end += each.nbytes
    head = [len(text), xxhash.xxh3_64_intdigest(data[_BEGIN:].data)]
    data[:_BEGIN] = np.asarray(head, "<u8").view(np.uint8)
    return tensor.as_subclass(RowsTensor)


def unpack(packed: object, place: str) -> tuple[dict[str, Any], dict[str, PackedTable]]:
    """Header and tables of a tensor that `pack` made; arrays are views of it where it is in memory.

    Args:
        packed: the tensor, from a file that anyone may have written.
        place: where it was, for messages.

    Raises:
        DataError: it is none of these.
    """
    if not isinstance(packed, Tensor) or packed.dtype != torch.uint8 or packed.dim() != 1:
        found = getattr(packed, "dtype", type(packed).__name__)
        raise DataError(
            f"{place}: expected rows that a module of sparring_torch saved, one tensor of torch.uint8, "
            f"found {found}; load a state_dict that such a model gave"
        )
    data = packed.detach().as_subclass(Tensor).cpu().contiguous().numpy()
    if data.ctypes.data % 8:
        data = data.copy()  # a file of others may have been mapped at any byte
    try:
        length, digest = map(int, data[:_BEGIN].view("<u8"))
        if digest != xxhash.xxh3_64_intdigest(data[_BEGIN:].data):
            raise ValueError("their digest is another")
        text = data[_BEGIN : _BEGIN + length].tobytes()
        header = json.loads(text)
        if len(text) != length or header["format"] != 1:
            raise ValueError(f"format {header.get('format')!r}")
        tables = {
            name: _table(table, data[_BEGIN + length :]) for name, table in header["tables"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, InvalidArgumentError) as error:
        raise DataError(
            f"{place}: the saved rows are damaged, or of a later release ({error}); load an older "
            "state_dict, or upgrade sparring-torch"
        ) from error
    return header, tables


def _table(described: dict[str, Any], data: npt.NDArray[np.uint8]) -> PackedTable:
    arrays = {}
    computing = _config(described).computing_dtype
    for name, (begin, num_bytes) in described["arrays"].items():
        array = data[begin : begin + num_bytes]
        if len(array) != num_bytes:
            raise ValueError("it ends early")
        arrays[name] = [array.view(_DTYPES.get(name, computing))]
    if len(arrays["state"][0]) != described["state_width"]:
        raise ValueError("the state of a new row is not whole")
    return PackedTable(described, arrays)


def _config(described: Mapping[str, Any]) -> TableConfig:
    """A table with such rows."""
    found = {
        name: described[name] for name in ("name", "dim", "dtype", "state_width", "state_method")
    }
    return TableDescription(**found).config


def gather_table(
    container: StepContainer, table: str, *, are_rows_here: bool = True
) -> PackedTable:
    """Copies the rows of a table on this rank, with their state, their scores, and its filter.

    Args:
        container: where the table lives.
        table: its name.
        are_rows_here: otherwise the description alone, for rows that are stored elsewhere.
    """
    config, entry = container.tables[table], container.entry(table)
    known = TableDescription.of(config)
    described = {
        "name": table,
        "dim": known.dim,
        "dtype": known.dtype,
        "state_width": known.state_width,
        "state_method": known.state_method,
        **known.extra,
    }
    initial = entry.initial_state
    if initial is None:  # no optimizer has said so: there is no state, or that of an open storage
        initial = np.zeros(config.state_width, config.computing_dtype)
    arrays: dict[str, list[npt.NDArray[Any]]] = {"state": [initial]}
    if not are_rows_here:
        return PackedTable(described, arrays)
    chunks = list(container.storage(table).scan()) if container.num_rows(table) else []
    arrays["keys"] = [each.keys for each in chunks]
    arrays["rows"] = [np.ascontiguousarray(each.rows).view(np.uint8) for each in chunks]
    arrays["scores"] = [each.scores for each in chunks]
    if entry.admission_filter is not None:
        arrays["admission"] = [np.frombuffer(entry.admission_filter.save(), np.uint8)]
    visits, steps = entry.visits, container.counters.steps
    if visits is not None:
        visits.seal(steps)  # of writes since the last step
        visits.merge()
        if visits.is_complete:
            arrays |= {"visit_keys": [visits.keys], "visit_steps": [visits.steps]}
            described["visit_times"] = [*visits.times, (steps, container.state.clock())]
    return PackedTable(described, arrays)


def has_same_rows(container: StepContainer, table: str, saved: PackedTable) -> bool:
    """Whether a table on this rank has the rows that `gather_table` gave, with their state."""
    now = gather_table(container, table).arrays
    keys, rows = np.concatenate(now["keys"]), np.concatenate(now["rows"])
    if len(keys) != saved.num_rows or rows.size != saved.array("rows").size:
        return False
    theirs = saved.array("keys")
    order, their_order = np.argsort(keys), np.argsort(theirs)
    their_rows = saved.array("rows").reshape(rows.shape)[their_order]
    return np.array_equal(keys[order], theirs[their_order]) and np.array_equal(
        rows[order], their_rows
    )


def set_state(container: StepContainer, table: str, saved: PackedTable) -> None:
    """Makes room for the saved state behind embeddings, where no optimizer has done so.

    Raises:
        InvalidArgumentError: the saved rows are others than the table's, or have the state of another
            optimizer; nothing has changed.
    """
    config, found = container.tables[table], _config(saved.described)
    for name in ("dim", "dtype"):
        if getattr(config, name) != getattr(found, name):
            raise InvalidArgumentError(
                f"table {table!r}: the saved rows have {name} {getattr(found, name)!r}, the table of "
                f"this model {getattr(config, name)!r}; nothing was loaded. Make the module as it was",
                table=table,
            )
    if found.state_method and not config.state_method:
        container.set_state(table, saved.array("state"), found.state_method)
    elif (found.state_method, found.state_width) != (config.state_method, config.state_width):
        raise InvalidArgumentError(
            f"table {table!r}: the saved rows have the state of {found.state_method or 'no optimizer'}, "
            f"and are updated by {config.state_method or 'another'}; nothing was loaded. Make the "
            "Optimizer with the class or method that they were saved with; or load before it is made, "
            f"and call container.drop_state({table!r}) where the state of another is stored",
            table=table,
        )


def restore_table(container: StepContainer, table: str, saved: PackedTable) -> None:
    """Replaces the rows of a table on this rank by those that `gather_table` gave.

    Raises:
        DataError: they are not whole.
        InvalidArgumentError: as `give_state`, or of a filter that was declared otherwise.
        CapacityError: the storage has no room for them, and may not evict.
    """
    config = _config(saved.described)
    keys = saved.array("keys")
    sizes = {"rows": len(keys) * config.row_bytes, "scores": len(keys)}
    wrong = [name for name, size in sizes.items() if saved.array(name).size != size]
    if wrong or len(np.unique(keys)) != len(keys):
        raise DataError(
            f"the saved rows of table {table!r} are damaged: "
            f"{wrong[0] if wrong else 'keys'} and keys do not go together; load an older state_dict",
            table=table,
        )
    set_state(container, table, saved)
    entry = container.entry(table)
    storage = container.state.tables.open(entry)  # a load mends one that holds a part
    if not storage.capabilities.evicts and len(keys) > (storage.capacity or len(keys)):
        raise CapacityError(
            f"table {table!r}: {len(keys):,} rows were saved, and its storage holds up to "
            f"{storage.capacity:,}; give it a larger num_embeddings",
            table=table,
        )
    if entry.admission_filter is not None:
        entry.forget_admission()
        if "admission" in saved.arrays:
            entry.admission_filter.load(saved.array("admission").tobytes())
    if container.prefetches.unfinished:
        container.prefetches.note(table, None)  # their rows are read again
    begin_load(storage, "a state_dict or a copy")
    rows = saved.array("rows").reshape(len(keys), config.row_bytes)
    restore(storage, keys, rows.view(config.numpy_dtype), saved.array("scores"))
    end_load(storage)
    if entry.visits is not None and "visit_keys" in saved.arrays:
        times = [(int(step), float(time)) for step, time in saved.described["visit_times"]]
        entry.visits.replace(saved.array("visit_keys"), saved.array("visit_steps"), times)
    elif entry.visits is not None:
        entry.visits.forget()  # rows count as visited in the next step
