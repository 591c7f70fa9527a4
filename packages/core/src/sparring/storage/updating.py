"""Update methods on one storage, without a step around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparring import _native, kernels
from sparring.errors import InvalidArgumentError, NonFiniteGradientError
from sparring.storage.arguments import as_array
from sparring.storage.contract import Evicted, Keys, Storage
from sparring.storage.watching import Write
from sparring.table import TableConfig

if TYPE_CHECKING:
    from sparring.updates import MethodChoice

__all__ = ["fused_evicted", "update_storage"]


def update_storage(
    storage: Storage, keys: Keys, gradients: npt.ArrayLike, choice: MethodChoice, write: Write
) -> int:
    """As `Storage.update`; `keys` have been checked."""
    from sparring.updates import NativeMethod

    table, method = storage.table, choice.method
    values = np.ascontiguousarray(as_array(gradients, f"gradients for table {table.name!r}"))
    if values.shape != (len(keys), table.dim) or values.dtype != table.computing_dtype:
        raise InvalidArgumentError(
            f"gradients for table {table.name!r}: must be {(len(keys), table.dim)} "
            f"{table.computing_dtype}, found {values.shape} {values.dtype}",
            table=table.name,
        )
    if not isinstance(method, NativeMethod):
        raise InvalidArgumentError(
            f"update of table {table.name!r}: method {method.name!r} is none of sparring's own; "
            "run it in a step, by StepContainer.apply_methods",
            table=table.name,
        )
    width = method.state_width(table.dim)
    if table.has_other_state(table.with_state(width, method.name)):
        whose = f" of {table.state_method}" if table.state_method else ""
        raise InvalidArgumentError(
            f"update of table {table.name!r}: method {method.name!r} keeps {width} elements of "
            f"state for a row, the table has {table.state_width}{whose}; open it for "
            f"TableConfig.with_state({width}, {method.name!r}), or convert it: sparring convert "
            "--help",
            table=table.name,
        )
    if not len(keys):
        return 0
    view = _native.TableView(table.dtype, kernels.initializer_spec(table))
    view.attach(storage.__sparring_storage__(), table.state_width)
    spec = method.spec(table.dtype, table.dim, choice.hyper, choice.step)
    state = method.initial_state(table.dim, choice.hyper, table.computing_dtype)
    sources = _native.key_gradients(view, keys, values)
    step = _native.FusedStep([(view, spec, state, None, [sources])], choice.step)
    if step.doubtful():
        raise NonFiniteGradientError(
            f"gradients for table {table.name!r} hold NaN or infinity; no row was changed",
            table=table.name,
            step=choice.step,
        )
    ((updated, _, _, num_evicted),) = step.apply()
    if num_evicted:
        write.note_evicted(fused_evicted(step, 0, table))
    return updated


def fused_evicted(step: Any, place: int, table: TableConfig) -> Evicted:
    """What left the table at `place` of a native `FusedStep` that was applied."""
    keys, rows, scores = step.evicted(place)
    return Evicted(keys, rows.view(table.numpy_dtype), scores)
