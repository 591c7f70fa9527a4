"""Packs rows of tables into one tensor of bytes, for a `state_dict`, a copy or a pickle.

::

    ┌────────────────┬────────────────┬──────────────────────┬────────┬────────┬─────
    │ length, uint64 │ digest, uint64 │ header, JSON, spaces │ array  │ array  │ …
    └────────────────┴────────────────┴──────────────────────┴────────┴────────┴─────
    0                8                16                     16 + length         each at a multiple of 8

The length is the size of the header; the digest is the xxh3-64 of all bytes from 16 on.

The rows are a uint8 tensor, because safetensors supports only tensors, and
``torch.load(weights_only=True)`` supports no classes. Arrays of a table: `keys` ``(n)`` int64, `rows`
``(n, row bytes)`` uint8, `scores` ``(n)`` uint64, `state` of a new row, `admission`: counts of its
filter, `visit_keys` and `visit_steps` of rows with a TTL.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

from sparring import StepContainer, TableDescription
from sparring.adapter import begin_load, end_load, restore
from sparring.contracts import TableConfig
from sparring.errors import CapacityError, DataError, InvalidArgumentError, UnsupportedError

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
"""Offset of the header."""
_DTYPES = {
    "keys": "<i8",
    "rows": "<u1",
    "scores": "<u8",
    "admission": "<u1",
    "visit_keys": "<i8",
    "visit_steps": "<i8",
}
"""Dtypes of arrays; `state` has the table's computing dtype."""


class RowsTensor(Tensor):
    """Rows of a module in a `state_dict`: a uint8 tensor with special treatment in two places.

    - Other modules of the same `state_dict` find here which tables it already contains.
    - `torch.distributed.checkpoint` loads into tensors of the saved size, but the tensor of a new model
      is smaller. Therefore this tensor is saved as a value, which loading replaces as a whole.

    Arithmetic raises, because averages of two states have no rows.
    """

    number: int = 0
    """Number of this entry in its `state_dict`."""
    holds: Mapping[tuple[int, str], int] = {}
    """(id of the container, table name) → number of rows in this tensor."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        is_copied_to = func.__name__ == "copy_" and isinstance(args[0], RowsTensor)
        if is_copied_to or func.__name__.strip("_").removeprefix("foreach_") in _ARITHMETIC:
            _reject_arithmetic(func.__name__)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __create_write_items__(self, name: str, _: object) -> Any:
        from torch.distributed.checkpoint.planner_helpers import _create_write_items

        return _create_write_items(name, _Whole())

    def new_empty(self, *arguments: Any, **options: Any) -> Any:
        # Called by `torch.distributed.checkpoint.async_save` to copy the tensor.
        return super().new_empty(*arguments, **options).as_subclass(RowsTensor)

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain: Any = self.as_subclass(Tensor)
        return plain.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> RowsTensor:
        return self.clone().as_subclass(RowsTensor)


_ARITHMETIC = frozenset(
    ["mul", "rmul", "imul", "add", "radd", "iadd", "sub", "rsub", "isub", "div", "truediv", "lerp"]
)


def _reject_arithmetic(operation: str) -> NoReturn:
    raise UnsupportedError(
        f"{operation} on the rows of a state_dict, which are bytes: averages of two states have no rows; "
        "use torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)), "
        "whose rows are averaged, or skip rows in `with sparring_torch.without_rows():`",
        operation=operation,
    )


class _Whole:
    """A value that is not a tensor."""


@dataclass(frozen=True, slots=True)
class PackedTable:
    """Description of a table and, unless its rows are elsewhere, its arrays."""

    described: dict[str, Any]
    arrays: Mapping[str, Sequence[npt.NDArray[Any]]]
    """Chunks of each array, in order."""

    @property
    def num_rows(self) -> int:
        return sum(map(len, self.arrays.get("keys", ())))

    def array(self, name: str) -> npt.NDArray[Any]:
        """Returns an array that has one chunk."""
        return self.arrays[name][0]


def pack(header: Mapping[str, Any], tables: Mapping[str, PackedTable]) -> RowsTensor:
    """Packs `header` and `tables` into a tensor for `unpack`."""
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
    """Returns header and tables of a tensor from `pack`; arrays are views of it if possible.

    Args:
        packed: the tensor, which may come from an untrusted file.
        place: name of the tensor for messages.

    Raises:
        DataError: the tensor was not created by `pack`, or is damaged.
    """
    if not isinstance(packed, Tensor) or packed.dtype != torch.uint8 or packed.dim() != 1:
        found = getattr(packed, "dtype", type(packed).__name__)
        raise DataError(
            f"{place}: found {found}, expected saved rows of a module of sparring_torch, one tensor of "
            "torch.uint8; load a state_dict of such a model"
        )
    data = packed.detach().as_subclass(Tensor).cpu().contiguous().numpy()
    if data.ctypes.data % 8:
        data = data.copy()  # it may be mapped at an unaligned address
    try:
        length, digest = map(int, data[:_BEGIN].view("<u8"))
        if digest != xxhash.xxh3_64_intdigest(data[_BEGIN:].data):
            raise ValueError("the digest does not match")
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
            raise ValueError(f"array {name!r} is truncated")
        arrays[name] = [array.view(_DTYPES.get(name, computing))]
    if len(arrays["state"][0]) != described["state_width"]:
        raise ValueError("the state of a new row has a wrong width")
    return PackedTable(described, arrays)


def _config(described: Mapping[str, Any]) -> TableConfig:
    """Returns the configuration of a table with such rows."""
    found = {
        name: described[name] for name in ("name", "dim", "dtype", "state_width", "state_method")
    }
    return TableDescription(**found).config


def gather_table(
    container: StepContainer, table: str, *, are_rows_here: bool = True
) -> PackedTable:
    """Copies the rows of a table on this rank, with their state, their scores, and its filter.

    Args:
        container: the container of the table.
        table: name of the table.
        are_rows_here: False copies only the description, for rows that are stored elsewhere.
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
    scalars = entry.save_scalars()
    if scalars is not None:
        described["scalars"] = scalars
    initial = entry.initial_state
    if initial is None:  # no optimizer set it: there is no state, or an opened storage has it
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
        visits.seal(steps)  # includes writes since the last step
        visits.merge()
        if visits.is_complete:
            arrays |= {"visit_keys": [visits.keys], "visit_steps": [visits.steps]}
            described["visit_times"] = [*visits.times, (steps, container.state.clock())]
    return PackedTable(described, arrays)


def has_same_rows(container: StepContainer, table: str, saved: PackedTable) -> bool:
    """Returns whether a table on this rank has the saved rows, including their state."""
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
    """Adds the saved optimizer state to the layout of rows, if no optimizer has set it.

    Raises:
        InvalidArgumentError: the saved rows do not match the table, or have the state of another
            optimizer; nothing has changed.
    """
    config, found = container.tables[table], _config(saved.described)
    for name in ("dim", "dtype"):
        if getattr(config, name) != getattr(found, name):
            raise InvalidArgumentError(
                f"table {table!r}: the saved rows have {name} {getattr(found, name)!r}, expected "
                f"{getattr(config, name)!r}; nothing was loaded. Create the module as it was saved",
                table=table,
            )
    if found.state_method and not config.state_method:
        container.set_state(table, saved.array("state"), found.state_method)
    elif (found.state_method, found.state_width) != (config.state_method, config.state_width):
        remedy = (
            "Create the Optimizer with the class or method with which they were saved; or load before it "
            f"is created, and call container.drop_state({table!r}) if the state of another optimizer is "
            "stored"
        )
        if not found.state_method:
            remedy = (
                "Load before the Optimizer is created; to copy the rows of an averaged model and keep "
                "the state, call p.data.copy_(q.data) for the parameters p and q of both models"
            )
        raise InvalidArgumentError(
            f"table {table!r}: the saved rows have the state of "
            f"{found.state_method or 'no optimizer'}, but are updated by "
            f"{config.state_method or 'another'}; nothing was loaded. {remedy}",
            table=table,
        )


def restore_table(container: StepContainer, table: str, saved: PackedTable) -> None:
    """Replaces the rows of a table on this rank by saved rows.

    Raises:
        DataError: the saved rows are incomplete.
        InvalidArgumentError: see `set_state`, or the filter has other settings.
        CapacityError: the storage is too small for the rows and does not evict.
    """
    config = _config(saved.described)
    keys = saved.array("keys")
    sizes = {"rows": len(keys) * config.row_bytes, "scores": len(keys)}
    wrong = [name for name, size in sizes.items() if saved.array(name).size != size]
    if wrong or len(np.unique(keys)) != len(keys):
        raise DataError(
            f"load: the saved rows of table {table!r} are damaged: {wrong[0] if wrong else 'keys'} do "
            "not match the keys; load an older state_dict",
            table=table,
        )
    set_state(container, table, saved)
    entry = container.entry(table)
    storage = container.state.tables.open(
        entry
    )  # also after an interrupted load, which this repairs
    if not storage.capabilities.evicts and len(keys) > (storage.capacity or len(keys)):
        raise CapacityError(
            f"table {table!r}: found {len(keys):,} saved rows, but its storage has capacity for "
            f"{storage.capacity:,}; increase num_embeddings",
            table=table,
        )
    if entry.admission_filter is not None:
        entry.forget_admission()
        if "admission" in saved.arrays:
            entry.admission_filter.load(saved.array("admission").tobytes())
    if container.prefetches.unfinished:
        container.prefetches.note(table, None)  # prefetched rows are read again
    begin_load(storage, "a state_dict or a copy")
    rows = saved.array("rows").reshape(len(keys), config.row_bytes)
    restore(storage, keys, rows.view(config.numpy_dtype), saved.array("scores"))
    end_load(storage)
    entry.load_scalars(saved.described.get("scalars"))
    if entry.visits is not None and "visit_keys" in saved.arrays:
        times = [(int(step), float(time)) for step, time in saved.described["visit_times"]]
        entry.visits.replace(saved.array("visit_keys"), saved.array("visit_steps"), times)
    elif entry.visits is not None:
        entry.visits.forget()  # rows count as accessed in the next step
