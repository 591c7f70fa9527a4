"""Applies update methods to the rows of one storage, outside of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.storage.optional import Write, check_written, watched
from sparring.contracts.storage.results import EvictedRows, Keys, as_array, check_keys
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError, NonFiniteGradientError
from sparring.kernels import functions as kernels
from sparring.storage.native import get_capsule

if TYPE_CHECKING:
    from sparring.contracts.storage.updates import MethodChoice

__all__ = ["read_fused_evicted", "update_rows"]


def update_rows(
    storage: Storage, keys: npt.ArrayLike, gradients: npt.ArrayLike, choice: MethodChoice
) -> int:
    """Updates embeddings and optimizer state with an update method, and creates missing rows.

    Updates rows in place if the native handle supports it. Otherwise finds, updates and upserts them.

    Args:
        storage: Storage whose rows have the state of the method.
        keys: ``(n,)`` unique int64.
        gradients: ``(n, dim)`` in the table's computing dtype.
        choice: Built-in method, its hyper-parameters and the number of the step.

    Returns:
        The number of rows updated or created.

    Raises:
        InvalidArgumentError: A shape or dtype is wrong, keys repeat, or the state of the method does not
            fit the rows.
        NonFiniteGradientError: The gradients contain NaN or infinity; no row was changed.
        CapacityError: The storage is full, and its policy does not evict; no row was changed.

    Examples:
        >>> from sparring import TableConfig, open_storage, update_rows
        >>> from sparring.adapter import parse_hyper, resolve_method
        >>> from sparring.contracts import MethodChoice
        >>> method = resolve_method("sgd")
        >>> choice = MethodChoice(method, parse_hyper(method, {"lr": 0.5}), step=1)
        >>> with open_storage("memory", TableConfig("item", 2, initializer="zeros")) as storage:
        ...     num_rows = update_rows(storage, [7], np.float32([[1, 2]]), choice)
        ...     storage.find([7]).rows.tolist()
        [[-0.5, -1.0]]
    """
    storage._check_open()
    checked = check_keys(keys, storage.table.name, unique=storage.validate)
    check_written(storage.watcher, checked)
    with watched(storage.watcher, checked) as write:
        return _update(storage, checked, gradients, choice, write)


def _update(
    storage: Storage, keys: Keys, gradients: npt.ArrayLike, choice: MethodChoice, write: Write
) -> int:
    from sparring.updates.builtin import NativeMethod

    table, method = storage.table, choice.method
    values = np.ascontiguousarray(as_array(gradients, f"gradients for table {table.name!r}"))
    if values.shape != (len(keys), table.dim) or values.dtype != table.computing_dtype:
        raise InvalidArgumentError(
            f"gradients for table {table.name!r}: must be {(len(keys), table.dim)} "
            f"{table.computing_dtype}, found {values.shape} {values.dtype}; pass one gradient per key, "
            f"converted with gradients.astype({str(table.computing_dtype)!r})",
            table=table.name,
        )
    if not isinstance(method, NativeMethod):
        raise InvalidArgumentError(
            f"update of table {table.name!r}: method {method.name!r} is not built in; use it in a step, "
            "with StepContainer.apply_methods",
            table=table.name,
        )
    width = method.state_width(table.dim)
    if table.has_other_state(table.with_state(width, method.name)):
        whose = f" of {table.state_method}" if table.state_method else ""
        raise InvalidArgumentError(
            f"update of table {table.name!r}: method {method.name!r} requires {width} elements of "
            f"state per row, the table has {table.state_width}{whose}; open it for "
            f"TableConfig.with_state({width}, {method.name!r}), or convert it: sparring convert "
            "--help",
            table=table.name,
        )
    if not len(keys):
        return 0
    view = _native.TableView(table.dtype, kernels.initializer_spec(table))
    view.attach(get_capsule(storage), table.state_width)
    spec = method.spec(table.dtype, table.dim, choice.hyper, choice.step)
    state = method.initial_state(table.dim, choice.hyper, table.computing_dtype)
    sources = _native.key_gradients(view, keys, values)
    step = _native.FusedStep([(view, spec, state, None, [sources])], choice.step)
    if step.may_be_nonfinite():
        raise NonFiniteGradientError(
            f"gradients for table {table.name!r} contain NaN or infinity; no row was changed. Check the "
            "loss and the learning rate",
            table=table.name,
            step=choice.step,
        )
    ((updated, _, _, num_evicted),) = step.apply()
    if num_evicted:
        write.note_evicted(read_fused_evicted(step, 0, table))
    return updated


def read_fused_evicted(step: Any, place: int, table: TableConfig) -> EvictedRows:
    """Returns the rows that an applied native `FusedStep` evicted from its table number `place`."""
    keys, rows, scores = step.evicted(place)
    return EvictedRows(keys, rows.view(table.numpy_dtype), scores)
